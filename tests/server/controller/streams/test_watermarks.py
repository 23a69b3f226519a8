"""What writers' times become for readers: the events of a stream of watermarks."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

from segstore.server.controller import StreamConfig
from segstore.server.controller.policies import Cut
from segstore.server.controller.state import Epoch, Stream, StreamSegment, TransactionStatus, Watermark
from segstore.server.controller.streams.watermarks import UpperBound, mark_of
from tests.server.controller.conftest import World

EVERY_MS = 10_000
MARKS = "a/_MARKs/0.#epoch.0"


def stream_of(*epochs: tuple[StreamSegment, ...]) -> Stream:
    made = [Epoch(number, number, segments, number) for number, segments in enumerate(epochs)]
    return Stream("a", "s", StreamConfig(), 0, made)


WHOLE = StreamSegment(0, 0, 0.0, 1.0, 0)
LOW, HIGH = StreamSegment(1, 1, 0.0, 0.5, 1), StreamSegment(2, 1, 0.5, 1.0, 1)
SCALED = stream_of((WHOLE,), (LOW, HIGH))


def upper_bound(stream: Stream, positions: Iterable[Cut], last: Cut) -> Cut:
    bound = UpperBound(stream)
    for position in positions:
        bound.add(position)
    return bound.cut(last)


def written(world: World) -> list[bytes]:
    return list(world.store.appended.get(MARKS, {}).values())


def last(world: World) -> Watermark | None:
    return world.controller.state.stream("a", "s").watermark


def test_a_watermark_has_the_key_ranges_of_its_segments() -> None:
    stream = stream_of((WHOLE, StreamSegment(4, 0, 0.5, 1.0, 0)), (StreamSegment(3, 1, 0.0, 0.5, 1),))
    mark = mark_of(stream, Watermark(1, -5, 70_000, {1 << 32 | 3: 123456789, 4: -1}))
    assert mark == (-5, 70_000, ((1 << 32 | 3, 0.0, 0.5, 123456789), (4, 0.5, 1.0, -1)))


def test_positions_in_unknown_segments_are_ignored() -> None:
    assert upper_bound(SCALED, [{77: 5}], {}) == {}
    assert upper_bound(SCALED, [{77: 5, 0: 6}], {}) == {0: 6}


def test_a_segment_to_which_nothing_was_written_counts_from_its_start() -> None:
    """A writer reports -1 there, and all of its events may be in the segments before it."""
    assert upper_bound(SCALED, [{LOW.id: 7, HIGH.id: -1}], {}) == {LOW.id: 7, HIGH.id: 0}
    assert upper_bound(SCALED, [{0: 9}, {LOW.id: -1, HIGH.id: -1}], {}) == {LOW.id: 0, HIGH.id: 0}
    assert upper_bound(SCALED, [{LOW.id: 7}], {LOW.id: 3, HIGH.id: -1}) == {LOW.id: 7, HIGH.id: 0}


def plain_bound(stream: Stream, positions: Iterable[Cut], last: Cut) -> Cut:
    """The same, computed as in `PeriodicWatermarking.addToUpperBound` and `computeStreamCut`, pair by pair."""
    bound: dict[StreamSegment, int] = {}

    def meet(one: StreamSegment, other: StreamSegment) -> bool:
        return one.start < other.end and other.start < one.end

    def add(position: Cut) -> None:
        for identifier, offset in position.items():
            segment = stream.segment(identifier)
            if segment in bound:
                bound[segment] = max(offset, bound[segment])
            elif not any(meet(each, segment) and each.id > segment.id for each in bound):
                for each in [each for each in bound if meet(each, segment)]:
                    del bound[each]
                bound[segment] = offset

    def missing() -> list[tuple[float, float]]:
        keys = sorted({0.0, 1.0, *(key for each in bound for key in (each.start, each.end))})
        parts = pairwise(keys)
        return [part for part in parts if not any(each.start < part[1] and part[0] < each.end for each in bound)]

    for position in positions:
        add(position)
    gaps = missing()
    add(last)
    while True:
        newest = stream.epochs[max(each.epoch for each in bound)]
        for gap in gaps:
            add({each.id: 0 for each in newest.segments if each.start < gap[1] and gap[0] < each.end})
        if not (gaps := missing()):
            return {each.id: offset for each, offset in bound.items()}


def test_any_positions_after_any_watermark_give_the_cut_that_pravega_computes() -> None:
    random = Random(6)
    quarters = tuple(StreamSegment(3 + at, 2, at / 4, (at + 1) / 4, 2) for at in range(4))
    joined = (StreamSegment(7, 3, 0.0, 0.5, 3), *quarters[2:])
    stream = stream_of((WHOLE,), (LOW, HIGH), quarters, joined)
    every = [WHOLE, LOW, HIGH, *quarters, joined[0]]
    for _ in range(1_000):
        positions = [
            {each.id: random.randrange(100) for each in random.sample(every, random.randint(1, 3))} for _ in range(2)
        ]
        last = {segment.id: random.randrange(100) for segment in random.choice(stream.epochs).segments}
        assert upper_bound(stream, positions, last) == plain_bound(stream, positions, last)


async def test_a_writer_that_has_not_written_everywhere_gives_a_cut_that_readers_can_use(world: World) -> None:
    await world.stream(2)
    note = world.controller.writers.note
    assert note("a", "s", "one", 100, {0: 10, 1: -1}) == "SUCCESS"
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(1, 100, 100, {0: 10, 1: 0})
    assert note("a", "s", "one", 200, {0: 10, 1: -1}) == "SUCCESS"
    assert note("a", "s", "one", 300, {0: 10, 1: 5}) == "SUCCESS"
    assert note("a", "s", "one", 400, {0: 10, 1: -1}) == "INVALID_POSITION"


async def test_the_lowest_time_of_all_writers_is_published_with_the_farthest_positions(world: World) -> None:
    await world.stream(2)
    writers = world.controller.writers
    writers.note("a", "s", "one", 100, {0: 10, 1: 20})
    writers.note("a", "s", "two", 150, {0: 30})
    assert written(world) == []
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(1, 100, 150, {0: 30, 1: 20})
    (event,) = written(world)
    assert event[:8] == (0).to_bytes(4, "big") + (len(event) - 8).to_bytes(4, "big"), "an event as readers expect it"


async def two_writers(world: World) -> None:
    """A watermark at 100 of both of them, and then one goes on."""
    writers = world.controller.writers
    for writer in ("one", "two"):
        writers.note("a", "s", writer, 100, {0: 10})
    await world.pass_time(EVERY_MS)
    writers.note("a", "s", "one", 200, {0: 40})


async def test_the_next_watermark_waits_for_a_writer_that_is_behind_as_long_as_the_stream_allows(world: World) -> None:
    await world.stream(timestamp_aggregation_timeout_ms=25_000)
    await two_writers(world)
    await world.pass_time(3 * EVERY_MS)
    assert last(world) == Watermark(1, 100, 100, {0: 10}), "it waits for the second writer"
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(2, 200, 200, {0: 40})
    assert "two" not in world.controller.state.stream("a", "s").writers


async def test_a_removed_writer_is_not_waited_for_and_its_last_time_counts(world: World) -> None:
    await world.stream(timestamp_aggregation_timeout_ms=3_600_000)
    await two_writers(world)
    world.controller.writers.note("a", "s", "two", 150, {0: 20})
    world.controller.writers.remove("a", "s", "two")
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(2, 150, 200, {0: 40})
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(3, 200, 200, {0: 40})
    assert len(written(world)) == 3


async def test_without_writers_no_timer_is_set_until_a_new_time_is_recorded(world: World) -> None:
    await world.stream()
    world.controller.writers.note("a", "s", "one", 100, {0: 10})
    await world.pass_time(3 * EVERY_MS)
    assert world.controller.core.next_due_ms() is None
    assert world.controller.state.stream("a", "s").writers == {}
    world.controller.writers.note("a", "s", "one", 90, {0: 10})
    world.controller.writers.note("a", "s", "two", 300, {0: 60})
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(2, 300, 300, {0: 60}), "who is behind what was told is forgotten at once here"


async def test_a_failure_of_the_store_is_made_good_the_next_time(world: World) -> None:
    await world.stream()
    world.controller.writers.note("a", "s", "one", 100, {0: 10})
    world.store.broken.add("append")
    await world.pass_time(EVERY_MS)
    assert last(world) is None
    world.store.broken.clear()
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(1, 100, 100, {0: 10})


async def test_a_restarted_controller_continues_the_watermarks(world: World) -> None:
    await world.stream()
    world.controller.writers.note("a", "s", "one", 100, {0: 10})
    await world.pass_time(EVERY_MS)
    world.controller.writers.note("a", "s", "one", 200, {0: 20})
    world.make(world.replayed())
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(2, 200, 200, {0: 20})
    assert list(world.store.appended[MARKS]) == [1, 2]


async def test_a_deleted_stream_and_one_with_sealed_watermarks_get_none(world: World) -> None:
    await world.stream()
    await world.stream(name="t")
    for stream in ("s", "t"):
        world.controller.writers.note("a", stream, "one", 100, {0: 10})
    await world.controller.streams.seal("a", "s")
    await world.controller.streams.delete("a", "s")
    await world.controller.streams.current("a", "_MARKt")
    await world.controller.streams.seal("a", "_MARKt")
    await world.pass_time(EVERY_MS)
    assert world.store.appended == {}


async def test_a_commit_with_an_earlier_time_than_the_one_before_does_not_turn_time_back(world: World) -> None:
    await world.stream()
    for timestamp in (500, 400):
        identifier, _ = await world.controller.transactions.open("a", "s", 20_000)
        await world.controller.transactions.commit("a", "s", identifier, "writer", timestamp)
    assert world.controller.state.stream("a", "s").writers["writer"].timestamp == 500
    assert set(world.controller.transactions.completed("a", "s").values()) == {TransactionStatus.COMMITTED}
