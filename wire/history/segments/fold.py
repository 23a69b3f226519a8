"""Judges a segment with its transactions' and transient segments: writers, readers, merges, seals, truncations.

Acknowledgements are judged when they come, and what is stored at the end: see `stored`.

Invariants: only places of one file have an order, since the clocks of two files may differ. Of equal events of a
segment only the number is judged. Payloads are not held, except for the chunks of large events until they are merged.

Not judged here: whether a reader skips or goes back. A connection may serve several readers, and readers may seek.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from segstore.wire.history.facts import (
    Acked,
    Broken,
    Changed,
    Fact,
    Key,
    Open,
    Place,
    Read,
    Refused,
    Sent,
    SetUp,
    Transaction,
)
from segstore.wire.history.segments.contents import PlaceList, end_of, hashes_of
from segstore.wire.history.segments.raw import digest
from segstore.wire.history.segments.state import MOST, SegmentState, is_before
from segstore.wire.history.segments.stored import MIDDLE, judge_stored
from segstore.wire.history.segments.written import NONE, Link, Written

Findings = Iterator[Broken | Open]
_NOTHING: Final = ()
DELETED: Final = "the segment may have been deleted in between"


class SegmentFold:
    """Judges a segment with its transactions' and transient segments.

    Facts of transactions have the key of each of their segments; the transaction's name is its id.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self._since: Place | None = None
        """Of the segment's last deletion or creation again: earlier requests concern the segment before."""
        self._deletions = 0
        """Number of deletions that wait for their reply: until then it is not known which segment a request meets."""
        self._start()

    def _start(self) -> None:
        self._places = PlaceList()
        self._segments: dict[str, SegmentState] = {}
        self._links: dict[tuple[str, int, str, str], tuple[SegmentState, Written, Link]] = {}
        """File, connection, segment and writer → what is known of them."""

    def see(self, fact: Fact) -> Iterable[Broken | Open]:
        """Takes the next fact."""
        _, place, value = fact
        kind = type(value)
        if self._since is not None and kind is not Changed and self._may_be_earlier(place, value):
            return [Open("lost-write", self.key, DELETED)] if kind is Acked else _NOTHING
        if kind is Sent:
            return self._sent(place, value)
        if kind is Acked:
            return self._acked(place, value)
        if kind is Read:
            return self._read(place, value)
        if kind is Transaction:
            name = f"{self.key.name}#transaction.{value.name.replace('-', '').lower()}"
            self._segment(name).steps.append((value.what, value.asked, place, value.writer))
            return _NOTHING
        if kind is SetUp:
            return self._set_up(place, value)
        if kind is Changed:
            return self._changed(place, value)
        if kind is Refused:
            self._segment(value.segment).writer(value.writer).refused.add(value.number)
        return _NOTHING

    def _may_be_earlier(self, place: Place, value: Any) -> bool:
        """Whether a request may concern the segment before its deletion."""
        asked = getattr(value, "asked", place)
        return self._deletions > 0 or asked is None or self._since is None or not is_before(self._since, asked)

    def end(self) -> Iterable[Broken | Open]:
        """Yields what only the whole history shows."""
        return judge_stored(self.key, self._places, self._segments)

    def _segment(self, name: str) -> SegmentState:
        state = self._segments.get(name)
        if state is None:
            state = self._segments[name] = SegmentState(name)
        return state

    def _link(self, place: Place, name: str, writer_name: str) -> tuple[SegmentState, Written, Link]:
        """Returns a segment, its writer, and the writer's link on the connection of a place."""
        known = self._links.get((place[0], place[3], name, writer_name))
        if known is None:
            segment = self._segment(name)
            writer = segment.writer(writer_name)
            known = self._links[place[0], place[3], name, writer_name] = segment, writer, Link()
        return known

    def _broken(
        self, rule: str, places: Iterable[Place | None], text: str, expected: object = None, actual: object = None
    ) -> Broken:
        return Broken(rule, self.key, tuple(place for place in places if place is not None), text, expected, actual)

    # --- writers ------------------------------------------------------------------------------------------------------

    def _sent(self, place: Place, sent: Sent) -> Sequence[Broken]:
        name, writer_name, last, count, data, expected = sent
        segment, writer, link = self._links.get((place[0], place[3], name, writer_name)) or self._link(
            place, name, writer_name
        )
        if last > link.sent:
            link.sent = last
        if data is None or count <= 0:
            writer.unknown = True
            return _NOTHING
        hashes, size = None if segment.is_raw else hashes_of(data), len(data)
        if hashes is None:
            hashes = [digest(data)]
            segment.is_raw = True
            if writer.raw_from < 0:
                writer.raw_from = len(writer.lasts)
        broken: Sequence[Broken] = _NOTHING
        if link.set_ups == 1 and last - count < link.stored:
            stored, first = link.stored, last - count + 1
            text = f"the set-up answered {stored}, and the writer sends event {first} again"
            broken = [self._broken("block-repeated", (link.set_up, place), text, stored + 1, first)]
        if writer.newest > last - count:
            old, reused = self._repeated(segment, writer, place, sent, hashes)
            broken = [*broken, *reused]
            if old == count:
                return broken
            if len(hashes) != count:
                writer.unknown = True
                return broken
            hashes, count, size = hashes[old:], count - old, size - end_of(data, old)
        elif segment.is_transient:
            segment.take_chunk(data)
        is_again = last - count < writer.removed  # and may be acknowledged where it was sent first, too
        if expected is not None and expected >= 0:
            writer.expected[len(writer.lasts)] = None if is_again else expected
        low = writer.removed_low if is_again else segment.low(place)
        writer.add(last, count, hashes, size, low, self._places.add(place))
        return broken

    def _repeated(
        self, segment: SegmentState, writer: Written, place: Place, sent: Sent, hashes: list[int]
    ) -> tuple[int, Sequence[Broken]]:
        """Takes an append with numbers that were sent before; returns how many of its events these are."""
        old, different = writer.repeat(sent.last, sent.events, hashes, len(sent.data or b""))
        if different < 0:
            return old, _NOTHING
        if segment.is_raw:  # bytes without headers may be sent again in other portions
            writer.unknown = True
            return old, _NOTHING
        first = self._places[writer.sent[writer.append_with(different)]]
        text = f"event {writer.numbers[different]} of writer {writer.name} was another event before"
        return old, [self._broken("number-reused", (first, place), text)]

    def _set_up(self, place: Place, set_up: SetUp) -> Iterator[Broken]:
        segment, writer, link = self._link(place, set_up.segment, set_up.writer)
        link.set_ups += 1
        link.set_up, link.stored = place, max(link.stored, set_up.stored)
        link.acked, link.length = NONE, -1
        writer.stored = max(writer.stored, set_up.stored)
        if segment.is_raw and not segment.is_transient:
            writer.newest_link = link
            self._remove(writer, set_up)
        acked = writer.acked[-1] if writer.acked else NONE
        if writer.latest is not None and acked > set_up.stored and is_before(writer.latest[2], set_up.asked):
            text = f"event {acked} of writer {writer.name} was acknowledged, and a later set-up answers {set_up.stored}"
            yield self._broken("ack-backwards", (writer.latest[2], place), text, acked, set_up.stored)

    def _remove(self, writer: Written, set_up: SetUp) -> None:
        """Removes the appends without event headers that a set-up shows not to be stored.

        They may be sent again in other portions, or never.
        """
        stored = max(set_up.stored, writer.newest_acked)
        while writer.newest > stored and not is_before(set_up.asked, self._places[writer.sent[-1]]):
            writer.pop()

    def _acked(self, place: Place, acked: Acked) -> Sequence[Broken]:
        name, writer_name, number, length, store, asked = acked
        segment, writer, link = self._links.get((place[0], place[3], name, writer_name)) or self._link(
            place, name, writer_name
        )
        broken: list[Broken] = []
        if number < link.acked:
            text = f"event {number} of writer {writer.name} is acknowledged after event {link.acked}"
            broken.append(self._broken("ack-backwards", (asked, place), text, link.acked, number))
        if number > link.sent and number > link.stored:
            text = f"event {number} of writer {writer.name} is acknowledged, and the last one sent is {link.sent}"
            broken.append(self._broken("ack-beyond", (asked, place), text, link.sent, number))
        if asked is not None:
            latest = writer.latest
            if latest is not None and latest[0] is not link:
                broken += self._fenced(writer, link, place, asked)
            if segment.sealed is not None and is_before(segment.sealed, asked):
                text = f"an append that was sent after the seal of {segment.name} is acknowledged at length {length}"
                broken.append(self._broken("append-after-seal", (segment.sealed, asked, place), text, None, length))
            writer.latest = link, asked, place
        if length >= 0:
            append = writer.append_of(number) if asked is not None else -1
            low = link.length
            if append >= 0 and writer.lows[append] > low:
                low = writer.lows[append]
            if length < low or writer.expected or 0 <= segment.final < length:
                broken += self._wrong_length(segment, writer, append, low, place, acked)
            if length > link.length:
                link.length = length
            segment.grow(length, place, store)
        if number > writer.newest_acked:
            newest = writer.newest_link or link
            if link is not newest and number > newest.stored:  # an append was stored that was removed here
                writer.unknown = True
            writer.acknowledge(number, length, self._places.add(place), segment.store(store))
        if number > link.acked:
            link.acked = number
        if number > writer.stored:
            writer.stored = number
        return broken or _NOTHING

    def _fenced(self, writer: Written, link: Link, place: Place, asked: Place) -> Iterator[Broken]:
        """A connection knows the last number that it stored itself. The store compares it with the last number that the
        writer stored on any connection, so of two connections that both append, one must fail."""
        assert writer.latest is not None, "it is of another link"
        _, sent, acknowledged = writer.latest
        if link.set_up is not None and is_before(link.set_up, sent) and is_before(acknowledged, asked):
            text = f"writer {writer.name} has stored an append on another connection since its set-up on this one"
            yield self._broken("fenced-writer", (link.set_up, acknowledged, asked, place), text)

    def _wrong_length(
        self, segment: SegmentState, writer: Written, append: int, low: int, place: Place, acked: Acked
    ) -> Iterator[Broken]:
        """Judges the length that an acknowledgement names: that of the segment after the last append it covers.

        append: the index of that append, -1 if it is not known. low: the lowest length that is right.
        """
        _, _, _, length, store, asked = acked
        expected = writer.expected.get(append)
        if expected is not None and length - writer.sizes[append] != expected:
            start = length - writer.sizes[append]
            text = f"a conditional append names offset {expected}, and is stored at {start}"
            yield self._broken("false-conditional-append", (asked, place), text, expected, start)
        if length < low and store and segment.length_store and store != segment.length_store:
            text = f"{store} acknowledges length {length}, but {segment.length_store} had acknowledged {low}"
            yield self._broken("two-owners", (segment.length_place, place), text, low, length)
        elif length < low:
            yield self._shrinks(segment, low, length, place)
        if 0 <= segment.final < length:
            yield self._beyond_seal(segment, f"an append is acknowledged at {length}", length, place)

    def _shrinks(self, segment: SegmentState, low: int, length: int, place: Place) -> Broken:
        text = f"{segment.name} was {low} bytes long, and is {length} bytes long later"
        return self._broken("length-shrinks", (segment.length_place, place), text, low, length)

    def _beyond_seal(self, segment: SegmentState, what: str, length: int, place: Place) -> Broken:
        text = f"{segment.name} was sealed at length {segment.final}, and {what}"
        return self._broken("append-after-seal", (segment.final_place, place), text, segment.final, length)

    # --- reads and changes --------------------------------------------------------------------------------------------

    def _read(self, place: Place, read: Read) -> Sequence[Broken | Open]:
        segment = self._segment(read.segment)
        end = read.offset + len(read.data)
        broken: list[Broken] = []
        if end > MOST:
            return [Open("garbage-read", self.key, MIDDLE)]
        if read.data:
            if segment.truncations:
                broken += self._truncated(segment, read, place)
            if 0 <= segment.final < end:
                broken.append(self._beyond_seal(segment, f"is read up to {end}", end, place))
            number = self._places.add(place)
            differing = None
            if segment.is_raw:
                segment.raw_reads.read(read.offset, read.data, number)
            else:
                differing = segment.contents.read(read.offset, read.data, number)
            if differing is not None:
                offset, earlier = differing
                text = f"the event at offset {offset} of {segment.name} was another in an earlier read"
                broken.append(self._broken("inconsistent-offsets", (self._places[earlier], place), text))
            segment.grow(end, place, "")
        if read.is_end:
            broken += self._final(segment, end, place)
        return broken

    def _truncated(self, segment: SegmentState, read: Read, place: Place) -> Iterator[Broken]:
        for truncation, truncated in segment.truncations:
            if read.offset < truncation and is_before(truncated, read.asked):
                what = f"was truncated at {truncation}, and a later read of offset {read.offset} has data"
                places = truncated, place
                yield self._broken("truncated-read", places, f"{segment.name} {what}", truncation, read.offset)
                return

    def _final(self, segment: SegmentState, length: int, place: Place) -> Iterator[Broken]:
        """Takes the length of a sealed segment."""
        if segment.final >= 0 and length != segment.final:
            yield self._beyond_seal(segment, f"is sealed at {length} later", length, place)
            return
        if segment.final < 0:
            segment.final, segment.final_place = length, place
            if segment.length > length:
                yield self._shrinks(segment, segment.length, length, place)
                return
        segment.sealed = segment.sealed or place

    def _changed(self, place: Place, changed: Changed) -> Findings:
        is_own, what = changed.segment == self.key.name, changed.what
        if is_own and what == "created":
            yield from self._created(place)
        elif is_own and what in ("deleting", "deleted", "not deleted"):
            self._deletions = max(0, self._deletions + (1 if what == "deleting" else -1))
            yield from self._again(place)
        elif self._since is None or not self._may_be_earlier(place, changed):
            yield from self._applied(self._segment(changed.segment), place, changed)

    def _applied(self, segment: SegmentState, place: Place, changed: Changed) -> Iterator[Broken]:
        """Takes a change of the segment as it is now, or of a part of it."""
        match changed.what:
            case "created":
                segment.is_created = True
            case "sealed":
                segment.sealed = segment.sealed or place
            case "deleted":
                segment.deleted = place
            case "truncating" | "truncated":
                segment.truncated_to = max(segment.truncated_to, changed.offset)
                if changed.what == "truncated":
                    segment.truncations.append((changed.offset, place))
            case "merging":
                self._segment(changed.source).lost_merges += 1
            case "merged":
                yield from self._merged(segment, place, changed)
            case "described":
                yield from self._described(segment, place, changed)

    def _created(self, place: Place) -> Findings:
        """A segment that is created again under its name begins from scratch."""
        segment = self._segments.get(self.key.name)
        if self._since is not None or (segment is not None and segment.is_created):
            yield from self._again(place)
        self._deletions = 0
        self._segment(self.key.name).is_created = True

    def _again(self, place: Place) -> Findings:
        """Judges the segment so far, and begins an unknown history."""
        yield from self.end()
        self._since = place
        self._start()

    def _merged(self, segment: SegmentState, place: Place, changed: Changed) -> Iterator[Broken]:
        source, asked = self._segment(changed.source), changed.asked
        length = changed.offset
        if segment.sealed is not None and is_before(segment.sealed, asked):
            text = f"a merge that was sent after the seal of {segment.name} is confirmed at length {length}"
            yield self._broken("append-after-seal", (segment.sealed, asked, place), text, None, length)
        if length >= 0:
            yield from self._grown(segment, length, place, asked)
        if segment.name == self.key.name:
            segment.merge(source, length, asked, place)
        else:  # into a transaction's segment, whose own merge decides
            source.lost_merges += 1

    def _described(self, segment: SegmentState, place: Place, changed: Changed) -> Iterator[Broken]:
        if changed.start > segment.start:
            segment.start, segment.start_place = changed.start, place
            segment.truncations.append((changed.start, place))
        segment.described.append(changed.offset)
        yield from self._grown(segment, changed.offset, place, changed.asked)
        if changed.is_sealed:
            yield from self._final(segment, changed.offset, place)

    def _grown(self, segment: SegmentState, length: int, place: Place, asked: Place) -> Iterator[Broken]:
        """Takes the length that a reply names. asked: the place of its request."""
        low = segment.length_at(asked)
        if length < low:
            yield self._shrinks(segment, low, length, place)
        segment.grow(length, place, "")
