"""Judges a reader group: who holds which segment, who gets which event, and what checkpoints say.

Facts are `LoggedEvent`, and `ReportedOperation` of other operations. A reader that leaves may have events whose
processing is not known, so the next reader may be given them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from segstore.wire.history.facts import Broken, Fact, Key, LoggedEvent, Open, Place
from segstore.wire.history.lines import Acquire, Complete, Leave, Release

UNDECIDED: Final = "the segment may have been released"


class Holders:
    """The readers that hold the segments of a group."""

    def __init__(self, group: Key) -> None:
        self._group = group
        self._readers: dict[str, tuple[str, Place]] = {}
        """Segment → its reader, and the place where it acquired the segment."""
        self._undecided: set[str] = set()
        """Readers that may have given up a segment, or may do so later."""

    def acquire(self, place: Place, reader: str, segment: str) -> Iterator[Broken | Open]:
        holder, since = self._readers.get(segment, (reader, place))
        if holder != reader and holder in self._undecided:
            yield Open("held-twice", self._group, UNDECIDED)
        elif holder != reader:
            text = f"reader {reader!r} acquired {segment}, which reader {holder!r} held"
            yield Broken("held-twice", self._group, (since, place), text, None, reader)
        self._readers[segment] = reader, place

    def release(self, reader: str, segment: str = "", *, is_certain: bool = True) -> None:
        """Releases a segment of a reader, or all of its segments."""
        if not is_certain:
            self._undecided.add(reader)
            return
        for name in [segment] if segment else [*self._readers]:
            if self._readers.get(name, ("",))[0] == reader:
                del self._readers[name]

    def forget(self) -> bool:
        """Forgets all holders; returns whether there were any."""
        had_any = bool(self._readers)
        self._readers.clear()
        return had_any


class GroupFold:
    """Follows the segments and deliveries of one group of a history. Memory grows with its facts."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._facts: list[Fact] = []
        self._holders = Holders(key)
        self._delivered: dict[tuple[str, Any], tuple[str, Place]] = {}
        self._checkpoint: dict[str, tuple[int, str, Place]] = {}
        """Segment → offset, name and place of its last complete checkpoint."""
        self._left: set[str] = set()
        """Readers that left, or may have left, since the last checkpoint."""

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        """Takes the next fact; they are judged in their order at the end."""
        self._facts.append(fact)
        return iter(())

    def end(self) -> Iterator[Broken | Open]:
        # Releases count from their start, so they come too late.
        for _, place, value in sorted(self._facts, key=lambda fact: fact.place.time_ns):
            if isinstance(value, LoggedEvent):
                yield from self._deliver(place, value)
                continue
            operation, ended = value
            match operation:
                case Complete():
                    self._delivered.clear()
                    self._left.clear()
                    positions = operation.positions.items()
                    self._checkpoint |= {segment: (offset, operation.name, place) for segment, offset in positions}
                case Leave():
                    self._left.add(ended.who)
                    self._holders.release(ended.who, is_certain=ended.outcome == "ok")
                case Release():
                    self._holders.release(ended.who, operation.segment, is_certain=ended.outcome == "ok")
                case Acquire():
                    yield from self._holders.acquire(place, ended.who, operation.segment)

    def _deliver(self, place: Place, delivery: LoggedEvent) -> Iterator[Broken]:
        segment, offset, reader = delivery.segment, delivery.offset, delivery.who
        if delivery.outcome == "moved":
            self._checkpoint.pop(segment, None)
            self._delivered = {name: value for name, value in self._delivered.items() if name[0] != segment}
        if delivery.event is None:
            return
        identity = segment, delivery.event if offset is None else offset
        before = self._delivered.get(identity)
        if before is not None and before[0] != reader and not {before[0], reader} & self._left:
            text = f"{_event(delivery)} went to reader {before[0]!r} and to reader {reader!r}"
            yield Broken("read-twice", self.key, (before[1], place), text)
        self._delivered[identity] = reader, place
        if offset is None or segment not in self._checkpoint:
            return
        limit, name, since = self._checkpoint[segment]
        if offset < limit and since.time_ns < delivery.invoked.time_ns:
            text = f"{_event(delivery)} was read after checkpoint {name!r} was complete at {limit}"
            yield Broken("unread-below-checkpoint", self.key, (since, place), text, limit, offset)


def _event(delivery: LoggedEvent) -> str:
    where = "" if delivery.offset is None else f" at {delivery.offset}"
    return f"event {delivery.event!r} of {delivery.segment}{where}"
