"""Compares the events that were sent to a segment with its contents, once all facts are known.

Every event that was read is assigned to an event that was sent, by its bytes. Equal events of a segment are told apart
by the offsets at which they can lie, or else only counted.

An event lies at or behind the length that the segment was known to have when it was sent, and before the length with
which it was acknowledged. It is missing only if that range was read without a hole.

Foreign events in a segment, and equal events of writers that were not recorded, must not count as errors. Most
rules therefore ask whether the recording is complete: the sizes of all appends and merges add up to its length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import Final

from segstore.wire.history.facts import Broken, Key, Open, Place
from segstore.wire.history.segments.contents import PlaceList
from segstore.wire.history.segments.state import SegmentState, is_before
from segstore.wire.history.segments.written import Written
from segstore.wire.names import SegmentName

Findings = Iterator[Broken | Open]
_MISSING: Final = -1
_COUNTED: Final = -2
"""Stored, but it is not known at which of several offsets."""
_OPTIONAL: Final = -1
"""In place of a bound: the event need not be stored."""
_ANYWHERE: Final = (1 << 63) - 1

UNREAD: Final = "the segment was not read where the event lies"
INCOMPLETE: Final = "appends to the segment may be missing in the recording"
NO_HEADERS: Final = "the segment holds bytes without event headers"
NO_OUTCOME: Final = "the end of the transaction was not recorded"
NO_CREATION: Final = "truncations of the segment may be missing in the recording"
MIDDLE: Final = "reads began at an offset at which no event is known to start"


def judge_stored(key: Key, places: PlaceList, segments: Mapping[str, SegmentState]) -> Findings:
    """Yields what the whole history of a segment and its transactions' and transient segments shows."""
    for name, segment in segments.items():
        parts = [part for part in segments.values() if part.name != name] if name == key.name else []
        yield from _truncations(key, segment)
        yield from _owners(key, places, segment)
        yield from _Comparison(key, places, segment, parts).findings()


def _truncations(key: Key, segment: SegmentState) -> Findings:
    if segment.start > segment.truncated_to >= 0 and segment.start_place is not None:
        if segment.is_created:
            text = f"{segment.name} was truncated at {segment.truncated_to}, and starts at {segment.start}"
            place = segment.start_place
            yield Broken("truncation-too-far", key, (place,), text, segment.truncated_to, segment.start)
        else:
            yield Open("truncation-too-far", key, NO_CREATION)


def _owners(key: Key, places: PlaceList, segment: SegmentState) -> Findings:
    """Finds appends that two stores acknowledged at one length."""
    if segment.store_count < 2:
        return
    ends: dict[int, tuple[int, int]] = {}
    for writer in segment.writers.values():
        for length, store, ack in zip(writer.lengths, writer.stores, writer.acks, strict=True):
            other, earlier = ends.setdefault(length, (store, ack))
            if other != store and store and other and length >= 0:
                text = f"two stores acknowledge different appends to {segment.name} that end at {length}"
                first, second = sorted((places[earlier], places[ack]), key=lambda place: place.time_ns)
                yield Broken("two-owners", key, (first, second), text)


class _Source:
    """Events of one writer, transaction or large event. base: the index of the first. part: its own segment."""

    def __init__(self, base: int, hashes: Sequence[int], written: Written, part: SegmentState | None) -> None:
        self.base = base
        self.hashes = hashes
        self.written = written
        self.part = part
        self.is_large = part is not None and part.is_transient
        self.is_aborted = part is not None and part.is_aborted
        self.is_committed = part is not None and part.is_committed
        self.low, self.high = 0, _OPTIONAL
        if part is not None and self.is_committed:
            self.high = _ANYWHERE
            size = part.size
            if len(part.merged_at) == 1 and part.merged_at[0][0] >= 0 and size >= 0:
                self.high = part.merged_at[0][0]
                self.low = self.high - size


class _Comparison:
    """The comparison of one segment. parts: its transactions' and transient segments."""

    def __init__(self, key: Key, places: PlaceList, segment: SegmentState, parts: Sequence[SegmentState]) -> None:
        self._key = key
        self._places = places
        self._segment = segment
        self._parts = parts
        self._sources: list[_Source] = []
        total = 0
        for written in segment.writers.values():
            total = self._add(total, written.hashes, written, None)
        for part in parts:
            writers = list(part.writers.values())
            if part.is_transient:
                if part.large is not None and writers:
                    total = self._add(total, part.large, writers[0], part)
                continue
            for written in writers:
                total = self._add(total, written.hashes, written, part)
        self._bases = [source.base for source in self._sources]
        self._found = array("q", [_MISSING]) * total
        self._unknown: list[int] = []
        self._equal: dict[int, list[int]] = {}
        """The hash of events that were sent several times → their indexes."""
        self._equal_offsets: dict[int, list[int]] = {}
        self._displaced_events: list[Broken] = []
        self._copies: dict[int, list[int]] = {}
        """The index of an event → the further offsets at which it is stored."""

    def _add(self, base: int, hashes: Sequence[int], written: Written, part: SegmentState | None) -> int:
        self._sources.append(_Source(base, hashes, written, part))
        return base + len(hashes)

    def findings(self) -> Findings:
        """Yields all that the contents show."""
        segment = self._segment
        stored = (segment, *(part for part in self._parts if part.is_committed))
        writers = (written for state in stored for written in state.writers.values())
        acknowledged = sum(bisect_right(written.numbers, written.stored) for written in writers)
        if not segment.contents.spans and not segment.contents.foreign:
            if acknowledged and segment.name == self._key.name:
                yield Open("lost-write", self._key, UNREAD, acknowledged)
            return
        if segment.is_raw or any(part.is_raw and not part.is_transient for part in self._parts):
            yield Open("garbage-read", self._key, NO_HEADERS)
            return
        lengths = [known for written in segment.writers.values() for known in (written.lengths, written.first_start)]
        merges = [length for part in self._parts for length, *_ in part.merged_at]
        spans = segment.contents.spans
        self._spans = list(segment.contents.certain([*lengths, merges, segment.described]))
        self._starts = [span.start for span in self._spans]
        ends = {0, *(span.end for span in self._spans)}
        uncertain = len(spans) - len(self._spans) + sum(offset not in ends for offset in segment.contents.foreign)
        if uncertain:
            yield Open("garbage-read", self._key, MIDDLE, uncertain)
        self._assign()
        self._base, self._is_complete = self._completeness()
        verdicts = chain(
            self._read_too_often(),
            *(self._writer(source) for source in self._sources),
            self._transactions(),
            self._garbage(),
        )
        is_right = True
        for verdict in verdicts:
            is_right = is_right and isinstance(verdict, Open)
            yield verdict
        if is_right:  # else the events before explain it
            yield from self._displaced_events

    # --- what is known ------------------------------------------------------------------------------------------------

    def _completeness(self) -> tuple[int, bool]:
        """Returns an offset, -1 if unknown, and whether all bytes from there on were recorded when they were sent."""
        segment = self._segment
        if any(source.written.unknown for source in self._sources):
            return -1, False
        if any((part.is_committed or part.lost_merges) and part.size <= 0 for part in self._parts):
            return -1, False
        starts = [start for written in segment.writers.values() for start in written.first_start]
        starts += [part.merged_at[0][0] - part.size for part in self._parts if part.merged_at]
        if segment.is_created:
            starts = [0]
        if not starts:
            return -1, False
        base = max(min(starts), 0)
        size = sum(self._size_behind(source, base) for source in self._sources)
        size += sum(part.size for part in self._parts if part.is_committed or self._is_found(part))
        is_behind = base == 0 or all(start >= base for start in self._starts)
        is_all = segment.length <= size if segment.is_created else segment.length - base == size
        return base, is_behind and is_all

    def _is_familiar(self) -> bool:
        """Whether all events that were read from the beginning were recorded when they were sent."""
        return self._is_complete or (self._base == 0 and not self._unknown and self._starts[:1] == [0])

    def _size_behind(self, source: _Source, base: int) -> int:
        """Returns the bytes of a writer that are stored, by acknowledgements or reads, at or behind an offset."""
        if source.part is not None:
            return 0
        written, total = source.written, 0
        for append, last in enumerate(written.lasts):
            ack = written.ack_of(last)
            high = written.lengths[ack] if ack >= 0 and written.lengths[ack] >= 0 else _ANYWHERE
            size = written.sizes[append]
            is_behind = written.lows[append] >= base or (high != _ANYWHERE and written.acked[ack] == last)
            if last > written.stored or last in written.refused:
                total += size if self._is_stored[source.base + written.firsts[append]] else 0
            elif base == 0 or (is_behind and high > base):
                total += size
        return total

    def _is_found(self, part: SegmentState) -> bool:
        sources = (source for source in self._sources if source.part is part)
        return any(self._is_stored[source.base] for source in sources if source.hashes)

    def _source(self, index: int) -> _Source:
        return self._sources[bisect_right(self._bases, index) - 1]

    def _bounds(self, index: int) -> tuple[int, int]:
        """Returns the lowest offset of an event, and the offset before which it ends: `_OPTIONAL` if it may be missing,
        `_ANYWHERE` if it is stored at an unknown offset."""
        source = self._source(index)
        written, event = source.written, index - source.base
        if source.is_large:
            return source.low, source.high
        append, number = written.append_with(event), written.numbers[event]
        is_stored = number <= written.stored and written.lasts[append] not in written.refused
        if source.part is not None:
            return source.low, source.high if is_stored else _OPTIONAL
        low = max(written.lows[append], 0)
        if not is_stored:
            return low, _OPTIONAL
        ack = written.ack_of(number)
        if ack < 0 or written.lengths[ack] < 0:
            return low, self._segment.final if self._segment.final >= 0 else _ANYWHERE
        return low, written.lengths[ack]

    def _covers(self, low: int, high: int) -> bool:
        """Whether a range was read without a hole, and holds no event that is known to be garbage."""
        index = bisect_right(self._starts, low) - 1
        if index < 0 or self._spans[index].end < high:
            return False
        return not self._is_complete or bisect_left(self._unknown, low) == bisect_left(self._unknown, high)

    def _is_sure(self, index: int) -> bool:
        """Whether an event that was found is not an equal event of an unknown writer."""
        if self._is_complete:
            return True
        low, high = self._bounds(index)
        return high != _ANYWHERE and high != _OPTIONAL and self._covers(low, high)

    def _sent(self, index: int) -> Place:
        source = self._source(index)
        written = source.written
        append = 0 if source.is_large else written.append_with(index - source.base)
        return self._places[written.sent[append]]

    def _read(self, offset: int) -> Place:
        span = self._spans[bisect_right(self._starts, offset) - 1]
        return self._places[span.read_of(offset)]

    def _acknowledged(self, index: int) -> tuple[Place, ...]:
        source = self._source(index)
        if source.part is not None:
            return tuple(place for _, _, place in source.part.merged_at)
        ack = source.written.ack_of(source.written.numbers[index - source.base])
        return (self._places[source.written.acks[ack]],) if ack >= 0 else ()

    def _name(self, index: int) -> str:
        source = self._source(index)
        if source.is_large:
            return f"the large event of {source.part.name if source.part else ''}"
        return f"event {source.written.numbers[index - source.base]} of writer {source.written.name}"

    # --- assignment ---------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Assigns the events that were read to the events that were sent, by their bytes."""
        where: dict[int, int] = {}
        equal = self._equal
        index = 0
        for source in self._sources:
            for event in source.hashes:
                first = where.setdefault(event, index)
                if first != index:
                    equal.setdefault(event, [first]).append(index)
                index += 1
        found, end = self._found, self._segment.final if self._segment.final >= 0 else _ANYWHERE
        for span in self._spans:
            for offset, event in zip(span.offsets, span.hashes, strict=True):
                index = where.get(event, -1)
                if index < 0:
                    self._unknown.append(offset)
                elif event in equal:
                    self._equal_offsets.setdefault(event, []).append(offset)
                elif found[index] < 0:
                    found[index] = offset
                elif offset < end:
                    self._copies.setdefault(index, []).append(offset)
        self._is_stored = bytearray(offset >= 0 for offset in found)
        for event, events in equal.items():
            for index in events[: len(self._equal_offsets.get(event, ()))]:
                self._is_stored[index] = True

    def _read_too_often(self) -> Findings:
        """Judges how often events were read."""
        for event, events in self._equal.items():
            yield from self._equals(events, self._equal_offsets.get(event, []))
        for index, copies in self._copies.items():
            yield from self._several(index, [self._found[index], *copies])

    def _several(self, index: int, offsets: list[int]) -> Findings:
        """Takes an event that was sent once and read at several offsets."""
        source = self._source(index)
        number = None if source.is_large else source.written.numbers[index - source.base]
        if self._is_familiar() or number in source.written.resent:
            read = self._read(offsets[-1])
            name = self._name(index)
            text = f"{name} was stored {len(offsets)} times, at offsets {', '.join(map(str, offsets[:5]))}"
            yield Broken("duplicate", self._key, (self._sent(index), read), text, 1, len(offsets))
        else:
            low, high = self._bounds(index)
            self._found[index] = _COUNTED
            if 0 <= high < _ANYWHERE and not any(low <= offset < high for offset in offsets):
                self._found[index] = _MISSING
            yield Open("duplicate", self._key, INCOMPLETE)

    def _equals(self, events: list[int], offsets: list[int]) -> Findings:
        """Takes events with equal bytes, and the offsets at which these bytes were read."""
        found = self._found
        aborted = [index for index in events if self._source(index).is_aborted]
        events = [index for index in events if not self._source(index).is_aborted]
        most = len(events) - self._repeated_merges(events)
        if len(offsets) > most:
            read = self._read(offsets[-1])
            if aborted and self._is_complete:
                yield self._aborted(aborted[-1], read)
            elif events and (self._is_complete or most < len(events)):
                text = f"{len(offsets)} equal events are stored, and {most} were written: {self._name(events[-1])}"
                yield Broken("duplicate", self._key, (self._sent(events[-1]), read), text, most, len(offsets))
            elif not self._is_complete:
                yield Open("duplicate", self._key, INCOMPLETE)
        if len(offsets) >= len(events):
            for index in events:
                found[index] = _COUNTED
            return
        # Each offset goes to the event that must lie before the lowest offset, of those that can lie there.
        ranges = sorted((*self._bounds(index), index) for index in events)
        waiting: list[tuple[int, int]] = []
        position = 0
        for offset in offsets:
            while position < len(ranges) and ranges[position][0] <= offset:
                _, high, index = ranges[position]
                heappush(waiting, (_ANYWHERE if high == _OPTIONAL else high - 1, index))
                position += 1
            while waiting and waiting[0][0] < offset:
                heappop(waiting)
            if waiting:
                found[heappop(waiting)[1]] = _COUNTED

    def _repeated_merges(self, events: Sequence[int]) -> int:
        """Returns how many of some equal large events are attempts to store an event whose merge was not answered."""
        attempts: dict[object, list[SegmentState]] = {}
        for index in events:
            part = self._source(index).part
            if part is not None and part.is_transient:
                attempts.setdefault(SegmentName.parse(part.name).transient_writer_id, []).append(part)
        repeated = 0
        for parts in attempts.values():
            if any(part.lost_merges for part in parts):
                repeated += len(parts) - max(1, sum(len(part.merged_at) for part in parts))
        return repeated

    # --- writers ------------------------------------------------------------------------------------------------------

    def _writer(self, source: _Source) -> Findings:
        """Judges the order, the places and the presence of a source's events."""
        base, count = source.base, len(source.hashes)
        found = self._found[base : base + count]
        if source.part is None:
            self._displaced(source, found)
        highest, latest = -1, -1
        missing: list[tuple[int, int]] = []
        for event, offset in enumerate(found):
            if offset >= 0:
                if offset >= highest:
                    highest, latest = offset, event
                elif self._is_sure(base + event) and self._is_sure(base + latest):
                    text = f"{self._name(base + event)} is stored at {offset}, and an earlier one at {highest}"
                    places = self._sent(base + latest), self._sent(base + event), self._read(highest)
                    yield Broken("reordered", self._key, places, text, highest, offset)
            elif offset == _MISSING:
                missing.append((event, highest))
        if missing and source.part is None:
            yield from self._missing(source, found, missing)

    def _displaced(self, source: _Source, found: array[int]) -> None:
        """Finds events that are stored where they cannot lie by their acknowledgements."""
        written, ack = source.written, 0
        acked, lengths, firsts = written.acked, written.lengths, written.firsts
        acks, end = len(acked), len(found)
        for append in range(len(firsts) - 1, -1, -1):
            first, last = firsts[append], written.lasts[append]
            ack = bisect_left(acked, last) if acks else 0
            high = lengths[ack] if ack < acks and lengths[ack] >= 0 else _ANYWHERE
            low = written.lows[append]
            for event in range(first, end):
                offset = found[event]
                if offset >= 0 and not low <= offset < high:
                    index = source.base + event
                    found[event] = self._found[index] = _COUNTED if self._is_complete else _MISSING
                    if self._is_complete:
                        self._displaced_events.append(self._at_wrong_place(index, offset, low, high))
            end = first

    def _at_wrong_place(self, index: int, offset: int, low: int, high: int) -> Broken:
        sent, read = self._sent(index), self._read(offset)
        if is_before(read, sent):
            text = f"{self._name(index)} was read at offset {offset} before it was sent"
            return Broken("garbage-read", self._key, (read, sent), text)
        where = f"before offset {high}" if offset >= high else f"at or after offset {low}"
        text = f"{self._name(index)} lies {where} by its acknowledgement, and is read at offset {offset}"
        return Broken("inconsistent-offsets", self._key, (sent, *self._acknowledged(index), read), text)

    def _missing(self, source: _Source, found: array[int], missing: list[tuple[int, int]]) -> Findings:
        """Takes the events of a writer that were not found, with the offset of the last event found before them."""
        position = len(found) - 1
        follower, verdicts, unread = -1, [], 0
        for event, before in reversed(missing):
            while position > event:
                if found[position] >= 0:
                    follower = position
                position -= 1
            rule = self._rule_of(source, event, before, follower, found[follower] if follower >= 0 else -1)
            if rule == "":
                unread += 1
            elif rule is not None:
                verdicts.append((rule, event))
        yield from self._lost(source, verdicts[::-1])
        if unread:
            yield Open("lost-write", self._key, UNREAD, unread)

    def _rule_of(self, source: _Source, event: int, before: int, follower: int, after: int) -> str | None:
        """Returns the rule that a missing event breaks; None if it may be missing, "" if its place was not read.

        before, after: the offsets of the last event found before it, and of the first event found behind it; -1 if no
        such event was found. follower: the index of the event behind it.
        """
        written = source.written
        low, high = self._bounds(source.base + event)
        low = max(low, before)
        if high != _OPTIONAL:
            high = min(high, after) if after >= 0 else high
            return "lost-write" if high != _ANYWHERE and self._covers(min(low, high), high) else ""
        if after < 0 or not self._covers(low, after) or not self._is_sure(source.base + follower):
            return None
        append, next_append = written.append_with(event), written.append_with(follower)
        sent, next_sent = self._places[written.sent[append]], self._places[written.sent[next_append]]
        is_refused = written.lasts[append] in written.refused
        is_resent = written.numbers[event] in written.resent or written.numbers[follower] in written.resent
        return "gap" if (sent[0], sent[3]) == (next_sent[0], next_sent[3]) and not is_refused | is_resent else None

    def _lost(self, source: _Source, verdicts: list[tuple[str, int]]) -> Findings:
        """Yields one verdict for each run of missing events."""
        first = 0
        for position, (rule, event) in enumerate(verdicts):
            if position + 1 < len(verdicts) and verdicts[position + 1] == (rule, event + 1):
                continue
            start = source.base + verdicts[first][1]
            count, index = position - first + 1, source.base + event
            acknowledged = self._acknowledged(index) if rule != "gap" else ()
            why = "acknowledged, and not stored" if acknowledged else "not stored, but a later event is"
            what = self._name(start) if count == 1 else f"{self._name(start)}, and {count - 1} more,"
            text = f"{what} {'is' if count == 1 else 'are'} {why}"
            yield Broken(rule, self._key, (self._sent(start), *acknowledged), text, count, 0)
            first = position + 1

    # --- transactions and large events --------------------------------------------------------------------------------

    def _transactions(self) -> Findings:
        """Judges all parts that were sent, and the order of a writer's transactions."""
        sources: dict[str, list[_Source]] = {}
        for source in self._sources:
            if source.part is not None:
                sources.setdefault(source.part.name, []).append(source)
        extents: dict[str, tuple[int, int]] = {}
        for name, its_sources in sources.items():
            part = its_sources[0].part
            assert part is not None, "only sources of parts are grouped"
            indexes = [
                index for source in its_sources for index in range(source.base, source.base + len(source.hashes))
            ]
            offsets = sorted(self._found[index] for index in indexes if self._found[index] >= 0)
            if offsets:
                extents[name] = offsets[0], offsets[-1]
            missing = [index for index in indexes if self._found[index] == _MISSING and self._is_required(index)]
            if part.is_transient:
                yield from self._large(its_sources[0], part, indexes)
            else:
                yield from self._transaction(part, indexes, offsets, missing)
        yield from self._commit_order(extents)

    def _is_required(self, index: int) -> bool:
        """Whether an event of a transaction was acknowledged, so that it is part of the transaction."""
        source = self._source(index)
        written, event = source.written, index - source.base
        return (
            written.numbers[event] <= written.stored
            and written.lasts[written.append_with(event)] not in written.refused
        )

    def _transaction(self, part: SegmentState, indexes: list[int], offsets: list[int], missing: list[int]) -> Findings:
        """Judges one transaction. offsets: of its events that were found. missing: its acknowledged events that were
        not. There are three cases: it was aborted; a part of it was read; nothing of it was read."""
        if part.is_aborted:
            if offsets and self._is_complete:
                index = next(index for index in indexes if self._found[index] == offsets[0])
                yield self._aborted(index, self._read(offsets[0]))
            elif offsets:
                yield Open("aborted-read", self._key, INCOMPLETE)
            return
        source = self._source(indexes[0]) if indexes else None
        if offsets:
            yield from self._precommitted(part, offsets)
            if not self._is_complete:
                yield Open("partial-transaction", self._key, INCOMPLETE)
                return
            inner = self._between(offsets, part)
            if inner:
                text = f"another event lies at offset {inner[0]}, between two events of {part.name}"
                yield Broken("merge-scattered", self._key, (*part.places, self._read(inner[0])), text)
            elif missing and self._is_enclosed(offsets):
                text = f"{len(indexes) - len(missing)} events of {part.name} are stored, and {len(missing)} are not"
                places = (self._sent(missing[0]), *part.places, self._read(offsets[-1]))
                yield Broken("partial-transaction", self._key, places, text, len(indexes), len(indexes) - len(missing))
        elif missing and part.is_committed and source is not None:
            if source.high != _ANYWHERE and self._covers(min(source.low, source.high), source.high):
                text = f"{part.name} was committed, and none of its {len(missing)} events is stored"
                yield Broken("lost-write", self._key, (self._sent(missing[0]), *part.places), text, len(missing), 0)
            else:
                yield Open("lost-write", self._key, UNREAD, len(missing))

    def _aborted(self, index: int, read: Place) -> Broken:
        part = self._source(index).part
        places = () if part is None else part.places
        text = f"{self._name(index)} is read, and its transaction {part.name if part else ''} was aborted"
        return Broken("aborted-read", self._key, (self._sent(index), *places, read), text)

    def _precommitted(self, part: SegmentState, offsets: list[int]) -> Findings:
        begin = part.commit_asked
        if begin is None:
            if not part.lost_merges:
                yield Open("precommitted-read", self._key, NO_OUTCOME)
            return
        read = min((self._read(offset) for offset in offsets), key=lambda place: place.time_ns)
        if is_before(read, begin):
            if self._is_familiar():
                text = f"an event of {part.name} was read before its commit began"
                yield Broken("precommitted-read", self._key, (read, begin), text)
            else:
                yield Open("precommitted-read", self._key, INCOMPLETE)

    def _between(self, offsets: list[int], part: SegmentState) -> list[int]:
        """Returns the offsets between events of a transaction at which other events lie."""
        span = self._spans[bisect_right(self._starts, offsets[0]) - 1]
        if offsets[-1] >= span.end:
            return []
        first, last = (bisect_left(span.offsets, offset) for offset in (offsets[0], offsets[-1]))
        if last - first + 1 == len(offsets):
            return []
        own, equal = set(offsets), set(chain.from_iterable(written.hashes for written in part.writers.values()))
        inner = zip(span.offsets[first:last], span.hashes[first:last], strict=True)
        return [offset for offset, event in inner if offset not in own and event not in equal]

    def _is_enclosed(self, offsets: list[int]) -> bool:
        """Whether the events before and behind these were read, too, or do not exist."""
        span = self._spans[bisect_right(self._starts, offsets[0]) - 1]
        first, last = bisect_left(span.offsets, offsets[0]), bisect_left(span.offsets, offsets[-1])
        is_end = last + 1 < len(span.offsets) or span.end in (self._segment.final, self._segment.length)
        return offsets[-1] < span.end and is_end and (first > 0 or span.start == 0)

    def _large(self, source: _Source, part: SegmentState, indexes: list[int]) -> Findings:
        """Judges a large event."""
        if not part.is_committed or all(self._found[index] != _MISSING for index in indexes):
            return
        low, high = source.low, source.high
        text = f"the large event of {part.name} was merged, and is not stored"
        places = (self._sent(source.base), *part.places)
        others = [offset for offset in self._unknown if low <= offset < high]
        others += self._segment.contents.unknown_in(low, high)
        if high != _ANYWHERE and self._is_complete and others:
            self._unknown = [offset for offset in self._unknown if not low <= offset < high]
            text += f" whole: other bytes are at offset {others[0]}"
            yield Broken("partial-large-event", self._key, places, text)
        elif high != _ANYWHERE and self._covers(min(low, high), high):
            inside = bisect_left(self._unknown, high) - bisect_left(self._unknown, low)
            yield Broken("lost-write" if not inside else "partial-large-event", self._key, places, text)
        else:
            yield Open("lost-write", self._key, UNREAD)

    def _commit_order(self, extents: Mapping[str, tuple[int, int]]) -> Findings:
        """Compares the transactions that a writer committed in a row.

        The first request counts, since a repeated request may succeed though the first was executed.
        """
        commits: dict[str, list[tuple[Place, Place, SegmentState]]] = {}
        for part in self._parts:
            answers = [(place, writer) for what, _, place, writer in part.steps if what == "committing" and writer]
            asked = part.commit_asked
            if answers and asked is not None and part.name in extents:
                place, writer = answers[0]
                commits.setdefault(writer, []).append((asked, place, part))
        for steps in commits.values():
            steps.sort(key=lambda step: step[0].time_ns)
            for (_, answered, part), (asked, place, later) in pairwise(steps):
                if not is_before(answered, asked) or extents[part.name][0] <= extents[later.name][0]:
                    continue
                if self._is_complete:
                    text = f"{later.name} was committed after {part.name}, and is stored before it"
                    yield Broken("commit-order", self._key, (answered, place), text)
                else:
                    yield Open("commit-order", self._key, INCOMPLETE)

    # --- events that were not sent ------------------------------------------------------------------------------------

    def _garbage(self) -> Findings:
        """Takes the events that were read and never sent, and the bytes that are no event."""
        contents = self._segment.contents
        unknown = set(self._unknown)
        ends = {span.end: span.offsets[-1] for span in self._spans if span.offsets}
        strange = [offset for offset in contents.foreign if ends.get(offset, -1) not in unknown]
        strange = [offset for offset in strange if offset in ends or offset == 0]
        offsets = sorted((*unknown, *strange))
        if not offsets:
            return
        if not self._is_complete:
            yield Open("garbage-read", self._key, INCOMPLETE, len(offsets))
            return
        for offset in offsets:
            is_event = offset in unknown
            read = self._read(offset) if is_event else self._places[contents.foreign[offset]]
            what = "an event that was not sent was" if is_event else "bytes that are no event were"
            yield Broken("garbage-read", self._key, (read,), f"{what} read at offset {offset}", actual=offset)
