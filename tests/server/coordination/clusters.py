"""Two stores that own the containers of a cluster, in virtual time."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from segstore.server.coordination import (
    ContainerRefused,
    InProcessCoordinator,
    InProcessSession,
    Opened,
    SharedContainers,
)
from segstore.server.store import Container
from tests.server.coordination.stores import Store
from tests.server.coordination.virtual_time import Play, played_in, until

CONTAINERS = 4
TIMEOUT_S = 3.0


class Storage(SharedContainers):
    """Counts openings."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []
        self.closed: list[tuple[int, int, Container]] = []
        self.fails: Exception | None = None
        self.damaged: dict[int, str] = {}
        self.fence: dict[int, Callable[[], Container | None]] = {}
        """By container: what is called, for its last opening, when another store opens it."""

    async def open(self, container_id: int, fenced: Callable[[], Container | None]) -> Opened:
        self.opened.append(container_id)
        self.fence[container_id] = fenced
        if self.fails is not None:
            raise self.fails
        if container_id in self.damaged:
            raise ContainerRefused(container_id, self.damaged[container_id])
        return await super().open(container_id, fenced)

    async def refused(self, container_id: int) -> str:
        return self.damaged.get(container_id, "")

    def close(self, container_id: int, epoch: int, container: Container) -> None:
        self.closed.append((container_id, epoch, container))
        super().close(container_id, epoch, container)


class Cluster:
    """Two stores, of which the first has containers 0 and 2."""

    def __init__(self, **settings: Any) -> None:
        self.service = InProcessCoordinator(session_timeout_ms=TIMEOUT_S * 1000)
        self.storage = Storage()
        self.first, self.second = (
            Store(name, self.service, self.storage, CONTAINERS, seed=seed, **settings)
            for seed, name in enumerate(("first", "second"))
        )

    async def start(self) -> None:
        for number, store in enumerate((self.first, self.second)):
            await store.ownership.start(range(number, CONTAINERS, 2))
        await self.until(lambda: self.first.serves == {0, 2} and self.second.serves == {1, 3})

    until = staticmethod(until)

    def session_of(self, store: Store) -> InProcessSession:
        session = store.ownership.session
        assert isinstance(session, InProcessSession)
        return session

    def expire(self, store: Store) -> None:
        self.service.expire(self.session_of(store).session_id)


def played(**settings: Any) -> Callable[[Play[Cluster]], Callable[..., None]]:
    @asynccontextmanager
    async def two_stores() -> AsyncIterator[Cluster]:
        cluster = Cluster(**settings)
        await cluster.start()
        yield cluster
        for store in (cluster.first, cluster.second):
            await store.ownership.stop()
        cluster.service.close()

    return played_in(two_stores)


@contextmanager
def recorded() -> Iterator[list[str]]:
    """What is logged."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("segstore").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("segstore").removeHandler(handler)


async def opened_by_another(cluster: Cluster) -> None:
    """Expires the first store's session while somebody else opens container 0 and goes away."""
    cluster.expire(cluster.first)
    kept: list[Container | None] = []
    _, container = await SharedContainers.open(cluster.storage, 0, kept.pop)
    kept.append(container)
