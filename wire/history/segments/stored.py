"""Judges what is stored in a segment, once all facts are known: which event that was sent is where.

An event is missing only if the range in which it must lie was read without a hole. Foreign events in a segment, and
equal events of writers that were not recorded, must not count as errors: most rules therefore ask whether the recording
is complete. See `placement`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, Final

from segstore.wire.history.facts import Broken, Key, Open, Place
from segstore.wire.history.segments.contents import PlaceList
from segstore.wire.history.segments.placement import MISSING, OPTIONAL, Placement, Sender, is_aborted
from segstore.wire.history.segments.raw import NOT_COMPARED, judge_raw
from segstore.wire.history.segments.state import ANYWHERE, SegmentState, is_before
from segstore.wire.names import SegmentName

Findings = Iterator[Broken | Open]

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
        yield from _contents(key, places, segment, parts)


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
    if len(segment.stores) < 2:
        return
    ends: dict[int, tuple[int, int]] = {}
    for writer in segment.writers.values():
        for number, length, store, ack in zip(writer.acked, writer.lengths, writer.stores, writer.acks, strict=True):
            append = writer.append_of(number)
            if append >= 0 and writer.sizes[append] == 0:
                continue  # an empty append ends where the append before ends
            other, earlier = ends.setdefault(length, (store, ack))
            if other != store and store and other and length >= 0:
                text = f"two stores acknowledge different appends to {segment.name} that end at {length}"
                first, second = sorted((places[earlier], places[ack]), key=lambda place: place.time_ns)
                yield Broken("two-owners", key, (first, second), text)


def _contents(key: Key, places: PlaceList, segment: SegmentState, parts: Sequence[SegmentState]) -> Findings:
    """Judges the contents, as far as they were read and are events."""
    contents, writers = segment.contents, segment.writers.values()
    if not contents.spans and not contents.foreign and not segment.raw_reads.runs:
        stored = (segment, *(part for part in parts if part.is_committed))
        acknowledged = sum(bisect_right(w.numbers, w.stored) for state in stored for w in state.writers.values())
        if acknowledged and segment.name == key.name:
            yield Open("lost-write", key, UNREAD, acknowledged)
        return
    if segment.is_raw:
        if contents.spans or contents.foreign or not segment.raw_reads.runs:  # reads before the first raw append
            yield Open("garbage-read", key, NOT_COMPARED)
        yield from judge_raw(key, places, segment.name, tuple(writers), segment.raw_reads)
        return
    if any(part.is_raw and not part.is_transient for part in parts):
        yield Open("garbage-read", key, NO_HEADERS)
        return
    lengths = [known for written in writers for known in (written.lengths, written.first_start)]
    merges = [length for part in parts for length, *_ in part.merged_at]
    spans = list(contents.certain([*lengths, merges, segment.described]))
    ends = {0, *(span.end for span in spans)}
    uncertain = len(contents.spans) - len(spans) + sum(offset not in ends for offset in contents.foreign)
    if uncertain:
        yield Open("garbage-read", key, MIDDLE, uncertain)
    yield from _Rules(key, places, Placement(segment, parts, spans)).findings()


class _Rules:
    """The rules about the stored events of one segment."""

    def __init__(self, key: Key, places: PlaceList, placement: Placement) -> None:
        self._key = key
        self._places = places
        self._placement = placement
        self._segment = placement.segment
        self._is_complete = placement.is_complete
        self._strange: set[int] = set()
        """Offsets of events that were not sent, in place of a large event."""
        merges = (length for part in placement.parts for length, *_ in part.merged_at)
        self._lengths = {self._segment.final, *self._segment.described, *merges}
        """Lengths that the segment had before or after a merge, which stores a whole transaction."""

    def findings(self) -> Findings:
        """Yields all that the contents show."""
        is_right = True
        for verdict in chain(
            *(self._too_often(*group) for group in self._placement.several.values()),
            *(self._writer(sender) for sender in self._placement.senders),
            self._parts(),
            self._garbage(),
        ):
            is_right = is_right and isinstance(verdict, Open)
            yield verdict
        if is_right and self._is_complete:  # else the verdicts before explain it
            yield from (self._at_wrong_place(index, offset) for index, offset in self._placement.displaced)

    def _decided(self, is_sure: bool, rule: str, text: str, *places: Place, **values: Any) -> Broken | Open:
        """Returns a broken rule if it is sure, else an open question."""
        return Broken(rule, self._key, places, text, **values) if is_sure else Open(rule, self._key, INCOMPLETE)

    # --- names and places ---------------------------------------------------------------------------------------------

    def _name(self, index: int) -> str:
        written, part, base = self._placement.sender_of(index)
        if part is not None and part.is_transient:
            return f"the large event of {part.name}"
        return f"event {written.numbers[index - base]} of writer {written.name}"

    def _sent(self, index: int) -> Place:
        written, _, base = self._placement.sender_of(index)
        return self._places[written.sent[written.append_with(index - base)]]

    def _read(self, offset: int) -> Place:
        return self._places[self._placement.span_of(offset).read_of(offset)]

    def _acknowledged(self, index: int) -> tuple[Place, ...]:
        written, _, base = self._placement.sender_of(index)
        ack = written.ack_of(written.numbers[index - base])
        return (self._places[written.acks[ack]],) if ack >= 0 else ()

    # --- writers ------------------------------------------------------------------------------------------------------

    def _too_often(self, events: list[int], offsets: list[int]) -> Findings:
        """Judges events with equal bytes that were read more often than they were written."""
        sender_of, is_alone = self._placement.sender_of, len(events) == 1
        aborted = [index for index in events if not is_alone and is_aborted(sender_of(index))]
        events = sorted(set(events).difference(aborted)) if aborted else events
        repeated = _repeated_merges(map(sender_of, events))
        most = len(events) - repeated
        if len(offsets) <= most:
            return
        is_sure = self._is_complete or repeated > 0 or (is_alone and self._placement.is_own(events[0], offsets[-1]))
        if aborted and self._is_complete:
            yield self._aborted(aborted[-1], offsets[-1])
            return
        last, where = (events or aborted)[-1], ", ".join(map(str, offsets[:5]))
        text = f"{self._name(last)} is stored {len(offsets)} times, at {where}, and was written {most} times"
        places = self._sent(last), self._read(offsets[-1])
        yield self._decided(is_sure, "duplicate", text, *places, expected=most, actual=len(offsets))

    def _writer(self, sender: Sender) -> Findings:
        """Judges the order and the presence of a sender's events."""
        found, is_sure = self._placement.offsets, self._placement.is_sure
        highest, latest = -1, -1
        missing: list[int] = []
        for index in sender.events:
            offset = found[index]
            if offset >= highest:
                highest, latest = offset, index
            elif offset >= 0 and is_sure(index) and is_sure(latest):
                text = f"{self._name(index)} is stored at {offset}, and an earlier one at {highest}"
                places = self._sent(latest), self._sent(index), self._read(highest)
                yield Broken("reordered", self._key, places, text, highest, offset)
            if offset == MISSING:
                missing.append(index)
        if missing and sender.part is None:
            yield from self._missing(sender, missing)

    def _missing(self, sender: Sender, missing: list[int]) -> Findings:
        """Yields one verdict for each run of missing events."""
        offsets, is_sure = self._placement.offsets, self._placement.is_sure
        found = [index for index in sender.events if offsets[index] >= 0 and is_sure(index)]
        rules = ((self._rule_of(sender, index, found), index) for index in missing)
        for (rule, _), run in groupby(enumerate(rules), lambda pair: (pair[1][0], pair[1][1] - pair[0])):
            indexes = [index for _, (_, index) in run]
            first, count = indexes[0], len(indexes)
            if rule == "":
                yield Open("lost-write", self._key, UNREAD, count)
            elif rule is not None:
                acknowledged = self._acknowledged(indexes[-1]) if rule != "gap" else ()
                why = "acknowledged, and not stored" if acknowledged else "not stored, but a later event is"
                what = self._name(first) if count == 1 else f"{self._name(first)}, and {count - 1} more,"
                text = f"{what} {'is' if count == 1 else 'are'} {why}"
                yield Broken(rule, self._key, (self._sent(first), *acknowledged), text, count, 0)

    def _rule_of(self, sender: Sender, index: int, found: list[int]) -> str | None:
        """Returns the rule that a missing event breaks; None if it may be missing, "" if its place was not read.

        found: the indexes of the writer's events that were surely found. The events before and behind bound its place.
        """
        placement, written = self._placement, sender.written
        position = bisect_left(found, index)
        low, high = placement.low[index], placement.high[index]
        if position:
            low = max(low, placement.offsets[found[position - 1]])
        follower = found[position] if position < len(found) else -1
        after = placement.offsets[follower] if follower >= 0 else ANYWHERE
        if high != OPTIONAL:
            high = min(high, after)
            return "lost-write" if high != ANYWHERE and placement.covers(min(low, high), high) else ""
        if follower < 0 or not placement.covers(low, after):
            return None
        sent, next_sent = self._sent(index), self._sent(follower)
        numbers = {written.numbers[index - sender.base], written.numbers[follower - sender.base]}
        is_refused = written.lasts[written.append_with(index - sender.base)] in written.refused
        is_gap = (sent[0], sent[3]) == (next_sent[0], next_sent[3]) and not is_refused
        return "gap" if is_gap and written.resent.isdisjoint(numbers) else None

    def _at_wrong_place(self, index: int, offset: int) -> Broken:
        sent, read = self._sent(index), self._read(offset)
        if is_before(read, sent):
            text = f"{self._name(index)} was read at offset {offset} before it was sent"
            return Broken("garbage-read", self._key, (read, sent), text)
        low, high = self._placement.low[index], self._placement.high[index]
        where = f"before offset {high}" if offset >= high else f"at or after offset {low}"
        text = f"{self._name(index)} lies {where} by its acknowledgement, and is read at offset {offset}"
        return Broken("inconsistent-offsets", self._key, (sent, *self._acknowledged(index), read), text)

    # --- transactions and large events --------------------------------------------------------------------------------

    def _parts(self) -> Findings:
        """Judges all parts that were sent, and the order of a writer's transactions."""
        found, firsts = self._placement.offsets, dict[str, int]()
        for part in self._placement.parts:
            events = self._placement.events_of[part.name]
            offsets = sorted(found[index] for index in events if found[index] >= 0)
            missing = [index for index in events if found[index] == MISSING and self._placement.high[index] != OPTIONAL]
            if offsets:
                firsts[part.name] = offsets[0]
            if part.is_aborted:
                first = [index for index in events if found[index] >= 0][:1]
                yield from (self._aborted(index, found[index]) for index in first)
            elif offsets and not part.is_transient:
                yield from self._precommitted(part, offsets)
                yield from self._transaction(part, offsets, missing, len(events))
            elif missing and part.is_committed:
                yield self._lost(part, missing)
        yield from self._commit_order(firsts)

    def _aborted(self, index: int, offset: int) -> Broken | Open:
        part = self._placement.sender_of(index).part
        assert part is not None, "only parts are aborted"
        text = f"{self._name(index)} is read, and its transaction {part.name} was aborted"
        return self._decided(
            self._is_complete, "aborted-read", text, self._sent(index), *part.places, self._read(offset)
        )

    def _precommitted(self, part: SegmentState, offsets: list[int]) -> Findings:
        begin = part.commit_asked
        if begin is None:
            if not part.lost_merges:
                yield Open("precommitted-read", self._key, NO_OUTCOME)
            return
        read = min((self._read(offset) for offset in offsets), key=lambda place: place.time_ns)
        if is_before(read, begin):
            text = f"an event of {part.name} was read before its commit began"
            yield self._decided(self._placement.is_familiar, "precommitted-read", text, read, begin)

    def _transaction(self, part: SegmentState, offsets: list[int], missing: list[int], count: int) -> Findings:
        """Judges a transaction of which a part was read: whether its events are contiguous, and all there."""
        if not self._is_complete:
            yield Open("partial-transaction", self._key, INCOMPLETE)
            return
        span = self._placement.span_of(offsets[0])
        if offsets[-1] >= span.end:
            return
        first, last = bisect_left(span.offsets, offsets[0]), bisect_left(span.offsets, offsets[-1])
        own, equal = set(offsets), {event for written in part.senders for event in written.hashes}
        between = zip(span.offsets[first:last], span.hashes[first:last], strict=True)
        inner = next((offset for offset, event in between if offset not in own and event not in equal), None)
        is_end = last + 1 < len(span.offsets) or span.end in self._lengths
        if inner is not None:
            text = f"another event lies at offset {inner}, between two events of {part.name}"
            yield Broken("merge-scattered", self._key, (*part.places, self._read(inner)), text)
        elif missing and is_end and (first > 0 or span.start == 0):  # or other events may lie outside of the span
            stored = count - len(missing)
            text = f"{stored} events of {part.name} are stored, and {len(missing)} are not"
            places = (self._sent(missing[0]), *part.places, self._read(offsets[-1]))
            yield Broken("partial-transaction", self._key, places, text, count, stored)

    def _lost(self, part: SegmentState, missing: list[int]) -> Broken | Open:
        """Judges a part that was committed, and of which nothing was found, or not all of a large event."""
        placement, (low, high) = self._placement, part.extent
        strange: list[int] = []
        if part.is_transient:
            strange = [*placement.unknown_in(low, high), *self._segment.contents.unknown_in(low, high)]
        is_read = placement.covers(low, high) or (strange and self._is_complete)
        if high == ANYWHERE or not is_read:
            return Open("lost-write", self._key, UNREAD, len(missing))
        self._strange.update(strange)
        places = self._sent(missing[0]), *part.places
        if strange:
            text = f"{part.name} was merged, and its large event is not whole: other bytes are at offset {strange[0]}"
            return Broken("partial-large-event", self._key, places, text)
        what = "its large event" if part.is_transient else f"none of its {len(missing)} events"
        text = f"{part.name} was merged, and {what} is {'not ' if part.is_transient else ''}stored"
        return Broken("lost-write", self._key, places, text, len(missing), 0)

    def _commit_order(self, firsts: Mapping[str, int]) -> Findings:
        """Compares the transactions that a writer committed in a row. firsts: their lowest offsets.

        The first request counts, since a repeated request may succeed though the first was executed.
        """
        commits: list[tuple[str, Place, Place, str]] = []
        for part in self._placement.parts:
            asked, answers = part.commit_asked, [step for step in part.steps if step[0] == "committing" and step[3]]
            if answers and asked is not None and part.name in firsts:
                commits.append((answers[0][3], asked, answers[0][2], part.name))
        commits.sort(key=lambda commit: (commit[0], commit[1].time_ns))
        for (writer, _, answered, name), (later_writer, asked, place, later) in pairwise(commits):
            if writer != later_writer or not is_before(answered, asked) or firsts[name] <= firsts[later]:
                continue
            text = f"{later} was committed after {name}, and is stored before it"
            yield self._decided(self._is_complete, "commit-order", text, answered, place)

    # --- events that were not sent ------------------------------------------------------------------------------------

    def _garbage(self) -> Findings:
        """Takes the events that were read and never sent, and the bytes that are no event."""
        contents, spans = self._segment.contents, self._placement.spans
        unknown = set(self._placement.unknown) - self._strange
        ends = {span.end: span.offsets[-1] for span in spans if span.offsets}
        loose = {at for at in contents.foreign if at == 0 or (at in ends and ends[at] not in unknown)}
        if (unknown or loose) and not self._is_complete:
            yield Open("garbage-read", self._key, INCOMPLETE, len(unknown | loose))
            return
        for offset in sorted(unknown | loose):
            is_event = offset in unknown
            read = self._read(offset) if is_event else self._places[contents.foreign[offset]]
            what = "an event that was not sent was" if is_event else "bytes that are no event were"
            yield Broken("garbage-read", self._key, (read,), f"{what} read at offset {offset}", actual=offset)


def _repeated_merges(senders: Iterator[Sender]) -> int:
    """Returns how many of some equal large events are attempts to store an event whose merge was not answered."""
    attempts: dict[object, list[SegmentState]] = {}
    for sender in senders:
        if sender.part is not None and sender.part.is_transient:
            attempts.setdefault(SegmentName.parse(sender.part.name).transient_writer_id, []).append(sender.part)
    return sum(
        len(parts) - max(1, sum(len(part.merged_at) for part in parts))
        for parts in attempts.values()
        if any(part.lost_merges for part in parts)
    )
