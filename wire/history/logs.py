"""Judges a segment as users' own histories describe it: events that are sent and read, with or without offsets.

Two sends have an order if one began after the other had ended. Without offsets, an event's place is known only from the
order of one reader's events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any

from segstore.wire.history.facts import Broken, Fact, Key, LoggedEvent, Open, Place, Transaction

_Stretch = list[Fact]
"""The reads of one reader from a move to the next: it read all that is stored between the first and the last."""


class LogFold:
    """Takes `LoggedEvent` and `Transaction` facts of one segment. Memory grows with its events."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._sends: dict[Any, list[Fact]] = defaultdict(list)
        self._failed: dict[Any, Place] = {}
        self._reads: _Stretch = []
        self._outcomes: dict[str, tuple[str, Place]] = {}
        """Transaction → its last step, and the place where it began; of a repeated commit, the first."""

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        """Takes the next fact: all are judged together at the end, because a send may be recorded after its read."""
        value = fact.value
        if isinstance(value, Transaction):
            what, began = self._outcomes.get(value.name, (value.what, value.asked))
            is_again = "aborted" not in (what, value.what) and began.time_ns < value.asked.time_ns
            self._outcomes[value.name] = value.what, began if is_again else value.asked
        elif value.what == "read":
            self._reads.append(fact)
        elif value.outcome == "failed":
            self._failed[value.event] = fact.place
        else:
            self._sends[value.event].append(fact)
        return iter(())

    def end(self) -> Iterator[Broken | Open]:
        stretches = self._stretches()
        yield from self._foreign(stretches)
        yield from self._places()
        yield from self._moves(stretches)
        yield from self._counted(stretches)
        yield from self._orders()
        yield from self._missing(stretches)

    def _stretches(self) -> list[_Stretch]:
        stretches: list[_Stretch] = []
        latest: dict[str, _Stretch] = {}
        for read in self._reads:
            who = read.value.who
            if read.value.outcome == "moved" or who not in latest:
                latest[who] = []
                stretches.append(latest[who])
            latest[who].append(read)
        return stretches

    def _foreign(self, stretches: list[_Stretch]) -> Iterator[Broken | Open]:
        """Events that were not sent, or that were not to be read yet.

        An event that was not sent is foreign if it is stored behind an event that was; else it may be older than the
        history.
        """
        recorded = (value.offset for value in self._known() if value.offset is not None and value.event in self._sends)
        lowest = min(recorded, default=inf)
        undecided = 0
        for stretch in stretches:
            is_behind = False
            for _, place, read in stretch:
                sends = self._sends.get(read.event)
                if sends and any(self._may_be_read(send.value, place) for send in sends):
                    is_behind = True
                elif sends:
                    yield self._early(sends[0], place)
                elif read.event in self._failed:
                    text = f"event {read.event!r} was read, and its send failed"
                    yield Broken("garbage-read", self.key, (self._failed[read.event], place), text)
                elif is_behind or (read.offset is not None and read.offset >= lowest):
                    text = f"event {read.event!r} was read, and no writer sent it"
                    yield Broken("garbage-read", self.key, (place,), text)
                else:
                    undecided += 1
        if undecided:
            yield Open("garbage-read", self.key, "the event may be older than the history", undecided)

    def _early(self, send: Fact, place: Place) -> Broken:
        """Returns the verdict on a read of an event that must not be read, or not yet."""
        event, transaction = send.value.event, send.value.transaction
        what, ended = self._outcomes.get(transaction, ("", None))
        if not transaction:
            text = f"event {event!r} was read before its send began"
            return Broken("garbage-read", self.key, (send.value.invoked, place), text)
        if what == "aborted":
            text = f"event {event!r} was read, and its transaction {transaction!r} was aborted"
            return Broken("aborted-read", self.key, (send.place, *([ended] if ended else []), place), text)
        text = f"event {event!r} was read before a commit of transaction {transaction!r} began"
        return Broken("precommitted-read", self.key, (send.place, place), text)

    def _may_be_read(self, send: LoggedEvent, place: Place) -> bool:
        if not send.transaction:
            return send.invoked.time_ns < place.time_ns
        what, began = self._outcomes.get(send.transaction, ("", None))
        return what in ("committing", "committed", "unknown") and began is not None and began.time_ns <= place.time_ns

    def _places(self) -> Iterator[Broken]:
        """Offsets with two events."""
        known: dict[int, tuple[Any, Place]] = {}
        sends = (send for sends in self._sends.values() for send in sends)
        for _, place, value in [*(send for send in sends if send.value.outcome == "ok"), *self._reads]:
            if value.offset is None or value.transaction:  # in a transaction, it is no place in the segment
                continue
            event, first = known.setdefault(value.offset, (value.event, place))
            if event != value.event:
                text = f"offset {value.offset} holds {event!r}, and {value.event!r}"
                yield Broken("inconsistent-offsets", self.key, (first, place), text, event, value.event)

    def _moves(self, stretches: list[_Stretch]) -> Iterator[Broken]:
        """Steps of a reader that go back, or over an event that no other reader read."""
        offsets = sorted({value.offset for value in self._known() if value.offset is not None})
        index = {offset: number for number, offset in enumerate(offsets)}
        readers: dict[int | None, set[str]] = defaultdict(set)
        for _, _, read in self._reads:
            readers[read.offset].add(read.who)
        for stretch in stretches:
            steps = [(n, read.offset, place) for n, (_, place, read) in enumerate(stretch) if read.offset is not None]
            who = stretch[0].value.who
            for (number, before, last), (next_number, offset, place) in pairwise(steps):
                if offset <= before:
                    text = f"reader {who!r} read offset {offset} after offset {before}"
                    yield Broken("nonmonotonic-poll", self.key, (last, place), text, before, offset)
                    continue
                is_next = next_number == number + 1  # no read without an offset is between them
                between = offsets[index[before] + 1 : index[offset]] if is_next else ()
                skipped = next((over for over in between if readers[over] <= {who}), None)
                if skipped is not None:
                    text = f"reader {who!r} went from offset {before} to {offset}, over {skipped}"
                    yield Broken("poll-skip", self.key, (last, place), text, skipped, offset)

    def _known(self) -> Iterator[LoggedEvent]:
        """The events that are stored for certain: sent and acknowledged outside of transactions, or read."""
        for sends in self._sends.values():
            yield from (send.value for send in sends if send.value.outcome == "ok" and not send.value.transaction)
        yield from (read.value for read in self._reads)

    def _counted(self, stretches: list[_Stretch]) -> Iterator[Broken]:
        """Events that are stored more often than they were sent."""
        offsets: dict[Any, set[int]] = defaultdict(set)
        last: dict[Any, Place] = {}
        most: Counter[Any] = Counter()
        for _, place, read in self._reads:
            last[read.event] = place
            if read.offset is not None:
                offsets[read.event].add(read.offset)
        for stretch in stretches:
            most |= Counter(read.event for _, _, read in stretch if read.offset is None)
        for event, place in last.items():
            times = max(len(offsets[event]), most[event])
            sends = len(self._sends.get(event, ()))
            if sends and times > sends:
                text = f"event {event!r} was sent {_times(sends)}, and is stored {_times(times)}"
                yield Broken("duplicate", self.key, (self._sends[event][-1].place, place), text, sends, times)

    def _orders(self) -> Iterator[Broken]:
        """Events of one writer, or of its transaction, whose places contradict the order in which they were sent."""
        places = {read.event: (read.offset, place) for _, place, read in self._reads if read.offset is not None}
        writers: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        for sends in self._sends.values():
            if len(sends) == 1 and sends[0].value.event in places:
                writers[sends[0].value.who, sends[0].value.transaction].append(sends[0])
        for (who, _), sends in writers.items():
            sends.sort(key=lambda send: send.value.invoked.time_ns)
            last: Fact | None = None
            for send in sends:
                event = send.value.event
                if last is not None and last.place.time_ns < send.value.invoked.time_ns:
                    before, this = places[last.value.event], places[event]
                    if this[0] < before[0]:
                        text = f"writer {who!r} sent {event!r} after {last.value.event!r}, and it is stored first"
                        yield Broken("reordered", self.key, (last.place, send.place, this[1]), text)
                if send.value.outcome == "ok":  # else it may be stored at any later time
                    last = send

    def _missing(self, stretches: list[_Stretch]) -> Iterator[Broken | Open]:
        """Acknowledged events that no reader read though a reader read on both sides of their places."""
        read = {fact.value.event for fact in self._reads}
        spans = self._spans(stretches)
        undecided = 0
        for _, place, event in (send for sends in self._sends.values() for send in sends):
            committed = self._outcomes.get(event.transaction, ("",))[0] == "committed"
            if event.event in read or event.outcome != "ok" or (event.transaction and not committed):
                continue
            past = [
                span for span in spans[_order_of(event)] if span[0] < event.invoked.time_ns < place.time_ns < span[1]
            ]
            if event.offset is not None and not event.transaction:
                past += [span for span in spans[None] if span[0] < event.offset < span[1]]
            if not past:
                undecided += 1
                continue
            rule = "partial-transaction" if event.transaction else "lost-write"
            text = f"event {event.event!r} was acknowledged, and not read, though events before and behind it were"
            yield Broken(rule, self.key, (event.invoked, place, past[0][2]), text)
        if undecided:
            yield Open("lost-write", self.key, "no reader has read past it", undecided)

    def _spans(self, stretches: list[_Stretch]) -> dict[tuple[str, str] | None, list[tuple[float, float, Place]]]:
        """Returns for each writer and transaction the times, and for None the offsets, between which all was read.

        All of a transaction is between the events before and behind it.
        """
        spans: dict[tuple[str, str] | None, list[tuple[float, float, Place]]] = defaultdict(list)
        for stretch in stretches:
            offsets = [(read.offset, place) for _, place, read in stretch if read.offset is not None]
            if offsets:
                spans[None].append((min(offsets)[0], max(offsets)[0], max(offsets)[1]))
            sends: dict[tuple[str, str], list[Fact]] = defaultdict(list)
            orders: list[tuple[str, str] | None] = []
            for _, _, read in stretch:
                known = self._sends.get(read.event, [])
                order = _order_of(known[0].value) if len(known) == 1 else None
                orders.append(order)
                if order is not None:
                    sends[order].append(known[0])
            for within, events in sends.items():
                first = min((send.place.time_ns for send in events if send.value.outcome == "ok"), default=inf)
                last = float(max(send.value.invoked.time_ns for send in events))
                if within[1]:
                    first = -inf if orders[0] not in (within, None) else first
                    last = inf if orders[-1] not in (within, None) else last
                spans[within].append((first, last, stretch[-1].place))
        return spans


def _order_of(event: LoggedEvent) -> tuple[str, str]:
    """Returns the writer or the transaction within which sends one after the other are stored in that order."""
    return ("", event.transaction) if event.transaction else (event.who, "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
