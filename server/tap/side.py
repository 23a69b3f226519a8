"""A socket of a link: pauses and resumes reading, buffers data sent before the connection is made.

Invariant: data is written in order, also data sent before the connection is made; nothing is written after EOF.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from segstore.server.net import end_by_reset
from segstore.wire import Hello
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.server.tap.link import Link

log = logging.getLogger(__name__)

HIGH_BYTES: Final = 1024 * 1024
"""A side is not read while more bytes than this are buffered for the other side."""
_FULL: Final = "the other side does not take it"
_HELLO: Final = Hello.code.to_bytes(4, "big", signed=True)


class Side(asyncio.Protocol):
    """A socket of a link.

    Attributes:
        direction: direction of the data received: REQUEST from the client, REPLY from the store.
        other: the side to which the data is forwarded.
        transport: None before the connection is made and after it is lost.
        ended: whether EOF was received.
        note: records data forwarded from this side.
        bytes_in, bytes_out: number of bytes read and written.
    """

    other: Side

    def __init__(self, link: Link, direction: Direction, peer: str) -> None:
        """peer: how logs name the other end."""
        self._link = link
        self._peer = peer
        self._reasons: set[str] = set()
        self._silent = True
        self._gone = False
        self._said_all = False
        self._early: list[bytes | None] = []
        self.direction = direction
        self.transport: asyncio.Transport | None = None
        self.ended = False
        self.note: Callable[[bytes], object] | None = None
        self.bytes_in = self.bytes_out = 0

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class
        self.transport.set_write_buffer_limits(high=HIGH_BYTES)
        self._link.made(self)
        early, self._early, self._said_all = self._early, [], False
        for data in early:
            if data is None:
                self.end_writing()
            else:
                self.write(data)

    @property
    def is_full(self) -> bool:
        """Whether the peer has too much data to read."""
        return _FULL in self.other._reasons

    def rewire(self, transport: asyncio.Transport) -> None:
        """Uses another transport from now on."""
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        if self._silent:
            self._silent = False
            if data[:4] != _HELLO[: len(data)]:
                self.warn(f"its first bytes, {data[:8].hex()}, are not a Hello")
        self._link.received(self, data)

    def eof_received(self) -> bool:
        if not self.ended:  # it is reported again when reading is resumed
            self.ended = True
            self._link.ended(self)
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._gone = True
        self._link.lost(self, exc)

    def pause_writing(self) -> None:
        self.other.hold(_FULL)

    def resume_writing(self) -> None:
        self.other.go_on(_FULL)

    # --- for the link -----------------------------------------------------------------------------------------------

    def part(self) -> None:
        """Drops the link and the other side, when both sockets are closed."""
        del self._link, self.other

    def warn(self, what: str) -> None:
        """Logs an error in the data of this side, which is forwarded nevertheless."""
        log.warning("connection from %s: of the %s: %s", self._link.peer, self._peer, what)

    def forward(self, data: bytes) -> None:
        """Writes data of this side to the other, and records it."""
        self.other.write(data)
        if self.note is not None:
            self.note(data)

    def hold(self, why: str) -> None:
        """Pauses reading until `go_on` was called for this and all other reasons."""
        if not self._reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._reasons.add(why)

    def hold_again(self) -> None:
        """Pauses reading again if there are reasons: uvloop starts reading when `connection_made` has returned."""
        if self._reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on(self, why: str) -> None:
        """Removes a reason for not reading; resumes reading if it was the last."""
        if why not in self._reasons:
            return
        self._reasons.discard(why)
        if not self._reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Sends data. Queues it before the connection is made; drops it after the end or a loss."""
        transport = self.transport
        if self._said_all:
            return
        if transport is None:
            if not self._gone:
                self._early.append(data)
        elif not transport.is_closing():
            self.bytes_out += len(data)
            transport.write(data)

    def end_writing(self) -> None:
        """Sends EOF after the buffered data."""
        transport = self.transport
        self._said_all = True
        if transport is None:
            if not self._gone:
                self._early.append(None)
        elif transport.is_closing():
            return
        elif transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # the peer has disconnected, and asyncio has not reported it yet
                transport.abort()
        else:
            transport.close()

    def close(self) -> None:
        """Closes the connection after the buffered data is sent."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        if self.transport is not None:
            end_by_reset(self.transport)
            self.transport.abort()
