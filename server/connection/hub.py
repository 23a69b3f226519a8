"""State shared by all connections of a server: receive buffer, memory accounting, deadlines, shutdown.

Memory is accounted in bytes. A connection reports what it holds after each read and write; what its peer has read since
is checked twice a second, with the deadlines. Above `total_outstanding_bytes`, the largest connections are closed until
the sum is within the limit.

Invariants: `outstanding_bytes` is the sum of the connections' reports; at most one connection runs at a time; after
`close` no connection and no timer remains. Source: `ConnectionTracker`, which has the same limit in the reference but
pauses every connection when it is reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from segstore.server.connection.receiving import ReceiveBuffers
from segstore.server.connection.states import SessionEnding
from segstore.server.net import most_connections

if TYPE_CHECKING:
    from segstore.server.connection.connection import Connection
    from segstore.server.connection.service import StoreService
    from segstore.server.durable import Gate
    from segstore.server.faults import Faults
    from segstore.server.recording import Recorder

log = logging.getLogger(__name__)

_SWEEP_S = 0.5


class ConnectionHub:
    """The connections of one or more listeners, and their shared state.

    Attributes:
        service: executes their requests.
        connections: all open connections.
        outstanding_bytes: bytes held for all peers, as last reported by the connections.
        buffers: the receive buffers of its connections.
        recorder: records the traffic of new connections, or None.
        fence: called before requests are executed; removes containers that the store has lost. None if no other store
            can own them.
        gate: delays replies until their changes are durable; None if changes need not be durable.
        faults: the rules and the observer of all connections; None if requests are neither observed nor changed.
        number: the store's number in its cluster, for fault rules.
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
        self.connections: set[Connection] = set()
        self.buffers = ReceiveBuffers()
        self.outstanding_bytes = 0
        self.closing = False
        self.recorder: Recorder | None = None
        self._to_flush: dict[Connection, None] = {}
        self._watched: set[Connection] = set()
        shortest = min(
            limits.first_frame_timeout_s, limits.frame_timeout_s, limits.stalled_peer_timeout_s, limits.linger_s
        )
        self._sweep_s = min(_SWEEP_S, shortest / 4)
        self._sweeper: asyncio.TimerHandle | None = None
        self._max_connections = limits.max_connections or max(1, most_connections() // stores)
        self._running: Connection | None = None
        self._all_closed: asyncio.Event | None = None

    # --- running and flushing ---------------------------------------------------------------------------------------

    def run(self, connection: Connection, execute: Callable[[], None]) -> None:
        """Executes requests of a connection, which writes its own replies; answers the reads that they woke. An
        unexpected error ends this connection only. Losing containers to the fence may close it.
        """
        if self.fence is not None:
            self.fence()
        self._running = connection
        try:
            execute()
        except Exception as error:  # noqa: BLE001 — whatever it is, this connection ends and the others go on
            self.service.failed(connection.session, error)
        finally:
            try:
                self.service.answer_waiting()
            finally:
                self._running = None
                if self._to_flush:
                    self.flush()

    def reply_queued(self, connection: Connection) -> None:
        """Handles a new reply or the end of a session. Outside `run`, replies are written in the next iteration."""
        if connection is self._running:
            return
        if not self._to_flush and self._running is None:
            asyncio.get_running_loop().call_soon(self.flush)
        self._to_flush[connection] = None

    def flush(self) -> None:
        """Writes the replies of connections other than the running one."""
        while self._to_flush:
            connection, _ = self._to_flush.popitem()
            connection.flush()

    # --- accounting -------------------------------------------------------------------------------------------------

    def account(self, difference: int) -> None:
        """Adjusts the account by a change in the bytes that a connection holds; closes the largest ones if need be."""
        self.outstanding_bytes += difference
        limit = self.limits.total_outstanding_bytes
        while difference > 0 and self.outstanding_bytes > limit:
            largest = max(self.connections, key=lambda connection: connection.held_bytes)
            held = largest.held_bytes
            largest.look_up()
            if largest.held_bytes < held:
                continue  # its peer has read meanwhile; another connection may be the largest now
            self.service.counters.evictions += 1
            largest.cut(
                f"{self.outstanding_bytes} bytes are held for all peers, {limit} are allowed "
                f"(total_outstanding_bytes), and this peer's {largest.held_bytes} are among the most"
            )

    # --- admission --------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> str:
        """Admits a new connection; returns "", or why it is refused."""
        if len(self.connections) >= self._max_connections:
            setting = "max_connections" if self.limits.max_connections else "half of ulimit -n"
            return f"{self._max_connections} connections are open, the limit ({setting})"
        self.connections.add(connection)
        return ""

    # --- deadlines --------------------------------------------------------------------------------------------------

    def watch(self, connection: Connection) -> None:
        """Checks a connection periodically, until it waits for nothing and holds nothing."""
        self._watched.add(connection)
        if self._sweeper is None and not self.closing:
            self._sweeper = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.buffers.trim()
        now = loop.time()
        self._sweeper = None
        try:
            for connection in tuple(self._watched):
                if connection not in self._watched:
                    continue  # it was closed meanwhile
                connection.look_up()
                deadline = connection.waits.next_deadline(self.limits)
                if deadline is not None and deadline[0] <= now:
                    connection.missed(deadline[1], now)
                elif deadline is None and not connection.held_bytes:
                    self._watched.discard(connection)
        finally:  # an error must not stop later sweeps
            if self._watched:
                self._sweeper = loop.call_later(self._sweep_s, self._sweep)

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
            self.cut()
        if self.connections:
            await self._all_closed.wait()

    def cut(self) -> int:
        """Breaks all connections at once, as a failing network does; returns their number."""
        connections = tuple(self.connections)
        for connection in connections:
            connection.abort()
        return len(connections)

    def closed(self, connection: Connection) -> None:
        """Removes a closed connection."""
        self.connections.discard(connection)
        self._watched.discard(connection)
        self._to_flush.pop(connection, None)
        if not self.connections and self._all_closed is not None:
            self._all_closed.set()
