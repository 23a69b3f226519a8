"""Stores without sockets, whose containers ownership drives."""

from random import Random
from typing import Any

from segstore.server.coordination import (
    ContainerOwnership,
    ContainerStorage,
    Coordinator,
    LoadReport,
    OwnershipSettings,
)
from segstore.server.store import SegmentStore

__all__ = ["Store"]


class Store:
    """A store and its ownership."""

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
        self.first_uses = self.store.unopened
        self.reasons: list[str] = []
        self.ownership = ContainerOwnership(
            name,
            coordinator,
            storage,
            self.store,
            self.load,
            OwnershipSettings(**settings),
            random=Random(seed),
            on_shutdown=self.reasons.append,
        )

    def load(self) -> LoadReport:
        return LoadReport(containers=len(self.store.containers))

    @property
    def serves(self) -> set[int]:
        return set(self.store.containers)

    def epoch_of(self, container_id: int) -> int:
        """Under which a container is served; 0 where it is not."""
        return self.ownership._openings[container_id].epoch if container_id in self.serves else 0
