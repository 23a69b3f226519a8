"""The base class of one process of a cluster: its segment stores, controller and control API, run together.

Subclasses decide how containers are owned: `Cluster` for stores that share them in one process, `ClusterProcess` for
one store that shares them with other processes.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Self

from segstore.server.cluster.settings import ClusterSettings
from segstore.server.controller import Controller, ControllerServer
from segstore.server.controller.api import Authority
from segstore.server.controller.state import State, image, recovered
from segstore.server.coordination import LoadReport
from segstore.server.durable import DirectoryDamaged, Durability
from segstore.server.faults import Faults, WithFaults
from segstore.server.node import SegmentStoreServer, WithSnapshots
from segstore.server.recording import Recorder, together
from segstore.server.traffic import Traffic, make_traffic
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.server.control_api import ControlApi, Controlled
    from segstore.server.rest import HealthStatus, RestApi, RestRequest, RestResponse


class ClusterNode(WithFaults, WithSnapshots, ABC):
    """One process: its stores, a controller and the control API.

    Attributes:
        stores: the stores of this process, in order.
        controller: the controller, while it is in this process.
        controller_address: address for clients, once started; None without a controller.
        http_address: address of the control API, once started; None if it is disabled.
        traffic: the latest traffic of the stores; None if it is not kept.
        rest_address: address of the REST API, once started; None if it is disabled.
        failure: once started, a future that resolves with the reason (a sentence) when this process cannot continue;
            from then on nothing is acknowledged.
    """

    stores: list[SegmentStoreServer]

    def __init__(self, settings: ClusterSettings, faults: Faults | None) -> None:
        super().__init__(faults)
        self.settings = settings
        self.traffic: Traffic | None = None
        if settings.http_port is not None:
            self.traffic = make_traffic(settings.history_bytes, max_frame_bytes=settings.store.limits.max_frame_bytes)
        self.controller_address: Endpoint | None = None
        self.failure: asyncio.Future[str] | None = None
        self._control_api: ControlApi | None = None
        self._rest_api: RestApi | None = None

    @property
    @abstractmethod
    def _calls(self) -> ControllerServer | None:
        """The server of the controller, while it is in this process."""

    @property
    def controller(self) -> Controller | None:
        return None if self._calls is None else self._calls.controller

    @property
    def address(self) -> Endpoint | None:
        """Address of the first store."""
        return self.stores[0].address

    @property
    def http_address(self) -> Endpoint | None:
        return None if self._control_api is None else self._control_api.address

    @property
    def rest_address(self) -> Endpoint | None:
        return None if self._rest_api is None else self._rest_api.address

    def record(self, recorder: Recorder) -> None:
        """Adds a recorder of the traffic of all stores. Call before the start."""
        recorders = together(self.stores[0].hub.recorder, recorder)
        for store in self.stores:
            store.hub.recorder = recorders

    async def start(self) -> None:
        """Listens on all ports, or on no port if it raises. Raises CannotListen, OSError, DataError and the errors of
        `_start`.
        """
        self.failure = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            await self.stop(drain_s=0)
            raise

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """Stops the HTTP ports and the controller, then the stores. May be called twice. Raises FaultFunctionError."""
        for api in (self._control_api, self._rest_api):
            if api is not None:
                await api.stop()
        await self._stop_controller(min(drain_s, 1.0))
        for store in self.stores:
            await store.stop(drain_s=drain_s)
        await self._stop_owning()
        if self.rules is not None:
            await self.rules.aclose()

    @abstractmethod
    async def _start(self) -> None:
        """Starts stores, ownership of containers, controller, and control API."""

    @abstractmethod
    async def _stop_controller(self, grace_s: float) -> None:
        """Stops the controller; calls in flight have `grace_s` seconds to finish."""

    @abstractmethod
    async def _stop_owning(self) -> None:
        """Releases containers and data, after the stores have stopped."""

    @cached_property
    def _controlled(self) -> Controlled:
        from segstore.server.control_api import Controlled  # a web library

        return Controlled(
            self.stores,
            self.rules,
            lambda: self.controller,
            lambda: self.controller_address,
            traffic=self.traffic,
            data=self.settings.data,
            snapshots=self.snapshots,
            settled=self._settled,
        )

    async def _start_control_api(self) -> None:
        """Serves the control API if it has a port. Raises CannotListen."""
        settings = self.settings
        if settings.http_port is None:
            return
        from segstore.server.control_api import ControlApi  # a web library

        self._control_api = ControlApi(
            self._controlled,
            settings.store.host,
            settings.http_port,
            names=[settings.public_host],
            token_file=settings.http_token_file,
        )
        await self._control_api.start()

    async def _settled(self) -> None:
        if self._calls is not None:
            await self._calls.settled()

    async def _start_rest_api(
        self,
        authority: Authority | None,
        ask: Callable[[RestRequest, str | None, str], Awaitable[RestResponse]],
        health: Callable[[], Mapping[str, HealthStatus]],
    ) -> None:
        """Serves the REST API. ask, health: as in `Answering`. Raises CannotListen."""
        settings = self.settings
        assert settings.rest_port is not None
        from segstore.server.rest import Answering, RestApi  # a web library

        self._rest_api = RestApi(
            Answering(ask, health, authority or Authority()),
            settings.store.host,
            settings.rest_port,
            names=[settings.public_host],
            tls=settings.tls,
        )
        await self._rest_api.start()

    def _fail(self, why: str) -> None:
        if self.failure is not None and not self.failure.done():
            self.failure.set_result(why)

    def _cannot_write(self, why: str) -> None:
        """Fails all connections: nothing can be made durable any more, so nothing may be answered."""
        for store in self.stores:
            for connection in tuple(store.hub.connections):
                connection.failed(why)
        self._fail(why)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class LoadMeter:
    """Measures the load of a store."""

    def __init__(self, server: SegmentStoreServer) -> None:
        self._server = server
        self._bytes = 0
        self._at_s = time.monotonic()

    def load(self) -> LoadReport:
        """Returns the current load; its byte rate is the average since the last call."""
        counters, now_s = self._server.service.counters, time.monotonic()
        moved = counters.bytes_in + counters.bytes_out
        rate = (moved - self._bytes) / max(now_s - self._at_s, 1e-3)
        self._bytes, self._at_s = moved, now_s
        return LoadReport(
            containers=len(self._server.store.containers) + len(self._server.store.unopened),
            bytes_per_s=rate,
            connections=counters.connections_open,
        )


def controller_state(durability: Durability) -> State:
    """Restores the controller's state from an open directory, whose snapshots include it from then on.

    Raises `DirectoryDamaged`.
    """
    try:
        state = recovered(durability.controller_image, durability.controller_operations)
    except ValueError as error:
        raise DirectoryDamaged(durability.path, durability.path, f"the controller's state: {error}") from error
    durability.controller_image, durability.controller_operations = b"", []
    durability.controller_state = lambda: image(state)
    return state
