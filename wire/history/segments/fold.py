"""Judges a segment with its transactions' and transient segments: writers, readers, merges, seals, truncations.

Acknowledgements are judged when they come, and what is stored at the end: see `stored`.

Invariants: only places of one file have an order, since the clocks of two files may differ. Of equal events of a
segment only the number is judged. Payloads are not held, except for the chunks of large events until they are merged.

Not judged here: whether a reader skips or goes back. A connection may serve several readers, and readers may seek.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from segstore.wire.history.facts import (
    Acked,
    Broken,
    Changed,
    Fact,
    Key,
    Lost,
    Open,
    Place,
    Read,
    Refused,
    Sent,
    SetUp,
    Transaction,
)
from segstore.wire.history.segments.contents import PlaceList, end_of, hashes_of
from segstore.wire.history.segments.state import MOST, SegmentState, is_before
from segstore.wire.history.segments.stored import MIDDLE, judge_stored
from segstore.wire.history.segments.written import NONE, Link, Written

Findings = Sequence[Broken]
_NOTHING: Final[Findings] = ()
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
        elif kind is Lost:
            self._lost(value)
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
            known = self._links[place[0], place[3], name, writer_name] = segment, writer, writer.link(place)
        return known

    def _broken(
        self, rule: str, text: str, *places: Place | None, expected: object = None, actual: object = None
    ) -> Broken:
        return Broken(rule, self.key, tuple(place for place in places if place is not None), text, expected, actual)

    # --- writers ------------------------------------------------------------------------------------------------------

    def _sent(self, place: Place, sent: Sent) -> Findings:
        name, writer_name, last, count, data, expected = sent
        segment, writer, link = self._links.get((place[0], place[3], name, writer_name)) or self._link(
            place, name, writer_name
        )
        if last > link.sent:
            link.sent = last
        if data is None:
            writer.unknown = True
            return _NOTHING
        hashes, size = hashes_of(data), len(data)
        if hashes is None:
            hashes = [hash(data)]
            segment.is_raw = True
        broken = _NOTHING
        if link.set_ups == 1 and last - count < link.stored:
            stored, first = link.stored, last - count + 1
            text = f"the set-up answered {stored}, and the writer sends event {first} again"
            broken = [self._broken("block-repeated", text, link.set_up, place, expected=stored + 1, actual=first)]
        if writer.newest > last - count:
            old, broken = self._repeated(segment, writer, place, sent, hashes, broken)
            if old == count:
                return broken
            if len(hashes) != count:
                writer.unknown = True
                return broken
            hashes, count, size = hashes[old:], count - old, size - end_of(data, old)
        elif segment.is_transient:
            segment.take_chunk(data)
        if expected is not None and expected >= 0:
            writer.expected[len(writer.lasts)] = expected
        writer.add(last, count, hashes, size, segment.low(place), self._places.add(place))
        return broken

    def _repeated(
        self, segment: SegmentState, writer: Written, place: Place, sent: Sent, hashes: list[int], broken: Findings
    ) -> tuple[int, Findings]:
        """Takes an append with numbers that were sent before; returns how many of its events these are."""
        old, different = writer.repeat(sent.last, sent.events, hashes)
        if different >= 0 and not segment.is_raw:  # bytes without headers may be sent again in other portions
            first = self._places[writer.sent[writer.append_with(different)]]
            text = f"event {writer.numbers[different]} of writer {writer.name} was another event before"
            broken = [*broken, self._broken("number-reused", text, first, place)]
        return old, broken

    def _set_up(self, place: Place, set_up: SetUp) -> Findings:
        _, writer, link = self._link(place, set_up.segment, set_up.writer)
        link.set_ups += 1
        link.set_up, link.stored = place, max(link.stored, set_up.stored)
        link.acked, link.length = NONE, -1
        broken: Findings = _NOTHING
        acked = writer.acked[-1] if writer.acked else NONE
        if writer.latest is not None and acked > set_up.stored and is_before(writer.latest[2], set_up.asked):
            text = f"event {acked} of writer {writer.name} was acknowledged, and a later set-up answers {set_up.stored}"
            places = writer.latest[2], place
            broken = [self._broken("ack-backwards", text, *places, expected=acked, actual=set_up.stored)]
        writer.stored = max(writer.stored, set_up.stored)
        return broken

    def _acked(self, place: Place, acked: Acked) -> Findings:
        name, writer_name, number, length, store, asked = acked
        segment, writer, link = self._links.get((place[0], place[3], name, writer_name)) or self._link(
            place, name, writer_name
        )
        broken: list[Broken] = []
        if number < link.acked:
            text = f"event {number} of writer {writer.name} is acknowledged after event {link.acked}"
            broken.append(self._broken("ack-backwards", text, asked, place, expected=link.acked, actual=number))
        if number > link.sent and number > link.stored:
            text = f"event {number} of writer {writer.name} is acknowledged, and the last one sent is {link.sent}"
            broken.append(self._broken("ack-beyond", text, asked, place, expected=link.sent, actual=number))
        if asked is not None:
            latest = writer.latest
            if latest is not None and latest[0] is not link:
                broken += self._fenced(writer, link, place, asked)
            if segment.sealed is not None and is_before(segment.sealed, asked):
                text = f"an append that was sent after the seal of {segment.name} is acknowledged at length {length}"
                broken.append(self._broken("append-after-seal", text, segment.sealed, asked, place, actual=length))
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
            writer.acknowledge(number, length, self._places.add(place), segment.store(store))
        if number > link.acked:
            link.acked = number
        if number > writer.stored:
            writer.stored = number
        return broken or _NOTHING

    def _fenced(self, writer: Written, link: Link, place: Place, asked: Place) -> Findings:
        """A connection knows the last number that it stored itself. The store compares it with the last number that the
        writer stored on any connection, so of two connections that both append, one must fail."""
        if writer.latest is None or link.set_up is None:
            return _NOTHING
        other, sent, acknowledged = writer.latest
        if other is link or not is_before(link.set_up, sent) or not is_before(acknowledged, asked):
            return _NOTHING
        text = f"writer {writer.name} has stored an append on another connection since its set-up on this one"
        return [self._broken("fenced-writer", text, link.set_up, acknowledged, asked, place)]

    def _wrong_length(
        self, segment: SegmentState, writer: Written, append: int, low: int, place: Place, acked: Acked
    ) -> list[Broken]:
        """Judges the length that an acknowledgement names: that of the segment after the last append it covers.

        append: the index of that append, -1 if it is not known. low: the lowest length that is right.
        """
        _, _, _, length, store, asked = acked
        broken = []
        expected = writer.expected.get(append)
        if expected is not None and length - writer.sizes[append] != expected:
            start = length - writer.sizes[append]
            text = f"a conditional append names offset {expected}, and is stored at {start}"
            broken.append(self._broken("false-conditional-append", text, asked, place, expected=expected, actual=start))
        if length < low and store and segment.length_store and store != segment.length_store:
            text = f"{store} acknowledges length {length}, but {segment.length_store} had acknowledged {low}"
            broken.append(self._broken("two-owners", text, segment.length_place, place, expected=low, actual=length))
        elif length < low:
            broken.append(self._shrinks(segment, low, length, place))
        if 0 <= segment.final < length:
            text = f"{segment.name} was sealed at length {segment.final}, and an append is acknowledged at {length}"
            places = segment.final_place, place
            broken.append(self._broken("append-after-seal", text, *places, expected=segment.final, actual=length))
        return broken

    def _shrinks(self, segment: SegmentState, low: int, length: int, place: Place) -> Broken:
        text = f"{segment.name} was {low} bytes long, and is {length} bytes long later"
        return self._broken("length-shrinks", text, segment.length_place, place, expected=low, actual=length)

    # --- reads and changes --------------------------------------------------------------------------------------------

    def _read(self, place: Place, read: Read) -> Iterable[Broken | Open]:
        segment = self._segment(read.segment)
        end = read.offset + len(read.data)
        broken: list[Broken] = []
        if end > MOST:
            return [Open("garbage-read", self.key, MIDDLE)]
        for truncation, truncated in segment.truncations:
            if read.data and read.offset < truncation and is_before(truncated, read.asked):
                text = (
                    f"{segment.name} was truncated at {truncation}, and a later read of offset {read.offset} has data"
                )
                broken.append(
                    self._broken("truncated-read", text, truncated, place, expected=truncation, actual=read.offset)
                )
                break
        if read.data and 0 <= segment.final < end:
            text = f"{segment.name} was sealed at length {segment.final}, and is read up to {end}"
            broken.append(
                self._broken("append-after-seal", text, segment.final_place, place, expected=segment.final, actual=end)
            )
        if read.data:
            differing = segment.contents.read(read.offset, read.data, self._places.add(place))
            if differing is not None:
                offset = differing[0]
                first = segment.contents.first_read(offset)
                text = f"the event at offset {offset} of {segment.name} was another in an earlier read"
                earlier = None if first is None else self._places[first]
                broken.append(self._broken("inconsistent-offsets", text, earlier, place))
            segment.grow(end, place, "")
        if read.is_end:
            broken += self._final(segment, end, place)
        return broken

    def _final(self, segment: SegmentState, length: int, place: Place) -> Findings:
        """Takes the length of a sealed segment."""
        if segment.final < 0:
            segment.final, segment.final_place = length, place
            if segment.length > length:
                return [self._shrinks(segment, segment.length, length, place)]
        elif length != segment.final:
            text = f"{segment.name} was sealed at length {segment.final}, and is sealed at {length} later"
            return [
                self._broken(
                    "append-after-seal", text, segment.final_place, place, expected=segment.final, actual=length
                )
            ]
        if segment.sealed is None:
            segment.sealed = place
        return _NOTHING

    def _changed(self, place: Place, changed: Changed) -> Iterable[Broken | Open]:
        if changed.segment == self.key.name:
            match changed.what:
                case "created":
                    return self._created(place)
                case "deleting":
                    self._deletions += 1
                    return self._again(place)
                case "deleted" | "not deleted":
                    self._deletions = max(0, self._deletions - 1)
                    return self._again(place)
        if self._since is not None and self._may_be_earlier(place, changed):
            return _NOTHING
        segment = self._segment(changed.segment)
        match changed.what:
            case "created":
                segment.is_created = True
            case "sealed":
                segment.sealed = segment.sealed or place
            case "deleted":
                segment.deleted = place
            case "truncated":
                segment.truncations.append((changed.offset, place))
                segment.truncated_to = max(segment.truncated_to, changed.offset)
            case "merged":
                return self._merged(segment, place, changed)
            case "described":
                return self._described(segment, place, changed)
        return _NOTHING

    def _created(self, place: Place) -> Iterable[Broken | Open]:
        """A segment that is created again under its name begins from scratch."""
        segment = self._segments.get(self.key.name)
        is_again = self._since is not None or (segment is not None and segment.is_created)
        broken: Iterable[Broken | Open] = self._again(place) if is_again else _NOTHING
        self._deletions = 0
        self._segment(self.key.name).is_created = True
        return broken

    def _again(self, place: Place) -> list[Broken | Open]:
        """Judges the segment so far, and begins an unknown history."""
        broken = list(self.end())
        self._since = place
        self._start()
        return broken

    def _merged(self, segment: SegmentState, place: Place, changed: Changed) -> Findings:
        broken: list[Broken] = []
        source = self._segment(changed.source)
        length = changed.offset
        if segment.sealed is not None and is_before(segment.sealed, changed.asked):
            text = f"a merge that was sent after the seal of {segment.name} is confirmed at length {length}"
            broken.append(self._broken("append-after-seal", text, segment.sealed, changed.asked, place, actual=length))
        if length >= 0:
            low = segment.length_at(changed.asked)
            if length < low:
                broken.append(self._shrinks(segment, low, length, place))
            segment.grow(length, place, "")
        if segment.name == self.key.name:
            segment.merge(source, length, changed.asked, place)
        else:  # into a transaction's segment, whose own merge decides
            source.lost_merges += 1
        return broken

    def _described(self, segment: SegmentState, place: Place, changed: Changed) -> Findings:
        broken: list[Broken] = []
        low = segment.length_at(changed.asked)
        if changed.offset < low:
            broken.append(self._shrinks(segment, low, changed.offset, place))
        if changed.start > segment.start:
            segment.start, segment.start_place = changed.start, place
            segment.truncations.append((changed.start, place))
        segment.described.append(changed.offset)
        if changed.is_sealed:
            broken += self._final(segment, changed.offset, place)
        segment.grow(changed.offset, place, "")
        return broken

    def _lost(self, lost: Lost) -> None:
        segment = self._segment(lost.segment)
        if lost.what == "truncated":
            segment.truncated_to = max(segment.truncated_to, lost.offset)
        elif lost.what == "merged":
            self._segment(lost.source).lost_merges += 1
