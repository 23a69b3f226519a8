"""Plans reads of a stream: byte ranges between two cuts, and the extent of each micro-batch.

A range lies in one segment and ends at the end of an event: at the segment's length, at an offset from the store's
index or, under a limit, at an event boundary found by reading from the index entry before. Large ranges are split at
index offsets; a segment without an index is read by one task.

A micro-batch without a limit ends at the stream's tail. With a limit it ends at one moment of writing in all segments,
because Spark drops rows that are older than earlier batches, less the delay of a watermark
(`segstore.pipeline.stream.timeline`). A segment that is read to its end is followed by its successors in the same
batch; a successor starts once all its predecessors are read to their ends. So events of one routing key never arrive in
an earlier batch than their predecessors.

Invariants: two offsets always delimit the same events; a limited batch has at least one event, because an event above
the limit would otherwise block all progress. Refused, with `DataLost`: deleted data that should have been read, unless
the options allow it; with `CutError`: an end that does not follow the start.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Final, NamedTuple

from segstore.client import CutError
from segstore.client.controller import Successor
from segstore.client.errors import NoSuchStream
from segstore.client.stream import EventDecoder
from segstore.pipeline.stream.cuts import Cut, Moment, Place
from segstore.pipeline.stream.options import StreamAmount, StreamOptions
from segstore.pipeline.stream.segments import Segments, gather_bounded
from segstore.pipeline.stream.timeline import (
    INDEX_DELAY_MS,
    Timeline,
    count_events,
    divide,
    offset_at,
    place,
    share_out,
)
from segstore.wire import StreamSegmentInfo
from segstore.wire.blocks import EVENT_HEADER_BYTES

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20


class ByteRange(NamedTuple):
    """The range that one task reads: from the event at `start` to the last event that ends at or before `end`."""

    segment_id: int
    segment: str
    start: int
    end: int


_SKIP: Final = "with failOnDataLoss false such events are skipped"
_ANOTHER: Final = "the stream was recreated, or the checkpoint is one of another: start with a new checkpoint"


class DataLost(RuntimeError):
    """Events to be read are gone. Attributes: segment, start, end (of the lost range; None if unknown)."""

    def __init__(self, message: str, segment: str, start: int, end: int | None = None, remedy: str = _SKIP) -> None:
        super().__init__(f"{message}; {remedy}")
        self.segment = segment
        self.start = start
        self.end = end


async def cut_at(segments: Segments, place: Place) -> Cut:
    """Resolves a place to a cut, {} for the tail of a sealed stream. Raises CutError if `place` is an incomplete cut;
    NoSuchStream.
    """
    if place == "head":
        head = await segments.head()
        if not head:  # controllers answer like this for a missing stream, too
            await segments.current()
            raise NoSuchStream(
                f"stream {segments.scope}/{segments.stream} has no segments",
                stream=f"{segments.scope}/{segments.stream}",
            )
        return head
    if place == "tail":
        return await segments.tail()
    if isinstance(place, Moment):
        return await _cut_of_time(segments, place.unix_ms)
    await segments.check(place)  # keys that are left out would never be read
    return dict(place)


async def start_of(segments: Segments, options: StreamOptions) -> Cut:
    """Returns where reading starts. Raises as `cut_at` does."""
    return await _cut_of_option(segments, "from", options.start or "head")


async def _cut_of_option(segments: Segments, option: str, place: Place) -> Cut:
    try:
        return await cut_at(segments, place)
    except CutError as cause:
        raise CutError(f"{option}: {cause}", cause.actual) from cause


async def _cut_of_time(segments: Segments, unix_ms: int) -> Cut:
    """Returns where the stream was when a time began. Segments that had ended by then give way to their successors."""
    cut: Cut = {}
    ended: dict[int, list[Successor]] = {}
    begun = await cut_at(segments, "head")
    while begun:
        infos = {segment_id: info for segment_id, info in (await segments.infos(begun)).items() if info is not None}

        async def offset_of(segment: tuple[int, StreamSegmentInfo]) -> int:
            return await offset_at(segments, segments.name_of(segment[0]), segment[1], unix_ms)

        cut |= begun | dict(zip(infos, await gather_bounded(offset_of, infos.items()), strict=True))
        new = [segment for segment, info in infos.items() if info.is_sealed and cut[segment] == info.write_offset]
        ended |= dict(zip(new, await gather_bounded(segments.successors, new), strict=True))
        begun = {}
        for segment_id in ended.keys() & cut.keys():
            following = ended[segment_id]
            if following and all(ended.keys() >= set(successor.predecessors) for successor in following):
                del cut[segment_id]
                begun |= {successor.segment.segment_id: 0 for successor in following}
    return cut


async def skipped(segments: Segments, start: Cut, end: Cut) -> int:
    """Returns how many bytes between the offsets of a micro-batch were truncated, and logs where."""
    lost = 0
    for segment_id, info in (await segments.infos(start | end)).items():
        name, first = segments.name_of(segment_id), start.get(segment_id, 0)
        if info is None:
            log.warning("%s is gone: nothing from %d on is read", name, first)
        elif info.start_offset > first:
            log.warning("%s was truncated at %d: bytes from %d are not read", name, info.start_offset, first)
            lost += info.start_offset - first
    return lost


class Lag(NamedTuple):
    """The amount of data of a stream beyond a cut. events: None if the index of a segment does not show it."""

    bytes: int
    events: int | None


async def lag(segments: Segments, options: StreamOptions, cut: Cut) -> Lag:
    """Measures how far a cut is behind the tail. Raises DataLost, NoSuchStream."""
    batch = _Batch(segments, options, cut, None)
    await batch.explore(None)
    unread = [
        (segments.name_of(number), *extent[:2]) for number, extent in batch.extents.items() if extent.end > extent.start
    ]
    events = await gather_bounded(lambda extent: count_events(segments, *extent), unread)
    known = [event for event in events if event is not None]
    return Lag(sum(end - start for _, start, end in unread), sum(known) if len(known) == len(events) else None)


# --- a batch between two cuts ---------------------------------------------------------------------------------------


async def batch_ranges(segments: Segments, options: StreamOptions) -> list[ByteRange]:
    """Returns the ranges between the options' cuts, split for tasks. Raises CutError, DataLost, NoSuchStream."""
    start = await start_of(segments, options)
    end = await _cut_of_option(segments, "to", options.end or "tail")
    first_name = "the head" if options.start is None else "'from'"
    last_name = "the tail" if options.end is None else "'to'"
    waiting = deque(start.items())
    seen, reached = set(start), set[int]()
    ranges: list[ByteRange] = []
    while waiting:
        segment_id, offset = waiting.popleft()
        name = segments.name_of(segment_id)
        info = (await segments.infos([segment_id]))[segment_id]
        first = first_offset(name, offset, info, options)
        if segment_id in end:
            reached.add(segment_id)
            last = end[segment_id]
            if last < offset:
                raise CutError(f"{last_name} lies before {first_name}: {name} from {offset} to {last}", name)
        else:
            if info is not None and not info.is_sealed:
                raise CutError(f"{last_name} does not follow {first_name}: {name} is not in it and goes on", name)
            last = info.write_offset if info is not None else first
            for successor in await segments.successors(segment_id):
                if successor.segment.segment_id not in seen:
                    seen.add(successor.segment.segment_id)
                    waiting.append((successor.segment.segment_id, 0))
        if last > first:
            ranges.append(ByteRange(segment_id, name, first, last))
    if missed := end.keys() - reached:
        name = segments.name_of(min(missed))
        raise CutError(f"{last_name} does not follow {first_name}: nothing leads to {name}", name)
    return await _split(segments, sorted(ranges), options.split_bytes)


def first_offset(name: str, offset: int, info: StreamSegmentInfo | None, options: StreamOptions) -> int:
    """Returns the first readable offset of a segment; `offset` if it is gone (None). Raises DataLost."""
    if info is None:
        if options.fail_on_data_loss:
            raise DataLost(f"{name} is gone, but was to be read from {offset}", name, offset)
        return offset
    if offset < info.start_offset:
        if options.fail_on_data_loss:
            gone = f"{name} was truncated at {info.start_offset}, but was to be read from {offset}"
            raise DataLost(gone, name, offset, info.start_offset)
        return info.start_offset
    if offset > info.write_offset:
        other = f"{name} ends at {info.write_offset}: it is not the one that was read to {offset}"
        raise DataLost(other, name, offset, remedy=_ANOTHER)
    return offset


async def ranges_between(segments: Segments, start: Cut, end: Cut, split_bytes: int) -> list[ByteRange]:
    """Returns the ranges between two offsets of a streaming query, predecessors first, split for tasks."""
    ranges = [
        ByteRange(segment_id, segments.name_of(segment_id), start.get(segment_id, 0), last)
        for segment_id, last in sorted(end.items())
        if last > start.get(segment_id, 0)
    ]
    return await _split(segments, ranges, split_bytes)


async def _split(segments: Segments, ranges: list[ByteRange], split_bytes: int) -> list[ByteRange]:
    async def one(range_: ByteRange) -> list[ByteRange]:
        parts, rest = [], range_
        while rest.end - rest.start > split_bytes + split_bytes // 2:
            at = await segments.locate(rest.segment, rest.start + split_bytes)
            if at is None or not rest.start < at < rest.end:
                break
            parts.append(rest._replace(end=at))
            rest = rest._replace(start=at)
        return [*parts, rest]

    return [part for parts in await gather_bounded(one, ranges) for part in parts]


# --- micro-batches --------------------------------------------------------------------------------------------------


async def next_cut(
    segments: Segments, options: StreamOptions, start: Mapping[int, int], limit: StreamAmount | None, target: Cut | None
) -> Cut:
    """Returns the end of a batch that starts at `start`, at most `target`; `start` itself if there is nothing to read.

    Raises DataLost, NoSuchStream.
    """
    batch = _Batch(segments, options, start, target)
    most = None if limit is None else limit.number * (EVENT_HEADER_BYTES if limit.events else 1)
    if await batch.explore(most) or limit is None:
        return batch.cut({segment_id: extent.end for segment_id, extent in batch.extents.items()})
    return batch.cut(await batch.advance(limit))


class _Extent(NamedTuple):
    """The part of a segment that a batch can read.

    modified_ms: when the segment was last modified or sealed. closed: whether its successors start at `end`.
    """

    start: int
    end: int
    modified_ms: int
    closed: bool


class _Batch:
    """The segments that one batch can read, from the offsets `start` to the stream's tail or an earlier target.

    Attributes:
        extents: the segments found so far.
        successors: of the closed segments in `extents`.
    """

    def __init__(
        self, segments: Segments, options: StreamOptions, start: Mapping[int, int], target: Cut | None
    ) -> None:
        self.extents: dict[int, _Extent] = {}
        self.successors: dict[int, list[Successor]] = {}
        self._segments, self._options, self._start, self._target = segments, options, start, target

    async def explore(self, most: int | None) -> bool:
        """Finds segments until they have more than `most` bytes; returns whether these are all."""
        await self._add(self._start)
        while most is None or sum(extent.end - extent.start for extent in self.extents.values()) <= most:
            closed = {segment_id for segment_id, extent in self.extents.items() if extent.closed}
            if not await self._following(closed, self.extents):
                return True
        return False

    async def _add(self, begun: Mapping[int, int]) -> None:
        infos = await self._segments.infos(begun)
        name_of, options = self._segments.name_of, self._options
        firsts = {
            number: first_offset(name_of(number), offset, infos[number], options) for number, offset in begun.items()
        }
        if self._target is None and any(info is None or info.is_sealed for info in infos.values()):
            # Segments that are found later must not be read further than the others.
            self._target = await self._segments.tail()
        target = self._target or {}
        for segment_id, info in infos.items():
            end, modified_ms, sealed = firsts[segment_id], 0, True
            if info is not None:
                end = max(end, min(info.write_offset, target.get(segment_id, info.write_offset)))
                modified_ms, sealed = info.last_modified, info.is_sealed
            closed = sealed and segment_id not in target
            self.extents[segment_id] = _Extent(firsts[segment_id], end, modified_ms, closed)

    async def _following(self, finished: Set[int], begun: Collection[int]) -> list[int]:
        """Returns the segments, other than those begun, that start when these are read to their ends."""
        new = sorted(finished - self.successors.keys())
        successors = await gather_bounded(self._segments.successors, new)
        self.successors |= dict(zip(new, successors, strict=True))
        ready = sorted(self._ready(finished).difference(begun))
        await self._add({segment_id: 0 for segment_id in ready if segment_id not in self.extents})
        return ready

    def _ready(self, finished: Set[int]) -> set[int]:
        following = [successor for segment_id in finished for successor in self.successors.get(segment_id, ())]
        return {successor.segment.segment_id for successor in following if finished >= set(successor.predecessors)}

    async def advance(self, limit: StreamAmount) -> dict[int, int]:
        """Returns how far a limited batch reads each segment: all up to one moment of writing."""
        lines: dict[int, Timeline] = {}
        new = list(self._start)
        while new:  # from segments that were read to their ends before
            lines |= await self._timelines(new, limit, {})
            new = await self._following({each for each in lines if self._is_empty(each)}, lines)
        begin_ms, step_ms = place(lines.values()), self._options.alignment_ms
        while True:
            last_ms = max(each.times[-1] for each in lines.values())
            steps = range(begin_ms, last_ms + 2 * step_ms, step_ms)
            number, left = divide(lines, steps, limit.number)
            at = steps[number]
            unread = [each for each in lines.values() if not each.complete and each.times[-1] <= at + step_ms]
            if unread:
                await gather_bounded(Timeline.extend, unread)
                continue
            ended = {each: line.times[-1] for each, line in lines.items() if line.ended_by(at + step_ms)}
            closed = {each for each in ended if self.extents[each].closed}
            new = await self._following(closed, lines)
            if not new:
                break
            lines |= await self._timelines(new, limit, ended)
        # The step is also cut where segments were sealed, which shows the order more surely than proportion does. Their
        # last events do not: at that time the first events of new segments can still wait for a connection.
        seals = {max(ended[each], self.extents[each].modified_ms + INDEX_DELAY_MS) for each in closed}
        moments = [at, *sorted(time_ms for time_ms in seals if at < time_ms < at + step_ms)]
        number, left = divide(lines, moments, limit.number)
        at, until = [*moments, at + step_ms][number : number + 2]
        waits_for = {
            each: [before for before in ended if each in self._ids_after(before) and ended[before] > at]
            for each in lines
        }
        shares = share_out(lines, at, until, left, waits_for)

        async def end_of(segment_id: int) -> int:
            line, share = lines[segment_id], shares[segment_id]
            known = bisect_right(line.amounts, share) - 1
            if share == line.amounts[known]:
                return line.offsets[known]
            start, end = line.offsets[known : known + 2]
            at, _ = await self._scan(segment_id, start, end, share - line.amounts[known], events=limit.events)
            return at

        ends = dict(zip(shares, await gather_bounded(end_of, shares), strict=True))
        if all(ends[each] == self.extents[each].start for each in shares):  # the first event is above the limit
            first = max(shares, key=lambda each: lines[each].amount_at(until))
            extent = self.extents[first]
            ends[first], _ = await self._scan(first, extent.start, extent.end, 1, events=True)
        return ends

    def _is_empty(self, segment_id: int) -> bool:
        extent = self.extents[segment_id]
        return extent.closed and extent.start == extent.end

    async def _timelines(
        self, new: Iterable[int], limit: StreamAmount, after: Mapping[int, int]
    ) -> dict[int, Timeline]:
        """after: the time at which each segment that is read to its end ended."""
        made = {}
        for segment_id in new:
            name, extent = self._segments.name_of(segment_id), self.extents[segment_id]
            ended = [time_ms for each, time_ms in after.items() if segment_id in self._ids_after(each)]
            made[segment_id] = Timeline(self._segments, name, *extent[:3], max(ended, default=0), events=limit.events)
        await gather_bounded(Timeline.open, made.values())

        async def count(segment_id: int) -> None:
            line = made[segment_id]
            _, left = await self._scan(segment_id, line.offsets[0], line.offsets[1], limit.number + 1, events=True)
            line.correct(limit.number + 1 - left)

        # A first amount above the limit need not be exact, because the batch ends before it.
        await gather_bounded(
            count, [each for each in made if made[each].estimated and made[each].amounts[1] <= limit.number]
        )
        return made

    def _ids_after(self, segment_id: int) -> set[int]:
        return {each.segment.segment_id for each in self.successors.get(segment_id, ())}

    async def _scan(self, segment_id: int, at: int, end: int, most: int, *, events: bool) -> tuple[int, int]:
        """Reads up to `most` bytes or events from an event's start on, not beyond `end`.

        Returns where they end, and how many there could be more.
        """
        name, offset = self._segments.name_of(segment_id), at
        decoder = EventDecoder(name, at, self._segments.client.pool.settings.max_large_event_bytes)
        while offset < end and (data := await self._segments.read(name, offset, min(end - offset, _READ_BYTES))):
            offset += len(data)
            for event in decoder.feed(data):
                size = EVENT_HEADER_BYTES + len(event.data)
                if most < (1 if events else size):
                    return at, most
                most -= 1 if events else size
                at += size
        return at, most

    def cut(self, ends: Mapping[int, int]) -> Cut:
        """Returns the batch's end as an offset that determines, with the start, the batch's events.

        A segment is in it from the batch that begins it until the batch after its end is read, and longer until all its
        successors have begun. It also stays as long as a predecessor, which would begin it again.
        """
        start = self._start
        if all(end <= start.get(each, 0) for each, end in ends.items()):
            return dict(start)
        finished = {each for each, end in ends.items() if self.extents[each].closed and end == self.extents[each].end}
        begun = set(start)
        while new := (self._ready(finished & begun) & ends.keys()) - begun:
            begun |= new
        cut: Cut = {}
        awaited: set[int] = set()
        for segment_id in sorted(begun):
            following = self._ids_after(segment_id)
            was_finished = segment_id in finished and start.get(segment_id, -1) >= ends[segment_id]
            if not (was_finished and following and following <= begun and segment_id not in awaited):
                cut[segment_id] = max(ends[segment_id], start.get(segment_id, 0))
                awaited |= following
        return cut
