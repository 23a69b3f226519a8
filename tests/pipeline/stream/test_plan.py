"""What is read: ranges that end between events, successors behind their predecessors, limits, and what is gone.

On a store without sockets; `tests/streams` has all of this over sockets too.
"""

from __future__ import annotations

import pytest

from segstore.client import CutError, StreamCut
from segstore.pipeline.stream.cuts import Cut, offsets_of
from segstore.pipeline.stream.options import StreamAmount, StreamOptions
from segstore.pipeline.stream.plan import DataLost, batch_ranges, cut_at, next_cut, ranges_between, start_of
from segstore.pipeline.stream.rows import events_of
from segstore.pipeline.stream.segments import Segments
from tests.pipeline.memory_stream import MemoryStream
from tests.pipeline.stream_support import SCOPE, STREAM, Where, options, scale, using, write_events

KEYS = 7


@pytest.fixture
def uri() -> Where:
    return MemoryStream(SCOPE, STREAM)


def numbered(first: int, count: int) -> list[tuple[bytes, str]]:
    return [(b"%d" % number, f"k{number % KEYS}") for number in range(first, first + count)]


def text_of(cut: Cut) -> str:
    return StreamCut(SCOPE, STREAM, cut).to_text()


async def read(segments: Segments, given: StreamOptions, start: Cut, end: Cut) -> list[int]:
    parts = await ranges_between(segments, start, end, given.split_bytes)
    return [int(event.data) for part in parts async for events in events_of(segments, given, part) for event in events]


async def micro_batches(
    uri: Where, limit: StreamAmount | None, start: Cut | None = None, target: Cut | None = None
) -> list[list[int]]:
    found = []
    async with using(uri) as segments:
        given = options(uri)
        at = await cut_at(segments, "head") if start is None else start
        while (after := await next_cut(segments, given, at, limit, target)) != at:
            found.append(await read(segments, given, at, after))
            at = after
    return found


async def test_a_limit_below_the_first_event_lets_that_event_through(uri: Where) -> None:
    await write_events(uri, [(b"7" * 50, "k"), (b"8" * 50, "k")])
    for limit in (StreamAmount(1, False), StreamAmount(1, True)):
        assert await micro_batches(uri, limit) == [[int("7" * 50)], [int("8" * 50)]]


async def test_nothing_behind_the_target_is_read(uri: Where) -> None:
    await write_events(uri, numbered(0, 50))
    async with using(uri) as segments:
        target = await cut_at(segments, "tail")
    await write_events(uri, numbered(50, 50))
    await scale(uri, 2)
    await write_events(uri, numbered(100, 50))
    for limit in (None, StreamAmount(8, True)):
        batches = await micro_batches(uri, limit, target=target)
        assert sorted(number for batch in batches for number in batch) == list(range(50))


async def test_a_batch_reads_between_two_cuts_over_scaling(uri: Where) -> None:
    await write_events(uri, numbered(0, 30))
    async with using(uri) as segments:
        start = await cut_at(segments, "tail")
    await write_events(uri, numbered(30, 30))
    await scale(uri, 3)
    await write_events(uri, numbered(60, 30))
    async with using(uri) as segments:
        end = await cut_at(segments, "tail")
    await write_events(uri, numbered(90, 30))
    given = options(uri, **{"from": text_of(start), "to": text_of(end)})
    async with using(uri) as segments:
        parts = await batch_ranges(segments, given)
        found = [int(each.data) for part in parts async for some in events_of(segments, given, part) for each in some]
    assert sorted(found) == list(range(30, 90))


async def test_a_large_segment_is_split_at_the_starts_of_events(uri: Where) -> None:
    for first in range(0, 2_000, 100):  # an entry of the index is written at most every ten milliseconds
        await write_events(uri, numbered(first, 100))
    given = options(uri, splitBytes="2000")
    async with using(uri) as segments:
        parts = await batch_ranges(segments, given)
        found = [
            [int(each.data) for some in [e async for e in events_of(segments, given, p)] for each in some]
            for p in parts
        ]
    assert len(parts) > 2
    assert [number for part in found for number in part] == list(range(2_000))


async def test_cuts_that_do_not_follow_one_another_are_refused(uri: Where) -> None:
    await write_events(uri, numbered(0, 10))
    async with using(uri) as segments:
        tail = await cut_at(segments, "tail")
        await scale(uri, 2)
        later = await cut_at(segments, "tail")
        for start, end, says in (
            (tail, {0: 0}, "^'to' lies before 'from'"),
            (later, tail, "^'to' does not follow 'from'"),
        ):
            given = options(uri, **{"from": text_of(start), "to": text_of(end)})
            with pytest.raises(CutError, match=says):
                await batch_ranges(segments, given)


async def test_a_cut_that_leaves_out_keys_is_refused_as_a_start_and_as_an_end(uri: Where) -> None:
    await scale(uri, 2)
    await write_events(uri, numbered(0, 10))
    async with using(uri) as segments:
        tail = await cut_at(segments, "tail")
        first, _ = sorted(tail)
        with pytest.raises(CutError, match=r"^from: .*is no cut of s/out: no segment has the keys from 0\.5 to 1\.0"):
            await start_of(segments, options(uri, **{"from": text_of({first: 0})}))
        for option, cut in (("from", {first: 0}), ("to", {first: tail[first]})):
            with pytest.raises(CutError, match=rf"^{option}: .* no segment has the keys from 0\.5 to 1\.0"):
                await batch_ranges(segments, options(uri, **{option: text_of(cut)}))
        with pytest.raises(CutError, match="is behind the end of"):
            await cut_at(segments, {**tail, first: tail[first] + 1})


async def test_what_was_truncated_is_an_error_or_passed_over_as_the_options_say(uri: Where) -> None:
    await write_events(uri, numbered(0, 10))
    async with using(uri) as segments:
        middle = await cut_at(segments, "tail")
        await write_events(uri, numbered(10, 10))
        end = await cut_at(segments, "tail")
        await segments.client.controller.truncate_stream(SCOPE, STREAM, middle)
        with pytest.raises(DataLost, match=rf"s/out/0\.#epoch\.0 was truncated at {middle[0]}") as caught:
            await next_cut(segments, options(uri), {0: 0}, None, None)
        assert (caught.value.start, caught.value.end) == (0, middle[0])
        with pytest.raises(DataLost, match="was truncated"):
            await read(segments, options(uri), {0: 0}, end)
        lenient = options(uri, failOnDataLoss="false")
        after = await next_cut(segments, lenient, {0: 0}, None, None)
        assert await read(segments, lenient, {0: 0}, after) == list(range(10, 20))


async def test_a_stream_that_vanishes_while_it_is_read_is_named(uri: Where) -> None:
    await write_events(uri, numbered(0, 10))
    async with using(uri) as segments:
        end = await cut_at(segments, "tail")
        await segments.client.controller.seal_stream(SCOPE, STREAM)
        await segments.client.controller.delete_stream(SCOPE, STREAM)
        with pytest.raises(DataLost, match=r"s/out/0\.#epoch\.0 is gone"):
            await read(segments, options(uri), {0: 0}, end)
        with pytest.raises(DataLost, match=r"s/out/0\.#epoch\.0 is gone"):
            await next_cut(segments, options(uri), {0: 0}, None, None)
        assert await read(segments, options(uri, failOnDataLoss="false"), {0: 0}, end) == []


async def test_a_recreated_stream_is_not_the_one_that_was_read(uri: Where) -> None:
    async with using(uri) as segments:
        with pytest.raises(DataLost, match="it is not the one that was read to 1000"):
            await next_cut(segments, options(uri), {0: 1000}, None, None)
        with pytest.raises(DataLost, match="ends at 0: it is not the one"):
            await read(segments, options(uri), {0: 500}, {0: 1000})


async def test_a_cut_within_an_event_is_refused(uri: Where) -> None:
    await write_events(uri, [(b"x" * 100, "k")])
    async with using(uri) as segments:
        with pytest.raises(DataLost, match=r"no event of .* ends at 50"):
            await read(segments, options(uri), {0: 0}, {0: 50})


def test_offsets_are_as_spark_keeps_them() -> None:
    assert offsets_of({(1 << 32) + 2: 5, 0: 7}) == {"0.#epoch.0": 7, "2.#epoch.1": 5}
