"""Sends a connection's replies, at once or when the changes before them are durable.

Invariant: replies leave in order, never before all operations executed before them are durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from segstore.wire.protocol import gathered

if TYPE_CHECKING:
    import asyncio

    from segstore.server.durable import Gate, Gated
    from segstore.server.recording import RecordedConnection
    from segstore.wire import Buffer

SMALL_BYTES: Final = 16 * 1024
"""Replies up to this size are joined; larger replies are not copied."""


class HeldReplies:
    """The account of one peer's replies that wait until the changes before them are durable, sans I/O.

    Attributes:
        gate: reports durability.
        bytes: their total size; the owner subtracts the lists that the gate releases.
        is_stalled: whether reading from the peer is paused until the disk has caught up.
    """

    def __init__(self, gate: Gate, most_bytes: int) -> None:
        """most_bytes: above this size, the disk should catch up before more is executed."""
        self.gate = gate
        self.bytes = 0
        self.is_stalled = False
        self._most_bytes = most_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether the disk should catch up before more is executed for this peer."""
        return self.gate.full or self.bytes > self._most_bytes

    def hold(self, owner: Gated, out: list[Buffer], size: int) -> bool:
        """Holds replies unless all that was executed is durable; returns whether they are held."""
        gate = self.gate
        if gate.mark <= gate.committed and not self.bytes:
            return False
        gate.held.append((gate.mark, owner, out))
        self.bytes += size
        return True

    def stall(self, owner: Gated) -> None:
        """The owner's peer is not read until there is room."""
        self.is_stalled = True
        self.gate.stalled[owner] = None

    def go_on(self, owner: Gated) -> None:
        """Ends `stall`."""
        self.is_stalled = False
        self.gate.stalled.pop(owner, None)

    def drop(self, owner: Gated) -> None:
        """The peer gets no more replies; ends `stall`."""
        if self.bytes > SMALL_BYTES:  # few acknowledgements may stay until the next commit
            self.gate.forget(owner)
        self.bytes = 0
        self.go_on(owner)


class Output:
    """Writes the replies of one connection to its transport.

    Attributes:
        held: None if changes need not be durable.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        held: HeldReplies | None,
        recorded: RecordedConnection | None,
        high_bytes: int,
    ) -> None:
        """recorded: records what is written. high_bytes: size of the replies that may wait for the peer."""
        self.held = held
        self._recorded = recorded
        self._high_bytes = high_bytes
        self._unread_bytes = 0
        self.rewire(transport)

    def rewire(self, transport: asyncio.Transport) -> None:
        """Uses another transport from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=self._high_bytes)

    @property
    def held_bytes(self) -> int:
        """Size of all that waits for the peer or the disk."""
        size, held = self._transport.get_write_buffer_size(), self.held
        if held is not None and held.bytes > SMALL_BYTES:  # acknowledgements come and go: not worth an account
            size += held.bytes
        return size

    def write(self, out: list[Buffer], *, large: bool) -> None:
        """Writes replies in order. large: whether there may be large ones among them, which are not joined."""
        if len(out) > 1:
            out = gathered(out, SMALL_BYTES) if large else [b"".join(out)]
        if self._recorded is not None:
            self._recorded.sent(out)
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def filled(self) -> None:
        """The transport takes no more: the peer is to read first."""
        self._unread_bytes = self._transport.get_write_buffer_size()

    def has_progressed(self) -> bool:
        """Whether the peer has read more since the last call that said so, or since the output was full."""
        size = self._transport.get_write_buffer_size()
        if size >= self._unread_bytes:
            return False
        self._unread_bytes = size
        return True
