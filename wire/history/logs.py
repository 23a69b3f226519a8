"""Judges a segment as users' own histories describe it: events that are sent and read, with or without offsets.

Two sends have an order if one began after the other had ended. Without offsets, an event's place is known only from the
order of one reader's events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from segstore.wire.history.facts import Broken, Fact, Key, LoggedEvent, Open, Place, Transaction


class _Send(NamedTuple):
    event: LoggedEvent
    place: Place


class LogFold:
    """Takes `LoggedEvent` and `Transaction` facts of one segment. Memory grows with its events."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._sends: dict[Any, list[_Send]] = defaultdict(list)
        self._reads: list[tuple[LoggedEvent, Place]] = []
        self._outcomes: dict[str, tuple[str, Place]] = {}

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        """Takes the next fact: all are judged together at the end, because a send may be recorded after its read."""
        value = fact.value
        if isinstance(value, Transaction):
            self._outcomes[value.name] = value.what, value.asked
        elif value.what == "sent":
            self._sends[value.event].append(_Send(value, fact.place))
        else:
            self._reads.append((value, fact.place))
        return iter(())

    def end(self) -> Iterator[Broken | Open]:
        """Yields the broken rules."""
        yield from self._foreign()
        yield from self._places()
        for reads in self._by_reader().values():
            yield from self._moves(reads)
        yield from self._counted()
        yield from self._orders()
        yield from self._missing()

    def _by_reader(self) -> dict[str, list[tuple[LoggedEvent, Place]]]:
        readers: dict[str, list[tuple[LoggedEvent, Place]]] = defaultdict(list)
        for read in self._reads:
            readers[read[0].who].append(read)
        return readers

    def _foreign(self) -> Iterator[Broken]:
        """Events that nobody wrote, or that were not to be read yet."""
        for read, place in self._reads:
            sends = self._sends.get(read.event, [])
            if not sends and self._sends:
                yield Broken("garbage-read", self.key, (place,), f"event {read.event!r} was read, and nobody sent it")
            if not sends or any(self._may_be_read(send.event, place) for send in sends):
                continue
            send = sends[0]
            what, ended = self._outcomes.get(send.event.transaction, ("", None))
            if not send.event.transaction:
                text = f"event {read.event!r} was read, and its send failed"
                yield Broken("garbage-read", self.key, (send.place, place), text)
            elif what == "aborted":
                text = f"event {read.event!r} was read, and its transaction {send.event.transaction!r} was aborted"
                yield Broken("aborted-read", self.key, (send.place, *([ended] if ended else []), place), text)
            else:
                text = f"event {read.event!r} was read before a commit of transaction {send.event.transaction!r} began"
                yield Broken("precommitted-read", self.key, (send.place, place), text)

    def _may_be_read(self, send: LoggedEvent, place: Place) -> bool:
        if not send.transaction:
            return send.outcome != "failed"
        what, began = self._outcomes.get(send.transaction, ("", None))
        return what in ("committing", "committed", "unknown") and began is not None and began.time_ns <= place.time_ns

    def _places(self) -> Iterator[Broken]:
        """Offsets with two events."""
        known: dict[int, tuple[Any, Place]] = {}
        for value, place in [
            *((send.event, send.place) for sends in self._sends.values() for send in sends),
            *self._reads,
        ]:
            if value.offset is None or value.outcome == "failed":
                continue
            event, first = known.setdefault(value.offset, (value.event, place))
            if event != value.event:
                text = f"offset {value.offset} holds {event!r}, and {value.event!r}"
                yield Broken("inconsistent-offsets", self.key, (first, place), text, event, value.event)

    def _moves(self, reads: list[tuple[LoggedEvent, Place]]) -> Iterator[Broken]:
        """One reader's steps that go back, or over an event."""
        offsets = sorted({value.offset for value in self._known() if value.offset is not None})
        index = {offset: place for place, offset in enumerate(offsets)}
        last: tuple[LoggedEvent, Place] | None = None
        for read, place in reads:
            if read.offset is None:
                continue
            if read.outcome == "moved":  # the reader was assigned or moved to this position
                last = None
            elif last is not None and last[0].offset is not None:
                step = index[read.offset] - index[last[0].offset]
                if step < 1:
                    text = f"reader {read.who!r} read offset {read.offset} after offset {last[0].offset}"
                    yield Broken("nonmonotonic-poll", self.key, (last[1], place), text, last[0].offset, read.offset)
                elif step > 1:
                    skipped = offsets[index[last[0].offset] + 1]
                    text = f"reader {read.who!r} went from offset {last[0].offset} to {read.offset}, over {skipped}"
                    yield Broken("poll-skip", self.key, (last[1], place), text, skipped, read.offset)
            last = read, place

    def _known(self) -> Iterator[LoggedEvent]:
        """The events that are stored for certain: sent and acknowledged outside of transactions, or read."""
        for sends in self._sends.values():
            yield from (send.event for send in sends if send.event.outcome == "ok" and not send.event.transaction)
        yield from (read for read, _ in self._reads)

    def _counted(self) -> Iterator[Broken]:
        """Events that are stored more often than they were sent."""
        offsets: dict[Any, set[int]] = defaultdict(set)
        last: dict[Any, Place] = {}
        without: Counter[tuple[Any, str]] = Counter()
        most: Counter[Any] = Counter()
        for read, place in self._reads:
            last[read.event] = place
            if read.offset is None:
                without[read.event, read.who] += 1
                most[read.event] = max(most[read.event], without[read.event, read.who])
            else:
                offsets[read.event].add(read.offset)
        for event, place in last.items():
            times = max(len(offsets[event]), most[event])
            sends = len(self._sends.get(event, ()))
            if sends and times > sends:
                text = f"event {event!r} was sent {sends} times, and is stored {times} times"
                yield Broken("duplicate", self.key, (self._sends[event][-1].place, place), text, sends, times)

    def _orders(self) -> Iterator[Broken]:
        """Events of one writer whose places contradict the order in which they were sent."""
        places = {read.event: (read.offset, place) for read, place in self._reads if read.offset is not None}
        writers: dict[str, list[_Send]] = defaultdict(list)
        for sends in self._sends.values():
            if len(sends) == 1 and sends[0].event.outcome != "failed":
                writers[sends[0].event.who].append(sends[0])
        for who, sends in writers.items():
            sends.sort(key=lambda send: send.event.invoked.time_ns)
            last: _Send | None = None
            for send in sends:
                event = send.event.event
                if event not in places:
                    continue
                if last is not None and last.place.time_ns < send.event.invoked.time_ns:
                    before, this = places[last.event.event], places[event]
                    if this[0] < before[0]:
                        text = f"writer {who!r} sent {event!r} after {last.event.event!r}, and it is stored first"
                        yield Broken("reordered", self.key, (last.place, send.place, this[1]), text)
                last = send

    def _missing(self) -> Iterator[Broken | Open]:
        """Acknowledged events that nobody read though later events were read."""
        read = {value.event for value, _ in self._reads}
        furthest: tuple[int, Place] | None = max(
            ((value.offset, place) for value, place in self._reads if value.offset is not None), default=None
        )
        latest: dict[str, tuple[int, Place]] = {}
        """Writer → when the latest of its events that were read was sent, and the place of the read."""
        for value, place in self._reads:
            for send in self._sends.get(value.event, ()):
                began = send.event.invoked.time_ns, place
                latest[send.event.who] = max(latest.get(send.event.who, began), began)
        undecided = 0
        for event, place in (send for sends in self._sends.values() for send in sends):
            committed = self._outcomes.get(event.transaction, ("",))[0] == "committed"
            if event.event in read or event.outcome != "ok" or (event.transaction and not committed):
                continue
            known, limit = (
                (furthest, event.offset) if event.offset is not None else (latest.get(event.who), place.time_ns)
            )
            if known is None or known[0] <= limit:
                undecided += 1
                continue
            rule = "partial-transaction" if event.transaction else "lost-write"
            text = f"event {event.event!r} was acknowledged, and not read, though a later place was"
            yield Broken(rule, self.key, (event.invoked, place, known[1]), text)
        if undecided:
            yield Open("lost-write", self.key, "nobody read so far", undecided)
