"""What tests of durable stores share: a store on a directory, and all that can be seen of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from segstore.server.durable import MIN_MEMORY_BYTES, Durability, Files, JournalFailed
from segstore.server.durable.journal import JournalWriter
from segstore.server.store import SegmentStore
from segstore.wire import Buffer
from tests.server.support import append_to, until

CONTAINERS = 2
WRITER = UUID(int=7)
NONE = -(1 << 63)
RANDOM = Random(0)


class Sender:
    """Keeps what a committer, or a gate before several, tells one whose answers it holds back."""

    def __init__(self) -> None:
        self.released: list[Buffer] = []
        self.ended: list[str] = []
        self.resumed = 0

    def release(self, out: list[Buffer]) -> None:
        self.released += out

    def go_on(self) -> None:
        self.resumed += 1

    def failed(self, why: str) -> None:
        self.ended.append(why)


def small_journal(path: Path, files: Files, _: int) -> JournalWriter:
    """A journal that does not fill its file ahead."""
    return JournalWriter(path, files, 16 * 1024)


def make(
    path: Path, make_journal: Callable[[Path, Files, int], JournalWriter] = small_journal, **options: Any
) -> tuple[Durability, SegmentStore]:
    """A directory that is not open yet, and a store of empty containers for it."""
    made = {"containers": CONTAINERS, "held": range(CONTAINERS), "memory_bytes": MIN_MEMORY_BYTES, **options}
    durability = Durability(path, make_journal=make_journal, **made)
    return durability, SegmentStore(CONTAINERS, journal=durability.journal, pool=durability.pool)


@asynccontextmanager
async def running(path: Path, *, crash: bool = False, **options: Any) -> AsyncIterator[tuple[Durability, SegmentStore]]:
    """A store on a directory; `crash`: it ends as a killed process would, but for what was carried out by then."""
    durability, store = make(path, **options)
    try:
        durability.open()
        durability.recover(store.containers)
        await durability.start()
        yield durability, store
        await durability.committer.settled()
    finally:
        await durability.close(last_snapshot=not crash)


async def checkpoint(durability: Durability) -> None:
    """Takes a snapshot now, and waits for it. Raises `JournalFailed`."""
    before, committer = durability.snapshots, durability.committer
    durability._tidy_at_s = 0
    durability._look.set()
    while durability._tidy_at_s == 0 and not committer.failure:  # another one may be in progress
        before = durability.snapshots
        await asyncio.sleep(0)
    await until(lambda: durability.snapshots > before or committer.failure)
    if committer.failure:
        raise JournalFailed(committer.failure)


def everything(store: SegmentStore, *, with_index: bool = True) -> dict[str, Any]:
    """All that can be asked of a store, by segment."""
    found: dict[str, Any] = {}
    present = {name for container in store.containers.values() for name in container.segments}
    for container in store.containers.values():
        found[f"retired {container.container_id}"] = container.retired_names
        for name, segment in container.segments.items():
            if name.endswith("#index") and (not with_index or name.removesuffix("#index") not in present):
                continue  # the index of a merged segment is kept for a while, and dropped at the next start
            size = segment.length - segment.start_offset
            table = segment.table
            found[name] = (
                (segment.last_modified_ms, segment.length, segment.start_offset),
                dict(segment.attribute_values()),
                segment.read_bytes(segment.start_offset, size),
                None if table is None else (table.info(), sorted(table.positions()), table.live_bytes),
                (segment.is_table, segment.is_transient, segment.sealed),
            )
    return found


def write(store: SegmentStore, name: str, data: bytes, *, writer: UUID = WRITER, now_ms: int = 5) -> int:
    """Append as a writer that is set up for it; the length after it."""
    last = store.setup_append(name, writer, now_ms=now_ms)
    return append_to(store, name, writer, max(last, 0) + 1, 1, data, last_event_number=last, now_ms=now_ms)
