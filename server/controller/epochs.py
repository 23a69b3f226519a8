"""The history of a stream's segments, and stream cuts through it: pure functions over epochs.

An epoch is the set of segments that take writes together; their key ranges cover 0 to 1 without overlap. Scaling and
rolling a transaction end one epoch and begin the next. Invariant: epochs are numbered from 0 without gaps, each segment
is in one unbroken run of epochs that begins with its own, and segment numbers never fall.

A stream cut says for each part of the key range how far it goes: segment id to offset, -1 for a segment that a reader
knows to come but has not reached. Its *span* tells for each of its segments the last epoch that held it, within the
epochs that the cut touches; two cuts are compared by their spans.

`why_invalid` says what is wrong with a cut that names unknown segments or does not cover the keys; the other functions
take valid cuts. Follows `PersistentStreamBase` and `RecordHelper` (Pravega); comparisons of ranges are exact, as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final

import msgspec

from segstore.server.controller.policies import Cut
from segstore.wire.names import segment_name, split_segment_id

__all__ = [
    "Comparison",
    "Epoch",
    "KeyRange",
    "Segment",
    "between",
    "compare",
    "cut_span",
    "equal_ranges",
    "first_epoch",
    "is_at_or_after",
    "lower_bound",
    "next_epoch",
    "ranges_match",
    "sealed_in",
    "size_between",
    "successors",
    "uncovered",
    "why_invalid",
]

KeyRange = tuple[float, float]
Span = dict["Segment", int]

FUTURE: Final = 0
"""An offset below this marks a segment that is known and not reached."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """One segment of a stream: its number, the epoch of its creation, the keys that it takes."""

    number: int
    epoch: int
    start: float
    end: float
    created_ms: int

    @property
    def id(self) -> int:
        return self.epoch << 32 | self.number

    def overlaps(self, other: Segment) -> bool:
        """Whether some key belongs to both."""
        return self.start < other.end and other.start < self.end

    def name(self, scope: str, stream: str) -> str:
        """The full name, as the segment store knows it."""
        return segment_name(scope, stream, self.number, self.epoch)


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """The segments between two changes, by key; `reference` is the epoch that this one repeats, or itself."""

    number: int
    reference: int
    segments: tuple[Segment, ...]
    created_ms: int

    def find(self, identifier: int) -> Segment | None:
        """The segment with this id, if it is in the epoch."""
        for segment in self.segments:
            if segment.id == identifier:
                return segment
        return None


class Comparison(Enum):
    """How one cut lies to another."""

    BEFORE = "before"
    EQUAL_OR_AFTER = "equal or after"
    OVERLAPS = "overlaps"


def equal_ranges(count: int, start: float = 0.0, end: float = 1.0) -> list[KeyRange]:
    """`count` ranges of one length that join without gaps; the ends are exactly `start` and `end`."""
    step = (end - start) / count
    edges = [start, *(start + step * at for at in range(1, count)), end]
    return list(pairwise(edges))


def first_epoch(count: int, first_number: int, now_ms: int) -> Epoch:
    """The epoch 0 of a new stream."""
    segments = tuple(
        Segment(first_number + at, 0, start, end, now_ms) for at, (start, end) in enumerate(equal_ranges(count))
    )
    return Epoch(0, 0, segments, now_ms)


def next_epoch(current: Epoch, sealed: Iterable[int], ranges: Sequence[KeyRange], now_ms: int) -> Epoch:
    """The epoch after `current` in which new segments for `ranges` stand for those `sealed`."""
    gone = set(sealed)
    number = current.number + 1
    first = max(segment.number for segment in current.segments) + 1
    # Time never stands still between epochs, or the one at a given time would not be unique.
    created_ms = max(now_ms, current.created_ms + 1)
    made = [Segment(first + at, number, start, end, created_ms) for at, (start, end) in enumerate(ranges)]
    kept = [segment for segment in current.segments if segment.id not in gone]
    return Epoch(number, number, tuple(sorted([*kept, *made], key=lambda each: each.start)), created_ms)


def ranges_match(current: Epoch, sealed: Iterable[int], ranges: Iterable[KeyRange]) -> bool:
    """Whether `ranges` are sound and cover exactly the keys of the segments `sealed`."""
    new = list(ranges)
    if any(start >= end for start, end in new):
        return False
    old = [(each.start, each.end) for each in map(current.find, sealed) if each is not None]
    return _joined(old) == _joined(new)


def _joined(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Adjacent ranges as one; ranges that overlap stay apart, so that they equal nothing sound."""
    joined: list[KeyRange] = []
    for start, end in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


# Before and after ------------------------------------------------------------------------------------------------


def sealed_in(epochs: Sequence[Epoch], identifier: int) -> int | None:
    """The first epoch that no longer holds the segment; None if it is still there, or never was."""
    born = split_segment_id(identifier)[0]
    if not 0 <= born < len(epochs) or epochs[born].find(identifier) is None:
        return None
    for epoch in epochs[born + 1 :]:
        if epoch.find(identifier) is None:
            return epoch.number
    return None


def successors(epochs: Sequence[Epoch], identifier: int) -> dict[Segment, list[int]]:
    """The segments that follow one, each with the ids of all that it follows; empty if none does."""
    sealed = sealed_in(epochs, identifier)
    if sealed is None:
        return {}
    before = epochs[sealed - 1]
    segment = before.find(identifier)
    assert segment is not None, "sealed_in gives the epoch after the last that holds the segment"
    return {
        following: [each.id for each in before.segments if each.overlaps(following)]
        for following in epochs[sealed].segments
        if following.overlaps(segment)
    }


# Stream cuts -----------------------------------------------------------------------------------------------------


def _reach(cut: Mapping[int, int]) -> tuple[int, int]:
    """The epochs of the oldest and of the newest segment of a cut."""
    return split_segment_id(min(cut))[0], split_segment_id(max(cut))[0]


def why_invalid(epochs: Sequence[Epoch], cut: Mapping[int, int]) -> str | None:
    """What is wrong with a cut; None if nothing is.

    The segments that it has reached must not overlap, and with those that it knows to come must cover all keys.
    """
    if not cut:
        return "it is empty"
    reached: list[Segment] = []
    future: list[Segment] = []
    for identifier, offset in cut.items():
        born = split_segment_id(identifier)[0]
        segment = epochs[born].find(identifier) if 0 <= born < len(epochs) else None
        if segment is None:
            return f"segment {identifier} is not one of the stream"
        (future if offset < FUTURE else reached).append(segment)
    if not reached:
        return "it has reached no segment"
    reached.sort(key=lambda each: each.start)
    for left, right in pairwise(reached):
        if right.start < left.end:
            return f"segments {left.id} and {right.id} overlap"
    missing = uncovered(reached)
    for start, end in missing:
        # Nothing was reached there: a segment is to come, and what leads to it is in the cut.
        if not any(each.start < end and start < each.end for each in future):
            return f"nothing covers the keys from {start} to {end}"
    for segment in future:
        if any(each.overlaps(segment) and each.id >= segment.id for each in reached):
            return f"segment {segment.id} is said to come after one that follows it"
    return None


def uncovered(segments: Sequence[Segment]) -> list[KeyRange]:
    """The gaps between 0 and 1 that sorted segments leave."""
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
    """Each segment of a valid cut with the last epoch that holds it, among those that the cut touches."""
    low, high = _reach(cut)
    ahead = set(cut)
    span: Span = {}
    for epoch in reversed(epochs[low : high + 1]):
        for segment in epoch.segments:
            if segment.id in ahead:
                span[segment] = epoch.number
                ahead.discard(segment.id)
    return span


def is_at_or_after(cut: Mapping[int, int], span: Span, other: Mapping[int, int], other_span: Span) -> bool:
    """Whether no part of `cut` lies before `other`."""
    for segment, epoch in span.items():
        for earlier, earlier_epoch in other_span.items():
            if segment.id == earlier.id and cut[segment.id] < other[earlier.id]:
                return False
            if segment.overlaps(earlier) and epoch < earlier_epoch:
                return False
    return True


def compare(epochs: Sequence[Epoch], cut: Mapping[int, int], other: Mapping[int, int]) -> Comparison:
    """How `cut` lies to `other`, both valid."""
    after = before = False
    for segment in cut_span(epochs, cut):
        for reference in cut_span(epochs, other):
            if segment.id == reference.id:
                mine, theirs = cut[segment.id], other[reference.id]
            elif segment.overlaps(reference):
                mine, theirs = segment.id, reference.id
            else:
                continue
            after |= mine > theirs
            before |= mine < theirs
    if before:
        return Comparison.OVERLAPS if after else Comparison.BEFORE
    return Comparison.EQUAL_OR_AFTER


def between(epochs: Sequence[Epoch], start: Mapping[int, int], end: Mapping[int, int]) -> list[Segment]:
    """The segments from one cut to a later one, both included; an empty cut is the first or the current epoch.

    In order of their ids. The cuts are valid; `ValueError` if `end` lies before `start`.
    """
    start_span = cut_span(epochs, start) if start else dict.fromkeys(epochs[0].segments, 0)
    last = epochs[-1]
    end_span = cut_span(epochs, end) if end else dict.fromkeys(last.segments, last.number)
    if start and end and not is_at_or_after(end, end_span, start, start_span):
        raise ValueError("the second stream cut lies before the first")
    found: dict[int, Segment] = {}
    for epoch in epochs[min(start_span.values()) : max(end_span.values()) + 1]:
        inside = max(start_span.values()) <= epoch.number <= min(end_span.values())
        for segment in epoch.segments:
            if inside or (
                all(each.id <= segment.id for each in start_span if each.overlaps(segment))
                and all(segment.id <= each.id for each in end_span if each.overlaps(segment))
            ):
                found[segment.id] = segment
    return [found[identifier] for identifier in sorted(found)]


def size_between(
    segments: Iterable[Segment], start: Mapping[int, int], end: Mapping[int, int], sizes: Mapping[int, int]
) -> int:
    """The bytes between two cuts, given the segments between them and the sizes of those that are sealed."""
    total = 0
    for segment in segments:
        if segment.id in end:
            total += max(end[segment.id], 0)
        else:
            total += sizes.get(segment.id, 0)
        if segment.id in start:
            total -= max(start[segment.id], 0)
    return total


def lower_bound(epochs: Sequence[Epoch], cuts: Iterable[Mapping[int, int]]) -> Cut:
    """The earliest position, key by key, of several valid cuts; empty if there are none.

    Where a segment lies only partly behind the earlier ones, it stands as one that is still to come.
    """
    earliest: Cut = {}
    for cut in cuts:
        for identifier, offset in cut.items():
            earliest[identifier] = min(offset, earliest.get(identifier, offset))
    kept: list[Segment] = []
    bound: Cut = {}
    for identifier in sorted(earliest):  # of segments that overlap, the lower id is the earlier
        segment = epochs[split_segment_id(identifier)[0]].find(identifier)
        assert segment is not None, "a valid cut names segments of the stream"
        behind = sorted((each for each in kept if each.overlaps(segment)), key=lambda each: each.start)
        if not any(start < segment.end and segment.start < end for start, end in uncovered(behind)):
            continue
        kept.append(segment)
        bound[identifier] = -1 if behind else earliest[identifier]
    return bound
