"""Container ownership of several stores in one process, each with its own coordination session.

Sessions are with a coordination service in this process, unless another is given; so is the one by which the controller
publishes scopes and stream policies and the stores look them up. Containers are handed over in memory. A store whose
session expires follows its policy; if that is to shut down, the store is stopped here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableSequence

from segstore.server.cluster.node import LoadMeter
from segstore.server.coordination import (
    Configuration,
    ContainerOwnership,
    Coordinator,
    InProcessCoordinator,
    InProcessSession,
    OwnershipSettings,
    SharedContainers,
)
from segstore.server.node import SegmentStoreServer

log = logging.getLogger(__name__)

_ANOTHER_LOOK_S = 0.5


class Members:
    """The ownership of each store, by the store's number; a stopped store keeps its last ownership."""

    def __init__(
        self,
        servers: MutableSequence[SegmentStoreServer],
        settings: OwnershipSettings,
        coordinator: Coordinator | None = None,
        configuration: Coordinator | None = None,
    ) -> None:
        """servers: the stores; `start_one` replaces an entry. coordinator: the service with which they have sessions;
        None for an in-process service. configuration: the service for scopes and stream policies; None for the
        `coordinator`.
        """
        self._servers = servers
        self._settings = settings
        self.coordinator: Coordinator = coordinator or InProcessCoordinator(
            session_timeout_ms=settings.session_timeout_ms
        )
        self.configuration = Configuration(configuration or self.coordinator)
        self._storage = SharedContainers()
        self.ownerships = [self._ownership(number) for number in range(len(servers))]
        self._dealt: list[list[int]] = []
        self._ending: set[asyncio.Task[None]] = set()

    def _ownership(self, number: int) -> ContainerOwnership:
        server = self._servers[number]
        return ContainerOwnership(
            f"store-{number}",
            self.coordinator,
            self._storage,
            server.store,
            LoadMeter(server).load,
            self._settings,
            released=server.service.answer_waiting,
            on_shutdown=lambda reason: self._shut_down(number, reason),
        )

    def _shut_down(self, number: int, reason: str) -> None:
        task = asyncio.get_running_loop().create_task(
            self._servers[number].stop(drain_s=0), name=f"store {number} ends: {reason}"
        )
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def take(self) -> None:
        """Takes the stores' initial containers. Must be called before the stores listen."""
        for server in self._servers:
            numbers = sorted(server.store.containers)
            self._dealt.append(numbers)
            for container_id in numbers:
                self._storage.put(container_id, server.store.release(container_id))

    async def start(self) -> None:
        """Makes each store own its initial containers. Raises Unreachable."""
        await self.configuration.start()
        for ownership, numbers in zip(self.ownerships, self._dealt, strict=True):
            await ownership.start(numbers)
        for number, numbers in enumerate(self._dealt):
            for container_id in numbers:
                await self.move(container_id, number)

    async def stop(self) -> None:
        """Ends all sessions. May be called twice."""
        for ownership in self.ownerships:
            await ownership.stop()
        await self.configuration.aclose()
        if isinstance(self.coordinator, InProcessCoordinator):
            self.coordinator.close()
        await asyncio.gather(*self._ending)

    # --- calls of tests ---------------------------------------------------------------------------------------------

    def owner(self, container_id: int) -> int | None:
        """The number of the store that owns a container now; None if no store does."""
        for number, ownership in enumerate(self.ownerships):
            if ownership.owns(container_id):
                return number
        return None

    async def move(self, container_id: int, to: int) -> None:
        """Moves a container to the store `to`; returns when that store owns it.

        Raises RuntimeError if that store was stopped, before or meanwhile.
        """
        taker = self.ownerships[to]
        while not taker.owns(container_id):
            if taker.session is None:
                raise RuntimeError(f"store {to} is stopped")
            for number, other in enumerate(self.ownerships):
                if number != to:
                    other.leave(container_id)
            giver = self.owner(container_id)
            taker.prefer(container_id)
            if giver is not None and giver != to:
                self.ownerships[giver].give_up(container_id)
            try:
                async with asyncio.timeout(_ANOTHER_LOOK_S):
                    await taker.until(lambda: taker.owns(container_id) or taker.session is None)
            except TimeoutError:
                continue  # a third store may have been faster

    async def stop_one(self, number: int, *, drain_s: float) -> None:
        """Stops a store; the others take its containers. With `drain_s` 0 its connections are cut."""
        if drain_s > 0:
            await self.ownerships[number].stop()
            await self._servers[number].stop(drain_s=drain_s)
        else:
            await self._servers[number].stop(drain_s=0)
            await self.ownerships[number].stop()

    async def start_one(self, number: int, server: SegmentStoreServer) -> None:
        """Starts a server in the place of a stopped one; it takes its share of the containers gradually. Raises as
        `start` does.
        """
        await self.ownerships[number].stop()
        await self._servers[number].stop(drain_s=0)  # a store that is shutting down holds its port until then
        await asyncio.gather(*self._ending)
        self._servers[number] = server
        await server.start()
        self.ownerships[number] = self._ownership(number)
        await self.ownerships[number].start()

    def session(self, number: int) -> InProcessSession:
        """Returns a store's session. Raises RuntimeError if it has none in this process."""
        session = self.ownerships[number].session
        if not isinstance(session, InProcessSession):
            raise RuntimeError(f"store {number} has no session with a coordination service in this process")
        return session
