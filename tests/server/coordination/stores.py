"""Stores without sockets, whose containers ownership drives."""

from collections.abc import Callable
from random import Random
from typing import Any

from segstore.server.coordination import (
    ContainerOwnership,
    ContainerStorage,
    Coordinator,
    LoadReport,
    OwnershipSettings,
)
from segstore.server.store import Container, SegmentStore

__all__ = ["Store"]


class Store:
    """A store, its ownership, and what it was told (`Hosted`)."""

    def __init__(
        self,
        name: str,
        coordinator: Coordinator,
        storage: ContainerStorage,
        containers: int,
        *,
        seed: int = 1,
        **settings: Any,
    ) -> None:
        self.store = SegmentStore(containers, [])
        self.first_uses: dict[int, Callable[[], None]] = {}
        self.reasons: list[str] = []
        self.caches_dropped = 0
        self.ownership = ContainerOwnership(
            name,
            coordinator,
            storage,
            self,
            containers,
            OwnershipSettings(**settings),
            random=Random(seed),
            on_shutdown=self.reasons.append,
            drop_caches=self._drop_caches,
        )

    def _drop_caches(self) -> None:
        self.caches_dropped += 1

    def own(self, container_id: int, container: Container | None) -> None:
        self.store.own(container_id, container)

    def own_unopened(self, container_id: int, first_use: Callable[[], None]) -> None:
        self.first_uses[container_id] = first_use

    def release(self, container_id: int) -> Container | None:
        if self.first_uses.pop(container_id, None) is not None:
            return None
        return self.store.release(container_id)

    def load(self) -> LoadReport:
        return LoadReport(containers=len(self.store.containers))

    @property
    def serves(self) -> set[int]:
        return set(self.store.containers)

    def epoch_of(self, container_id: int) -> int:
        """Under which a container is served; 0 where it is not."""
        return self.ownership.epochs.get(container_id, 0)
