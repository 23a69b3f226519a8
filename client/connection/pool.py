"""The connection pool: a few connections to each store, shared by all writers, readers and requests of a client.

`choose` is a pure function that picks the connection for a new user; the pool then acts. A user counts as soon as it
has chosen, before its connection is ready, so N simultaneous first users open min(N, maximum) connections.

Invariants: there are at most `max_connections_per_store` pooled connections to a store, including connections being set
up; a flow number has one user at a time in the whole pool; each set-up has a deadline and leaves no socket if it misses
it; after `aclose`, which can be called twice, no task, timer or socket is left and every flow has been notified.

Follows `ConnectionPoolImpl` (Pravega's client) and, for set-ups, KIP-601. Deliberate difference: Java counts a user
only once its connection is complete, so all simultaneous first users share a connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final

import msgspec

from segstore.client.config import ClientSettings, PoolPolicy
from segstore.client.connection.in_flight import Budget
from segstore.client.connection.nodes import SetupHistory
from segstore.client.connection.outbox import EventCounters
from segstore.client.connection.transport import RECEIVE_BYTES, Connection, Flow, FlowHandler
from segstore.client.errors import ClientError, Closed, ConnectFailed, ConnectTimedOut
from segstore.client.lifecycle import ClosedAfter, check_loop
from segstore.wire.codec import FrameMemory
from segstore.wire.endpoint import Endpoint
from segstore.wire.request_id import FLOWS_DISABLED, next_flow

_CLOSE_S: Final = 2.0
_YIELD_BYTES: Final = 1024 * 1024


def choose(candidates: Sequence[_Entry], maximum: int, policy: PoolPolicy = "fewest_flows") -> _Entry | None:
    """Returns the connection for a new user, or None if one must be opened.

    Takes the usable connection with the fewest flows (`least_busy`: the fewest bytes in flight, then flows) if it
    carries no flow or there are `maximum` connections.
    """
    usable = [candidate for candidate in candidates if candidate.usable]
    if not usable:
        return None
    if len(usable) < maximum:
        return next((entry for entry in usable if entry.users == 0), None)
    if policy == "least_busy":
        return min(usable, key=lambda entry: (entry.bytes_in_flight, entry.users))
    return min(usable, key=lambda entry: entry.users)


class FlowIds:
    """Allocates the flow numbers of one pool: 1 to 2^31 - 1, round-robin, each number in use at most once."""

    __slots__ = ("_last", "in_use")

    def __init__(self, last: int = 0) -> None:
        self._last = last
        self.in_use: set[int] = set()

    def take(self) -> int:
        """Allocates a free number. Raises ValueError if all are in use."""
        self._last = next_flow(self._last, self.in_use)
        self.in_use.add(self._last)
        return self._last

    def give_back(self, flow_id: int) -> None:
        self.in_use.discard(flow_id)


class PoolMetrics(EventCounters, kw_only=True):
    """The state of a pool and its counters since creation, as plain numbers."""

    connections: int
    connecting: int
    flows: int
    bytes_in_flight: int


class _Entry(msgspec.Struct, eq=False):
    users: int = 0
    connection: Connection | None = None
    task: asyncio.Task[ClientError | None] | None = None
    idle_since: float = 0.0
    ready_at: float | None = None

    @property
    def usable(self) -> bool:
        return self.connection is None or self.connection.usable

    @property
    def bytes_in_flight(self) -> int:
        return 0 if self.connection is None else self.connection.outbox.bytes_in_flight


class _Store(msgspec.Struct, eq=False):
    """One endpoint: its pooled and unpooled connections and its set-up history."""

    history: SetupHistory
    pooled: list[_Entry] = []
    single: list[_Entry] = []
    failed_at: float = float("-inf")
    lost: bool = False

    def remove(self, entry: _Entry) -> None:
        for among in (self.pooled, self.single):
            if entry in among:
                among.remove(entry)

    def failed(self, began_at: float, now_ms: float, *, while_setting_up: bool) -> None:
        """Records a failure. Failures of connections that began before the last failure have the same reason, and do
        not count again."""
        if began_at >= self.failed_at:
            self.failed_at = now_ms
            self.history.failed(now_ms, while_setting_up=while_setting_up)


class ConnectionPool(ClosedAfter):
    """A pool of connections to stores.

    Attributes:
        settings, random: as given.
        counters: live counters.
        budget: bytes that its stream writers may queue before one yields to the event loop.
    """

    def __init__(
        self,
        settings: ClientSettings | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        random: Random | None = None,
        timers: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Requires a running event loop.

        tls: connect with TLS. random: for the delays and the routers of all users of the pool. timers: the loop's by
        default; tests pass their own.
        """
        self.settings = settings or ClientSettings()
        self.counters = EventCounters()
        self.budget: Final = Budget(_YIELD_BYTES, _YIELD_BYTES)
        self._tls = tls
        self.random: Final = random or Random()
        self._loop = asyncio.get_running_loop()
        self._timers: asyncio.AbstractEventLoop = timers or self._loop
        self._ids = FlowIds()
        self._stores: dict[Endpoint, _Store] = {}
        self._buffer = bytearray(RECEIVE_BYTES)
        self._memory = FrameMemory(longer_than=RECEIVE_BYTES)
        self._prune_timer: asyncio.TimerHandle | None = None
        self._leaving: set[Connection] = set()
        self._closing: asyncio.Future[None] | None = None

    # --- users ------------------------------------------------------------------------------------------------------

    def lease(self) -> int:
        """Reserves a flow number for use across connections; 0 if pooling is disabled. `release` returns it."""
        return self._ids.take() if self.settings.enable_connection_pooling else FLOWS_DISABLED

    def release(self, flow_id: int) -> None:
        self._ids.give_back(flow_id)

    async def flow(self, endpoint: Endpoint, handler: FlowHandler, *, flow_id: int | None = None) -> Flow:
        """Opens a flow on a pooled connection to the store; waits until the connection is ready.

        flow_id: a leased number; by default the flow gets its own while it is open. If the settings disable pooling,
        the flow is `unpooled`. Raises ConnectFailed, ConnectTimedOut, IncompatibleVersion, Closed.
        """
        if not self.settings.enable_connection_pooling:
            return await self.unpooled(endpoint, handler)
        self._check_open()
        store = self._store(endpoint)
        entry = choose(store.pooled, self.settings.max_connections_per_store, self.settings.pool_policy)
        if entry is None:
            entry = self._open(endpoint, store, store.pooled)
        own_id = self._ids.take() if flow_id is None else flow_id
        return await self._join(store, entry, handler, own_id, leased=flow_id is not None)

    async def unpooled(self, endpoint: Endpoint, handler: FlowHandler) -> Flow:
        """Opens a new connection for one user, without flows; closing the flow closes it. Raises as `flow`."""
        self._check_open()
        store = self._store(endpoint)
        entry = self._open(endpoint, store, store.single)
        return await self._join(store, entry, handler, FLOWS_DISABLED, leased=True)

    async def _join(self, store: _Store, entry: _Entry, handler: FlowHandler, flow_id: int, *, leased: bool) -> Flow:
        entry.users += 1

        def leave(_: Flow | None = None) -> None:
            entry.users -= 1
            if not leased:
                self._ids.give_back(flow_id)
            if entry.users == 0 and flow_id != FLOWS_DISABLED:
                entry.idle_since = self._timers.time()
                self._arm_prune()

        try:
            if entry.task is not None:
                # The set-up of a pooled connection continues for its other users and the next one.
                try:
                    failed = await asyncio.shield(entry.task)
                except asyncio.CancelledError:
                    self._check_open()  # it was the set-up that was cancelled, not its user
                    raise
                if failed is not None:
                    raise failed
            self._check_open()
            assert entry.connection is not None
            flow = Flow(flow_id, entry.connection, handler, leave)
            entry.connection.add_flow(flow)
        except BaseException:
            leave()
            if flow_id == FLOWS_DISABLED and entry.users == 0:
                if entry.task is not None:
                    entry.task.cancel()
                self._drop(store, entry)
            raise
        return flow

    def _store(self, endpoint: Endpoint) -> _Store:
        store = self._stores.get(endpoint)
        if store is None:
            history = SetupHistory(self.settings.setup_timeout, self.settings.reconnect_backoff, self.random)
            store = self._stores[endpoint] = _Store(history)
        return store

    def _check_open(self) -> None:
        check_loop(self._loop)
        if self._closing is not None:
            raise Closed("the connection pool is closed")

    # --- setting up -------------------------------------------------------------------------------------------------

    def _open(self, endpoint: Endpoint, store: _Store, among: list[_Entry]) -> _Entry:
        entry = _Entry()
        among.append(entry)
        entry.task = self._loop.create_task(self._set_up(endpoint, store, entry), name=f"connecting to {endpoint}")
        return entry

    async def _set_up(self, endpoint: Endpoint, store: _Store, entry: _Entry) -> ClientError | None:
        """Sets up one connection; returns the error for its waiters if that fails."""
        try:
            await asyncio.sleep(store.history.wait_ms(self._now_ms()) / 1000)
            started_at = self._now_ms()
            await self._connect(endpoint, store, entry, store.history.timeout_ms)
        except ClientError as error:
            self.counters.connections_failed += 1
            store.failed(started_at, self._now_ms(), while_setting_up=True)
            return error  # the entry left with its connection, see `_ended`
        except BaseException:
            self._drop(store, entry)
            raise
        entry.ready_at = self._now_ms()
        entry.task = None
        store.history.succeeded()
        self.counters.connections_opened += 1
        if store.lost:
            store.lost = False
            self.counters.reconnects += 1
        return None

    async def _connect(self, endpoint: Endpoint, store: _Store, entry: _Entry, timeout_ms: float) -> None:
        name = str(endpoint)

        def ended(_: Connection) -> None:
            self._ended(store, entry)

        connection = Connection(name, self.settings, self._buffer, self._memory, self.counters, self._timers, ended)
        entry.connection = connection
        ready = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._loop.create_connection(lambda: connection, endpoint.host, endpoint.port, ssl=self._tls)
                await connection.ready
            ready = True
        except TimeoutError as cause:
            raise ConnectTimedOut(
                f"no connection to {name} within {timeout_ms:.0f} ms", endpoint=name, limit=timeout_ms
            ) from cause
        except OSError as cause:
            raise ConnectFailed(f"no connection to {name}: {cause}", endpoint=name) from cause
        finally:
            if not ready:
                connection.end(ConnectFailed(f"the connection set-up to {name} was abandoned", endpoint=name))

    def _now_ms(self) -> float:
        return self._timers.time() * 1000

    def _drop(self, store: _Store, entry: _Entry) -> None:
        store.remove(entry)
        if entry.connection is not None:
            entry.connection.close(Closed(f"the connection to {entry.connection.name} was closed"))

    def _ended(self, store: _Store, entry: _Entry) -> None:
        """Handles the end of a connection, for any reason; its socket closes once all sent data is written."""
        connection = entry.connection
        assert connection is not None
        if connection.opened:
            self._leaving.add(connection)
            connection.gone.add_done_callback(lambda _: self._leaving.discard(connection))
        if entry.ready_at is not None and self._closing is None and not connection.closed_here:
            self.counters.connections_lost += 1
            store.lost = True
            store.failed(entry.ready_at, self._now_ms(), while_setting_up=False)
        store.remove(entry)

    # --- pruning ----------------------------------------------------------------------------------------------------

    def prune(self, idle_s: float | None = None) -> int:
        """Closes pooled connections without flows for `idle_s` (default: the setting); returns their number."""
        longest = self.settings.idle_connection_s if idle_s is None else idle_s
        now = self._timers.time()
        closed = 0
        for store in self._stores.values():
            for entry in tuple(store.pooled):
                if entry.users == 0 and entry.task is None and now - entry.idle_since >= longest:
                    self._drop(store, entry)
                    closed += 1
        return closed

    def _arm_prune(self) -> None:
        if self._prune_timer is None and self._closing is None:
            self._prune_timer = self._timers.call_later(self.settings.idle_connection_s, self._prune_due)

    def _prune_due(self) -> None:
        self._prune_timer = None
        self.prune()
        if any(entry.users == 0 for store in self._stores.values() for entry in store.pooled):
            self._arm_prune()

    # --- state ------------------------------------------------------------------------------------------------------

    def _entries(self) -> Iterable[_Entry]:
        for store in self._stores.values():
            yield from store.pooled
            yield from store.single

    def connections_to(self, endpoint: Endpoint) -> int:
        """Returns the number of pooled connections to a store, including those being set up."""
        store = self._stores.get(endpoint)
        return 0 if store is None else len(store.pooled)

    def metrics(self) -> PoolMetrics:
        entries = list(self._entries())
        ready = [entry for entry in entries if entry.task is None]
        connections = [entry.connection for entry in entries if entry.connection is not None]
        return PoolMetrics(
            connections=len(ready),
            connecting=len(entries) - len(ready),
            flows=sum(len(connection.flows) for connection in connections),
            bytes_in_flight=sum(connection.outbox.bytes_in_flight for connection in connections),
            **msgspec.structs.asdict(self.counters),
        )

    # --- shutdown ---------------------------------------------------------------------------------------------------

    async def aclose(self, timeout_s: float = _CLOSE_S) -> None:
        """Closes all connections and fails pending operations; sent data is flushed for up to `timeout_s`.

        Can be called twice, also concurrently. If cancelled, it aborts the remaining connections.
        """
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = self._loop.create_future()
        if self._prune_timer is not None:
            self._prune_timer.cancel()
        entries = list(self._entries())
        tasks = [entry.task for entry in entries if entry.task is not None]
        connections = [entry.connection for entry in entries if entry.connection is not None and entry.task is None]
        for task in tasks:
            task.cancel()
        for connection in connections:
            connection.close(Closed("the connection pool was closed", endpoint=connection.name))
        connections += self._leaving
        waits: list[asyncio.Future[Any]] = [*tasks, *(connection.gone for connection in connections)]
        try:
            if waits:
                await asyncio.wait(waits, timeout=timeout_s)
        finally:
            for connection in connections:
                connection.cut()
            self._closing.set_result(None)
        open_sockets = [connection.gone for connection in connections if not connection.gone.done()]
        if open_sockets:
            await asyncio.wait(open_sockets, timeout=timeout_s)
