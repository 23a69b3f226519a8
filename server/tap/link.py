"""A link: one client connection through the tap and its connection to the store.

Without rules or an observer, bytes are forwarded unchanged, undecoded, and then recorded. Otherwise `inspection`
decodes them and applies the rules; requests are recorded as they arrive, replies as they are forwarded. A half-close is
forwarded as a half-close, a reset as a reset.

Invariants: a side is read only while the other accepts data, so at most `HIGH_BYTES` and one read, decoded two frames,
are buffered for a slow peer; a client is not read before its store is connected; no peer is disconnected for the data
it sends, except by a fault rule or by the tap's limit on incomplete frames; when a link is closed, both sockets are
closed, the recorder was notified once, and the link's memory is released.

TLS has no half-close: if one side uses TLS, the end of a direction closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from segstore.server.recording import RecordedConnection
from segstore.server.tap.inspection import Inspection
from segstore.server.tap.side import Side
from segstore.server.tap.states import LinkEvent, LinkState, after
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import LASTING_BYTES, Direction

if TYPE_CHECKING:
    from segstore.server.tap.server import TapServer

log = logging.getLogger(__name__)

_NO_STORE: Final = "its store is not there"
"""Why a client is not read before its store is connected."""


def _received(recorded: RecordedConnection, data: bytes) -> None:
    if len(data) < LASTING_BYTES:
        recorded.received(data)
    else:
        recorded.received(memoryview(data), lasting=True)


class Door:
    """The tap's port for one store.

    upstream: the store's own address. number: the store's number, from 0, in the order in which the tap learned of the
    stores.

    Attributes:
        address: the tap's address for the store's clients.
        is_tap_until_s: until when, on the loop's clock, the store counts as the tap itself, as it turned out to be.
        connections: the open connections of its clients.
    """

    admin_address = None

    def __init__(self, upstream: Endpoint, number: int) -> None:
        self.upstream = upstream
        self.number = number
        self.address = Endpoint("", 0)
        self.server: asyncio.Server | None = None
        self.is_tap_until_s = -inf
        self.connections: set[Link] = set()
        self._totals = {"connections": 0, "bytes_in": 0, "bytes_out": 0}

    @property
    def is_tap(self) -> bool:
        """Whether the store has turned out to be the tap itself."""
        return asyncio.get_running_loop().time() < self.is_tap_until_s

    @property
    def serving(self) -> bool:
        """Whether it listens."""
        return self.server is not None

    def add(self, link: Link) -> None:
        self.connections.add(link)
        self._totals["connections"] += 1

    def remove(self, link: Link) -> None:
        if link in self.connections:
            self.connections.discard(link)
            self._count(self._totals, link)

    @staticmethod
    def _count(totals: dict[str, int], link: Link) -> None:
        totals["bytes_in"] += link.bytes_in
        totals["bytes_out"] += link.bytes_out

    def counters(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns totals since the start, and current values, by name."""
        totals = dict(self._totals)
        for link in self.connections:
            self._count(totals, link)
        held = sum(connection.held_bytes for connection in self.connections)
        return totals, {"connections_open": len(self.connections), "outstanding_bytes": held}


class Link:
    """A client's connection and its connection to the store.

    Attributes:
        state: see `states`.
        client, store: the two sides.
        peer: the client's address.
        number: the link's number in recordings and for fault rules; None without either.
        held_bytes: size of the buffered frames, as last reported to the tap.
    """

    admin = False
    writers = waiting_reads = None

    def __init__(self, tap: TapServer, door: Door) -> None:
        self._tap = tap
        self._door = door
        self.state = LinkState.CONNECTING
        self.client = Side(self, Direction.REQUEST, "client")
        self.store = Side(self, Direction.REPLY, f"store {door.upstream}")
        self.client.other, self.store.other = self.store, self.client
        self.peer = ""
        self.number: int | None = None
        self.held_bytes = 0
        self._by: Direction | None = None
        self._why = ""
        self._connecting: asyncio.Task[None] | None = None
        self._inspection: Inspection | None = None
        self._recorded: RecordedConnection | None = None

    @property
    def bytes_in(self) -> int:
        """Number of bytes read from the client."""
        return self.client.bytes_in

    @property
    def bytes_out(self) -> int:
        """Number of bytes written to the client."""
        return self.client.bytes_out

    def _move(self, event: LinkEvent) -> None:
        self.state = after(self.state, event)
        if self.state is LinkState.CLOSING and self._inspection is not None:
            self._inspection.close()

    # --- set-up -----------------------------------------------------------------------------------------------------

    def made(self, side: Side) -> None:
        assert side.transport is not None
        if side is self.client:
            self._begin(side)
            return
        if self._tap.leads_back(self._door, side.transport):
            self.disconnect(f"the store at {self._door.upstream} is the tap itself")
        self._move(LinkEvent.CONNECTED)
        if self.client.transport is None:
            side.close()  # the client has disconnected meanwhile
        self.client.go_on(_NO_STORE)

    def _begin(self, client: Side) -> None:
        assert client.transport is not None
        name = client.transport.get_extra_info("peername")
        self.peer = str(Endpoint(*name[:2])) if isinstance(name, tuple) else str(name)
        log.debug("connection from %s to the store at %s opened", self.peer, self._door.upstream)
        recorder, rules = self._tap.recorder, self._tap.rules
        if recorder is not None:
            recorded = self._recorded = RecordedConnection(recorder, peer=self.peer, store=str(self._door.upstream))
            self.number = recorded.number
            client.note = partial(_received, recorded)
            self.store.note = lambda data: recorded.sent((data,))
        if rules is not None:
            self._inspection = Inspection(self, rules, store=self._door.number, recorded=self._recorded)
            self.number = self._inspection.number
            rules.toxics.connect(client, store=self._door.number, number=self.number)
        client.hold(_NO_STORE)
        asyncio.get_running_loop().call_soon(client.hold_again)
        self._tap.links.add(self)
        self._door.add(self)
        if self._tap.closing or self._door.is_tap:
            self.disconnect("the tap shuts down" if self._tap.closing else "the store is the tap itself")
            return
        self._connecting = asyncio.create_task(self._connect(), name=f"segstore tap connects to {self._door.upstream}")
        self._connecting.add_done_callback(self._tried)

    def _tried(self, _: asyncio.Task[None]) -> None:
        """Called when connecting has succeeded, failed or was cancelled."""
        self._connecting = None
        self._finish_if_closed()

    async def _connect(self) -> None:
        (host, port), timeout_s = self._door.upstream, self._tap.settings.connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: self.store, host, port, ssl=self._tap.upstream_context
                )
        except (OSError, ValueError, OverflowError) as error:  # the latter two for an invalid address from a controller
            reason = str(error) or f"it did not answer in {timeout_s:g} s"
            why = f"the store at {self._door.upstream} cannot be reached: {reason}"
            log.warning("connection from %s closed: %s", self.peer, why)
            self.disconnect(why)
        except Exception:
            log.exception("connecting to %s failed with an unexpected error", self._door.upstream)
            self.disconnect(f"the store at {self._door.upstream} cannot be reached")

    # --- data -------------------------------------------------------------------------------------------------------

    def received(self, side: Side, data: bytes) -> None:
        """Forwards data received from a side."""
        if self._inspection is None:
            side.forward(data)
            return
        if side is self.client and side.note is not None:
            side.note(data)
        self._inspection.take(side, data)

    def hold(self, size: int) -> None:
        """Reports how many bytes of frames the link holds."""
        self._tap.hold(self, size)

    # --- end --------------------------------------------------------------------------------------------------------

    def ended(self, side: Side) -> None:
        """Handles EOF from a side, and forwards it."""
        self._ends(side.direction)
        if self._inspection is None:
            self.pass_end(side)
        else:
            self._inspection.ended(side)

    def pass_end(self, side: Side) -> None:
        """Forwards EOF from a side; closes both sides after the second EOF."""
        before = self.state
        self._move(LinkEvent.CLIENT_ENDED if side is self.client else LinkEvent.STORE_ENDED)
        if self.state is before:
            return  # both are closed, or will be
        side.other.end_writing()
        if self.state is LinkState.CLOSING:
            side.close()
            side.other.close()

    def lost(self, side: Side, exc: Exception | None) -> None:
        """Handles the loss of a socket."""
        if side is self.client and self._tap.rules is not None:
            self._tap.rules.toxics.disconnect(side)
        if self._inspection is None or side is self.client or self._inspection.store_lost(exc):
            self.end_by(side, exc)
        else:
            self._ends(side.direction)

    def end_by(self, side: Side, exc: Exception | None) -> None:
        """Ends the link because of a closed socket."""
        self._close(side.direction, "" if exc is None else str(exc))
        if exc is not None:
            side.other.reset()
        else:
            side.other.close()
        self._finish_if_closed()

    def disconnect(self, why: str = "", *, drain: bool = True) -> None:
        """Closes both sides: after the buffered data is sent, or at once by a reset."""
        self._close(Direction.REPLY, why)
        connecting = self._connecting
        # Not once the socket is connected: uvloop would never report its loss.
        if connecting is not None and self.store.transport is None and connecting is not asyncio.current_task():
            connecting.cancel()
        for side in (self.client, self.store):
            if drain:
                side.close()
            else:
                side.reset()

    def cut(self, why: str) -> None:
        """A fault rule closes the connection: nothing more is taken from either side."""
        self._move(LinkEvent.CUT)
        self.log_end(why)

    def log_end(self, why: str) -> None:
        """Logs why the link ends, and keeps it as the reason for the recorder."""
        self._ends(Direction.REPLY, why)
        log.warning("connection from %s closed: %s", self.peer, why)

    def _close(self, by: Direction, why: str) -> None:
        self._move(LinkEvent.CLOSE)
        self._ends(by, why)

    def _ends(self, by: Direction, why: str = "") -> None:
        """Remembers which side ended the link first, and why."""
        if self._by is None:
            self._by, self._why = by, why

    def _finish_if_closed(self) -> None:
        if self.client.transport is not None or self.store.transport is not None or self._connecting:
            return
        self._move(LinkEvent.GONE)
        log.debug("connection from %s ended: %d bytes in, %d bytes out", self.peer, self.bytes_in, self.bytes_out)
        if self._recorded is not None:
            self._recorded.closed(self._by or Direction.REQUEST, self._why)
        self._door.remove(self)
        self._tap.over(self)
        # Without these cycles, what it holds is freed now and not by the next garbage collection, which may be far off.
        self._inspection = None
        self.client.part()
        self.store.part()
