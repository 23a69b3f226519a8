"""One process of a cluster of processes (`--zookeeper`): a segment store and a controller port.

Each process owns a part of the containers through its session with ZooKeeper, in a shared folder. One process leads the
controller; all processes serve its port and forward calls to the leader. The controller's requests about segments go
over the wire to the owning store, even if that is this process.

Invariant: a process that cannot continue gives the reason in `failure`, once, and from then on acknowledges only
durable changes. Refused: a folder of another cluster, see `identify`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from segstore.server.clock import Clock
from segstore.server.cluster.leader import ControllerLeader
from segstore.server.cluster.node import ClusterNode, LoadMeter
from segstore.server.cluster.settings import ClusterSettings, ZooKeeperSettings
from segstore.server.controller import ControllerServer
from segstore.server.controller.api import Authority, Calls, ForwardingServer
from segstore.server.coordination import (
    Configuration,
    ContainerOwnership,
    CoordinationError,
    CoordinationSession,
    Coordinator,
    SessionState,
    ZooKeeperCoordinator,
    follow,
)
from segstore.server.durable import DataError
from segstore.server.faults import Faults
from segstore.server.node import SegmentStoreServer
from segstore.server.shared_folder import FolderStorage, Owners, Present, SharedFolder, confirm, identify
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.server.control_api import Controlled

log = logging.getLogger(__name__)

_SETTLE_S = 30.0
_CONNECT_MS = 3_000


class ClusterProcess(ClusterNode):
    """A process of `segstore serve --zookeeper`.

    Attributes, besides the attributes of `ClusterNode`:
        configuration: scopes and stream policies, through a session with their service.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        zookeeper: ZooKeeperSettings,
        *,
        authority: Authority | None = None,
        faults: Faults | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises ValueError for settings that do not apply to a cluster of processes."""
        where = zookeeper.zookeeper
        if where is None:
            raise ValueError("a cluster of processes needs zookeeper")
        if settings.data is None:
            raise ValueError("zookeeper needs data: a folder that all processes share, as containers move between them")
        if settings.stores != 1 or settings.store.own is not None:
            raise ValueError("with zookeeper a process has one store that takes containers itself: no stores, no own")
        guarded = settings.store.auth_key is not None or (authority is not None and not authority.is_open)
        if guarded and settings.tls is None and not zookeeper.trust_network:
            raise ValueError(
                "without TLS, passwords and tokens would be sent unprotected to any address in ZooKeeper; give "
                "tls_cert and tls_key, or trust_network if this is intended"
            )
        super().__init__(settings, faults)
        self.stores = [
            SegmentStoreServer(
                settings.store.model_copy(update={"own": frozenset()}),
                clock=clock,
                faults=faults,
                recorder=self.traffic,
            )
        ]
        self._path = settings.data
        self._where = where
        self._zookeeper = zookeeper
        self._authority = authority or Authority()
        self._coordinator = self._service(where)
        self._configured_where = zookeeper.configuration_zookeeper or where
        self.configuration = Configuration(self._service(self._configured_where))
        self._folder: SharedFolder | None = None
        self._storage: FolderStorage | None = None
        self._owners = Owners(settings.store.containers)
        self._ownership: ContainerOwnership | None = None
        self._front: ForwardingServer | None = None
        self._present: Present | None = None
        self._election: ControllerLeader | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def server(self) -> SegmentStoreServer:
        return self.stores[0]

    @cached_property
    def _controlled(self) -> Controlled:
        why = "each store of the cluster is a process, and ZooKeeper shares the containers out"
        return replace(super()._controlled, owner_elsewhere=self._owners.of, why_no_cluster=why)

    @property
    def _calls(self) -> ControllerServer | None:
        leading = None if self._election is None else self._election.leading
        return None if leading is None else leading.calls

    @property
    def ownership(self) -> ContainerOwnership:
        """The ownership of this store's containers. Raises RuntimeError before `start`."""
        if self._ownership is None:
            raise RuntimeError("the process is not started")
        return self._ownership

    def _service(self, where: str) -> Coordinator:
        timeout_ms = self.settings.ownership.session_timeout_ms
        return ZooKeeperCoordinator(
            where,
            session_timeout_ms=timeout_ms,
            connect_timeout_ms=max(_CONNECT_MS, timeout_ms),
            credentials=self._zookeeper.zookeeper_auth,
        )

    # --- life -------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Takes unowned containers; returns when all containers have an owner, the controller has a leader, and this
        process serves its own containers. Raises CoordinationError for ZooKeeper.
        """
        settings, server = self.settings, self.server
        session = await self._coordinator.connect()
        try:
            folder = self._folder = await identify(session, self._where, self._path, settings.store.containers)
        finally:
            await session.aclose()
        configuration = await self.configuration.start()
        if self._configured_where != self._where:  # another service, which must not be another cluster's
            await confirm(configuration, self._configured_where, folder)
        storage = self._storage = FolderStorage(
            folder,
            lambda number, opened: server.store.new_container(number, opened.pool, opened.journal(number)),
            settings.memory_bytes,
            on_failure=self._cannot_write,
            before_loss=server.hub.flush,
        )
        server.store.separate_journals = True
        server.hub.gate = storage.gate
        server.hub.fence = storage.fence
        await server.start()
        assert server.address is not None
        ownership = self._ownership = ContainerOwnership(
            str(Endpoint(settings.public_host, server.address.port)),
            self._coordinator,
            storage,
            server.store,
            LoadMeter(server).load,
            settings.ownership,
            released=server.service.answer_waiting,
            on_shutdown=lambda reason: self._fail(f"the store ends: {reason}"),
        )
        if settings.controller_port is not None:
            await self._start_controller(settings.controller_port, folder, ownership.refused)
        await ownership.start()
        self._following = asyncio.create_task(self._follow(), name="cluster process")
        await self._serve_rest_api(self._front)
        await self._start_control_api()
        await self._settle()

    async def _start_controller(self, port: int, folder: SharedFolder, refused: Mapping[int, str]) -> None:
        settings = self.settings
        front = ForwardingServer(
            self._leader,
            settings.controller,
            tls=settings.tls,
            trust_network=self._zookeeper.trust_network,
            calls=Calls(lambda: self.server.hub.recorder, lambda: self.rules),
        )
        self._front = await front.start(settings.store.host, port)
        self.controller_address = where = Endpoint(settings.public_host, self._front.port)
        self._present = Present(where)
        self._election = ControllerLeader(
            where,
            front,
            settings,
            folder,
            self._owners,
            self.configuration,
            self._authority,
            self._servers,
            refused,
            self._cannot_write,
        )

    async def _settle(self) -> None:
        """Waits until there is a controller, all containers have an owner, and this store's containers are open.

        Clients are sent to an owner from the beginning, and not all of them retry after WrongHost. The wait has a time
        limit.
        """
        assert self.failure is not None
        try:
            async with asyncio.timeout(_SETTLE_S):
                while self._missing():
                    if self.failure.done():
                        raise CoordinationError(self.failure.result())
                    await asyncio.sleep(0.01)
        except TimeoutError:
            log.warning("after %g s, %s; this process serves what it has", _SETTLE_S, self._missing())

    def _missing(self) -> str:
        """Returns what `_settle` waits for; "" for nothing."""
        ownership, election = self.ownership, self._election
        owners = {
            number: self._owners.of(number)
            for number in range(self.settings.store.containers)
            if number not in ownership.refused
        }
        if ownerless := [str(number) for number, owner in owners.items() if owner is None]:
            return f"no process owns container {', '.join(ownerless)}"
        ours = [number for number, owner in owners.items() if str(owner) == ownership.name]
        if opening := [str(number) for number in ours if not ownership.owns(number)]:
            return f"container {', '.join(opening)} is still being opened"
        if election is not None and election.leading is None and election.leader is None:
            return "no process leads the controller"
        return ""

    async def _stop_controller(self, grace_s: float) -> None:
        front, self._front = self._front, None
        if front is not None:  # before this process stops leading, so that calls in flight can be answered
            await front.aclose(grace_s)
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _stop_owning(self) -> None:
        if self._storage is not None:
            await self._storage.aclose()
        if self._ownership is not None:
            await self._ownership.stop()
        await self.configuration.aclose()

    async def _serve_rest_api(self, front: ForwardingServer | None) -> None:
        if front is None or self.settings.rest_port is None:
            return
        from segstore.server.rest import HealthStatus, answered_by_leader  # a web library

        def health() -> dict[str, HealthStatus]:
            led = HealthStatus.NEW if front.local is None and self._leader() is None else HealthStatus.UP
            session = self.ownership.session
            connected = session is not None and session.state is SessionState.CONNECTED
            return {
                "GRPCServer": HealthStatus.UP,
                **dict.fromkeys(("eventProcessor", "retentionService", "watermarkingService"), led),
                **dict.fromkeys(
                    ("clusterListener", "segmentContainerMonitor"), HealthStatus.UP if connected else HealthStatus.NEW
                ),
            }

        timeout_s = self.settings.controller.rest_timeout_ms / 1000
        await self._start_rest_api(self._authority, answered_by_leader(front, timeout_s), health)

    # --- with each session ------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Runs, for each session of the store, all tasks other than owning containers."""
        ownership = self.ownership
        assert self.failure is not None

        def current() -> CoordinationSession | None:
            session = ownership.session
            return None if session is None or session.state.is_over else session

        while ownership.shutdown_reason is None and not self.failure.done():
            await ownership.until(lambda: current() is not None or ownership.shutdown_reason is not None)
            if (session := current()) is not None:
                await self._follow_one(session)

    async def _follow_one(self, session: CoordinationSession) -> None:
        ownership = self.ownership
        parts = [
            follow(partial(self._identify, session), "the cluster of ZooKeeper is unknown"),
            self._owners.run(session),
            self._exit_if_unreachable(session),
        ]
        if self._election is not None and self._present is not None:
            parts += [self._election.run(session), self._present.run(session)]
        tasks = [asyncio.create_task(self._essential(part), name="part of a cluster process") for part in parts]
        try:
            await ownership.until(lambda: ownership.session is not session or session.state.is_over)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _essential(self, part: Coroutine[Any, Any, None]) -> None:
        """Runs a part without which the process cannot continue."""
        try:
            await part
        except (CoordinationError, DataError) as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("a task of the cluster process failed")
            self._fail(f"a task of the cluster process failed: {error!r}")

    async def _identify(self, session: CoordinationSession, _: asyncio.Event) -> bool:
        """Records the cluster in ZooKeeper, again after data loss there. Raises DataError for another cluster."""
        assert self._folder is not None
        await confirm(session, self._where, self._folder)
        return True

    async def _exit_if_unreachable(self, session: CoordinationSession) -> None:
        """Ends the process when ZooKeeper has been unreachable for too long; returns when the session has ended."""
        ownership, patience_s = self.ownership, self._zookeeper.zookeeper_patience_ms / 1000
        while not session.state.is_over:
            await ownership.until(lambda: session.state is not SessionState.CONNECTED)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await ownership.until(lambda: session.state is not SessionState.SUSPENDED)
                    continue
            self._fail(
                f"ZooKeeper at {self._where} has not answered for {patience_s:g} s; "
                "start this process again when it does"
            )
            return

    # --- the controller ---------------------------------------------------------------------------------------------

    def _leader(self) -> Endpoint | None:
        return None if self._election is None else self._election.leader

    def _servers(self) -> list[Endpoint]:
        return [] if self._present is None else self._present.all
