"""Storage interface for a cluster's containers, independent of the store that owns them.

Opening a container gives it a new epoch, and from that moment what an owner of an older epoch does fails: that fence,
not the coordination session, is what keeps two owners from acknowledging (seed 57.7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from segstore.server.store import Container

Opened = tuple[int, Container | None]
"""The epoch of an opening, and the container's state; None for one that is empty or that the store keeps itself."""


class ContainerRefused(Exception):
    """What is there of a container is not what can be served; one sentence that says what, where and what to do.

    Attributes:
        container_id: its number.
    """

    def __init__(self, container_id: int, why: str) -> None:
        super().__init__(f"container {container_id} cannot be opened: {why}")
        self.container_id = container_id


class ContainerStorage(Protocol):
    """Openings of containers, one after the other."""

    async def epoch(self, container_id: int) -> int:
        """Of the last opening; 0 before the first."""

    async def open(self, container_id: int, fenced: Callable[[], Container | None]) -> Opened:
        """Opens a container under the next epoch; the older ones are fenced before this returns.

        `fenced` is called when a later opening fences this one; it gives the container back if it has it, and the
        caller does nothing with it any more. Raises Disconnected for a storage that does not answer, ContainerRefused.
        """

    async def refused(self, container_id: int) -> str:
        """Why it was refused, if nothing of it has changed since; "" when opening it is worth a try."""

    def close(self, container_id: int, epoch: int, container: Container) -> None:
        """Takes back what an opening gave, from an owner that unloads it; nothing if it was fenced since."""


class SharedContainers:
    """The containers of stores in one process: they move from hand to hand."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._holders: dict[int, Callable[[], Container | None]] = {}
        self._resting: dict[int, Container] = {}

    def put(self, container_id: int, container: Container) -> None:
        """Keep a container that nobody has opened yet."""
        self._resting[container_id] = container

    async def epoch(self, container_id: int) -> int:
        return self._epochs.get(container_id, 0)

    async def open(self, container_id: int, fenced: Callable[[], Container | None]) -> Opened:
        epoch = self._epochs[container_id] = self._epochs.get(container_id, 0) + 1
        holder = self._holders.get(container_id)
        self._holders[container_id] = fenced
        held = None if holder is None else holder()
        return epoch, self._resting.pop(container_id, held)

    async def refused(self, container_id: int) -> str:
        return ""

    def close(self, container_id: int, epoch: int, container: Container) -> None:
        if self._epochs.get(container_id) == epoch:
            self._resting[container_id] = container
