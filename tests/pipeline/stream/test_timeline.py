"""Watermarks: what a streaming query reads is in the order of writing, as nearly as an index tells it.

Spark drops rows that are older than the latest event time of all batches before, less a delay. Here the event time is
the time of writing, so a row that comes late by more than the index's precision would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from random import Random
from struct import pack
from typing import Literal, NamedTuple

import pytest

from segstore.client.controller import Successor
from segstore.client.routing import SegmentRange
from segstore.client.stream import FramedEvent, frame_event
from segstore.pipeline.stream.cuts import Cut, Moment, Offsets, cut_of, offsets_of
from segstore.pipeline.stream.options import StreamAmount, StreamOptions
from segstore.pipeline.stream.plan import ByteRange, batch_ranges, cut_at, lag, next_cut, ranges_between
from segstore.pipeline.stream.rows import events_of
from segstore.pipeline.stream.segments import Segments
from segstore.server.store import NoSuchSegment
from segstore.wire.hashing import position_of
from segstore.wire.names import index_name
from tests.looped import looped
from tests.pipeline.memory_stream import MemorySegments, MemoryStream, MemoryWriter
from tests.pipeline.stream_support import SCOPE, STREAM, options, using

STEP_MS = 100
"""The alignment of most queries here."""
PRECISE_MS = STEP_MS + 20
"""A step, and the times in an index."""
KEYS = 50


class Written(NamedTuple):
    number: int
    time_ms: int
    key: str


class Writing:
    """Writes single events and scales, with a clock of its own; an event says its number, time and key."""

    def __init__(self, seed: int, segments: int = 1) -> None:
        self.stream = MemoryStream(SCOPE, STREAM, segments)
        self.stream.tick_ms = 0
        self.stream.clock_ms = self._time_ms = 1_000_000
        self.random = Random(seed)
        self.written: list[Written] = []
        self._segment_of: list[str] = []
        self._writers: dict[str, MemoryWriter] = {}

    def write(
        self, count: int, per_ms: float, hot: float = 0.0, hot_key: str = "hot", *, connecting_ms: int = 0
    ) -> None:
        """Events at a rate. hot: the fraction of them that have one key. connecting_ms: how much later than all others
        those of new segments are stored."""
        begin, waiting = self._time_ms, list[Callable[[], None]]()
        new = {epoch.name for epoch in self.stream.epochs[-1]} - self._writers.keys() if connecting_ms else ()
        for each in range(count):
            self.stream.clock_ms = self._time_ms = begin + int(each / per_ms)
            key = hot_key if self.random.random() < hot else f"k{self.random.randrange(KEYS)}"
            event = Written(len(self.written), self._time_ms, key)
            self.written.append(event)
            at = position_of(key)
            name = next(each.name for each in self.stream.epochs[-1] if each.low <= at < each.high)
            self._segment_of.append(name)
            if name not in self._writers:
                self._writers[name] = MemoryWriter(self.stream, name)
            padding = b"." * self.random.randrange(1, 60)
            data = b"%d %d %s %s" % (event.number, event.time_ms, key.encode(), padding)
            append = partial(self._writers[name].append, frame_event(data), print, 1)
            if name in new:
                waiting.append(append)
            else:
                append()
        self.pause(connecting_ms)
        for append in waiting:
            append()

    def of(self, segments: set[str]) -> list[Written]:
        return [each for each, name in zip(self.written, self._segment_of, strict=True) if name in segments]

    def pause(self, ms: int) -> None:
        self._time_ms += ms
        self.stream.clock_ms = self._time_ms

    def scale(self) -> None:
        """Splits a segment, merges two, or moves the edge between two."""
        segments = sorted(self.stream.epochs[-1], key=lambda each: each.low)
        at = self.random.randrange(len(segments))
        some = segments[at : at + self.random.choice((1, 2))]
        low, high = some[0].low, some[-1].high
        edges = [low, high] if len(some) == 2 and self.random.random() < 0.5 else [low, self._between(some), high]
        self.pause(STEP_MS)
        self.stream.replace(some, edges)
        self.pause(1)

    def _between(self, some: list[SegmentRange]) -> float:
        low, high = some[0].low, some[-1].high
        return low + (high - low) * self.random.uniform(0.1, 0.9)

    def without_index(self, fraction: float) -> None:
        for segment in self.stream.segments:
            if self.random.random() < fraction:
                with suppress(NoSuchSegment):
                    self.stream.store.container_for(segment.name).delete_segment(index_name(segment.name))


class Query:
    """Reads as a query does that is restarted before each batch.

    Attributes:
        batches: the events of each.
        late_ms: by how much an event was older than one in a batch before, at most.
        asked: the number of requests that planned each batch.
    """

    def __init__(
        self, stream: MemoryStream, limit: StreamAmount | None = None, start: Cut | None = None, **more: str
    ) -> None:
        self.batches: list[list[Written]] = []
        self.asked: list[int] = []
        self.late_ms = self._latest_ms = 0
        self._stream, self._limit, self._more = stream, limit, {"alignmentMs": str(STEP_MS), **more}
        self._at: Offsets | None = None if start is None else offsets_of(start)

    async def run(self, batches: int = 1_000_000) -> Query:
        """Reads so many batches, or all there is."""
        while batches and await self._batch():
            batches -= 1
        return self

    async def _batch(self) -> bool:
        given = options(self._stream, **self._more)
        async with using(self._stream, **self._more) as segments:
            start = await cut_at(segments, "head") if self._at is None else cut_of(self._at)
            self._stream.asked.clear()
            end = await next_cut(segments, given, start, self._limit, None)
            self.asked.append(self._stream.asked.total())
            if end == start:
                return False
            parts = await ranges_between(segments, start, end, given.split_bytes)
            rows: list[bytes] = [
                each.data for part in parts async for some in events_of(segments, given, part) for each in some
            ]
        if self._limit is not None:
            sizes = [1 if self._limit.events else len(frame_event(row)) for row in rows]
            assert sum(sizes) <= self._limit.number or len(rows) == 1
        batch = [Written(int(number), int(time_ms), key.decode()) for number, time_ms, key, _ in map(bytes.split, rows)]
        self.late_ms = max([self.late_ms, *(self._latest_ms - each.time_ms for each in batch)])
        self._latest_ms = max([self._latest_ms, *(each.time_ms for each in batch)])
        self.batches.append(batch)
        self._at = offsets_of(end)
        return True

    def check(self, written: list[Written]) -> None:
        """All was read once, that of a key in order."""
        flat = [each for batch in self.batches for each in batch]
        assert sorted(flat) == written
        for key in {each.key for each in written}:
            assert [each.number for each in flat if each.key == key] == [
                each.number for each in written if each.key == key
            ]
        assert all(self.batches), "a batch without events"


LIMITS = [None, StreamAmount(500, True), StreamAmount(30_000, False)]


@looped("limit", LIMITS[1:])
@looped("hot", [0.0, 0.75])
async def test_a_stream_that_was_loaded_at_once_while_segments_were_split_is_read_in_proportion(
    hot: float, limit: StreamAmount
) -> None:
    writing = Writing(6, 4)
    for _ in range(8):
        writing.write(1_000, 100, hot, connecting_ms=60)
        split = writing.random.choice(writing.stream.epochs[-1])
        writing.stream.replace([split], [split.low, (split.low + split.high) / 2, split.high])
        writing.pause(10)
    writing.write(1_000, 100, hot, connecting_ms=60)
    for segment in writing.stream.segments:
        writing.stream.store.container_for(segment.name).settle_index(segment.name)
    query = await Query(writing.stream, limit, alignmentMs="10000").run()
    query.check(writing.written)
    latest = late = 0
    for batch in query.batches:
        late = max(late, *(latest - each.number for each in batch))
        latest = max(latest, *(each.number for each in batch))
    assert late < 600  # of 9,000; a segment that is new comes up to 1,000 later than others


@looped("seed", range(10))
async def test_streams_that_lack_indexes_are_read_once_and_in_order_of_keys(seed: int) -> None:
    writing = Writing(seed, 3)
    limit = StreamAmount(100, True) if seed % 2 else StreamAmount(5_000, False)
    query = Query(writing.stream, limit)
    for _ in range(6):
        writing.write(200, 1, hot=0.5)
        writing.without_index(0.3)
        await query.run(1)
        writing.scale()
    await query.run()
    query.check(writing.written)


async def test_a_long_index_is_searched_and_read_in_windows() -> None:
    writing = Writing(5, 2)
    writing.write(12_000, 0.05)  # an entry for nearly each event
    query = Query(writing.stream, StreamAmount(3_000, True))
    await query.run()
    query.check(writing.written)
    assert query.late_ms <= PRECISE_MS
    assert len(query.batches) <= 5
    assert max(query.asked) < 50


@looped("indexed", [True, False])
@looped("limit", [None, StreamAmount(60, True), StreamAmount(3_000, False)])
async def test_a_finished_segment_is_not_read_again_while_a_predecessor_waits(
    limit: StreamAmount | None, indexed: bool
) -> None:
    """Two segments become two others; the first of these follows one of them, the second both."""
    writing = Writing(6, 2)
    writing.write(300, 1)
    writing.write(600, 1, hot=1, hot_key="k0")  # only the second segment is far behind
    writing.stream.replace(writing.stream.epochs[-1], [0.0, 0.3, 1.0])
    writing.write(300, 1)
    first, _ = writing.stream.epochs[-1]
    writing.stream.replace([first], [0.0, 0.1, 0.3])
    writing.write(300, 1)
    if not indexed:
        writing.without_index(1)
    query = await Query(writing.stream, limit).run()
    query.check(writing.written)


async def test_a_finished_segment_stays_in_the_offset_while_a_predecessor_does() -> None:
    """The first segment waits until the second, also followed by the fourth, is read; the third is read."""
    writing = Writing(6, 2)
    writing.write(300, 1)
    writing.stream.replace(writing.stream.epochs[-1], [0.0, 0.3, 1.0])
    writing.write(300, 1)
    writing.stream.replace(writing.stream.epochs[-1][:1], [0.0, 0.1, 0.3])
    writing.write(300, 1)
    first, second, third, _, fifth, sixth = (segment.segment_id for segment in writing.stream.segments)
    async with using(writing.stream) as segments:
        ends = {each: info.write_offset for each, info in (await segments.infos([first, third])).items() if info}
    start = {first: ends[first], second: 0, third: ends[third], fifth: 0, sixth: 0}
    query = Query(writing.stream, StreamAmount(30, True), start)
    await query.run()
    rest = {each.name for each in writing.stream.segments if each.segment_id not in (first, third)}
    assert sorted(each for batch in query.batches for each in batch) == writing.of(rest)


async def test_what_is_written_while_a_batch_is_planned_is_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = Writing(10, 2)
    for _ in range(20):
        writing.write(50, 1)
        writing.scale()
    asked = MemorySegments.successors

    async def busy(segments: MemorySegments, segment_id: int) -> list[Successor]:
        writing.write(50, 0.1)
        return await asked(segments, segment_id)

    monkeypatch.setattr(MemorySegments, "successors", busy)
    query = await Query(writing.stream).run(1)
    monkeypatch.undo()
    await query.run()
    query.check(writing.written)
    assert len(query.batches) == 2
    assert query.late_ms <= PRECISE_MS


@looped("seed", range(6))
async def test_a_time_is_a_cut_before_what_was_written_then(seed: int) -> None:
    writing = Writing(seed, 2)
    begins = []
    for _ in range(6):
        begins.append(writing.stream.clock_ms)
        writing.write(200, 0.1)
        writing.scale()
        writing.pause(100)
    for begin, end in pairwise(begins):
        async with using(writing.stream) as segments:
            given = options(writing.stream, **{"from": str(begin), "to": str(end)})
            parts = await batch_ranges(segments, given)
            rows = [each.data async for some in _events(segments, given, parts) for each in some]
        found = sorted(int(row.split()[0]) for row in rows)
        assert found == [each.number for each in writing.written if begin <= each.time_ms < end]
        query = await Query(writing.stream, StreamAmount(60, True), await _cut(writing.stream, begin)).run()
        assert min(each.time_ms for batch in query.batches for each in batch) >= begin
    assert await _cut(writing.stream, 1 << 50) == await _cut(writing.stream, "tail")
    assert await _cut(writing.stream, 0) == await _cut(writing.stream, "head")


async def _events(segments: Segments, given: StreamOptions, parts: list[ByteRange]) -> AsyncIterator[list[FramedEvent]]:
    for part in parts:
        async for some in events_of(segments, given, part):
            yield some


async def _cut(stream: MemoryStream, at: int | Literal["head", "tail"]) -> Cut:
    async with using(stream) as segments:
        return await cut_at(segments, Moment(at) if isinstance(at, int) else at)


async def test_a_lag_is_counted_by_the_index() -> None:
    writing = Writing(11, 2)
    writing.write(300, 0.1)
    async with using(writing.stream) as segments:
        middle = await segments.tail()
        for _ in range(3):
            writing.write(200, 0.1)
            writing.scale()
        writing.pause(20)
        whole = await lag(segments, options(writing.stream), await segments.head())
        rest = await lag(segments, options(writing.stream), middle)
        assert (whole.events, rest.events) == (900, 600)
        assert whole.bytes - rest.bytes == sum(middle.values())
        assert await lag(segments, options(writing.stream), await segments.tail()) == (0, 0)
        writing.without_index(1)
        assert await lag(segments, options(writing.stream), middle) == (rest.bytes, None)


async def test_entries_that_a_client_put_into_an_index_do_no_harm() -> None:
    writing = Writing(13)
    writing.write(100, 0.1)
    writing.pause(20)
    (name,) = (segment.name for segment in writing.stream.segments)
    entry = pack(">qqq", 0, 1 << 60, 1 << 62)
    MemoryWriter(writing.stream, index_name(name)).append(entry, print, 1)
    async with using(writing.stream) as segments:
        given = options(writing.stream)
        whole = await lag(segments, given, await segments.head())
        assert whole.bytes == sum((await segments.tail()).values())
        at = await next_cut(segments, given, await segments.head(), StreamAmount(60, True), None)
        assert await lag(segments, given, at) < whole


@looped("seed", [*range(24), 1010, 1068, 1077, 1208])
async def test_any_stream_is_read_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    writing = Writing(seed, random.randrange(1, 5))
    limit = random.choice(
        [None, StreamAmount(random.randrange(1, 800), True), StreamAmount(random.randrange(10, 40_000), False)]
    )
    query = Query(writing.stream, limit)
    for _ in range(random.randrange(2, 12)):
        writing.write(random.randrange(300), random.choice((0.001, 0.1, 1, 10, 100)), random.choice((0.0, 0.9)))
        if random.random() < 0.7:
            writing.scale()
        if random.random() < 0.3:
            writing.pause(random.randrange(100_000))
        if random.random() < 0.3:
            await query.run(random.randrange(1, 4))
    await query.run()
    query.check(writing.written)
    assert query.late_ms <= PRECISE_MS
