"""A link: one client connection through the tap and its connection to the store, forwarding bytes unchanged.

What comes from one side is written to the other as it came, and then recorded. Nothing is decoded, unless the tap has
an observer or fault rules (`inspection`). The end of one direction (a half-close) is forwarded as such, and so is a
reset.

Invariants: a side is read only while the other one takes what was read, so at most `HIGH_BYTES` and one read wait for a
slow peer, and nothing is read of a client before its store is there; no peer is cut for what it says; when a link is
over, both sockets are closed and the recorder was told once.

TLS knows no half-close: where one side speaks it, the end of a direction is the end of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from segstore.server.controller import Endpoint
from segstore.server.faults import end_by_reset
from segstore.server.tap.inspection import Inspection
from segstore.wire import Hello
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.server.connection import Recorder
    from segstore.server.fair_queue import FairQueue
    from segstore.server.faults import Faults

log = logging.getLogger(__name__)

HIGH_BYTES: Final = 1024 * 1024
"""So much waits to be written to a peer before the other one is not read any more."""
_HELLO: Final = Hello.code.to_bytes(4, "big", signed=True)


def joined(endpoint: Any) -> str:
    """host:port, with an IPv6 address in brackets."""
    if not isinstance(endpoint, tuple):
        return str(endpoint)
    host, port = endpoint[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


class Door(Protocol):
    """Where clients come in for one store.

    store: where that is. number: the store's, from 0, in the order in which the tap came to know of them. context: with
    which the store is spoken to, None without TLS. recorder: is told what links carry; None for nobody.
    connect_timeout_s: how long the store may take to be connected to. closing: whether no more clients are taken.
    is_tap: whether the store has turned out to be the tap itself.
    queue: schedules links with rules in turn. faults: rules and observer of the links; None to decode nothing.
    """

    store: Endpoint
    number: int
    context: ssl.SSLContext | None
    recorder: Recorder | None
    connect_timeout_s: float
    is_tap: bool
    queue: FairQueue
    faults: Faults | None

    @property
    def closing(self) -> bool: ...

    def began(self, link: Link) -> None:
        """A client has come."""
        ...

    def over(self, link: Link) -> None:
        """Both sockets of a link are closed."""
        ...

    def made(self, side: Side) -> bool:
        """Registers a new socket; returns False if its other end belongs to the tap, too."""
        ...

    def lost(self, side: Side) -> None:
        """Removes a closed socket."""
        ...

    def hold(self, link: Link, size: int) -> None:
        """Records how many bytes of frames a link holds. If all links hold too many, those with the most are closed."""
        ...


class Side(asyncio.Protocol):
    """One of the two sockets of a link.

    Attributes:
        direction: of what comes from it: REQUEST from the client, REPLY from the store.
        other: the side that it is passed to.
        transport: None before it is there, and when it is gone.
        ended: whether it has said that it sends no more. end_passed: whether that was passed on.
        note: is given what is passed on from it.
        ends: the addresses of both ends of the socket.
    """

    __slots__ = (
        "_early",
        "_gone",
        "_link",
        "_reasons",
        "_said_all",
        "_silent",
        "direction",
        "end_passed",
        "ended",
        "ends",
        "note",
        "other",
        "transport",
    )

    other: Side

    def __init__(self, link: Link, direction: Direction) -> None:
        self._link = link
        self._reasons: set[str] = set()
        self._silent = True
        self._gone = False
        self._said_all = False
        self._early: list[bytes | None] = []
        self.direction = direction
        self.transport: asyncio.Transport | None = None
        self.ended = self.end_passed = False
        self.note: Callable[[bytes], object] | None = None
        self.ends: frozenset[Any] = frozenset()

    # --- as a protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases
        self.transport.set_write_buffer_limits(high=HIGH_BYTES)
        names = (self.transport.get_extra_info(each) for each in ("sockname", "peername"))
        self.ends = frozenset((each[0].removeprefix("::ffff:"), each[1]) for each in names if each)
        self._link.made(self)
        early, self._early, self._said_all = self._early, [], False
        for data in early:
            if data is None:
                self.end_writing()
            else:
                self.write(data)

    def data_received(self, data: bytes) -> None:
        if self._silent:
            self._silent = False
            if data[:4] != _HELLO[: len(data)]:
                self._link.noted(self, f"its first bytes, {data[:8].hex()}, are no Hello")
        self._link.forward(self, data)

    def eof_received(self) -> bool:
        self.ended = True
        self._link.ended(self)
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._gone = True
        self._link.lost(self, exc)

    def pause_writing(self) -> None:
        self.other.hold("the other side does not take it")

    def resume_writing(self) -> None:
        self.other.go_on("the other side does not take it")

    # --- for the link -----------------------------------------------------------------------------------------------

    def hold(self, why: str) -> None:
        """It is not read until `go_on` was called for this reason, and for all others."""
        if not self._reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._reasons.add(why)

    def hold_again(self) -> None:
        """As `hold` for the reasons that there are: uvloop begins to read when `connection_made` has returned."""
        if self._reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on(self, why: str) -> None:
        """This is no reason any more for not reading it."""
        if why not in self._reasons:
            return
        self._reasons.discard(why)
        if not self._reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Sends, if there is anyone to send to; what is written before keeps until then. Behind the end, nothing is."""
        transport = self.transport
        if self._said_all:
            return
        if transport is None:
            if not self._gone:
                self._early.append(data)
        elif not transport.is_closing():
            transport.write(data)

    def end_writing(self) -> None:
        """Nothing more is sent; what is to be sent leaves first."""
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
            except OSError:  # asyncio's, of a peer that has left, before the loop has told
                transport.abort()
        else:
            transport.close()

    def close(self) -> None:
        """Ends it; what is to be sent leaves first."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Ends it as a reset does; what is to be sent is lost."""
        if self.transport is not None:
            end_by_reset(self.transport)
            self.transport.abort()


class Link:
    """A client and its store.

    Attributes:
        client, store: the two sides.
        peer: the client's address.
        number: the recorder's for it, 0 without.
        held: number of bytes of frames that it holds, as last reported to the door.
    """

    def __init__(self, door: Door) -> None:
        self.door = door
        self.client = Side(self, Direction.REQUEST)
        self.store = Side(self, Direction.REPLY)
        self.client.other, self.store.other = self.store, self.client
        self.peer = ""
        self.number = 0
        self.held = 0
        self._by: Direction | None = None
        self._why = ""
        self._connecting: asyncio.Task[None] | None = None
        self._over = False
        self._inspection = None if door.faults is None else Inspection(self, door.faults)

    # --- its beginning ----------------------------------------------------------------------------------------------

    def made(self, side: Side) -> None:
        """A socket is there."""
        leads_out = self.door.made(side)
        if side is self.client:
            self._begin(side)
        if not leads_out:
            self.end(f"the store at {joined(self.door.store)} is the tap itself")
        if side is self.client:
            return
        if self.client.transport is None:
            side.close()  # the client has left meanwhile
        self.client.go_on("its store is not there")

    def _begin(self, client: Side) -> None:
        assert client.transport is not None
        self.peer = joined(client.transport.get_extra_info("peername"))
        recorder = self.door.recorder
        if recorder is not None:
            self.number = recorder.opened(peer=self.peer, store=joined(self.door.store))
            client.note = partial(recorder.received, self.number)
            self.store.note = lambda data: recorder.sent(self.number, (data,))
        client.hold("its store is not there")
        asyncio.get_running_loop().call_soon(client.hold_again)
        self.door.began(self)
        if self.door.closing or self.door.is_tap:
            self.end("the tap shuts down" if self.door.closing else "the store is the tap itself")
            return
        self._connecting = asyncio.create_task(self._connect(), name=f"segstore tap connects to {self.door.store}")
        self._connecting.add_done_callback(self._tried)

    def _tried(self, _: asyncio.Task[None]) -> None:
        """The store is there, or is not; so too if it was never asked, because the end came before."""
        self._connecting = None
        self._tell_if_over()

    async def _connect(self) -> None:
        host, port = self.door.store
        try:
            async with asyncio.timeout(self.door.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: self.store, host, port, ssl=self.door.context
                )
        except (OSError, ValueError, OverflowError) as error:  # whatever a controller calls an address
            said = str(error) or f"it did not answer in {self.door.connect_timeout_s:g} s"
            why = f"the store at {joined(self.door.store)} cannot be reached: {said}"
            log.warning("connection from %s closed: %s", self.peer, why)
            self.end(why)
        except Exception:
            log.exception("connecting to %s failed in a way that nobody foresaw", joined(self.door.store))
            self.end(f"the store at {joined(self.door.store)} cannot be reached")

    # --- what it carries --------------------------------------------------------------------------------------------

    def forward(self, side: Side, data: bytes) -> None:
        """Forwards what came from a side."""
        if self._inspection is None:
            self.send(side, data)
            return
        if side is self.client and side.note is not None:
            side.note(data)
        self._inspection.take(side, data)

    def send(self, side: Side, data: bytes) -> None:
        """Writes data of a side to the other one, and records it."""
        side.other.write(data)
        if side.note is not None:
            side.note(data)

    def noted(self, side: Side, what: str) -> None:
        """A side says what it should not: that is passed on, and said once."""
        who = "client" if side is self.client else f"store {joined(self.door.store)}"
        log.warning("connection from %s: of the %s: %s", self.peer, who, what)

    # --- its end ----------------------------------------------------------------------------------------------------

    def ended(self, side: Side) -> None:
        """A side sends no more, which is forwarded."""
        self._ends(side.direction)
        if self._inspection is None:
            self.pass_end(side)
        else:
            self._inspection.ended(side)

    def pass_end(self, side: Side) -> None:
        """Forwards the end of a side; closes both when both have ended."""
        side.end_passed = True
        side.other.end_writing()
        if side.other.end_passed:
            side.close()
            side.other.close()

    def lost(self, side: Side, exc: Exception | None) -> None:
        """A socket is closed."""
        self.door.lost(side)
        if self._inspection is None or self._inspection.lost(side, exc):
            self.end_by(side, exc)
        else:
            self._ends(side.direction)

    def end_by(self, side: Side, exc: Exception | None) -> None:
        """Ends the link because of a closed socket."""
        self._ends(side.direction, "" if exc is None else str(exc))
        if exc is not None:
            side.other.reset()
        else:
            side.other.close()
        self._tell_if_over()

    def end(self, why: str) -> None:
        """Ends both sides; what was read of them still leaves."""
        self._close_inspection()
        self._ends(Direction.REPLY, why)
        self._stop_connecting()
        self.client.close()
        self.store.close()

    def abort(self, why: str = "") -> None:
        """Ends both sides as a reset does."""
        self._close_inspection()
        self._ends(Direction.REPLY, why)
        self._stop_connecting()
        self.client.reset()
        self.store.reset()

    def say(self, why: str) -> None:
        """Logs why the link ends, and records it as the reason."""
        self._ends(Direction.REPLY, why)
        log.warning("connection from %s closed: %s", self.peer, why)

    def _close_inspection(self) -> None:
        if self._inspection is not None:
            self._inspection.close()

    def _stop_connecting(self) -> None:
        # Not after the socket is connected: uvloop would never report its loss.
        connecting = self._connecting
        if connecting is not None and self.store.transport is None and connecting is not asyncio.current_task():
            connecting.cancel()

    def _ends(self, by: Direction, why: str = "") -> None:
        """Notes who ended it, which is the first that does."""
        if self._by is None:
            self._by, self._why = by, why

    def _tell_if_over(self) -> None:
        if self._over or self.client.transport is not None or self.store.transport is not None or self._connecting:
            return
        self._over = True
        if self.door.recorder is not None:
            reason = {"reason": self._why} if self._why else {}
            self.door.recorder.closed(self.number, self._by or Direction.REQUEST, **reason)
        self.door.over(self)
