"""What follows a segment, asked while the change is under way that ends it: a client that heard of the end early."""

from __future__ import annotations

import asyncio

import pytest

from segstore.server.controller import SegmentStoreFailed
from tests.server.controller.conftest import World


class SlowSeals:
    """Seals of a store that stop behind the first one until they are let go."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        seal = world.store.seal_segment

        async def slow(segment: str) -> int:
            length = await seal(segment)
            self.begun.set()
            await self.go_on.wait()
            return length

        monkeypatch.setattr(world.store, "seal_segment", slow)


async def test_a_call_while_segments_are_sealed_for_a_scale_is_answered_when_the_epoch_exists(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.stream(2)
    slow = SlowSeals(world, monkeypatch)
    scale = asyncio.create_task(world.controller.scaling.start("a", "s", [0, 1], [(0.0, 0.5), (0.5, 1.0)]))
    await slow.begun.wait()
    assert world.store.sealed == {"a/s/0.#epoch.0"}
    asked = asyncio.create_task(world.controller.streams.following("a", "s", 0))
    await asyncio.sleep(0)
    assert not asked.done()
    slow.go_on.set()
    await scale
    assert {each.id for each in await asked} == {1 << 32 | 2}


async def test_a_call_while_transactions_roll_is_answered_when_the_epochs_exist(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.stream(1)
    transactions = world.controller.transactions
    identifier, _ = await transactions.open("a", "s", 20_000)
    await world.controller.scaling.start("a", "s", [0], [(0.0, 1.0)])
    slow = SlowSeals(world, monkeypatch)
    commit = asyncio.create_task(transactions.commit("a", "s", identifier))
    await slow.begun.wait()
    asked = asyncio.create_task(world.controller.streams.following("a", "s", 1 << 32 | 1))
    await asyncio.sleep(0)
    assert not asked.done()
    slow.go_on.set()
    await commit
    assert {each.id for each in await asked} == {2 << 32}


async def test_a_scale_that_failed_half_way_is_finished_by_the_next_call(world: World) -> None:
    await world.stream(1)
    world.store.broken.add("seal")
    await world.controller.scaling.start("a", "s", [0], [(0.0, 1.0)])
    with pytest.raises(SegmentStoreFailed):
        await world.controller.streams.following("a", "s", 0)
    world.store.broken.clear()
    assert {each.id for each in await world.controller.streams.following("a", "s", 0)} == {1 << 32 | 1}


async def test_a_rolling_commit_that_failed_half_way_is_finished_by_the_next_call(world: World) -> None:
    await world.stream(1)
    identifier, _ = await world.controller.transactions.open("a", "s", 20_000)
    await world.controller.scaling.start("a", "s", [0], [(0.0, 1.0)])
    world.store.broken.add("seal")
    await world.controller.transactions.commit("a", "s", identifier)
    with pytest.raises(SegmentStoreFailed):
        await world.controller.streams.following("a", "s", 1 << 32 | 1)
    world.store.broken.clear()
    assert {each.id for each in await world.controller.streams.following("a", "s", 1 << 32 | 1)} == {2 << 32}


async def test_a_scale_that_is_not_due_is_not_started_by_a_call(world: World) -> None:
    world.make(scale_delay_ms=1_000)
    await world.stream(1)
    await world.controller.scaling.start("a", "s", [0], [(0.0, 1.0)])
    assert await world.controller.streams.following("a", "s", 0) == {}
    assert world.store.sealed == set()
