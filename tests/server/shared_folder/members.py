"""Stores that share a folder, for tests: each with its own view of it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from segstore.server.durable import MIN_MEMORY_BYTES
from segstore.server.shared_folder import FolderStorage, SharedFolder
from segstore.server.store import Container, SegmentStore
from segstore.wire.names import container_of
from tests.server.durable.support import Sender, everything, write
from tests.server.support import until

CONTAINERS = 2


class Member:
    """A store and its view of the shared folder."""

    def __init__(self, path: Path, cluster: str = "ours", *, made: bool = True) -> None:
        self.store = SegmentStore(CONTAINERS, [])
        self.lost: list[int] = []
        self.failures: list[str] = []
        folder = SharedFolder(path, cluster, CONTAINERS)
        if made:
            folder.make()
        self.storage = FolderStorage(
            folder,
            lambda number, durability: Container(
                number, pool=durability.pool, journal=durability.journal(number), waiters=self.store.waiters
            ),
            MIN_MEMORY_BYTES * CONTAINERS,
            on_failure=self.failures.append,
            before_loss=lambda: None,
        )

    async def open(self, number: int = 0) -> int:
        def fenced() -> Container | None:
            self.lost.append(number)
            return self.store.release(number)

        epoch, container = await self.storage.open(number, fenced)
        assert container is not None
        self.store.own(number, container)
        return epoch

    async def open_all(self) -> None:
        for number in range(CONTAINERS):
            await self.open(number)

    async def settled(self) -> None:
        """Waits until every operation so far is durable, or its replies are dropped, and no journal is being made.

        A container makes its next journal in a thread, which checks whether the container is still owned. Unless that
        check is over, it may report the fence before the test's own write does.
        """
        gate, mark = self.storage.gate, self.storage.gate.mark
        opened = self.storage._open.values()
        await until(lambda: gate.committed >= mark and all(each.durability.committer.next for each in opened))

    def hold(self) -> Sender:
        """An answer that is made now, behind a change that is not durable yet."""
        holder = Sender()
        assert self.storage.gate.mark > self.storage.gate.committed
        self.storage.gate.held.append((self.storage.gate.mark, holder, [b"answer"]))
        return holder


@contextlib.asynccontextmanager
async def members(path: Path, count: int = 2) -> AsyncIterator[list[Member]]:
    made = [Member(path) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            await each.storage.aclose()


def in_container(number: int) -> str:
    """A segment of a container."""
    names = (f"scope/stream{each}/0.#epoch.0" for each in range(99))
    return next(name for name in names if container_of(name, CONTAINERS) == number)


def write_some(member: Member, size: int = 100) -> None:
    """A segment or two in each container that is owned."""
    for number in range(8):
        name = f"scope/some{number}-{size}/0.#epoch.0"
        if member.store.owns(name):
            member.store.create_segment(name, now_ms=1)
            write(member.store, name, bytes([number]) * size)


async def given_back(member: Member) -> dict[str, Any]:
    """What it had of its only container, which it opened, wrote to and released."""
    await member.open()
    write_some(member)
    await member.settled()
    before = everything(member.store, with_index=False)
    member.store.release(0)
    return before
