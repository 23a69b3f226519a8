"""What writers' times become for readers: the events of a stream of watermarks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest

from segstore.server.controller.epochs import Epoch, Segment
from segstore.server.controller.policies import Cut, StreamConfig
from segstore.server.controller.state import Stream, TransactionStatus, Watermark
from segstore.server.controller.watermarks import UpperBound, encode_watermark
from tests.server.controller.conftest import World

EVERY_MS = 10_000
MARKS = "a/_MARKs/0.#epoch.0"


def stream_of(*epochs: tuple[Segment, ...]) -> Stream:
    made = [Epoch(number, number, segments, number) for number, segments in enumerate(epochs)]
    return Stream("a", "s", StreamConfig(), 0, made)


WHOLE = Segment(0, 0, 0.0, 1.0, 0)
LOW, HIGH = Segment(1, 1, 0.0, 0.5, 1), Segment(2, 1, 0.5, 1.0, 1)
SCALED = stream_of((WHOLE,), (LOW, HIGH))


def upper_bound(stream: Stream, positions: Iterable[Cut], last: Cut) -> Cut:
    bound = UpperBound(stream)
    for each in positions:
        bound.add(each)
    return bound.cut(last)


def written(world: World) -> list[bytes]:
    return list(world.store.appended.get(MARKS, {}).values())


def last(world: World) -> Watermark | None:
    return world.controller.state.stream("a", "s").watermark


def test_a_watermark_is_written_as_pravega_writes_it() -> None:
    """The bytes were made by its `Watermark.toByteBuf`."""
    stream = stream_of((WHOLE, Segment(4, 0, 0.5, 1.0, 0)), (Segment(3, 1, 0.0, 0.5, 1),))
    assert encode_watermark(stream, Watermark(1, -5, 70_000, {1 << 32 | 3: 123456789, 4: -1})) == bytes.fromhex(
        "0000010000000061fffffffffffffffb00000000000111700200000100000000180000000100000003"
        "00000000000000003fe000000000000000000000075bcd1500000100000000180000000000000004"
        "3fe00000000000003ff0000000000000ffffffffffffffff"
    )
    assert encode_watermark(stream, Watermark(1, 1, 2, {})) == bytes.fromhex(
        "00000100000000110000000000000001000000000000000200"
    )


class Wide(Stream):
    """Finds any segment at once."""

    def segment(self, identifier: int) -> Segment:
        return Segment(identifier, 0, 0.0, 1.0, 0)


@pytest.mark.parametrize(
    ("count", "said"), [(127, "7f"), (128, "8080"), (16_383, "bfff"), (16_384, "c0004000"), (70_000, "c0011170")]
)
def test_a_long_cut_takes_more_bytes_for_its_length(count: int, said: str) -> None:
    data = encode_watermark(Wide("a", "s", StreamConfig(), 0, []), Watermark(1, 1, 2, dict.fromkeys(range(count), 0)))
    assert data[24 : 24 + len(said) // 2].hex() == said
    assert len(data) == 24 + len(said) // 2 + count * (8 + 24 + 8)


def test_the_bound_of_positions_is_the_farthest_of_each_segment() -> None:
    stream = stream_of((Segment(1, 0, 0.0, 0.5, 0), Segment(2, 0, 0.5, 1.0, 0)))
    assert upper_bound(stream, [{1: 5, 2: 9}, {1: 7}], {}) == {1: 7, 2: 9}
    assert upper_bound(stream, [], {}) == {}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_segment_stands_for_those_before_it_and_gaps_are_filled_from_its_epoch(order: tuple[int, int]) -> None:
    positions = ({0: 50}, {LOW.id: 3})
    assert upper_bound(SCALED, [positions[each] for each in order], {}) == {LOW.id: 3, HIGH.id: 0}


def test_the_bound_does_not_fall_behind_the_last_one() -> None:
    assert upper_bound(SCALED, [{0: 50}], {LOW.id: 3, HIGH.id: 4}) == {LOW.id: 3, HIGH.id: 4}
    assert upper_bound(SCALED, [{LOW.id: 2, HIGH.id: 9}], {LOW.id: 3, HIGH.id: 4}) == {LOW.id: 3, HIGH.id: 9}


def test_positions_in_what_the_stream_never_had_do_not_count_and_are_told_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert upper_bound(SCALED, [{77: 5}], {}) == {}
    caplog.clear()
    assert upper_bound(SCALED, [{77: 5, 0: 6}, dict.fromkeys(range(100, 1_100), 1)], {}) == {0: 6}
    (line,) = caplog.messages
    assert line == "writers of stream a/s noted 1001 positions in segments that it never had, such as 77"


def test_any_positions_give_a_cut_that_covers_all_keys_once() -> None:
    random = Random(5)
    quarters = tuple(Segment(3 + at, 2, at / 4, (at + 1) / 4, 2) for at in range(4))
    stream = stream_of((WHOLE,), (LOW, HIGH), quarters)
    every = [WHOLE, LOW, HIGH, *quarters]
    for _ in range(300):
        positions = [
            {each.id: random.randrange(100) for each in random.sample(every, random.randint(1, 4))} for _ in range(3)
        ]
        cut = upper_bound(stream, positions, {})
        segments = sorted((stream.segment(identifier) for identifier in cut), key=lambda each: each.start)
        assert segments[0].start == 0.0
        assert all(left.end == right.start for left, right in pairwise(segments))
        assert segments[-1].end == 1.0


async def test_the_lowest_time_of_all_writers_is_told_with_the_farthest_positions(world: World) -> None:
    await world.stream(2)
    writers = world.controller.writers
    writers.note("a", "s", "one", 100, {0: 10, 1: 20})
    writers.note("a", "s", "two", 150, {0: 30})
    assert written(world) == []
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(1, 100, 150, {0: 30, 1: 20})
    (event,) = written(world)
    assert event[:8] == (0).to_bytes(4, "big") + (len(event) - 8).to_bytes(4, "big"), "an event as readers expect it"


async def test_nobody_noted_anything_and_nothing_is_written(world: World) -> None:
    await world.stream()
    await world.pass_time(10 * EVERY_MS)
    assert written(world) == []
    assert world.controller.next_due_ms() is None


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


async def test_a_writer_that_is_gone_is_not_waited_for_and_its_last_time_counts(world: World) -> None:
    await world.stream(timestamp_aggregation_timeout_ms=3_600_000)
    await two_writers(world)
    world.controller.writers.note("a", "s", "two", 150, {0: 20})
    world.controller.writers.remove("a", "s", "two")
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(2, 150, 200, {0: 40})
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(3, 200, 200, {0: 40})
    assert len(written(world)) == 3


async def test_without_writers_nothing_is_due_and_a_new_time_begins_it_again(world: World) -> None:
    await world.stream()
    world.controller.writers.note("a", "s", "one", 100, {0: 10})
    await world.pass_time(3 * EVERY_MS)
    assert world.controller.next_due_ms() is None
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


async def test_a_controller_that_starts_again_goes_on_with_the_watermarks(world: World) -> None:
    await world.stream()
    world.controller.writers.note("a", "s", "one", 100, {0: 10})
    await world.pass_time(EVERY_MS)
    world.controller.writers.note("a", "s", "one", 200, {0: 20})
    world.make(world.replayed())
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(2, 200, 200, {0: 20})
    assert list(world.store.appended[MARKS]) == [1, 2]


async def test_the_time_of_a_commit_becomes_a_watermark(world: World) -> None:
    await world.stream()
    identifier, _ = await world.controller.transactions.open("a", "s", 20_000)
    await world.controller.transactions.commit("a", "s", identifier, "writer", 500)
    await world.pass_time(EVERY_MS)
    assert last(world) == Watermark(1, 500, 500, {0: 0})


async def test_a_stream_that_is_gone_and_one_whose_watermarks_take_no_more_get_none(world: World) -> None:
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
