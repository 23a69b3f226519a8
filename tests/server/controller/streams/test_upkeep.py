"""Retention: where a policy lets a stream be truncated, with and without subscribers, and that it is."""

from segstore.server.controller import StreamConfig
from segstore.server.controller.policies import (
    Cut,
    ReaderGroupConfig,
    RetentionPolicy,
    RetentionType,
    SubscriberRetention,
)
from segstore.server.controller.state import RetentionCut, Stream
from segstore.server.controller.state.history import first_epoch
from segstore.server.controller.streams.upkeep import obsolete, truncation_point
from tests.looped import looped
from tests.server.controller.conftest import World

SEGMENT = "a/s/0.#epoch.0"


def stream_with(*cuts: tuple[int, int]) -> Stream:
    """One segment, with a cut kept at each (time, offset)."""
    stream = Stream("a", "s", StreamConfig(), 0, [first_epoch(1, 0, 0)])
    stream.retention_cuts = [RetentionCut(at, offset, {0: offset}) for at, offset in cuts]
    return stream


KEPT = stream_with((0, 0), (100, 10), (200, 20), (300, 30))


def by_size(limit: int, subscribers: Cut, maximum: int = 0) -> Cut | None:
    return truncation_point(KEPT, RetentionPolicy(RetentionType.SIZE, limit, maximum), subscribers, 300)


def by_time(limit: int, subscribers: Cut, maximum: int = 0) -> Cut | None:
    return truncation_point(KEPT, RetentionPolicy(RetentionType.TIME, limit, maximum), subscribers, 300)


@looped("bound", [by_size, by_time])
def test_without_subscribers_the_latest_cut_that_leaves_enough_is_taken(bound: object) -> None:
    scale = 1 if bound is by_size else 10
    assert callable(bound)
    assert bound(15 * scale, {}) == {0: 10}
    assert bound(10 * scale, {}) == {0: 20}
    assert bound(1, {}) == {0: 20}
    assert bound(31 * scale, {}) is None


def test_nothing_is_kept_yet_and_nothing_is_truncated() -> None:
    assert truncation_point(stream_with(), RetentionPolicy(RetentionType.SIZE, 0), {}, 0) is None


@looped(
    ("limit", "subscriber", "maximum", "point"),
    [
        (10, 5, 0, 5),  # a slow subscriber holds everything back
        (10, 25, 0, 20),  # a fast one does not go below the limit
        (10, 5, 20, 10),  # but a slow one not above the maximum
        (10, 12, 20, 12),
        (40, 29, 0, None),
    ],
)
def test_retention_follows_the_slowest_subscriber_between_its_bounds(
    limit: int, subscriber: int, maximum: int, point: int | None
) -> None:
    expected = None if point is None else {0: point}
    assert by_size(limit, {0: subscriber}, maximum) == by_time(10 * limit, {0: subscriber}, 10 * maximum) == expected


@looped(("offset", "count"), [(0, 1), (5, 1), (10, 2), (30, 4)])
def test_cuts_up_to_a_truncation_are_of_no_more_use(offset: int, count: int) -> None:
    assert obsolete(KEPT.epochs, KEPT.retention_cuts, {0: offset}) == count


async def test_a_stream_is_truncated_as_time_passes(world: World) -> None:
    policy = RetentionPolicy(RetentionType.TIME, 3_600_000)
    await world.stream(retention=policy)
    for _ in range(6):
        world.store.lengths[SEGMENT] += 100
        await world.pass_time(1_800_000)
    assert await world.controller.streams.head("a", "s") == {0: 400}
    assert len(world.controller.state.stream("a", "s").retention_cuts) == 2


async def test_a_subscriber_holds_retention_back(world: World) -> None:
    await world.stream(retention=RetentionPolicy(RetentionType.SIZE, 100))
    config = ReaderGroupConfig(retention=SubscriberRetention.MANUAL, starting_cuts={"a/s": {}})
    group = await world.controller.reader_groups.create("a", "g", config)
    world.controller.reader_groups.move("a", "s", "a/g", group.group_id, 0, {0: 30})
    world.store.lengths[SEGMENT] = 1_000
    await world.pass_time(2 * 1_800_000)
    assert await world.controller.streams.head("a", "s") == {0: 30}


async def test_retention_that_the_store_fails_is_tried_the_next_time(world: World) -> None:
    await world.stream(retention=RetentionPolicy(RetentionType.SIZE, 1))
    world.store.broken = {"length"}
    await world.pass_time(1_800_000)
    world.store.broken = set()
    world.store.lengths[SEGMENT] = 50
    await world.pass_time(1_800_000)
    world.store.lengths[SEGMENT] = 90
    await world.pass_time(1_800_000)
    assert await world.controller.streams.head("a", "s") == {0: 50}


async def test_a_sealed_stream_and_one_without_a_policy_are_left_alone(world: World) -> None:
    await world.stream(retention=RetentionPolicy(RetentionType.SIZE, 1))
    await world.stream(name="t", retention=RetentionPolicy(RetentionType.SIZE, 1))
    await world.controller.streams.seal("a", "s")
    await world.controller.update_stream("a", "t", StreamConfig())
    await world.pass_time(1_800_000)
    assert world.controller.core.next_due_ms() is None
