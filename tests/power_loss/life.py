"""One life of a store under the recorder: opens a directory, recovers, serves, changes data, and ends in some way.

There are two kinds of directories: `plain`, that of one process, and `cluster`, the folder of a cluster of processes
with one container, of which each life claims the next epoch. The directory is `data` in the recorded folder. To `marks`
beside it the process writes what a peer would know: the state that it recovered and serves, the state after each batch,
and the number of acknowledged batches. These writes are in the same log as the disk operations, and so in order.
"""

import asyncio
import hashlib
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from segstore.server.coordination import InProcessCoordinator
from segstore.server.durable import MIN_MEMORY_BYTES, Durability, JournalFailed
from segstore.server.shared_folder import identify
from segstore.server.store import AttributeUpdate, Container, SegmentStore, StoreError
from segstore.server.store.attributes import UpdateType
from tests.server.durable.support import NONE, checkpoint, everything, write

__all__ = ["CONTAINERS", "Opened", "live", "open_data"]

CONTAINERS = {"plain": 2, "cluster": 1}
"""Kind of directory → number of containers."""

_JOURNAL_BYTES = 48 * 1024


class Opened:
    """A locked and recovered directory. Nothing more is written to it until `durability` is started.

    Attributes:
        cluster: the cluster of the directory.
        durability, store: the opened parts.
        controller: the state of the controller; arbitrary growing bytes.
    """

    def __init__(self, cluster: str, durability: Durability, store: SegmentStore) -> None:
        self.cluster = cluster
        self.durability = durability
        self.store = store
        self.controller = bytearray(durability.controller_image + b"".join(durability.controller_operations))
        durability.controller_state = lambda: bytes(self.controller)

    def digest(self) -> str:
        """A canonical text of everything that a peer can read."""
        found = hashlib.blake2b(self.controller, digest_size=12)
        found.update(_text(everything(self.store, with_index=False)).encode("utf-8", "surrogatepass"))
        return found.hexdigest()


def _text(value: Any) -> str:
    """A canonical text of a value."""
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(each)}' for key, each in value.items()))}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, bytes | bytearray):
        return hashlib.blake2b(value, digest_size=12).hexdigest()
    return repr(value)


async def open_data(kind: str, path: Path) -> Opened:
    """Lock a directory, new or existing, and recover it. Raises `DataError`."""
    containers = CONTAINERS[kind]
    if kind == "plain":
        durability = Durability(path, containers=containers, held=range(containers), memory_bytes=MIN_MEMORY_BYTES)
        durability.open()
        store = SegmentStore(containers, journal=durability.journal, pool=durability.pool)
        durability.recover(store.containers)
    else:
        session = await InProcessCoordinator().connect()
        folder = await identify(session, "here", path, containers)
        await session.aclose()
        stores: list[SegmentStore] = []

        def make(opened: Durability) -> Mapping[int, Container]:
            stores.append(SegmentStore(containers, journal=opened.journal, pool=opened.pool))
            return stores[0].containers

        _, durability = folder.open(folder.container(0), (0,), MIN_MEMORY_BYTES, make)
        (store,) = stores
    durability._journal_bytes = _JOURNAL_BYTES  # the zeros of longer ones would fill most of the log
    return Opened(durability.directory.manifest.cluster, durability, store)


class _Marks:
    """Records what a peer would know (`Gated`)."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / "marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **what: Any) -> None:
        os.write(self._descriptor, json.dumps(what).encode() + b"\n")

    def hold(self, number: int, opened: Opened) -> None:
        """Batch `number` was executed; it is acknowledged when it is durable."""
        committer = opened.durability.committer
        if committer.failure:  # a server would have closed its connections
            return
        if committer.mark <= committer.committed and not committer.held:
            self.release([number])
        else:
            committer.held.append((committer.mark, self, [number]))

    def release(self, out: list[int]) -> None:
        for number in out:
            self.write(acknowledged=number)

    def go_on(self) -> None:
        """No-op: nothing waits for room."""

    def failed(self, why: str) -> None:
        """No-op: held batches are never acknowledged."""


def _change(chance: random.Random, opened: Opened, now_ms: int) -> None:
    store = opened.store
    name, other = (f"scope/stream/{chance.randint(0, 5)}.#epoch.0" for _ in range(2))
    data = chance.randbytes(chance.choice([0, 3, 300, 300, 5_000, 20_000]))
    key, value = b"k%d" % chance.randint(0, 9), chance.randint(0, 9)
    match chance.randint(0, 13):
        case 0 | 1:
            store.create_segment(name, now_ms=now_ms)
        case 2 | 3 | 4:
            write(store, name, data, now_ms=now_ms)
        case 5:
            write(store, name, data, writer=UUID(int=value), now_ms=now_ms)
        case 6 if name != other:
            store.merge(name, other, now_ms=now_ms)
        case 7:
            store.truncate_segment(name, chance.randint(0, 20_000), now_ms=now_ms)
        case 8 if value < 2:
            store.container_for(name).seal_segment(name, now_ms=now_ms)
        case 9 if value < 4:
            store.delete_segment(name)
        case 10:
            update = AttributeUpdate(UUID(int=value), UpdateType.REPLACE, value)
            store.container_for(name).update_attributes(name, [update], now_ms=now_ms)
        case 11:
            store.container_for("table").create_table_segment("table", now_ms=now_ms)
        case 12:
            store.container_for("table").update_table("table", [(key, data[:300], NONE)], now_ms=now_ms)
        case 13:
            operation = now_ms.to_bytes(8)
            opened.controller += operation
            opened.durability.controller_journal(operation)


async def live(kind: str, folder: Path, seed: int, ticks: int) -> None:
    """Open the directory in `folder`, change data `ticks` times, and close it, with or without a final snapshot."""
    chance, marks = random.Random(seed), _Marks(folder)
    opened = await open_data(kind, folder / "data")
    durability = opened.durability
    snapshots = set()
    try:
        await durability.start()
        marks.write(serves=opened.digest(), cluster=opened.cluster)
        for number in range(1, ticks + 1):
            for _ in range(chance.randint(1, 3)):
                try:
                    _change(chance, opened, now_ms=seed + number)
                except StoreError:
                    continue
            marks.write(state=opened.digest())
            marks.hold(number, opened)
            if chance.random() < 0.04:
                snapshots.add(asyncio.create_task(checkpoint(durability)))
            for _ in range(chance.choice([1, 1, 5])):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                await durability.committer.settled()
        await durability.committer.settled()
    except JournalFailed:
        return
    finally:
        await asyncio.gather(*snapshots, return_exceptions=True)
        await durability.close(last_snapshot=chance.random() < 0.3)
