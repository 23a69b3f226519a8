"""Where the events that were sent to a segment are stored: matches them with the events that were read, by their bytes.

An event lies at or behind the length that the segment was known to have when it was sent, and before the length with
which it was acknowledged; an event of a merged segment lies before the length after the merge. These bounds and the
offsets found are columns, by the index of the event; the events of writers come first, then part by part the events of
transactions and large events. Equal events are told apart by their bounds, or else only counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final, NamedTuple

from segstore.wire.history.segments.contents import ReadSpan
from segstore.wire.history.segments.state import ANYWHERE, MOST, SegmentState
from segstore.wire.history.segments.written import Written

OPTIONAL: Final = ANYWHERE + 1
"""The upper bound of an event that need not be stored."""
MISSING: Final = -1
COUNTED: Final = -2
"""Stored, but it is not known at which of several offsets."""


class Sender(NamedTuple):
    """What one writer sent. part: the transaction or transient segment that it was sent to. base: the first index."""

    written: Written
    part: SegmentState | None
    base: int

    @property
    def events(self) -> range:
        return range(self.base, self.base + len(self.written.hashes))


class Placement:
    """The events of a segment and of its parts, and their offsets in the spans that were read.

    Attributes:
        events_of: the indexes of a segment's events, by its name.
        low, high: of each event the lowest offset at which it can lie, and the offset before which it ends.
        offsets: of each event its offset, `MISSING` or `COUNTED`.
        several: the indexes of events with equal bytes, and their offsets, if either has more than one.
        unknown: the offsets of events that were not sent, ascending.
        displaced: the indexes of writers' events that were found outside of their bounds, and the offsets.
        is_complete: whether the sizes of all appends and merges add up to the length, so that all bytes are recorded.
        is_familiar: whether all events that were read from the beginning were recorded when they were sent.
    """

    def __init__(self, segment: SegmentState, parts: Sequence[SegmentState], spans: list[ReadSpan]) -> None:
        self.segment, self.parts, self.spans = segment, parts, spans
        self._starts = [span.start for span in spans]
        self.senders: list[Sender] = []
        self.events_of: dict[str, range] = {}
        self.low, self.high = array("q"), array("q")
        for owner in (segment, *parts):
            base = len(self.low)
            for written in owner.senders:
                self.senders.append(Sender(written, None if owner is segment else owner, len(self.low)))
                self._bound(self.senders[-1])
            self.events_of[owner.name] = range(base, len(self.low))
        self._bases = [sender.base for sender in self.senders]
        self.offsets = array("q", [MISSING]) * len(self.low)
        self.several: dict[int, tuple[list[int], list[int]]] = {}
        self.unknown: list[int] = []
        self._match()
        for group in self.several.values():
            self._place(*group)
        base = self._base()
        self.is_complete = base >= 0 and self._is_all(base)
        self.is_familiar = self.is_complete or (base == 0 and not self.unknown and self._starts[:1] == [0])
        for (index, *equal), offsets in self.several.values():
            if not equal and self.is_own(index, offsets[-1]):
                is_early = offsets[0] < self.low[index] and index in self.events_of[segment.name]
                if not is_early or self.offsets[index] == MISSING:  # else it is one of the later ones
                    self.offsets[index] = offsets[0]
        bounds = zip(self.events_of[segment.name], self.low, self.offsets, self.high, strict=False)
        self.displaced = [
            (index, offset) for index, low, offset, high in bounds if offset >= 0 and not low <= offset < high
        ]
        for index, _ in self.displaced:
            self.offsets[index] = COUNTED if self.is_complete else MISSING

    def sender_of(self, index: int) -> Sender:
        return self.senders[bisect_right(self._bases, index) - 1]

    def span_of(self, offset: int) -> ReadSpan:
        """Returns the span with an event that was read."""
        return self.spans[bisect_right(self._starts, offset) - 1]

    def covers(self, low: int, high: int) -> bool:
        """Whether a range was read without a hole, and holds no event that is known to be garbage."""
        index = bisect_right(self._starts, low) - 1
        if index < 0 or self.spans[index].end < high:
            return False
        return not self.is_complete or not self.unknown_in(low, high)

    def unknown_in(self, low: int, high: int) -> list[int]:
        return self.unknown[bisect_left(self.unknown, low) : bisect_left(self.unknown, high)]

    def is_sure(self, index: int) -> bool:
        """Whether an event that was found is not an equal event of an unknown writer."""
        low, high = self.low[index], self.high[index]
        return self.is_complete or (high < ANYWHERE and self.covers(low, high))

    def is_own(self, index: int, last: int) -> bool:
        """Whether all events with the bytes of an event are from its writer. last: the highest of their offsets.

        Unless the creation was recorded, an event behind the acknowledgement may be from an unknown writer.
        """
        written, _, base = self.sender_of(index)
        is_known = self.is_familiar or written.numbers[index - base] in written.resent
        return self.is_complete or (is_known and (self.segment.is_created or last < self.high[index]))

    # --- bounds -------------------------------------------------------------------------------------------------------

    def _bound(self, sender: Sender) -> None:
        """Adds the bounds of a sender's events."""
        written, part, base = sender
        if part is None:
            low, unbounded = 0, self.segment.final if self.segment.final >= 0 else ANYWHERE
            acks = zip(written.acked, written.lengths, strict=True)
        else:
            (low, unbounded), acks = part.extent, zip((), (), strict=True)
        lows = map(max, written.lows, repeat(0)) if part is None else repeat(max(low, 0), len(written.lows))
        is_single = len(written.hashes) == len(written.lows)  # an event an append, nearly always
        if is_single:
            self.low.extend(lows)
        else:
            for append, known in enumerate(lows):
                self.low.extend(repeat(known, len(_events(written, append))))
        at = 0
        if is_single and part is None and written.acked == written.numbers[: len(written.acked)]:
            at, acks = len(written.acked), zip((), (), strict=True)
            self.high.extend(length if length >= 0 else unbounded for length in written.lengths)
        for number, length in chain(acks, [(written.stored, unbounded), (MOST, OPTIONAL)]):
            end = bisect_right(written.numbers, number, at)
            self.high.extend(repeat(length if length >= 0 else unbounded, end - at))
            at = end
        for append in map(written.append_of, written.refused):
            for event in _events(written, append) if append >= 0 else ():
                self.high[base + event] = OPTIONAL

    def _base(self) -> int:
        """Returns the offset from which on the recording may be complete; -1 if it is not."""
        parts = [part for part in self.parts if part.is_committed or part.lost_merges]
        if any(sender.written.unknown for sender in self.senders) or any(part.size <= 0 for part in parts):
            return -1
        if self.segment.is_created:
            return 0
        starts = [start for written in self.segment.writers.values() for start in written.first_start]
        starts += [part.merged_at[0][0] - part.size for part in self.parts if part.merged_at]
        return max(min(starts), 0) if starts else -1

    def _is_all(self, base: int) -> bool:
        """Whether the bytes that are stored at or behind an offset, by acknowledgements or reads, are all bytes."""
        size = sum(self._size_behind(sender, base) for sender in self.senders if sender.part is None)
        for part in self.parts:
            offsets = [self.offsets[index] for index in self.events_of[part.name]]
            # of an aborted transaction, equal events must be there for all its events, or they are from other writers
            is_counted = MISSING not in offsets if part.is_aborted else COUNTED in offsets
            is_found = is_counted or any(offset >= 0 for offset in offsets)
            size += max(part.size, 0) if part.is_committed or is_found else 0
        if self.segment.is_created:
            return self.segment.length <= size
        starts = chain(self._starts, self.segment.contents.foreign)
        return self.segment.length - base == size and (base == 0 or all(start >= base for start in starts))

    def _size_behind(self, sender: Sender, base: int) -> int:
        """Returns the bytes of a writer that are stored at or behind an offset."""
        written = sender.written
        exact = dict(zip(written.acked, written.lengths, strict=True)) if base else {}
        start = bisect_right(written.lasts, written.stored) if base == 0 and not written.refused else 0
        total = sum(written.sizes[:start])
        for append, size in enumerate(written.sizes[start:], start):
            last, first = written.lasts[append], sender.base + written.firsts[append]
            if last > written.stored or last in written.refused:
                total += size if self.offsets[first] != MISSING else 0
            elif base == 0 or written.lows[append] >= base or exact.get(last, -1) >= 0:
                total += size
        return total

    # --- offsets ------------------------------------------------------------------------------------------------------

    def _match(self) -> None:
        """Assigns each event that was read to the event with its bytes; equal events are grouped in `several`."""
        first_of: dict[int, int] = {}
        several, found, index = self.several, self.offsets, 0
        for sender in self.senders:
            for event in sender.written.hashes:
                first = first_of.setdefault(event, index)
                if first != index:
                    several.setdefault(event, ([first], []))[0].append(index)
                index += 1
        end = self.segment.final if self.segment.final >= 0 else ANYWHERE
        for span in self.spans:
            for offset, event in zip(span.offsets, span.hashes, strict=True):
                index = first_of.get(event, -1)
                if index < 0:
                    self.unknown.append(offset)
                elif event in several:
                    several[event][1].append(offset)
                elif found[index] == MISSING:
                    found[index] = offset
                elif offset < end:
                    several[event] = [index], [found[index], offset]
                    found[index] = MISSING

    def _place(self, events: list[int], offsets: list[int]) -> None:
        """Assigns the offsets of equal events: to each event the first free one, in the order of the upper bounds.

        No other order finds offsets for more events. Of equal upper bounds the highest lower bound is first, since the
        other events may also lie before what was read. Aborted events come last.
        """

        def order(index: int) -> tuple[bool, int, int]:
            return is_aborted(self.sender_of(index)), self.high[index], -self.low[index]

        free = [-offset for offset in reversed(offsets)]  # the lowest last, where it is removed at once
        for index in sorted(events, key=order):
            position = bisect_right(free, -self.low[index]) - 1
            if position >= 0 and -free[position] < self.high[index]:
                self.offsets[index] = COUNTED
                del free[position]


def is_aborted(sender: Sender) -> bool:
    return sender.part is not None and sender.part.is_aborted


def _events(written: Written, append: int) -> range:
    """Returns the events of an append."""
    firsts = written.firsts
    return range(firsts[append], firsts[append + 1] if append + 1 < len(firsts) else len(written.hashes))
