"""A relay between a socket's transport and its protocol, which applies toxics, for stores and taps alike.

Like TLS, it is a protocol to the transport and a transport to the protocol. It is inserted into a connection, new or
open, with the connection's first toxic, and stays until the connection is lost. Connections without toxics have no
relay, so they pay nothing; a proxy in front of the port would cost every connection two more sockets, hide the client's
address, and could not be added to open connections. Under TLS it sees the plain bytes.

Invariants: the relay calls the protocol as a transport does: `connection_lost` once and last, and only `pause_writing`
during the protocol's own calls; the socket is not read while more than `HIGH_BYTES` are in flight upstream; downstream,
the relay calls the protocol's `pause_writing` at the limit that it has set.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from segstore.server.net import end_by_reset
from segstore.server.toxics.pipe import Pipe, ToxicMark

if TYPE_CHECKING:
    from segstore.server.clock import Clock, TimerHandle
    from segstore.server.toxics.pipe import Content, ToxicStage

HIGH_BYTES: Final = 1024 * 1024
"""The socket is not read while more than this is in flight to the protocol."""


class RelayedProtocol(Protocol):
    """The protocol of a connection that accepts a relay. It is an `asyncio.BaseProtocol`.

    Attributes:
        transport: the socket's transport, or the relay; None after it is lost.
        is_full: whether writing is paused (`pause_writing`).
    """

    @property
    def transport(self) -> asyncio.Transport | None: ...

    @property
    def is_full(self) -> bool: ...

    def rewire(self, transport: asyncio.Transport) -> None:
        """Uses another transport from now on."""


class _Way:
    """One direction: its pipe, and the timer of its next piece.

    deliver: takes a piece; returns the part of it that has to wait. is_open: whether pieces can leave.
    """

    def __init__(
        self, clock: Clock, deliver: Callable[[Content], memoryview | None], is_open: Callable[[], bool]
    ) -> None:
        self.pipe = Pipe()
        self._clock = clock
        self._deliver = deliver
        self._is_open = is_open
        self._timer: tuple[float, TimerHandle] | None = None
        self._runs = False
        self._has_ended = False

    def put(self, content: Content) -> None:
        self.pipe.put(self._clock.now_s(), content)
        if not self._runs:
            self._run()

    def _run(self) -> None:
        """Delivers a piece if it is due, at most one piece per loop iteration, so that pieces leave separately."""
        self._cancel()
        self._runs = True
        try:
            content = self.pipe.take(self._clock.now_s(), is_open=self._is_open())
            if content is not None and (rest := self._deliver(content)) is not None:
                self.pipe.put_back(rest)
        finally:
            self._runs = False
        self.schedule()

    def schedule(self) -> None:
        """Sets the timer of the next piece; call it when pieces may have become deliverable, or earlier."""
        if self._runs or self._has_ended:
            return
        at_s = self.pipe.next_s(is_open=self._is_open())
        if at_s is None:
            self._cancel()
            return
        if self._timer is not None:
            if self._timer[0] == at_s:
                return
            self._cancel()
        delay_s = at_s - self._clock.now_s()
        if delay_s > 0:
            self._timer = at_s, self._clock.call_later(delay_s, self._run)
        else:
            self._timer = at_s, asyncio.get_running_loop().call_soon(self._run)

    def end(self) -> None:
        """Drops everything, for good."""
        self._has_ended = True
        self._cancel()
        self.pipe.clear()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None


class Relay(asyncio.Transport, asyncio.Protocol):
    """The relay of one connection. Insert it with `insert`."""

    def __init__(self, end: RelayedProtocol, clock: Clock, *, is_new: bool) -> None:
        """is_new: whether it is inserted while the connection is made, when a transport may not read yet."""
        super().__init__()
        assert end.transport is not None
        self._end = end
        self._near = cast("Any", end)
        self._far = end.transport
        self._up = _Way(clock, self._to_near, lambda: not self._near_waits or self._is_lost)
        self._down = _Way(clock, self._to_far, lambda: not self._far_is_full)
        self._near_waits = not (is_new or self._far.is_reading())
        self._near_is_full = self._far_is_full = end.is_full
        self._far_waits = False
        self._is_closing = self._is_lost = self._loss_reported = self._has_ended = False
        self._lost_by: Exception | None = None
        self._high = HIGH_BYTES

    def insert(self) -> None:
        """Inserts the relay between the protocol and its transport."""
        self._far.set_protocol(self)
        self._end.rewire(self)
        if self._near_waits:
            self._far.resume_reading()

    def use(self, upstream: Sequence[ToxicStage], downstream: Sequence[ToxicStage]) -> None:
        """Replaces the stages of both directions."""
        for way, stages in ((self._up, upstream), (self._down, downstream)):
            way.pipe.use(stages)
            way.schedule()
        self._read_on()
        self._has_room()

    def break_off(self, how: ToxicMark) -> None:
        """A toxic ends the connection."""
        if self._loss_reported:
            return
        if self._is_lost:
            asyncio.get_running_loop().call_soon(self._tell)
        elif how is ToxicMark.RESET:
            self._lost_by = ConnectionResetError(errno.ECONNRESET, "reset by a toxic")
            end_by_reset(self._far)
            self.abort()
        elif self._far_is_full:
            self.abort()
        else:
            self.close()

    # --- the protocol of the socket ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._up.put(memoryview(data))
        self._read_on()

    def eof_received(self) -> bool:
        if not self._has_ended:  # it is reported again when reading is resumed
            self._has_ended = True
            self._up.put(ToxicMark.END)
        return self._far.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._lost_by = self._lost_by or exc
        self._down.end()
        if self._is_closing:
            self._tell()
        else:
            self._up.put(ToxicMark.END)

    def pause_writing(self) -> None:
        self._far_is_full = True

    def resume_writing(self) -> None:
        self._far_is_full = False
        self._down.schedule()
        self._has_room()

    # --- pieces that leave ------------------------------------------------------------------------------------------

    def _to_near(self, content: Content) -> memoryview | None:
        near = self._near
        if content is ToxicMark.END:
            if self._is_lost:
                self._tell()
            elif not near.eof_received():
                self.close()
            return None
        if isinstance(content, ToxicMark):
            self.break_off(content)
            return None
        if self._near_waits:
            return None  # the socket is lost, and what was not read with it
        rest = None
        if isinstance(near, asyncio.BufferedProtocol):
            buffer = memoryview(near.get_buffer(len(content)))
            size = min(len(buffer), len(content))
            buffer[:size] = content[:size]
            rest = content[size:] or None
            near.buffer_updated(size)
        else:
            near.data_received(bytes(content))
        self._read_on()
        return None if self._is_closing else rest

    def _to_far(self, content: Content) -> memoryview | None:
        if content is ToxicMark.END:
            self._end_writing()
        elif isinstance(content, ToxicMark):
            self.break_off(content)
        elif not self._far.is_closing():
            self._far.write(content)
            self._has_room()
        return None

    def _end_writing(self) -> None:
        far = self._far
        if self._is_closing or not far.can_write_eof():
            far.close()
        elif not far.is_closing():
            try:
                far.write_eof()
            except OSError:  # the peer has disconnected, and the loop has not reported it yet
                far.abort()

    def _tell(self) -> None:
        """Reports the loss of the connection to the protocol, once."""
        if not self._loss_reported:
            self._loss_reported = self._is_closing = True
            self._up.end()
            self._down.end()
            self._near.connection_lost(self._lost_by)

    def _read_on(self) -> None:
        """Reads the socket, or not, as there is room."""
        waits = self._up.pipe.size > (HIGH_BYTES // 2 if self._far_waits else HIGH_BYTES)
        if waits != self._far_waits and not self._is_lost and not self._far.is_closing():
            self._far_waits = waits
            if waits:
                self._far.pause_reading()
            else:
                self._far.resume_reading()

    def _has_room(self) -> None:
        """Lets the protocol write again once there is room."""
        if self._near_is_full and not self._loss_reported and self._down.pipe.size <= self._high // 4:
            self._near_is_full = False
            self._near.resume_writing()

    # --- the transport of the protocol ------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._is_lost and name == "socket" else self._far.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._near_waits = True
        self._up.schedule()

    def resume_reading(self) -> None:
        self._near_waits = False
        self._up.schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._is_filled()

    def get_write_buffer_size(self) -> int:
        return self._down.pipe.size + (0 if self._is_lost else self._far.get_write_buffer_size())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing and not self._is_lost:
            self._down.put(memoryview(bytes(data)))
            self._is_filled()

    def _is_filled(self) -> None:
        if self._down.pipe.size > self._high and not self._near_is_full and not self._loss_reported:
            self._near_is_full = True
            self._near.pause_writing()

    def can_write_eof(self) -> bool:
        return self._far.can_write_eof()

    def write_eof(self) -> None:
        if not self._is_closing and not self._is_lost:
            self._down.put(ToxicMark.END)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._up.pipe.clear()
        self._up.schedule()
        if self._is_lost:
            asyncio.get_running_loop().call_soon(self._tell)
        else:
            self._down.put(ToxicMark.END)

    def abort(self) -> None:
        self._is_closing = True
        self._up.pipe.clear()
        self._down.end()
        if self._is_lost:
            asyncio.get_running_loop().call_soon(self._tell)
        else:
            self._far.abort()
