"""Timelines: how much of a segment was written by when, according to the segment's index.

An index has an entry (length, number of events, Unix ms) for about every ten milliseconds in which the segment grew. A
segment without an index counts as written evenly up to its last modification; streams from before Pravega 0.13 have no
index.

`divide` cuts several timelines at a given moment, and `share_out` in proportion between two moments: the events of a
writer's burst or of a transaction reach the segments at different times, and a new segment waits until its writers are
connected. So finer times do not determine the order, but the times at which segments are sealed do.

Invariants: times, amounts and offsets rise; a number of events is never below the true number, unless it is
`estimated`. Follows `IndexAppendProcessor` and `IndexEntry` (Pravega's server).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import Final

from segstore.pipeline.stream.segments import IndexEntry, Segments
from segstore.wire import StreamSegmentInfo
from segstore.wire.blocks import EVENT_HEADER_BYTES

INDEX_DELAY_MS: Final = 10
"""Delay of an entry after the first event that it covers."""
_WINDOW: Final = 2048
"""Entries per read of an index: 48 KiB, at least 20 seconds of writing."""


async def _narrow(
    segments: Segments, name: str, numbers: tuple[int, int], earlier: Callable[[IndexEntry], bool]
) -> tuple[int, int]:
    """Returns numbers less than a window apart, between which is the last index entry that is `earlier`, if any is."""
    low, high = numbers
    while high - low >= _WINDOW:
        middle = (low + high) // 2
        entries = await segments.index_entries(name, middle, 1)
        if not entries:  # truncated meanwhile
            break
        low, high = (middle, high) if earlier(entries[0]) else (low, middle)
    return low, high


async def _last_entry(segments: Segments, name: str, earlier: Callable[[IndexEntry], bool]) -> IndexEntry | None:
    """Returns the last entry of a segment's index that is `earlier`, as are all entries before it; or None."""
    last = None
    low, high = await _narrow(segments, name, await segments.index_numbers(name) or (0, 0), earlier)
    while low < high and (entries := await segments.index_entries(name, low, min(_WINDOW, high - low))):
        before = [entry for entry in entries if earlier(entry)]
        last = before[-1] if before else last
        low = low + len(entries) if len(before) == len(entries) else high
    return last


async def offset_at(segments: Segments, name: str, info: StreamSegmentInfo, unix_ms: int) -> int:
    """Returns the offset that a segment had reached when a time began, according to its index.

    Data behind the index, or all data without an index, counts as written when the segment was last modified.
    """
    last = await _last_entry(segments, name, lambda entry: entry.time_ms < unix_ms)
    reached = 0 if last is None else min(last.length, info.write_offset)
    if info.last_modified < unix_ms and await segments.locate(name, reached + 1) is None:
        return info.write_offset
    return max(info.start_offset, reached)


async def count_events(segments: Segments, name: str, start: int, end: int) -> int | None:
    """Returns how many events lie between two offsets: exact where the index has the offsets, else by the average event
    size. None if the index does not show it."""
    last = await _last_entry(segments, name, lambda entry: entry.length <= end)
    before = await _last_entry(segments, name, lambda entry: entry.length <= start)
    if last is None:
        return None
    if before is None or before.events >= last.events:
        before = IndexEntry(0, 0, 0)
    if last.events <= before.events or last.length <= before.length:
        return None
    return round((end - start) * (last.events - before.events) / (last.length - before.length))


class Timeline:
    """The growth of one segment from `start` to `end`, with its index read as far as needed.

    Attributes, the first three with one item for each known boundary between events, the first for the start:
        times: when the segment had grown to it, in Unix ms.
        amounts: bytes or events from the start to it.
        offsets: its offset.
        placed: whether the time of the start is known.
        estimated: whether the first amount of events is, because the start lies between two index entries.
    """

    def __init__(
        self, segments: Segments, name: str, start: int, end: int, modified_ms: int, after_ms: int, *, events: bool
    ) -> None:
        """modified_ms: when the segment was last modified. after_ms: when its predecessors ended. events: what counts,
        instead of bytes."""
        self.times, self.amounts, self.offsets = [after_ms], [0], [start]
        self.placed, self.estimated = after_ms > 0, False
        self._segments, self._name, self._end = segments, name, end
        self._modified_ms, self._after_ms = modified_ms, after_ms
        self._counts_events = events
        self._before: IndexEntry | None = None
        """The last index entry, if known."""
        self._indexed = False
        self._next = self._behind = 0
        """Numbers of the next index entry to read, and of the one behind the last."""

    @property
    def complete(self) -> bool:
        """Whether the timeline is known to the end."""
        return self.offsets[-1] >= self._end

    async def open(self) -> None:
        """Finds the start in the index, and reads from there on as far as one boundary."""
        if self.complete:
            return
        numbers = await self._segments.index_numbers(self._name)
        self._indexed = numbers is not None
        low, self._behind = numbers or (0, 0)
        if low == 0:  # nothing was truncated
            self._before = IndexEntry(0, 0, 0)
        # The entry before the start shows when the start was written.
        self._next, _ = await _narrow(
            self._segments, self._name, (low, self._behind), lambda entry: entry.length <= self.offsets[0]
        )
        while len(self.times) == 1:
            await self.extend()

    async def extend(self) -> None:
        """Reads more of the index; behind its end, the rest of the segment is one step. Call it until `complete`."""
        index: list[IndexEntry] = []
        if self._next < self._behind:
            index = await self._segments.index_entries(self._name, self._next, min(_WINDOW, self._behind - self._next))
        for entry in index:
            if entry.length <= self.offsets[0] and len(self.times) == 1:
                self.times[0] = max(self._after_ms, entry.time_ms)
                self.placed = True
            self._grow(entry.time_ms, min(entry.length, self._end), entry)
            self._before = entry
        self._next += len(index)
        if not index:  # none is left, or the index was truncated meanwhile
            self._grow(self._modified_ms, self._end, None)

    def _grow(self, time_ms: int, offset: int, entry: IndexEntry | None) -> None:
        size = offset - self.offsets[-1]
        if size <= 0:
            return
        if self._indexed and not self.placed:
            self.times[0], self.placed = max(0, time_ms - 1), True
        amount = self._events(size, entry) if self._counts_events else size
        # A segment has nothing at the time when its predecessors end, regardless of the clocks of their stores.
        self.times.append(max(time_ms, self.times[-1], self.times[0] + 1))
        self.amounts.append(self.amounts[-1] + amount)
        self.offsets.append(offset)

    def _events(self, size: int, entry: IndexEntry | None) -> int:
        """Returns the number of events in the next bytes."""
        most, before = max(1, size // EVENT_HEADER_BYTES), self._before
        if entry is None or before is None or entry.events <= before.events:
            return most
        events = entry.events - before.events
        if before.length < self.offsets[0]:
            self.estimated = True
            events = -(-events * size // (entry.length - before.length))
        return min(most, events)

    def correct(self, amount: int) -> None:
        """Replaces an estimated first amount."""
        by = amount - self.amounts[1]
        self.amounts[1:] = [known + by for known in self.amounts[1:]]

    def ended_by(self, time_ms: int) -> bool:
        """Whether the segment had grown to its end by then."""
        return self.complete and self.times[-1] <= time_ms

    async def time_of(self, offset: int) -> int | None:
        """Returns when the event at an offset was stored; None without an index. Reads the index as far as needed."""
        while not self.complete and self.offsets[-1] <= offset:
            await self.extend()
        return self.times[min(bisect_right(self.offsets, offset), len(self.times) - 1)] if self._indexed else None

    def amount_at(self, time_ms: int) -> int:
        """Returns the amount written by then."""
        since, until = self.times[0], self.times[-1]
        if self._indexed or not since < time_ms < until:
            return self.amounts[max(0, bisect_right(self.times, time_ms) - 1)]
        return self.amounts[-1] * (time_ms - since) // (until - since)


def place(timelines: Collection[Timeline]) -> int:
    """Returns the earliest start of timelines, not all empty, and sets unknown starts: to the earliest known start,
    else as long before the first end as the last end is after it."""
    written = [timeline for timeline in timelines if len(timeline.times) > 1]
    ends = [line.times[-1] for line in written]
    first = min((line.times[0] for line in written if line.placed), default=2 * min(ends) - max(ends) - 1)
    for line in written:
        if not line.placed:
            line.times[0] = max(0, min(first, line.times[1] - 1))
    return min(line.times[0] for line in written)


def divide(timelines: Mapping[int, Timeline], moments: Sequence[int], most: int) -> tuple[int, int]:
    """Returns the index of the last moment by which all segments together grew by at most `most`, and the rest of
    `most`. The first moment always qualifies."""

    def total(at: int) -> int:
        return sum([timeline.amount_at(at) for timeline in timelines.values()])

    number = bisect_right(moments, most, key=total) - 1
    return number, most - total(moments[number])


def share_out(
    timelines: Mapping[int, Timeline], at: int, until: int, left: int, waits_for: Mapping[int, Collection[int]]
) -> dict[int, int]:
    """Returns the amount of each segment that begins: its amount at `at`, and its share of `left` for the time until
    the next moment.

    Segments advance in proportion, a segment together with its successors, which take the rest of its share. A segment
    begins when all its predecessors have ended.
    waits_for: for each segment, its predecessors that end after `at`; their ids are lower.
    """
    had = {segment_id: line.amount_at(at) for segment_id, line in timelines.items()}
    grown = {segment_id: line.amount_at(until) - had[segment_id] for segment_id, line in timelines.items()}
    # Fractions, because floating point loses an event: 31 / 355 * 355 is less than 31.
    weights = {segment_id: Fraction(amount) for segment_id, amount in grown.items()}
    followers: dict[int, list[tuple[int, Fraction]]] = {segment_id: [] for segment_id in timelines}
    for segment_id in sorted(timelines, reverse=True):
        together = sum([grown[predecessor] for predecessor in waits_for[segment_id]])
        for predecessor in waits_for[segment_id]:
            # Predecessors end together, so what follows is divided as they are.
            fraction = Fraction(grown[predecessor], together) if together else Fraction(1, len(waits_for[segment_id]))
            weights[predecessor] += weights[segment_id] * fraction
            followers[predecessor].append((segment_id, weights[segment_id] * fraction))
    part = Fraction(left, max(1, sum(grown.values())))
    budgets = {timeline: weights[timeline] * (not waits_for[timeline]) * part for timeline in timelines}
    amounts: dict[int, int] = {}
    ended: set[int] = set()
    for segment_id in sorted(timelines):
        if not ended.issuperset(waits_for[segment_id]):
            continue
        taken = min(grown[segment_id], int(budgets[segment_id]))
        amounts[segment_id] = had[segment_id] + taken
        if taken == grown[segment_id]:
            ended.add(segment_id)
        rest, behind = budgets[segment_id] - taken, weights[segment_id] - grown[segment_id]
        for follower, weight in followers[segment_id]:
            if behind:
                budgets[follower] += rest * weight / behind
    return amounts
