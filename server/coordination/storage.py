"""Storage interface for a cluster's containers, independent of the store that owns them.

Opening a container starts a new epoch, and from then on all actions of owners of older epochs fail. This fence, and not
the coordination session, prevents acknowledgements by two owners (seed 57.7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from segstore.server.store import Container

Opened = tuple[int, Container | None]
"""The epoch of an opening, and the container's state; None if it is empty or the store keeps it itself."""


class ContainerRefused(Exception):
    """A container's data cannot be served; the text is one sentence: the fault, its place, and advice."""

    def __init__(self, container_id: int, why: str) -> None:
        super().__init__(f"container {container_id} cannot be opened: {why}")
        self.container_id = container_id


class ContainerStorage(Protocol):
    """Opens containers, one opening after the other."""

    async def epoch(self, container_id: int) -> int:
        """Returns the epoch of the last opening; 0 before the first."""

    async def open(self, container_id: int, fenced: Callable[[], Container | None]) -> Opened:
        """Opens a container under the next epoch; older epochs are fenced before this returns.

        `fenced` is called when a later opening fences this epoch; it returns the container if it has it, and the caller
        must not use it afterwards. Raises Disconnected if the storage does not answer, ContainerRefused.
        """

    async def refused(self, container_id: int) -> str:
        """Returns why a container was refused, if nothing has changed since; "" if opening it is worth a try."""

    def close(self, container_id: int, epoch: int, container: Container) -> None:
        """Takes back a container from an owner that unloads it; no-op if the owner was fenced."""


class SharedContainers:
    """The containers of stores in one process, which pass them on in memory."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._holders: dict[int, Callable[[], Container | None]] = {}
        self._resting: dict[int, Container] = {}

    def put(self, container_id: int, container: Container) -> None:
        """Adds a container that was not opened yet."""
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
