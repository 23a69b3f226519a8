"""A link: one client connection through the tap and its connection to the store, forwarding bytes unchanged.

Data from one side is written unchanged to the other, then recorded. Nothing is decoded unless the tap has an observer
or fault rules (`inspection`). A half-close is forwarded as a half-close, a reset as a reset.

Invariants: a side is read only while the other accepts data, so at most `HIGH_BYTES` and one read are buffered for a
slow peer; a client is not read before its store is connected; no peer is disconnected for the data it sends; when a
link is closed, both sockets are closed and the recorder was notified once.

TLS has no half-close: if one side uses TLS, the end of a direction closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from segstore.server.faults import end_by_reset
from segstore.server.net import Endpoint
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
"""A side is not read while more than this is buffered for the other one."""
_HELLO: Final = Hello.code.to_bytes(4, "big", signed=True)


def _peer(name: Any) -> str:
    """The text of a socket's address."""
    return str(Endpoint(*name[:2])) if isinstance(name, tuple) else str(name)


class Door(Protocol):
    """The tap's port for one store.

    store: the store's address. number: the store's number, from 0, in the order in which the tap learned of the stores.
    context: TLS context for the store; None without TLS. recorder: records the traffic; None for no recording.
    connect_timeout_s: deadline of connecting to the store. closing: whether new clients are refused.
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
        """Registers the link of a new client."""
        ...

    def over(self, link: Link) -> None:
        """Removes a link whose sockets are both closed."""
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
        direction: direction of the data received: REQUEST from the client, REPLY from the store.
        other: the side to which that data is forwarded.
        transport: None before the connection is made and after it is lost.
        ended: whether EOF was received. end_passed: whether EOF was forwarded.
        note: called with the data forwarded from this side, to record it.
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

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, but not the base class
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
                self._link.noted(self, f"its first bytes, {data[:8].hex()}, are not a Hello")
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
        """Resets the connection; buffered data is lost."""
        if self.transport is not None:
            end_by_reset(self.transport)
            self.transport.abort()


class Link:
    """A client's connection and its connection to the store.

    Attributes:
        client, store: the two sides.
        peer: the client's address.
        number: the recorder's number for the link; 0 without a recorder.
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

    # --- set-up -----------------------------------------------------------------------------------------------------

    def made(self, side: Side) -> None:
        """Handles a new socket of either side."""
        leads_out = self.door.made(side)
        if side is self.client:
            self._begin(side)
        if not leads_out:
            self.end(f"the store at {self.door.store} is the tap itself")
        if side is self.client:
            return
        if self.client.transport is None:
            side.close()  # the client has disconnected meanwhile
        self.client.go_on("its store is not there")

    def _begin(self, client: Side) -> None:
        assert client.transport is not None
        self.peer = _peer(client.transport.get_extra_info("peername"))
        recorder = self.door.recorder
        if recorder is not None:
            self.number = recorder.opened(peer=self.peer, store=str(self.door.store))
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
        """Called when connecting has succeeded, failed or was cancelled."""
        self._connecting = None
        self._finish_if_closed()

    async def _connect(self) -> None:
        host, port = self.door.store
        try:
            async with asyncio.timeout(self.door.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: self.store, host, port, ssl=self.door.context
                )
        except (OSError, ValueError, OverflowError) as error:  # the latter two for an invalid address from a controller
            said = str(error) or f"it did not answer in {self.door.connect_timeout_s:g} s"
            why = f"the store at {self.door.store} cannot be reached: {said}"
            log.warning("connection from %s closed: %s", self.peer, why)
            self.end(why)
        except Exception:
            log.exception("connecting to %s failed with an unexpected error", self.door.store)
            self.end(f"the store at {self.door.store} cannot be reached")

    # --- data -------------------------------------------------------------------------------------------------------

    def forward(self, side: Side, data: bytes) -> None:
        """Forwards data received from a side."""
        if self._inspection is None:
            self.send(side, data)
            return
        if side is self.client and side.note is not None:
            side.note(data)
        self._inspection.take(side, data)

    def send(self, side: Side, data: bytes) -> None:
        """Writes data of a side to the other, and records it."""
        side.other.write(data)
        if side.note is not None:
            side.note(data)

    def noted(self, side: Side, what: str) -> None:
        """A side says what it should not: that is passed on, and said once."""
        who = "client" if side is self.client else f"store {self.door.store}"
        log.warning("connection from %s: of the %s: %s", self.peer, who, what)

    # --- end --------------------------------------------------------------------------------------------------------

    def ended(self, side: Side) -> None:
        """Handles EOF from a side, and forwards it."""
        self._ends(side.direction)
        if self._inspection is None:
            self.pass_end(side)
        else:
            self._inspection.ended(side)

    def pass_end(self, side: Side) -> None:
        """Forwards EOF from a side; closes both when both have ended."""
        side.end_passed = True
        side.other.end_writing()
        if side.other.end_passed:
            side.close()
            side.other.close()

    def lost(self, side: Side, exc: Exception | None) -> None:
        """Handles the loss of a socket."""
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
        self._finish_if_closed()

    def end(self, why: str) -> None:
        """Closes both sides after the buffered data is sent."""
        self._close_inspection()
        self._ends(Direction.REPLY, why)
        self._stop_connecting()
        self.client.close()
        self.store.close()

    def abort(self, why: str = "") -> None:
        """Resets both sides."""
        self._close_inspection()
        self._ends(Direction.REPLY, why)
        self._stop_connecting()
        self.client.reset()
        self.store.reset()

    def say(self, why: str) -> None:
        """Logs why the link ends, and keeps it as the reason for the recorder."""
        self._ends(Direction.REPLY, why)
        log.warning("connection from %s closed: %s", self.peer, why)

    def _close_inspection(self) -> None:
        if self._inspection is not None:
            self._inspection.close()

    def _stop_connecting(self) -> None:
        # Not once the socket is connected: uvloop would never report its loss.
        connecting = self._connecting
        if connecting is not None and self.store.transport is None and connecting is not asyncio.current_task():
            connecting.cancel()

    def _ends(self, by: Direction, why: str = "") -> None:
        """Remembers which side ended the link first, and why."""
        if self._by is None:
            self._by, self._why = by, why

    def _finish_if_closed(self) -> None:
        if self._over or self.client.transport is not None or self.store.transport is not None or self._connecting:
            return
        self._over = True
        if self.door.recorder is not None:
            reason = {"reason": self._why} if self._why else {}
            self.door.recorder.closed(self.number, self._by or Direction.REQUEST, **reason)
        self.door.over(self)
