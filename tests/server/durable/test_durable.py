"""A store that is opened again is the store that it was, however it ended; disk and memory are given back."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from segstore.server.durable import MIN_MEMORY_BYTES, Durability, verify
from segstore.server.store import AttributeUpdate, SegmentStore, StoreError
from segstore.server.store.attributes import UpdateType
from tests.server.durable.support import NONE, RANDOM, checkpoint, everything, running, write
from tests.server.store.test_chunks import allocated_bytes


def one_of_each(store: SegmentStore) -> None:
    """All that can happen to a segment, to segments in both containers."""
    for number in range(4):
        name = f"scope/stream/{number}.#epoch.0"
        store.create_segment(name, scale_type=1, target_rate=7, rollover_size=9, now_ms=1)
        write(store, name, b"data %d" % number)
        write(store, name, RANDOM.randbytes(9_000))
        store.container_for(name).update_attribute(name, UUID(int=99), 5, NONE, now_ms=2)
    store.truncate_segment("scope/stream/0.#epoch.0", 3, now_ms=3)
    store.container_for("scope/stream/1.#epoch.0").seal_segment("scope/stream/1.#epoch.0", now_ms=4)
    store.delete_segment("scope/stream/2.#epoch.0")
    transaction = "scope/stream/3.#epoch.0#transaction." + "0" * 32
    for source in ("scope/other/0.#epoch.0", "scope/other/1.#epoch.0", transaction):
        store.create_segment(source, now_ms=5)
        write(store, source, RANDOM.randbytes(5_000))
        store.merge("scope/stream/3.#epoch.0", source, now_ms=6)
    store.container_for("scope/stream/3.#epoch.0").create_transient_segment(
        "scope/stream/3.#epoch.0", UUID(int=5), "0" * 32, now_ms=7
    )
    store.container_for("table").create_table_segment("table", now_ms=8)
    store.container_for("table").update_table(
        "table", [(b"key%d" % at, b"value" * at, NONE) for at in range(50)], now_ms=9
    )
    store.container_for("table").remove_table_keys("table", [(b"key3", NONE)], now_ms=10)
    store.container_for("fixed").create_table_segment("fixed", key_length=4, now_ms=8)
    store.container_for("fixed").update_table("fixed", [(b"%04d" % at, b"v", NONE) for at in range(20)], now_ms=9)
    store.container_for("fixed").remove_table_keys("fixed", [(b"0003", NONE)], now_ms=10)
    # Text that no UTF-8 has, which the wire can carry, and one that looks like how it is written down.
    for odd in ("odd \ud800 \udcff", "\x00odd", "Größe ✓ \U0001f600"):
        store.create_segment(odd, now_ms=11)
        write(store, odd, b"odd")
    store.settle_index()


@pytest.mark.parametrize("crash", [True, False], ids=["crashed", "closed"])
@pytest.mark.parametrize("snapshot", [True, False], ids=["a snapshot before", "none"])
async def test_everything_is_there_again(tmp_path: Path, crash: bool, snapshot: bool) -> None:
    async with running(tmp_path, crash=crash) as (durability, store):
        one_of_each(store)
        if snapshot:
            await checkpoint(durability)
            write(store, "scope/stream/0.#epoch.0", b"after the snapshot")
            store.create_segment("scope/later/0.#epoch.0", now_ms=12)
            store.settle_index()
        before = everything(store)
    assert crash or not [each for each in names_in(tmp_path) if each.startswith("journal")]
    assert verify(tmp_path).faults == []
    async with running(tmp_path) as (_, store):
        assert everything(store) == before
        assert any(container.expired_transients(0, 1) for container in store.containers.values())
        assert write(store, "scope/stream/0.#epoch.0", b"more") == before["scope/stream/0.#epoch.0"][0][1] + 4


@pytest.mark.parametrize("journals", [1, 3])
async def test_the_controllers_state_is_recovered_however_many_journals_it_filled(
    tmp_path: Path, journals: int
) -> None:
    written: list[bytes] = []
    for _ in range(2):
        durability = Durability(tmp_path, containers=2, held=(), memory_bytes=MIN_MEMORY_BYTES, journal_bytes=16 * 1024)
        durability.open()
        durability.recover({})
        assert durability.controller_image + b"".join(durability.controller_operations) == b"".join(written)
        durability.controller_state = lambda: b"".join(written)
        await durability.start()
        while len(durability._journals.ended) < journals:
            written.append(RANDOM.randbytes(2_000))
            durability.controller_journal(written[-1])
            await durability.committer.settled()
            await asyncio.sleep(0)
        await durability.close()
        assert not [each for each in names_in(tmp_path) if each.startswith("journal")]
    assert verify(tmp_path).faults == []


@pytest.mark.parametrize("seed", range(6))
async def test_a_store_and_one_in_memory_stay_equal_over_crashes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    twin = SegmentStore(2)
    now_ms = 0
    for _ in range(4):
        async with running(tmp_path, crash=chance.random() < 0.7) as (durability, store):
            assert everything(store) == everything(twin)
            for _ in range(60):
                now_ms += 20
                do = random_request(chance, now_ms)
                outcomes = []
                for each in (store, twin):
                    try:
                        outcomes.append(do(each))
                    except StoreError as error:
                        outcomes.append(type(error))
                    each.settle_index()
                assert outcomes[0] == outcomes[1]
                if chance.random() < 0.05:
                    await checkpoint(durability)
            assert everything(store) == everything(twin)


def random_request(chance: random.Random, now_ms: int) -> Callable[[SegmentStore], object]:
    name = f"scope/stream/{chance.randint(0, 5)}.#epoch.0"
    other = f"scope/stream/{chance.randint(0, 5)}.#epoch.0"
    data = chance.randbytes(chance.choice([0, 3, 300, 5_000, 90_000]))
    key, offset, value = b"k%d" % chance.randint(0, 9), chance.randint(0, 100_000), chance.randint(0, 9)
    update = AttributeUpdate(UUID(int=value), UpdateType.REPLACE, value)
    return chance.choice(
        [
            lambda store: store.create_segment(name, now_ms=now_ms),
            lambda store: write(store, name, data, now_ms=now_ms),
            lambda store: write(store, name, data, writer=UUID(int=value), now_ms=now_ms),
            lambda store: store.merge(name, other, now_ms=now_ms) if name != other else None,
            lambda store: store.truncate_segment(name, offset, now_ms=now_ms),
            lambda store: store.container_for(name).seal_segment(name, now_ms=now_ms) if value < 2 else None,
            lambda store: store.delete_segment(name) if value < 4 else None,
            lambda store: store.container_for(name).update_attributes(name, [update], now_ms=now_ms),
            lambda store: store.container_for("table").create_table_segment("table", now_ms=now_ms),
            lambda store: store.container_for("table").update_table("table", [(key, data[:300], NONE)], now_ms=now_ms),
            lambda store: store.container_for("table").remove_table_keys("table", [(key, NONE)], now_ms=now_ms),
        ]
    )


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def chunk_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir() if each.name.startswith("chunk"))


async def test_deleting_and_truncating_give_disk_back(tmp_path: Path) -> None:
    async with running(tmp_path) as (durability, store):
        for number in range(2):
            store.create_segment(f"scope/stream/{number}.#epoch.0", now_ms=1)
            for _ in range(10):
                write(store, f"scope/stream/{number}.#epoch.0", bytes(400_000))
                await durability.committer.settled()
        await checkpoint(durability)
        assert chunk_bytes(tmp_path) >= 8_000_000
        store.delete_segment("scope/stream/0.#epoch.0")
        await checkpoint(durability)
        assert 4_000_000 <= chunk_bytes(tmp_path) < 4_100_000
        store.truncate_segment("scope/stream/1.#epoch.0", 3_900_000)
        await checkpoint(durability)
        assert chunk_bytes(tmp_path) < 200_000
        assert bytes(store.segment("scope/stream/1.#epoch.0").read_bytes(3_900_000, 100_000)) == bytes(100_000)
    async with running(tmp_path) as (_, store):
        assert store.segment_info("scope/stream/1.#epoch.0").start_offset == 3_900_000


async def test_what_is_saved_while_it_is_merged_and_deleted_is_not_lost(tmp_path: Path) -> None:
    name, source = "scope/stream/0.#epoch.0", "scope/stream/0.#epoch.0#transaction." + "1" * 32
    data = RANDOM.randbytes(5_000_000)
    async with running(tmp_path, crash=True) as (durability, store):
        store.create_segment(name, now_ms=1)
        store.create_segment(source, now_ms=1)
        write(store, source, data)
        write(store, name, b"before")
        taking = checkpoint(durability)
        task = asyncio.create_task(taking)
        for _ in range(3):
            await asyncio.sleep(0)
        store.merge(name, source, now_ms=2)
        await task
        await checkpoint(durability)
        assert store.segment(name).read_bytes(0, 5_000_006) == b"before" + data
    async with running(tmp_path) as (_, store):
        assert store.segment(name).read_bytes(0, 5_000_006) == b"before" + data


async def test_memory_is_bounded_while_there_is_three_times_as_much(tmp_path: Path) -> None:
    names = [f"scope/stream/{number}.#epoch.0" for number in range(8)]
    block, count = RANDOM.randbytes(1 << 20), 12
    highest = 0
    async with running(tmp_path) as (durability, store):
        for name in names:
            store.create_segment(name, now_ms=1)
        for _ in range(count):
            for name in names:
                write(store, name, block)
                while durability.committer.full:
                    await durability.committer.settled()
                    await asyncio.sleep(0.001)
            await durability.committer.settled()
            held = sum(allocated_bytes(store.segment(name)) for name in names)
            highest = max(highest, held + durability.pool.idle_bytes + durability.cache.held_bytes)
        for name in names:
            for at in range(count):
                assert store.segment(name).read_bytes(at << 20, 1 << 20) == block
            highest = max(highest, durability.cache.held_bytes)
        assert highest <= MIN_MEMORY_BYTES
        assert sum(store.segment(name).length for name in names) == 3 * MIN_MEMORY_BYTES
