"""The history of a stream's segments, and stream cuts through it: pure functions over epochs.

An epoch is the set of segments that take writes at the same time; their key ranges cover 0 to 1 without overlap.
Scaling and rolling transactions end one epoch and begin the next. Invariants: epochs are numbered from 0 without gaps,
a segment is in one contiguous run of epochs that begins with its own epoch, and segment numbers never decrease.

A stream cut maps segment ids to offsets and covers the key range; -1 marks a segment that a reader knows of but has not
reached. Its *span* maps its segments to the last epoch that held them, within the epochs that the cut touches; two cuts
are compared by their spans.

`why_invalid` checks a cut for unknown segments and uncovered keys; the other functions expect valid cuts. Follows
`PersistentStreamBase` and `RecordHelper` (Pravega); comparisons of ranges are exact, as there.

Segments are looked up by key and by id, never by linear search: a stream may have thousands, and a cut may name all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Final

import msgspec

from segstore.server.controller.policies import Cut
from segstore.wire.names import segment_name, split_segment_id

KeyRange = tuple[float, float]
Span = dict["StreamSegment", int]

FUTURE: Final = 0
"""An offset below this marks a segment that is known but not reached."""

_START: Final = attrgetter("start")
_END: Final = attrgetter("end")


class StreamSegment(msgspec.Struct, frozen=True, array_like=True):
    """One segment of a stream: its number, the epoch of its creation, its key range."""

    number: int
    epoch: int
    start: float
    end: float
    created_ms: int

    @property
    def id(self) -> int:
        return self.epoch << 32 | self.number

    def name(self, scope: str, stream: str) -> str:
        """Returns the full name in the segment store."""
        return segment_name(scope, stream, self.number, self.epoch)


class Epoch(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The segments between two changes, by key; `reference` is the epoch that this one repeats, or its own number."""

    number: int
    reference: int
    segments: tuple[StreamSegment, ...]
    created_ms: int

    @cached_property
    def created(self) -> Mapping[int, StreamSegment]:
        """The segments created in this epoch, by id."""
        return {segment.id: segment for segment in self.segments if segment.epoch == self.number}

    @property
    def next_number(self) -> int:
        """The number of the next new segment. The last epoch has the highest one so far."""
        return 1 + max(segment.number for segment in self.segments)

    def holds(self, segment: StreamSegment) -> bool:
        at = bisect_right(self.segments, segment.start, key=_START) - 1
        return at >= 0 and self.segments[at].id == segment.id

    def overlapping(self, start: float, end: float) -> Sequence[StreamSegment]:
        """Returns the segments whose keys overlap a range."""
        return self.segments[bisect_right(self.segments, start, key=_END) : bisect_left(self.segments, end, key=_START)]


class Comparison(Enum):
    BEFORE = "before"
    EQUAL_OR_AFTER = "equal or after"
    OVERLAPS = "overlaps"


def equal_ranges(count: int, start: float = 0.0, end: float = 1.0) -> list[KeyRange]:
    """Returns `count` adjacent ranges of equal length; the ends are exactly `start` and `end`."""
    step = (end - start) / count
    edges = [start, *(start + step * at for at in range(1, count)), end]
    return list(pairwise(edges))


def first_epoch(count: int, first_number: int, now_ms: int) -> Epoch:
    """Returns epoch 0 of a new stream."""
    numbered = enumerate(equal_ranges(count), first_number)
    segments = tuple(StreamSegment(number, 0, start, end, now_ms) for number, (start, end) in numbered)
    return Epoch(0, 0, segments, now_ms)


def next_epoch(current: Epoch, sealed: Iterable[int], ranges: Sequence[KeyRange], now_ms: int) -> Epoch:
    """Returns the epoch after `current`, in which new segments for `ranges` replace the segments in `sealed`."""
    gone = set(sealed)
    number = current.number + 1
    # Creation times of epochs strictly increase, so that the epoch at a given time is unique.
    created_ms = max(now_ms, current.created_ms + 1)
    numbered = enumerate(ranges, current.next_number)
    new = [StreamSegment(at, number, start, end, created_ms) for at, (start, end) in numbered]
    continued = [segment for segment in current.segments if segment.id not in gone]
    return Epoch(number, number, tuple(sorted([*continued, *new], key=_START)), created_ms)


def ranges_match(current: Epoch, sealed: Iterable[int], ranges: Iterable[KeyRange]) -> bool:
    """Whether `ranges` are valid and cover exactly the keys of the segments in `sealed`."""
    new = list(ranges)
    if any(start >= end for start, end in new):
        return False
    known = {segment.id: (segment.start, segment.end) for segment in current.segments}
    return _joined(known[identifier] for identifier in sealed if identifier in known) == _joined(new)


def _joined(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Joins adjacent ranges. Overlapping ranges are not joined, so that they never equal valid ranges."""
    joined: list[KeyRange] = []
    for start, end in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


# Before and after ------------------------------------------------------------------------------------------------


def find_segment(epochs: Sequence[Epoch], identifier: int) -> StreamSegment | None:
    """Returns the segment with this id; None if it never existed."""
    born = split_segment_id(identifier)[0]
    return epochs[born].created.get(identifier) if 0 <= born < len(epochs) else None


def sealed_in(epochs: Sequence[Epoch], segment: StreamSegment) -> int | None:
    """Returns the first epoch without the segment; None if the segment is current."""
    if epochs[-1].holds(segment):
        return None
    later = range(segment.epoch + 1, len(epochs))
    return later[bisect_left(later, True, key=lambda number: not epochs[number].holds(segment))]


def successors(epochs: Sequence[Epoch], identifier: int) -> dict[StreamSegment, list[int]]:
    """Returns the successors of a segment, with the ids of all their predecessors."""
    segment = find_segment(epochs, identifier)
    sealed = None if segment is None else sealed_in(epochs, segment)
    if segment is None or sealed is None:
        return {}
    before = epochs[sealed - 1]
    return {
        following: [predecessor.id for predecessor in before.overlapping(following.start, following.end)]
        for following in epochs[sealed].overlapping(segment.start, segment.end)
    }


def _overlaps(
    ones: Iterable[StreamSegment], others: Iterable[StreamSegment]
) -> Iterator[tuple[StreamSegment, StreamSegment]]:
    """Yields the pairs of `ones` and `others` whose keys overlap, in one pass over the keys."""
    sides = [(segment, side) for side, segments in enumerate((ones, others)) for segment in segments]
    sides.sort(key=lambda side: side[0].start)
    begun: tuple[list[tuple[float, int, StreamSegment]], ...] = ([], [])
    for segment, side in sides:
        across = begun[1 - side]
        while across and across[0][0] <= segment.start:
            heappop(across)
        for _, _, other in across:
            yield (other, segment) if side else (segment, other)
        heappush(begun[side], (segment.end, segment.id, segment))


# Stream cuts -----------------------------------------------------------------------------------------------------


def why_invalid(epochs: Sequence[Epoch], cut: Mapping[int, int]) -> str | None:
    """Returns why a cut is invalid; None if it is valid.

    Its reached segments must not overlap, and together with its future segments must cover all keys.
    """
    if not cut:
        return "it is empty"
    reached: list[StreamSegment] = []
    future: list[StreamSegment] = []
    for identifier, offset in cut.items():
        segment = find_segment(epochs, identifier)
        if segment is None:
            return f"segment {identifier} is not one of the stream"
        (future if offset < FUTURE else reached).append(segment)
    if not reached:
        return "it has reached no segment"
    reached.sort(key=_START)
    for left, right in pairwise(reached):
        if right.start < left.end:
            return f"segments {left.id} and {right.id} overlap"
    to_come: list[KeyRange] = []
    for segment in future:
        _cover(to_come, segment)
    for start, end in uncovered(reached):
        # No segment was reached there, so a future segment must cover the range.
        at = bisect_right(to_come, start, key=itemgetter(1))
        if at == len(to_come) or to_come[at][0] >= end:
            return f"nothing covers the keys from {start} to {end}"
    for segment, other in _overlaps(future, reached):
        if other.id >= segment.id:
            return f"segment {segment.id} is said to come after one that follows it"
    return None


def _cover(covered: list[KeyRange], segment: StreamSegment) -> tuple[bool, bool]:
    """Adds a segment to sorted ranges that neither overlap nor touch.

    Returns whether any of its keys were covered before, and whether all keys were.
    """
    first = bisect_left(covered, segment.start, key=itemgetter(1))
    touched = covered[first : bisect_right(covered, segment.end, key=itemgetter(0))]
    start = min(segment.start, touched[0][0]) if touched else segment.start
    end = max(segment.end, touched[-1][1]) if touched else segment.end
    covered[first : first + len(touched)] = [(start, end)]
    some = any(covering[0] < segment.end and segment.start < covering[1] for covering in touched)
    return some, touched == [(start, end)]


def uncovered(segments: Sequence[StreamSegment]) -> list[KeyRange]:
    """Returns the gaps that sorted segments leave between 0 and 1."""
    gaps: list[KeyRange] = []
    at = 0.0
    for segment in segments:
        if segment.start > at:
            gaps.append((at, segment.start))
        at = max(at, segment.end)
    if at < 1.0:
        gaps.append((at, 1.0))
    return gaps


def cut_span(epochs: Sequence[Epoch], cut: Mapping[int, int]) -> Span:
    """Maps each segment of a valid cut to the last epoch that holds it, among the epochs that the cut touches."""
    touched = epochs[: split_segment_id(max(cut))[0] + 1]
    span: Span = {}
    for identifier in cut:
        if (segment := find_segment(touched, identifier)) is not None:
            sealed = sealed_in(touched, segment)
            span[segment] = len(touched) - 1 if sealed is None else sealed - 1
    return span


def is_at_or_after(epochs: Sequence[Epoch], cut: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Whether no part of `cut` is before `other`; both must be valid."""
    span, other_span = cut_span(epochs, cut), cut_span(epochs, other)
    return not any(
        span[segment] < other_span[earlier] or (segment.id == earlier.id and cut[segment.id] < other[earlier.id])
        for segment, earlier in _overlaps(span, other_span)
    )


def compare(epochs: Sequence[Epoch], cut: Mapping[int, int], other: Mapping[int, int]) -> Comparison:
    """Compares `cut` with `other`; both must be valid."""
    after = before = False
    for segment, reference in _overlaps(cut_span(epochs, cut), cut_span(epochs, other)):
        same = segment.id == reference.id
        mine, theirs = (cut[segment.id], other[reference.id]) if same else (segment.id, reference.id)
        after |= mine > theirs
        before |= mine < theirs
    if before:
        return Comparison.OVERLAPS if after else Comparison.BEFORE
    return Comparison.EQUAL_OR_AFTER


def between(epochs: Sequence[Epoch], start: Mapping[int, int], end: Mapping[int, int]) -> list[StreamSegment]:
    """Returns the segments from one cut to a later cut, inclusive; an empty cut means the first or the current epoch.

    They are in order of their ids. The cuts must be valid. Raises `ValueError` if `end` is before `start`.
    """
    start_span = cut_span(epochs, start) if start else dict.fromkeys(epochs[0].segments, 0)
    last = epochs[-1]
    end_span = cut_span(epochs, end) if end else dict.fromkeys(last.segments, last.number)
    if start and end and not is_at_or_after(epochs, end, start):
        raise ValueError("the second stream cut lies before the first")
    touched = epochs[min(start_span.values()) : max(end_span.values()) + 1]
    segments = {segment.id: segment for segment in touched[0].segments}
    for epoch in touched[1:]:
        segments |= epoch.created
    outside = {one.id for one, earlier in _overlaps(segments.values(), start_span) if one.id < earlier.id}
    outside |= {one.id for one, later in _overlaps(segments.values(), end_span) if one.id > later.id}
    return [segments[identifier] for identifier in sorted(segments.keys() - outside)]


def lower_bound(epochs: Sequence[Epoch], cuts: Iterable[Mapping[int, int]]) -> Cut:
    """Returns the earliest position for each key among valid cuts; empty without cuts.

    A segment that earlier segments cover only in part is marked as not reached.
    """
    earliest: Cut = {}
    for cut in cuts:
        for identifier, offset in cut.items():
            earliest[identifier] = min(offset, earliest.get(identifier, offset))
    covered: list[KeyRange] = []
    bound: Cut = {}
    for identifier in sorted(earliest):  # of overlapping segments, the one with the lower id is earlier
        segment = find_segment(epochs, identifier)
        assert segment is not None, "a valid cut names segments of the stream"
        partly, wholly = _cover(covered, segment)
        if not wholly:
            bound[identifier] = -1 if partly else earliest[identifier]
    return bound
