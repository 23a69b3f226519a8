"""Scaling by load: when a segment is hot, when it is cold, and that a stream follows without anybody asking."""

import pytest

from segstore.server.controller import ScalingPolicy, StreamConfig
from segstore.server.controller.config import AutoScaling
from segstore.server.controller.policies import ScalingType
from segstore.server.controller.state import Epoch
from segstore.server.controller.state.history import first_epoch
from segstore.server.controller.streams.autoscale import Watch, decide, parts_wanted
from tests.looped import looped
from tests.server.controller.conftest import World

MINUTE_MS = 60_000
SETTINGS = AutoScaling()
MOST = 8
POLICY = ScalingPolicy(ScalingType.EVENTS_PER_S, 100, 4, 1)


def watched(rate: float, minutes: float) -> Watch:
    """A segment that took writes at a steady rate for so long."""
    watch = Watch.begin(0, 0)
    for now_ms in range(5_000, int(minutes * MINUTE_MS) + 1, 5_000):
        watch.take(now_ms, rate * now_ms / 1000, MINUTE_MS)
    return watch


def judged(rate: float, minutes: float) -> int:
    return parts_wanted(watched(rate, minutes), 100, int(minutes * MINUTE_MS), SETTINGS)


@looped(
    ("rate", "minutes", "parts"),
    [
        (1_000, 9.9, 1),  # left alone while it is new
        (1_000, 10.1, 10),
        (250, 10.1, 2),
        (101, 10.1, 2),
        (99, 30, 1),
        (51, 30, 1),
        (49, 19, 1),  # cold only after twenty minutes
        (49, 20.1, 0),
        (0, 20.1, 0),
    ],
)
def test_a_steady_rate_is_judged_by_the_thresholds(rate: float, minutes: float, parts: int) -> None:
    assert judged(rate, minutes) == parts


def test_a_short_burst_changes_nothing() -> None:
    watch = watched(80, 30)
    watch.take(30 * MINUTE_MS + 5_000, watch.total + 500 * 5, MINUTE_MS)
    assert parts_wanted(watch, 100, 30 * MINUTE_MS + 5_000, SETTINGS) == 1


def quarters() -> Epoch:
    return first_epoch(4, 0, 0)


def test_a_hot_segment_is_split_into_as_many_as_the_policy_allows() -> None:
    now_ms = 11 * MINUTE_MS
    watches = {segment.id: watched(80, 11) for segment in quarters().segments}
    watches[1] = watched(2_000, 11)
    decision = decide(quarters(), POLICY, watches, now_ms, SETTINGS, MOST)
    assert decision.sealed == (1,)
    assert (len(decision.ranges), decision.ranges[0][0], decision.ranges[-1][1]) == (4, 0.25, 0.5)
    assert decide(quarters(), POLICY, watches, now_ms + 1, SETTINGS, MOST) is None, "it was asked for a moment ago"


@looped(("most", "parts"), [(4, 0), (5, 2), (6, 3), (100, 4)])
def test_a_split_stays_within_what_a_stream_may_have(most: int, parts: int) -> None:
    now_ms = 11 * MINUTE_MS
    watches = {segment.id: watched(2_000, 11) for segment in quarters().segments}
    decision = decide(quarters(), POLICY, watches, now_ms, SETTINGS, most)
    assert (0 if decision is None else len(decision.ranges)) == parts


@looped(("silence", "decided"), [(2.0, True), (20.0, False)])
def test_a_segment_that_is_silent_is_cold_whatever_its_rates_were(silence: float, decided: bool) -> None:
    settings = AutoScaling(silence_minutes=silence)
    watches = {segment.id: watched(99, 11) for segment in quarters().segments}
    now_ms = 13 * MINUTE_MS
    for identifier in (0, 1):
        watches[identifier].take(now_ms, watches[identifier].total, MINUTE_MS)
    for identifier in (2, 3):
        watches[identifier].take(now_ms, watches[identifier].total + 1, MINUTE_MS)
    decision = decide(quarters(), POLICY, watches, now_ms, settings, MOST)
    assert decision == (((0, 1), ((0.0, 0.5),)) if decided else None)


def test_cold_neighbours_merge_and_a_lone_cold_segment_waits() -> None:
    now_ms = 25 * MINUTE_MS
    watches = {segment.id: watched(80, 25) for segment in quarters().segments}
    watches[0] = watched(0, 25)
    assert decide(quarters(), POLICY, watches, now_ms, SETTINGS, MOST) is None
    watches[1] = watched(0, 25)
    decision = decide(quarters(), POLICY, watches, now_ms + 5_000, SETTINGS, MOST)
    assert decision is not None
    assert decision == ((0, 1), ((0.0, 0.5),))


@looped(("minimum", "merged"), [(1, (0, 1, 2)), (2, (0, 1, 2)), (3, (0, 1)), (4, None)])
def test_a_merge_leaves_the_minimum(minimum: int, merged: tuple[int, ...] | None) -> None:
    now_ms = 25 * MINUTE_MS
    policy = ScalingPolicy(ScalingType.EVENTS_PER_S, 100, 4, minimum)
    watches = {segment.id: watched(80, 25) for segment in quarters().segments}
    for cold in (0, 2):
        watches[cold].cold_until_ms = now_ms + 1
    watches[1] = watched(0, 25)
    decision = decide(quarters(), policy, watches, now_ms, SETTINGS, MOST)
    assert (None if decision is None else decision.sealed) == merged


@pytest.mark.parametrize("kind", [ScalingType.EVENTS_PER_S, ScalingType.KBYTES_PER_S])
async def test_a_stream_follows_its_load_up_and_down(world: World, kind: ScalingType) -> None:
    world.make(scaling=AutoScaling(minute_ms=1_000, tick_ms=100))
    await world.stream(scaling=ScalingPolicy(kind, 10, 2, 1))
    for _ in range(300):
        for name in world.store.lengths.keys() - world.store.sealed:
            world.store.events[name] = world.store.events.get(name, 0) + 5
            world.store.lengths[name] += 5 * 1024
        await world.pass_time(100)
    grown = len(await world.controller.streams.current("a", "s"))
    assert grown >= 2
    await world.pass_time(120_000)
    assert len(await world.controller.streams.current("a", "s")) == 1


async def test_a_fixed_stream_does_not_follow_its_load(world: World) -> None:
    await world.stream()
    assert world.controller.core.next_due_ms() is None
    await world.controller.update_stream("a", "s", StreamConfig(scaling=POLICY))
    assert world.controller.core.next_due_ms() is not None
    await world.controller.update_stream("a", "s", StreamConfig())
    await world.pass_time(10_000)
    assert world.controller.core.next_due_ms() is None


async def test_a_store_that_fails_to_tell_loads_is_asked_again(world: World) -> None:
    await world.stream(scaling=POLICY)
    world.store.broken = {"load"}
    await world.pass_time(20_000)
    assert sum(call[0] == "load" for call in world.store.calls) == 4
