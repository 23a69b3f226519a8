"""Streams: made, configured, scaled, truncated, sealed, deleted and made again; and the questions about segments."""

import asyncio

import pytest

from segstore.server.controller import ScalingPolicy, SegmentStoreFailed, StreamConfig
from segstore.server.controller.errors import (
    BrokenStreamCut,
    EmptyName,
    IllegalState,
    InvalidStreamCut,
    NotFound,
    ScopeNotEmpty,
    StreamIsSealed,
    StreamNotSealed,
)
from segstore.server.controller.policies import ScalingType
from tests.server.controller.conftest import World

HALVES = [(0.0, 0.5), (0.5, 1.0)]


async def test_a_new_stream_has_its_segments_in_the_store(world: World) -> None:
    await world.stream(3)
    segments = await world.controller.streams.current("a", "s")
    assert [world.controller.state.stream("a", "s").segment_name(segment) for segment in segments] == list(
        world.store.lengths
    )
    assert (segments[0].start, segments[-1].end) == (0.0, 1.0)


async def test_of_many_callers_that_create_one_stream_one_succeeds(world: World) -> None:
    world.controller.scopes.create("a")
    made = await asyncio.gather(
        *(world.controller.create_stream("a", "s", StreamConfig()) for _ in range(5)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in made) == [*["AlreadyExists"] * 4, "NoneType"]


async def test_a_stream_whose_segments_cannot_be_made_is_not_made(world: World) -> None:
    world.controller.scopes.create("a")
    world.store.broken = {"create"}
    with pytest.raises(SegmentStoreFailed):
        await world.stream()
    assert not world.controller.streams.exists("a", "s")
    world.store.broken = set()
    await world.stream()


async def test_a_scale_ends_with_a_new_epoch(world: World) -> None:
    await world.stream()
    world.store.lengths["a/s/0.#epoch.0"] = 40
    coming, left = await world.controller.scaling.start("a", "s", [0], reversed(HALVES))
    assert ([(each.number, each.start) for each in coming], left) == ([(1, 0.5), (2, 0.0)], 0)
    assert await world.controller.streams.current("a", "s") == coming[::-1]
    assert world.store.sealed == {"a/s/0.#epoch.0"}
    assert world.controller.state.stream("a", "s").sizes == {0: 40}
    assert world.controller.scaling.status("a", "s", left) == "SUCCESS"
    assert world.controller.scaling.status("a", "s", 1) == "IN_PROGRESS"
    assert world.controller.scaling.status("a", "s", 2) == "INVALID_INPUT"


async def test_a_delayed_scale_is_in_progress_until_it_is_due(world: World) -> None:
    world.make(scale_delay_ms=300)
    await world.stream()
    first = await world.controller.scaling.start("a", "s", [0], HALVES)
    assert world.controller.scaling.status("a", "s", 0) == "IN_PROGRESS"
    assert first[0][0].number == 1
    assert (await world.controller.scaling.start("a", "s", [0], HALVES))[1] == 0
    with pytest.raises(IllegalState):
        await world.controller.scaling.start("a", "s", [0], [(0.0, 0.3), (0.3, 1.0)])
    await world.pass_time(299)
    assert len(await world.controller.streams.current("a", "s")) == 1
    await world.pass_time(1)
    assert len(await world.controller.streams.current("a", "s")) == 2


async def test_segments_are_created_and_sealed_before_the_epoch_that_records_it(world: World) -> None:
    await world.stream()
    world.store.broken = {"seal"}
    await world.controller.scaling.start("a", "s", [0], HALVES)
    assert len(await world.controller.streams.current("a", "s")) == 1
    world.store.broken = set()
    await world.pass_time(1_000)
    assert len(await world.controller.streams.current("a", "s")) == 2


async def test_a_scale_in_progress_survives_a_rolling_transaction(world: World) -> None:
    await world.stream()
    transaction, _ = await world.controller.transactions.open("a", "s", 90_000)
    await world.controller.scaling.start("a", "s", [0], HALVES)
    world.make(world.controller.state, scale_delay_ms=300)
    await world.controller.scaling.start("a", "s", [1 << 32 | 1], [(0.0, 0.25), (0.25, 0.5)])
    await world.controller.transactions.commit("a", "s", transaction)
    await world.pass_time(300)
    current = await world.controller.streams.current("a", "s")
    assert [(each.number, each.epoch) for each in current] == [(3, 4), (4, 4), (2, 3)]


async def test_an_update_gives_a_fixed_stream_its_segments(world: World) -> None:
    await world.stream(1)
    for count in (4, 2):
        await world.controller.update_stream("a", "s", StreamConfig(scaling=ScalingPolicy(min_segments=count)))
        assert len(await world.controller.streams.current("a", "s")) == count


async def test_an_update_leaves_a_scaling_stream_the_segments_that_it_has(world: World) -> None:
    await world.stream(4)
    policy = ScalingPolicy(ScalingType.EVENTS_PER_S, 100, 2, 2)
    await world.controller.update_stream("a", "s", StreamConfig(scaling=policy, tags=("t",)))
    assert len(await world.controller.streams.current("a", "s")) == 4
    assert set(world.store.policies.values()) == {policy}
    assert world.controller.streams.tagged("a", "", "t")[0] == ["s"]


async def test_a_truncation_moves_the_head_and_deletes_what_lies_before(world: World) -> None:
    await world.stream()
    await world.controller.scaling.start("a", "s", [0], HALVES)
    left, right = (each.id for each in await world.controller.streams.current("a", "s"))
    world.store.lengths["a/s/1.#epoch.1"] = 10
    await world.controller.streams.truncate("a", "s", {left: 10, right: 0})
    assert await world.controller.streams.head("a", "s") == {left: 10, right: 0}
    assert world.store.starts == {"a/s/1.#epoch.1": 10}
    assert "a/s/0.#epoch.0" not in world.store.lengths
    await world.controller.streams.truncate("a", "s", {left: 10, right: 5})
    with pytest.raises(InvalidStreamCut, match="before the last"):
        await world.controller.streams.truncate("a", "s", {left: 9, right: 5})
    with pytest.raises(BrokenStreamCut, match=r"7\.#epoch\.0 does not exist"):
        await world.controller.streams.truncate("a", "s", {7: 0})


async def test_a_truncation_beyond_the_end_drops_nothing_and_moves_the_head(world: World) -> None:
    await world.stream()
    world.store.lengths["a/s/0.#epoch.0"] = 10
    await world.controller.streams.truncate("a", "s", {0: 11})
    assert world.store.starts == {}
    assert await world.controller.streams.head("a", "s") == {0: 11}
    with pytest.raises(InvalidStreamCut, match="before the last"):
        await world.controller.streams.truncate("a", "s", {0: 10})


async def test_a_sealed_stream_has_a_head_and_no_current_segments(world: World) -> None:
    await world.stream(2)
    await world.controller.streams.seal("a", "s")
    await world.controller.streams.seal("a", "s")
    assert await world.controller.streams.current("a", "s") == []
    assert await world.controller.streams.head("a", "s") == {0: 0, 1: 0}
    assert await world.controller.streams.following("a", "s", 0) == {}
    assert len(world.store.sealed) == 2
    with pytest.raises(StreamIsSealed):
        await world.controller.update_stream("a", "s", StreamConfig())


async def test_a_stream_made_again_numbers_its_segments_after_the_old_ones(world: World) -> None:
    await world.stream(2)
    await world.controller.scaling.start("a", "s", [0], [(0.0, 0.2), (0.2, 0.5)])
    with pytest.raises(StreamNotSealed):
        await world.controller.streams.delete("a", "s")
    await world.controller.streams.seal("a", "s")
    await world.controller.streams.delete("a", "s")
    assert world.store.lengths == {}
    with pytest.raises(NotFound):
        await world.controller.streams.seal("a", "s")
    world.controller.scopes.delete("a")
    await world.stream(2)
    assert list(world.store.lengths) == ["a/s/4.#epoch.0", "a/s/5.#epoch.0"]
    await world.controller.streams.seal("a", "s")
    await world.controller.streams.delete("a", "s")
    await world.stream(1)
    assert list(world.store.lengths) == ["a/s/6.#epoch.0"]


async def test_the_stream_of_watermarks_comes_when_asked_for_and_goes_with_its_stream(world: World) -> None:
    await world.stream()
    with pytest.raises(NotFound):
        await world.controller.streams.current("a", "_MARKother")
    with pytest.raises(EmptyName):
        await world.controller.streams.head("a", "_MARK")
    assert len(await world.controller.streams.current("a", "_MARKs")) == 1
    assert world.controller.streams.names("a", "")[0] == ["s"]
    await world.controller.streams.seal("a", "s")
    await world.controller.streams.delete("a", "s")
    assert world.store.lengths == {}
    world.controller.scopes.delete("a")


async def test_listings_come_in_pages_until_an_empty_one(world: World) -> None:
    world.make(page_size=3)
    for at in range(7):
        await world.stream(name=f"s{at}", tags=("even",) if at % 2 == 0 else ())
    seen, token, pages = [], "", 0
    while True:
        names, token = world.controller.streams.names("a", token)
        assert token
        if not names:
            break
        seen += names
        pages += 1
    assert (seen, pages) == ([f"s{at}" for at in range(7)], 3)
    await world.stream(name="_s", tags=("even",))
    # In the order of the parts of Pravega's index.
    assert world.controller.streams.tagged("a", "", "even") == (["s2", "s6", "s0"], "s0")
    assert world.controller.streams.tagged("a", "s0", "even") == (["s4"], "s4")
    assert world.controller.streams.tagged("a", "s4", "even") == ([], "s4")
    with pytest.raises(NotFound):
        world.controller.streams.names("b", "")


async def test_a_scope_is_deleted_empty_or_with_all_that_it_holds(world: World) -> None:
    await world.stream()
    with pytest.raises(ScopeNotEmpty):
        world.controller.scopes.delete("a")
    await world.controller.streams.current("a", "_MARKs")
    await world.controller.transactions.open("a", "s", 90_000)
    await world.controller.scopes.delete_recursively("a")
    assert (world.store.lengths, world.controller.state.scopes) == ({}, {})
    with pytest.raises(NotFound):
        world.controller.scopes.delete("a")
    await world.controller.scopes.delete_recursively("a")
