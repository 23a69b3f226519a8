"""Segment stores and a controller in one process, run by `segstore serve` and by tests as `MockCluster`.

Containers are assigned to the stores round-robin. The controller locates a segment with the same table that decides
which store serves it, so any other store answers WrongHost. The controller calls the owning store directly, not over
the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from segstore.server.clock import Clock, LoopClock
from segstore.server.cluster.contents import WithContents
from segstore.server.cluster.members import Members
from segstore.server.cluster.node import ClusterNode, controller_state
from segstore.server.cluster.settings import ClusterSettings
from segstore.server.config import StoreOptions, StoreSettings, settings_of
from segstore.server.controller import Controller, ControllerConfig
from segstore.server.controller.api import Authority, Calls, ControllerServer
from segstore.server.controller.state import Core, State
from segstore.server.controller.state import operations as op
from segstore.server.coordination import Coordinator, OwnershipSettings, configured
from segstore.server.durable import Durability
from segstore.server.faults import Faults, FaultSettings
from segstore.server.node import SegmentStoreServer, Snapshots
from segstore.server.segments import LocalSegments
from segstore.server.store import ChunkPool, MemoryAccount
from segstore.wire.endpoint import Endpoint
from segstore.wire.names import container_of

if TYPE_CHECKING:
    from segstore.server.control_api import Controlled

_PROMPT: Final = OwnershipSettings(takeover_delay_ms=50.0, load_report_interval_ms=500.0)
"""For tests: unowned containers are taken soon."""


class Cluster(ClusterNode):
    """Stores and a controller in one process.

    Attributes, besides the attributes of `ClusterNode`:
        members: the ownership of containers by several stores; None for a single store.
        durability: the data directory; None if everything is in memory.

    With one store, methods that need several stores raise RuntimeError.
    """

    _calls: ControllerServer | None = None

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        authority: Authority | None = None,
        faults: Faults | None = None,
        clock: Clock | None = None,
        coordinator: Coordinator | None = None,
        configuration: Coordinator | None = None,
    ) -> None:
        """faults: the fault rules of the stores; None to disable faults. clock: of the stores.
        coordinator: the service with which several stores have sessions; None for an in-process service. configuration:
        the service that holds scopes and stream policies; None for the `coordinator`.
        """
        super().__init__(settings, faults)
        self._memory = MemoryAccount(settings.store.limits.max_memory_bytes)
        self.durability: Durability | None = None
        if settings.data is not None:
            containers, own = settings.store.containers, settings.store.own
            self.durability = Durability(
                settings.data,
                containers=containers,
                held=range(containers) if own is None else own,
                memory_bytes=settings.memory_bytes,
                memory=self._memory,
            )
        self._pool = ChunkPool(memory=self._memory) if self.durability is None else self.durability.pool
        self._controller_state: State | None = None
        self._clock = clock
        self.stores = [self._make_store(number, store) for number, store in enumerate(settings.of_stores())]
        self.members: Members | None = None
        if settings.stores > 1:
            self.members = Members(self.stores, settings.ownership, coordinator, configuration)
        elif coordinator is not None or configuration is not None:
            raise ValueError("a coordinator is for several stores that share containers: give stores=2")
        self._authority = authority
        self._segments: LocalSegments | None = None
        self._with_controller = True
        if self.durability is None:
            self.snapshots = Snapshots(
                self.stores,
                self._memory,
                self.rules,
                calls=lambda: self._calls,
                changed=lambda: None if self.members is None else self.members.configuration.changed(),
            )

    @cached_property
    def _controlled(self) -> Controlled:
        return replace(super()._controlled, cluster=None if self.members is None else self)

    def _make_store(self, number: int, settings: StoreSettings) -> SegmentStoreServer:
        return SegmentStoreServer(
            settings,
            clock=self._clock,
            faults=self.rules,
            number=number,
            stores=self.settings.stores,
            durability=self.durability,
            pool=self._pool,
            recorder=self.traffic,
        )

    async def start(self, *, with_controller: bool = True) -> None:
        """Listens on all ports, or on no port if it raises.

        with_controller: False leaves the controller to `start_controller`.

        Raises CannotListen, OSError; DataError for the data directory. A stopped cluster cannot be started again; a new
        cluster continues from its directory.
        """
        self._with_controller = with_controller
        await super().start()

    async def _start(self) -> None:
        if (durability := self.durability) is not None:
            durability.open()
            stores = (server.store for server in self.stores)
            durability.recover({number: part for store in stores for number, part in store.containers.items()})
            self._controller_state = controller_state(durability)
            await durability.start(self._cannot_write)
        if self.members is not None:
            self.members.take()
        for store in self.stores:
            await store.start()
        if self.members is not None:
            await self.members.start()
        if self._with_controller and self.settings.controller_port is not None:
            await self.start_controller()
        await self._start_control_api()

    async def start_controller(self) -> None:
        """Starts the controller after `start(with_controller=False)`; no-op if it runs. Raises OSError."""
        settings = self.settings
        if self._calls is not None:
            return
        durability = self.durability
        self._segments = LocalSegments(self.stores, settings.public_host, lambda: self.stores[0].hub.recorder)
        core = Core(
            self._segments,
            settings.controller,
            journal=None if durability is None and self.members is None else self._journal,
            state=self._controller_state,
            memory=self._memory,
        )
        if self.members is not None:
            self.members.configuration.publish(lambda: configured(core.state))
        calls = Calls(lambda: self.stores[0].hub.recorder, lambda: self.rules)
        settled = None if durability is None else durability.committer.settled
        server = ControllerServer(Controller(core), self._authority, settled=settled)
        host, port, public = settings.store.host, settings.controller_port or 0, settings.public_host
        self._calls = await server.start(host, port, tls=settings.tls, published_host=public, calls=calls)
        self.controller_address = Endpoint(settings.public_host, self._calls.port)
        if settings.rest_port is not None:
            from segstore.server.rest import HealthStatus, answered  # a web library

            parts = ("GRPCServer", "eventProcessor", "retentionService", "watermarkingService")
            health = dict.fromkeys(parts, HealthStatus.UP)
            await self._start_rest_api(self._authority, partial(answered, self._calls, calls=calls), lambda: health)

    def _journal(self, operation: op.Operation) -> None:
        if self.durability is not None:
            self.durability.controller_journal(op.encode(operation))
        if self.members is not None:
            self.members.configuration.changed_by(operation)

    async def _stop_controller(self, grace_s: float) -> None:
        if self._calls is not None:
            await self._calls.aclose(grace_s)
        if self._segments is not None:
            self._segments.close()

    async def _stop_owning(self) -> None:
        if self.members is not None:
            await self.members.stop()
        if self.durability is not None:
            await self.durability.close()

    # --- several stores ---------------------------------------------------------------------------------------------

    @property
    def _members(self) -> Members:
        if self.members is None:
            raise RuntimeError("a cluster of one store shares no containers: give stores=2")
        return self.members

    def owner_of(self, segment: str) -> int | None:
        """The number of the store that owns a segment's container; None while no store does."""
        return self._members.owner(container_of(segment, self.settings.store.containers))

    async def move(self, container: int, to: int) -> None:
        """Moves a container to a store; returns when that store serves it."""
        await self._members.move(container, to)

    async def stop_store(self, number: int, *, drain_s: float = 0.0) -> None:
        """Stops a store: with `drain_s` 0 its connections are cut, and the others take its containers."""
        await self._members.stop_one(number, drain_s=drain_s)

    async def start_store(self, number: int) -> None:
        """Restarts a stopped store on its previous port; it takes its share of the containers gradually."""
        before = self.stores[number]
        again: dict[str, object] = {"own": frozenset()}
        if before.address is not None:  # None if its last start failed, with settings that have the port
            again["port"] = before.address.port
        if before.admin_address is not None:
            again["admin_port"] = before.admin_address.port
        server = self._make_store(number, before.settings.model_copy(update=again))
        server.hub.recorder = before.hub.recorder  # the caller may have replaced it, as for a file
        await self._members.start_one(number, server)
        if self._control_api is not None:
            self._control_api.controlled.count_writers()

    def expire_session(self, number: int) -> None:
        """Expires a store's session with the coordination service; the store is notified at once."""
        session = self._members.session(number)
        if not session.expired:
            session.service.expire(session.session_id)

    def cut_session(self, number: int) -> None:
        """Disconnects a store from the coordination service; its session expires after its timeout."""
        session = self._members.session(number)
        if not session.expired:
            session.service.cut(session.session_id)

    def heal_session(self, number: int) -> None:
        """Reconnects the store: its session resumes, or it learns that it has expired."""
        session = self._members.session(number)
        session.service.heal(session)


class MockClusterOptions(StoreOptions, total=False):
    """The keyword arguments of `MockCluster` besides `stores`."""

    controller: ControllerConfig | Mapping[str, Any] | None
    published_host: str | None
    authority: Authority | None
    faults: FaultSettings | Path | str | None
    clock: Clock | None
    watched: bool
    rest_port: int | None
    http_port: int | None
    http_token_file: Path | None
    data: Path | None
    memory_bytes: int | None
    ownership: OwnershipSettings | None
    coordinator: Coordinator | None
    configuration: Coordinator | None


_CLUSTER_OPTIONS: Final = [
    name for name in MockClusterOptions.__annotations__ if name not in StoreOptions.__annotations__
]


class MockCluster(Cluster, WithContents):
    """A cluster for a test, on free ports of this machine.

        async with MockCluster(stores=2) as mock:
            client = StreamManager(f"tcp://{mock.controller_uri}")
            assert await mock.events("shop/orders") == [b"tea"]

    `faults`, `clock`, `watched`, `http_port` and `http_token_file` are as in `MockSegmentStore`. `controller` has the
    controller's settings, also as a mapping. `rest_port` is the port of the controller's REST API. With `data`, the
    state is in that directory, and a later cluster continues from it. `ownership` sets how several stores own their
    containers and what they do when a session expires. `coordinator` and `configuration` are the services with which
    they have sessions, such as a `ZooKeeperCoordinator`; by default, both are in this process. Other keyword arguments
    are the fields of `StoreSettings`. Raises ValueError for an invalid argument, FaultFileError.

    With several stores, a test moves containers, stops stores and breaks sessions with these calls:

        await mock.move(container=0, to=1)
        await mock.stop_store(0)                 # the others take its containers
        await mock.start_store(0)
        mock.expire_session(1)                   # and its policy decides
        mock.cut_session(1); mock.heal_session(1)
    """

    def __init__(self, stores: int = 1, **options: Unpack[MockClusterOptions]) -> None:
        if isinstance(stores, bool) or not isinstance(stores, int):
            raise ValueError(f"stores is a number, not {stores!r}")
        store_options: dict[str, Any] = {"port": 0, "containers": max(4, stores), **options}
        cluster_options = {name: store_options.pop(name) for name in _CLUSTER_OPTIONS if name in options}
        store = settings_of(StoreSettings, store_options, ("stores", *_CLUSTER_OPTIONS))
        clock = cluster_options.pop("clock", None) or LoopClock()
        faults, watched = cluster_options.pop("faults", None), cluster_options.pop("watched", True)
        services = {name: cluster_options.pop(name, None) for name in ("authority", "coordinator", "configuration")}
        controller = cluster_options.pop("controller", None) or ControllerConfig()
        ownership = cluster_options.pop("ownership", None) or _PROMPT
        cluster = {
            "store": store,
            "stores": stores,
            "controller": controller,
            "ownership": ownership,
            **cluster_options,
        }
        super().__init__(
            settings_of(ClusterSettings, {"controller_port": 0, **cluster}),
            faults=Faults.of_mock(clock, faults, watched=watched),
            clock=clock,
            **services,
        )

    @property
    def controller_uri(self) -> str:
        """host:port of the controller."""
        if self.controller_address is None:
            raise RuntimeError("the cluster is not started")
        return str(self.controller_address)

    @property
    def http_url(self) -> str:
        """http://host:port of the control API, if `http_port` was given."""
        if self.http_address is None:
            raise RuntimeError("no control API is served: give http_port=0")
        return f"http://{self.http_address}"

    @property
    def rest_url(self) -> str:
        """http://host:port of the controller's REST API, if `rest_port` was given; https with TLS."""
        if self.rest_address is None:
            raise RuntimeError("no REST API is served: give rest_port=0")
        return f"{'http' if self.settings.tls is None else 'https'}://{self.rest_address}"

    async def stop(self, *, drain_s: float = 1.0) -> None:
        await super().stop(drain_s=drain_s)
