"""Snapshots: what is in chunk files, where, and which of them are written again."""

from pathlib import Path

from segstore.server.durable import copy_of, restore
from segstore.server.store import SegmentStore
from tests.server.durable.support import CONTAINERS, RANDOM, checkpoint, everything, running, write
from tests.server.durable.test_durable import one_of_each

NAME = "scope/stream/0.#epoch.0"
TRANSACTIONS = [f"{NAME}#transaction.{each:032d}" for each in range(3)]


def chunk_files(path: Path) -> dict[str, int]:
    """Name → size."""
    return {each.name: each.stat().st_size for each in path.glob("chunk-*")}


async def test_pieces_of_one_chunk_file_that_do_not_follow_each_other_stay_apart(tmp_path: Path) -> None:
    data = {name: RANDOM.randbytes(5_000) for name in (NAME, *TRANSACTIONS)}
    merged = data[NAME] + data[TRANSACTIONS[1]] + data[TRANSACTIONS[2]]
    async with running(tmp_path, crash=True) as (durability, store):
        for name, each in data.items():
            store.create_segment(name, now_ms=1)
            write(store, name, each)
        await checkpoint(durability)
        assert len(chunk_files(tmp_path)) == 1
        for source in TRANSACTIONS[1:]:
            store.merge(NAME, source, now_ms=2)
        await checkpoint(durability)
        assert store.segment(NAME).read_bytes(0, len(merged)) == merged
    async with running(tmp_path) as (_, store):
        assert store.segment(NAME).read_bytes(0, len(merged)) == merged
        assert [(piece.start, piece.size) for piece in store.segment(NAME).pieces()] == [(0, 5_000), (5_000, 10_000)]


def test_a_copy_of_a_container_is_restored_without_files() -> None:
    store, again = SegmentStore(CONTAINERS), SegmentStore(CONTAINERS)
    one_of_each(store)
    for number, container in store.containers.items():
        restore(again.containers[number], copy_of(container), {})
    assert everything(again, with_index=False) == everything(store, with_index=False)


async def test_a_chunk_file_is_written_again_when_less_than_half_of_it_is_in_use(tmp_path: Path) -> None:
    async with running(tmp_path) as (durability, store):
        store.create_segment(NAME, now_ms=1)
        data = RANDOM.randbytes(20_000)
        write(store, NAME, data)
        await checkpoint(durability)
        first = chunk_files(tmp_path)
        store.truncate_segment(NAME, 10_000)
        await checkpoint(durability)
        assert chunk_files(tmp_path) == first, "half of it is in use"
        store.truncate_segment(NAME, 10_001)
        assert store.segment(NAME).read_bytes(10_001, 9_999) == data[10_001:]
        await checkpoint(durability)
        assert len(chunk_files(tmp_path)) == 1
        assert chunk_files(tmp_path).keys().isdisjoint(first)
        assert store.segment(NAME).read_bytes(10_001, 9_999) == data[10_001:]


async def test_bytes_below_four_kilobytes_are_in_the_snapshot_and_more_in_a_chunk_file(tmp_path: Path) -> None:
    async with running(tmp_path) as (durability, store):
        store.create_segment(NAME, now_ms=1)
        write(store, NAME, bytes(4_095))
        await checkpoint(durability)
        assert chunk_files(tmp_path) == {}
        write(store, NAME, b"x")
        await checkpoint(durability)
        (size,) = chunk_files(tmp_path).values()
        assert size == 4_096 + 4 + 40, "the bytes, the checksum of a block, the footer"
