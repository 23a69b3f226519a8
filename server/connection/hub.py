"""State shared by all connections of a server: receive buffer, memory accounting, deadlines, shutdown.

Memory is accounted in bytes. A connection reports what it holds after each read and write; what its peer has read since
is checked twice a second, with the deadlines. Above half of `total_outstanding_bytes`, the largest connections are
checked at once, and each peer's pending replies are limited to its share. Above the limit, connections that hold the
most are closed until the sum is within the limit. Connections are grouped by the power of two of the bytes they hold,
so one of the largest is found in constant time. The accounting costs one addition per read, and no group of peers can
take the memory that others need.

Invariants: `outstanding_bytes` is the sum of the connections' reports; at most one connection runs at a time; after
`close` no connection and no timer remains. Source: `ConnectionTracker`, which has the same limit in the reference but
pauses every connection when it is reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from segstore.server.connection.receiving import ReceiveBuffers
from segstore.server.connection.states import SessionEnding
from segstore.server.descriptors import Limit, shares
from segstore.server.fair_queue import Job

if TYPE_CHECKING:
    from segstore.server.connection.deadlines import Missed, Waits
    from segstore.server.connection.service import StoreService
    from segstore.server.durable import Gate
    from segstore.server.faults import Faults
    from segstore.server.recording import Recorder

log = logging.getLogger(__name__)

_SWEEP_S = 0.5
_AT_ONCE: Final = 128
"""Maximum number of connections whose deadlines are checked in one loop iteration."""
_SIZES: Final = 64


class Member(Job, Protocol):
    """A connection as the hub sees it; attributes and methods as in `Connection`."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def waits(self) -> Waits: ...

    @property
    def is_silent(self) -> bool: ...

    def look_up(self) -> None: ...

    def shrink(self, share: int) -> None: ...

    def missed(self, missed: Missed, now_s: float) -> None: ...

    def flush(self) -> None: ...

    def end(self, why: str, ending: SessionEnding) -> None: ...

    def cut(self, why: str, level: int = ...) -> None: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=Member)


class ConnectionHub(Generic[C]):
    """The connections of one or more listeners, and their shared state.

    Attributes:
        service: executes their requests.
        connections: all open connections.
        outstanding_bytes: bytes held for all peers, as last reported by the connections.
        queue: connections with more to execute than a slice allows, and other long work of the store.
        buffers: those that its connections read into.
        recorder: records the traffic of new connections; None for no recording.
        fence: called before requests are executed; removes containers that the store has lost. None if no other store
            can own them.
        gate: delays replies until their changes are durable; None if changes need not be durable.
        faults: the rules and the observer of all connections; None if requests are neither observed nor changed.
        number: the store's number in its cluster, for fault rules.
        limit: maximum number of open connections; another one replaces a silent one.
    """

    def __init__(
        self,
        service: StoreService,
        gate: Gate | None = None,
        *,
        stores: int = 1,
        faults: Faults | None = None,
        number: int = 0,
    ) -> None:
        """stores: number of stores in this process, which share its descriptors equally."""
        self.service = service
        self.gate = gate
        self.faults = faults
        self.number = number
        self.fence: Callable[[], None] | None = None
        self.limits = limits = service.settings.limits
        self.queue = service.queue
        self.connections: set[C] = set()
        self.buffers = ReceiveBuffers()
        self.outstanding_bytes = 0
        self.closing = False
        self.recorder: Recorder | None = None
        self._crowded_bytes = limits.total_outstanding_bytes // 2
        self._relieving = False
        self._holders: list[dict[C, None]] = [{} for _ in range(_SIZES)]  # by the bit length of what they hold
        self._to_flush: dict[C, None] = {}
        self._watched: set[C] = set()
        self._to_ask: list[C] = []  # in this sweep
        shortest = min(
            limits.first_frame_timeout_s, limits.frame_timeout_s, limits.stalled_peer_timeout_s, limits.linger_s
        )
        self._sweep_s = min(_SWEEP_S, shortest / 4)
        self._sweeper: asyncio.Handle | None = None
        most = limits.max_connections or max(1, shares(service.settings.containers).stores // stores)
        self.limit = Limit(
            "connections to the segment store", most, "max_connections" if limits.max_connections else "ulimit -n"
        )
        self._silent: dict[C, None] = {}
        self._ended: dict[C, None] = {}
        self._running: C | None = None
        self._all_closed: asyncio.Event | None = None

    # --- running and flushing ---------------------------------------------------------------------------------------

    def enter(self, connection: C) -> None:
        """Begins a slice of a connection's requests; the connection writes its own replies. Losing containers to the
        fence may close the connection."""
        if self.fence is not None:
            self.fence()
        self.queue.begin()
        self._running = connection

    def leave(self) -> bool:
        """Ends the slice: answers the reads that it woke, and writes. Returns whether the slice was used up."""
        service, queue = self.service, self.queue
        try:
            if service.store.waiters.woken and service.advance():
                queue.add(service)
        finally:
            self._running = None
            if self._to_flush:
                self.flush()
            used_up = queue.end()
        return used_up

    def reply_queued(self, connection: C) -> None:
        """Handles a new reply or the end of a session. Outside a slice, replies are written in the next iteration."""
        if connection is self._running:
            return
        if not self._to_flush and self._running is None:
            asyncio.get_running_loop().call_soon(self.flush)
        self._to_flush[connection] = None

    def flush(self) -> None:
        """Writes the replies of connections outside their own slices."""
        while self._to_flush:
            connection, _ = self._to_flush.popitem()
            connection.flush()

    # --- accounting -------------------------------------------------------------------------------------------------

    def account(self, connection: C, difference: int) -> None:
        """Adjusts the account by a change in the bytes that a connection holds."""
        self.outstanding_bytes += difference
        held = connection.held_bytes
        before, size = (held - difference).bit_length(), held.bit_length()
        if size != before:
            self._holders[before].pop(connection, None)
            if size:
                self._holders[size][connection] = None
        if difference > 0 and self.outstanding_bytes > self._crowded_bytes and not self._relieving:
            self._relieving = True
            try:
                self._relieve(connection)
            finally:
                self._relieving = False

    def _relieve(self, growing: C) -> None:
        limit = self.limits.total_outstanding_bytes
        while self.outstanding_bytes > self._crowded_bytes:
            largest = next(iter(next(filter(None, reversed(self._holders)))))
            held = largest.held_bytes
            largest.look_up()
            if largest.held_bytes < held:
                continue  # its peer has read meanwhile; another connection may be the largest now
            if self.outstanding_bytes <= limit:
                growing.shrink(max(1, self._crowded_bytes // len(self.connections)))
                return
            self.service.counters.evictions += 1
            largest.cut(
                f"{self.outstanding_bytes} bytes are held for all peers, {limit} are allowed "
                f"(total_outstanding_bytes), and this peer's {largest.held_bytes} are among the most"
            )

    # --- admission --------------------------------------------------------------------------------------------------

    def admit(self, connection: C) -> str:
        """Admits a new connection; returns "", or why it is refused.

        At the limit, it replaces the oldest connection that has sent no request, or else the one whose peer has ended
        its direction first.
        """
        if len(self.connections) >= self.limit.most:
            self.limit.reached()
            why = f"{self.limit.most} are open"
            if not self._close_idle(why):
                return why
        self.connections.add(connection)
        self._silent[connection] = None
        return ""

    def peer_ended(self, connection: C) -> None:
        """Called for a connection whose peer has ended its direction while replies are to be sent. It may have gone."""
        self._ended[connection] = None

    def refused(self, peer: str, why: str) -> None:
        """Counts and logs a refused connection. The limits warn themselves."""
        self.service.counters.connections_refused += 1
        log.debug("connection from %s refused: %s", peer, why)

    def _close_idle(self, why: str) -> bool:
        """Closes a connection that gives way to another; returns whether there was one."""
        while self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            if oldest.is_silent:
                oldest.cut(f"it has sent no request, and {why}", logging.DEBUG)
                return True
        if self._ended:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            oldest.cut(f"its peer has ended its direction, and {why}", logging.DEBUG)
            return True
        return False

    # --- deadlines --------------------------------------------------------------------------------------------------

    def watch(self, connection: C) -> None:
        """Checks a connection periodically, until it waits for nothing and holds nothing."""
        self._watched.add(connection)
        if self._sweeper is None and not self.closing:
            self._sweeper = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)

    def _sweep(self) -> None:
        self._to_ask = list(self._watched)
        self.buffers.trim()
        self._sweep_some()

    def _sweep_some(self) -> None:
        """Checks a part of the connections; later loop iterations check the rest."""
        loop, to_ask = asyncio.get_running_loop(), self._to_ask
        now = loop.time()
        some = to_ask[-_AT_ONCE:]
        del to_ask[-_AT_ONCE:]
        try:
            for connection in some:
                if connection not in self._watched:
                    continue  # it was closed meanwhile
                connection.look_up()
                deadline = connection.waits.next_deadline(self.limits)
                if deadline is not None and deadline[0] <= now:
                    connection.missed(deadline[1], now)
                elif deadline is None and not connection.held_bytes:
                    self._watched.discard(connection)
        finally:  # an error must not stop later sweeps
            if to_ask:
                self._sweeper = loop.call_soon(self._sweep_some)
            elif self._watched:
                self._sweeper = loop.call_later(self._sweep_s, self._sweep)
            else:
                self._sweeper = None

    # --- ending -----------------------------------------------------------------------------------------------------

    async def close(self, drain_s: float) -> None:
        """Closes all connections: queued replies are written, but dropped if the peer does not read them in `drain_s`.

        Can be called again, even while it runs. Cancellation cuts all connections at once.
        """
        self.closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._all_closed = self._all_closed or asyncio.Event()
        if not self.connections:
            return
        try:
            for connection in tuple(self.connections):
                connection.end("the store shuts down", SessionEnding.FLUSHED)
            async with asyncio.timeout(drain_s):
                await self._all_closed.wait()
        except TimeoutError:
            if self.connections:  # the last may have closed at the same moment
                log.warning("%d peers did not read their replies in %g s", len(self.connections), drain_s)
        finally:
            for connection in tuple(self.connections):
                connection.abort()
        if self.connections:
            await self._all_closed.wait()

    def closed(self, connection: C) -> None:
        """Removes a closed connection."""
        self.connections.discard(connection)
        self._silent.pop(connection, None)
        self._ended.pop(connection, None)
        self._watched.discard(connection)
        self._to_flush.pop(connection, None)
        self.queue.discard(connection)
        if not self.connections and self._all_closed is not None:
            self._all_closed.set()
