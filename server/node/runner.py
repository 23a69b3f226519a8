"""One listening segment store.

`SegmentStoreServer` runs a store, its service and its sockets on the running loop. `MockSegmentStore` is the same for
tests: it picks free ports and exposes its state.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from segstore.server.clock import Clock, LoopClock
from segstore.server.config import StoreOptions, StoreSettings, settings_of
from segstore.server.connection import Connection, ConnectionHub, StoreService
from segstore.server.durable import Durability
from segstore.server.faults import Faults, FaultSettings, WithFaults
from segstore.server.net import Listening, listening_on
from segstore.server.node.snapshots import Snapshots, WithSnapshots
from segstore.server.store import ChunkPool, MemoryAccount, Segment, SegmentStore
from segstore.server.traffic import Traffic
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.server.control_api import ControlApi
    from segstore.server.recording import Recorder

log = logging.getLogger(__name__)

_BACKLOG = 1024
_DRAIN_S = 5.0
_CLEAN_EVERY_S = 60.0
_MERGED_INDEX_MS = 60_000
_INDEX_EVERY_S = 0.1
_ENTRIES_AT_ONCE = 256
"""Index entries of a container that housekeeping writes in one loop iteration."""


class SegmentStoreServer:
    """One segment store with its data port and, where set, its admin port.

    `start` sets `address` and `admin_address`; `admin_address` stays None without an admin port.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        clock: Clock | None = None,
        faults: Faults | None = None,
        number: int = 0,
        stores: int = 1,
        durability: Durability | None = None,
        pool: ChunkPool | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """faults: the rules and the observer of its connections; None if requests are neither observed nor changed.

        number: the store's number in its cluster; fault rules may name it. stores: number of stores in this process,
        which share its connections and `pool`. durability: the data directory of the store's containers, whose pool is
        `pool`; None for memory. The caller opens it, recovers it into `store.containers` and starts it before starting
        this server, and closes it after stopping this server. recorder: records the traffic of its connections.
        """
        self.settings = settings
        self.faults = faults
        self.number = number
        if pool is None:
            pool = ChunkPool(memory=MemoryAccount(settings.limits.max_memory_bytes))
        self.store = SegmentStore(
            settings.containers,
            settings.own,
            reuse_names=settings.reuse_names,
            strict_transient_attributes=settings.strict_transient_attributes,
            max_attributes=settings.limits.segment_attributes,
            pool=pool,
            journal=None if durability is None else durability.journal,
        )
        self._durability = durability
        self.service = StoreService(settings, self.store, clock or LoopClock(), lambda: secrets.token_hex(16))
        self.hub = ConnectionHub(self.service, stores=stores, faults=faults, number=number)
        self.hub.recorder = recorder
        self.address: Endpoint | None = None
        self.admin_address: Endpoint | None = None
        self._listening: list[Listening] = []
        self._housekeeping: asyncio.Task[None] | None = None
        self._stopping = asyncio.Lock()

    async def start(self) -> None:
        """Starts listening. Raises AddressInUse for a port, CannotListen for an unusable host or certificate."""
        if self._durability is not None:
            self.hub.gate = self._durability.committer
        try:
            self.address = await self._listen(self.settings.port, admin=False)
            if self.settings.admin_port is not None:
                self.admin_address = await self._listen(self.settings.admin_port, admin=True)
        except BaseException:
            await self.stop(drain_s=0)
            raise
        self._housekeeping = asyncio.create_task(self._run_housekeeping(), name="segstore housekeeping")

    async def _listen(self, port: int, *, admin: bool) -> Endpoint:
        host, limits, files = self.settings.host, self.settings.limits, self.settings.tls
        tls: dict[str, Any] = {}
        if files is not None:
            tls = {
                "ssl": files.server_context(host, port),
                "ssl_handshake_timeout": limits.first_frame_timeout_s,
                "ssl_shutdown_timeout": limits.linger_s,
            }
        listening = Listening(lambda: Connection(self.hub, admin=admin), tls=tls)
        with listening_on(host, port, *(("admin commands", "--admin-port") if admin else ())):
            await listening.start(host, port, _BACKLOG)
        self._listening.append(listening)
        return Endpoint(*listening.address)

    async def _run_housekeeping(self) -> None:
        """Writes index entries of idle segments, and deletes transient segments that are no longer used."""
        clean_every_s = min(_CLEAN_EVERY_S, self.settings.transient_idle_s)
        clean_at = time.monotonic() + clean_every_s
        written = 0
        while True:
            await asyncio.sleep(0 if written >= _ENTRIES_AT_ONCE else _INDEX_EVERY_S)
            written = 0
            try:
                now_ms = self.service.now_ms()
                written = self.store.settle_index(now_ms, _ENTRIES_AT_ONCE)
                self.store.drop_merged_indexes(now_ms, _MERGED_INDEX_MS)
                if time.monotonic() >= clean_at:
                    clean_at = time.monotonic() + clean_every_s
                    self.clean_transients(now_ms)
                self.service.answer_waiting()
            except Exception:
                self.service.counters.internal_errors += 1
                log.exception("housekeeping failed; the next round tries again")

    def clean_transients(self, now_ms: int) -> int:
        """Deletes transient segments that have been idle for too long (seed 43.6). Returns their number."""
        idle_ms, deleted = int(self.settings.transient_idle_s * 1000), 0
        for container in self.store.containers.values():
            for name in container.expired_transients(now_ms, idle_ms):
                self.service.drop_transient(name)
                deleted += 1
        return deleted

    async def stop(self, *, drain_s: float = _DRAIN_S) -> None:
        """Stops listening, flushes queued output for up to `drain_s` seconds, and closes all connections.

        May be called again, also while it runs: every call returns when all is stopped. If it is cancelled, it aborts
        the remaining connections.
        """
        async with self._stopping:
            try:
                for listening in self._listening:
                    listening.close()
                for listening in self._listening:
                    await listening.wait_closed()
                if self._housekeeping is not None:
                    self._housekeeping.cancel()
                    await asyncio.wait([self._housekeeping])
                    self._housekeeping = None
            except asyncio.CancelledError:
                await self.hub.close(0)
                raise
            await self.hub.close(drain_s)
            self._listening.clear()

    async def __aenter__(self) -> SegmentStoreServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class MockSegmentStore(WithFaults, WithSnapshots):
    """A segment store for a test, on free ports of this machine.

        async with MockSegmentStore() as mock:
            connect(mock.host, mock.port)
            mock.faults.add("type = APPEND_BLOCK_END", nth=3, do="close after")
            await mock.wait_for("type = APPEND_BLOCK_END", count=3, stage="applied")
            assert mock.store.segment_info("scope/stream/0.#epoch.0").length == 12

    Keyword arguments are the fields of `StoreSettings`, and
        faults: the faults from the start: the path of a fault file, or FaultSettings.
        clock: the clock of the store and its faults.
        watched: False disables faults and request recording, so that connections are as in a bare `serve`.
        http_port: port of the control API; 0 picks a free port, None disables it.
        http_token_file: file with the token that its requests must carry; None (on loopback only): no token.
    """

    def __init__(
        self,
        *,
        faults: FaultSettings | Path | str | None = None,
        clock: Clock | None = None,
        watched: bool = True,
        http_port: int | None = None,
        http_token_file: Path | None = None,
        **settings: Unpack[StoreOptions],
    ) -> None:
        clock = clock or LoopClock()
        super().__init__(Faults.of_mock(clock, faults, watched=watched))
        self._traffic = None if http_port is None else Traffic()
        self.server = SegmentStoreServer(
            settings_of(StoreSettings, {"port": 0, **settings}, MockSegmentStore.__init__.__kwdefaults__ or ()),
            clock=clock,
            faults=self.rules,
            recorder=self._traffic,
        )
        self.snapshots = Snapshots([self.server], self.server.store.pool.memory, self.rules)
        self._http_port = http_port
        self._http_token_file = http_token_file
        self._control_api: ControlApi | None = None

    @property
    def host(self) -> str:
        return self._address(self.server.address).host

    @property
    def port(self) -> int:
        return self._address(self.server.address).port

    @property
    def admin_port(self) -> int:
        return self._address(self.server.admin_address).port

    @property
    def http_url(self) -> str:
        """http://host:port of the control API."""
        address = None if self._control_api is None else self._control_api.address
        return f"http://{self._address(address)}"

    @property
    def store(self) -> SegmentStore:
        """The state: segments, attributes, tables."""
        return self.server.store

    @property
    def segments(self) -> dict[str, Segment]:
        """All segments by name, index segments included."""
        containers = self.store.containers.values()
        return {name: segment for container in containers for name, segment in container.segments.items()}

    @staticmethod
    def _address(address: Endpoint | None) -> Endpoint:
        if address is None:
            raise RuntimeError("the store does not listen there: it is not started, or the port is not set")
        return address

    async def __aenter__(self) -> MockSegmentStore:
        await self.server.start()
        if self._http_port is not None:
            try:
                from segstore.server.control_api import ControlApi, Controlled  # needs a web library

                controlled = Controlled([self.server], self.rules, traffic=self._traffic, snapshots=self.snapshots)
                self._control_api = ControlApi(
                    controlled, self.server.settings.host, self._http_port, token_file=self._http_token_file
                )
                await self._control_api.start()
            except BaseException:
                await self.server.stop(drain_s=0)
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._control_api is not None:
            await self._control_api.stop()
        await self.server.stop(drain_s=1.0)
        if self.rules is not None:
            await self.rules.aclose()
