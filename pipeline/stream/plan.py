"""Plans reads of a stream: byte ranges between two cuts, and the extent of each micro-batch.

A range lies in one segment and ends at the end of an event: at the segment's length, at an offset from the store's
index or, under a limit without a suitable index entry, at an event boundary found by reading. Large ranges are split at
index offsets; a segment without an index is read by one task.

Between micro-batches, a segment read to its end is replaced by its successors; a successor starts once all its
predecessors are read to their ends. So events of one routing key never arrive in an earlier batch than their
predecessors. A segment stays in the offsets, at its end, until all its successors have started.

Invariants: two offsets always delimit the same events; a limited batch has at least one event of each segment that it
reads, because an event above the limit would otherwise block all progress. Refused, with `DataLost`: deleted data that
should have been read, unless the options allow it; with `CutError`: an end that does not follow the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from segstore.client.errors import NoSuchStream
from segstore.client.stream import EVENT_HEADER_BYTES, EventDecoder
from segstore.pipeline.stream.cuts import Cut, CutError, Place
from segstore.pipeline.stream.options import StreamLimit, StreamOptions
from segstore.pipeline.stream.segments import Segments, gather_bounded
from segstore.wire import StreamSegmentInfo

_NEARLY: Final = (7, 4)
"""Eighths of a share at which to look for an end in the index, before searching by reading events."""


class ByteRange(NamedTuple):
    """The range that one task reads: from the event at `start` to the last one that ends at or before `end`."""

    segment_id: int
    segment: str
    start: int
    end: int


class DataLost(RuntimeError):
    """Events to be read are gone. Attributes: segment, start, end (of the lost range; None if unknown)."""

    def __init__(self, message: str, segment: str, start: int, end: int | None = None) -> None:
        super().__init__(f"{message}; with failOnDataLoss false such events are skipped")
        self.segment = segment
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[type[DataLost], tuple[str, str, int, int | None]]:
        return type(self), (str(self).partition("; with failOnDataLoss")[0], self.segment, self.start, self.end)


async def cut_at(segments: Segments, place: Place) -> Cut:
    """Resolves a place to a cut, {} for the tail of a sealed stream. Raises NoSuchStream."""
    if place == "head":
        found = await segments.head()
        if not found:  # controllers answer like this for a missing stream, too
            await segments.current()
            raise NoSuchStream(
                f"stream {segments.scope}/{segments.stream} has no segments",
                stream=f"{segments.scope}/{segments.stream}",
            )
        return found
    if place == "tail":
        return await segments.tail()
    return dict(place)


# --- a batch between two cuts ---------------------------------------------------------------------------------------


async def batch_ranges(segments: Segments, options: StreamOptions) -> list[ByteRange]:
    """Returns the ranges between the options' cuts, split for tasks. Raises CutError, DataLost, NoSuchStream."""
    start = await cut_at(segments, options.start or "head")
    end = await cut_at(segments, options.end or "tail")
    waiting = deque(start.items())
    seen, reached = set(start), set[int]()
    found: list[ByteRange] = []
    while waiting:
        segment_id, offset = waiting.popleft()
        name = segments.name_of(segment_id)
        info = (await segments.infos([segment_id]))[segment_id]
        first = _first(name, offset, info, options)
        if segment_id in end:
            reached.add(segment_id)
            last = end[segment_id]
            if last < offset:
                raise CutError(f"the end lies before the start: {name} from {offset} to {last}", name)
        else:
            if info is not None and not info.is_sealed:
                raise CutError(f"the end does not follow the start: {name} is not in it and goes on", name)
            last = info.write_offset if info is not None else first
            for each in await segments.successors(segment_id):
                if each.segment.segment_id not in seen:
                    seen.add(each.segment.segment_id)
                    waiting.append((each.segment.segment_id, 0))
        if last > first:
            found.append(ByteRange(segment_id, name, first, last))
    if missed := end.keys() - reached:
        raise CutError(f"the end does not follow the start: nothing leads to {segments.name_of(min(missed))}", "")
    return await _split(segments, found, options.split_bytes)


def _first(name: str, offset: int, info: StreamSegmentInfo | None, options: StreamOptions) -> int:
    """Returns the first readable offset of a segment. Raises DataLost."""
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
        raise DataLost(f"{name} ends at {info.write_offset}: it is not the one that was read to {offset}", name, offset)
    return offset


async def ranges_between(segments: Segments, start: Cut, end: Cut, split_bytes: int) -> list[ByteRange]:
    """Returns the ranges between two offsets of a streaming query, split for tasks."""
    whole = [
        ByteRange(segment_id, segments.name_of(segment_id), start.get(segment_id, 0), last)
        for segment_id, last in sorted(end.items())
        if last > start.get(segment_id, 0)
    ]
    return await _split(segments, whole, split_bytes)


async def _split(segments: Segments, ranges: list[ByteRange], split_bytes: int) -> list[ByteRange]:
    async def one(whole: ByteRange) -> list[ByteRange]:
        parts, rest = [], whole
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
    segments: Segments, options: StreamOptions, start: Mapping[int, int], limit: StreamLimit | None, target: Cut | None
) -> Cut:
    """Returns the end of a batch that starts at `start`, at most `target`. Raises DataLost, NoSuchStream."""
    begun, ends = await _begin(segments, options, start, target or {})
    rooms = {segment_id: ends[segment_id] - offset for segment_id, offset in begun.items()}
    end = {segment_id: max(offset, ends[segment_id]) for segment_id, offset in begun.items()}
    if limit is None:
        return end
    least = EVENT_HEADER_BYTES if limit.events else 1
    rooms = {segment_id: room for segment_id, room in rooms.items() if room > 0}
    if sum(rooms.values()) <= limit.most * least:
        return end
    if limit.events:
        left = limit.most
        for number, segment_id in enumerate(sorted(rooms, key=rooms.__getitem__)):
            share = -(-left // (len(rooms) - number))
            at = begun[segment_id]
            if share > 0:
                at, taken = await _scan(segments, segment_id, at, ends[segment_id], events=share)
                left -= taken
            end[segment_id] = at
        return end
    for segment_id, share in shares(rooms, limit.most).items():
        if share < rooms[segment_id]:
            at = begun[segment_id]
            end[segment_id] = await _boundary(segments, segment_id, at, share, ends[segment_id]) if share else at
    return end


def shares(rooms: Mapping[int, int], most: int) -> dict[int, int]:
    """Divides a limit: what a segment does not need of its even share goes to the others."""
    given, left = {}, most
    for number, segment_id in enumerate(sorted(rooms, key=rooms.__getitem__)):
        given[segment_id] = min(rooms[segment_id], left // (len(rooms) - number))
        left -= given[segment_id]
    if most > 0 and not any(given.values()):
        given[next(iter(given))] = 1
    return given


async def _begin(
    segments: Segments, options: StreamOptions, start: Mapping[int, int], target: Cut
) -> tuple[Cut, dict[int, int]]:
    """Returns the segments that a batch reads, with their start and current end."""
    begun: Cut = dict(start)
    infos: dict[int, StreamSegmentInfo | None] = {}
    followed: set[int] = set()
    while True:
        infos |= await segments.infos([each for each in begun if each not in infos])
        finished = set()
        for segment_id, offset in begun.items():
            info = infos[segment_id]
            # The task that reads a segment new in this batch checks its start.
            first = _first(segments.name_of(segment_id), offset, info, options) if segment_id in start else offset
            if info is None or (info.is_sealed and first >= info.write_offset):
                finished.add(segment_id)
        more = False
        for segment_id in sorted(finished - followed - target.keys()):
            followed.add(segment_id)
            following = await segments.successors(segment_id)
            for each in following:
                known = each.segment.segment_id in begun
                if not known and finished.issuperset(each.predecessors):
                    begun[each.segment.segment_id] = 0
                    more = True
        if not more:
            break
        followed.clear()
    for segment_id in sorted(finished - target.keys()):
        following = await segments.successors(segment_id)
        if following and all(each.segment.segment_id in begun for each in following):
            del begun[segment_id]
    ends = {}
    for segment_id, offset in begun.items():
        info = infos[segment_id]
        length = offset if info is None else info.write_offset
        ends[segment_id] = max(offset, min(length, target.get(segment_id, length)))
    return begun, ends


async def _boundary(segments: Segments, segment_id: int, start: int, share: int, end: int) -> int:
    """Returns the end of an event at most `share` bytes after `start`, unless the first event is longer."""
    name = segments.name_of(segment_id)
    for eighths in _NEARLY:
        at = await segments.locate(name, start + share * eighths // 8)
        if at is None:
            break
        if start < at <= start + share:
            return min(at, end)
    at, _ = await _scan(segments, segment_id, start, end, size=share)
    return at


async def _scan(
    segments: Segments, segment_id: int, start: int, end: int, *, size: int | None = None, events: int | None = None
) -> tuple[int, int]:
    """Reads events up to a number of bytes or events, at least one; returns the end offset and the event count."""
    name = segments.name_of(segment_id)
    reader = segments.reader(name, start, read_ahead=False, known_to=end)
    limit = segments.client.pool.settings.max_large_event_bytes
    decoder = EventDecoder(name, start, limit)
    at, count = start, 0
    with_room = start + size if size is not None else end
    try:
        while at < end:
            chunk = await reader.read()
            for event in decoder.feed(chunk.view[: max(0, end - chunk.offset)]):
                behind = event.offset + EVENT_HEADER_BYTES + len(event.data)
                if count and behind > with_room:
                    return at, count
                at, count = behind, count + 1
                if count == events:
                    return at, count
            if decoder.offset >= end or chunk.end_of_segment:
                break
    finally:
        reader.close()
    return at, count
