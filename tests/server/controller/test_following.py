"""What follows a segment, asked while the change is under way that ends it: a client that heard of the end early."""

import asyncio
from collections.abc import Coroutine
from typing import Any

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


async def ending(world: World, how: str) -> tuple[Coroutine[Any, Any, object], int, int]:
    """A change that ends the stream's epoch, the id of a segment that it seals, and the id of the following one."""
    await world.stream(1)
    transactions = world.controller.transactions
    identifier, _ = await transactions.open("a", "s", 20_000)
    scale = world.controller.scaling.start("a", "s", [0], [(0.0, 1.0)])
    if how == "scale":
        return scale, 0, 1 << 32 | 1
    await scale
    return transactions.commit("a", "s", identifier), 1 << 32 | 1, 2 << 32


@pytest.mark.parametrize("how", ["scale", "rolling commit"])
async def test_a_call_while_segments_are_sealed_is_answered_when_the_epoch_exists(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, segment, following = await ending(world, how)
    slow = SlowSeals(world, monkeypatch)
    changing = asyncio.create_task(change)
    await slow.begun.wait()
    asked = asyncio.create_task(world.controller.streams.following("a", "s", segment))
    await asyncio.sleep(0)
    assert not asked.done()
    slow.go_on.set()
    await changing
    assert {each.id for each in await asked} == {following}


@pytest.mark.parametrize("how", ["scale", "rolling commit"])
async def test_a_change_that_failed_half_way_is_finished_by_the_next_call(world: World, how: str) -> None:
    change, segment, following = await ending(world, how)
    world.store.broken.add("seal")
    await change
    with pytest.raises(SegmentStoreFailed):
        await world.controller.streams.following("a", "s", segment)
    world.store.broken.clear()
    assert {each.id for each in await world.controller.streams.following("a", "s", segment)} == {following}


async def test_a_scale_that_is_not_due_is_not_started_by_a_call(world: World) -> None:
    world.make(scale_delay_ms=1_000)
    await world.stream(1)
    await world.controller.scaling.start("a", "s", [0], [(0.0, 1.0)])
    assert await world.controller.streams.following("a", "s", 0) == {}
    assert world.store.sealed == set()
