"""Judges a reader group: who holds which segment, who gets which event, and what checkpoints say.

Facts are `Assignment`, `Delivery` and `Checkpoint`. A reader that leaves may have events whose processing is not known,
so the next reader may be given them again.

An update of a group's state is stored only if the state has not changed meanwhile, so the offsets of updates are their
order; the times of their acknowledgements are not. Behind an update that was not recorded, or whose acknowledgement was
lost, the holders of segments are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from segstore.wire.history.facts import Assignment, Broken, Checkpoint, Delivery, Fact, Key, Open, Place

UNRECORDED: Final = "updates of the group's state are missing in the recording"
UNDECIDED: Final = "the segment may have been released"


class GroupFold:
    """Follows the segments and deliveries of one group. Memory grows with its facts."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._facts: list[Fact] = []
        self._holders: dict[str, tuple[str, Place]] = {}
        self._delivered: dict[tuple[str, Any], tuple[str, Place]] = {}
        self._checkpoint: dict[str, tuple[int, str, Place]] = {}
        """Segment → offset, name and place of its last complete checkpoint."""
        self._end = -1
        """The offset behind the last update of the group's state."""
        self._undecided: set[str] = set()
        """Readers that may have given up a segment, or may do so later."""
        self._left: set[str] = set()
        """Readers that left, or may have left, since the last checkpoint."""

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        """Takes the next fact; they are judged in their order at the end."""
        self._facts.append(fact)
        return iter(())

    def end(self) -> Iterator[Broken | Open]:
        """Yields the broken rules."""
        self._facts.sort(key=_order)  # releases count from their start, so they come too late
        for place, value in ((fact.place, fact.value) for fact in self._facts):
            if isinstance(value, Assignment):
                yield from self._assigned(place, value)
            elif isinstance(value, Checkpoint):
                self._delivered.clear()
                self._left.clear()
                self._checkpoint |= {name: (offset, value.name, place) for name, offset in value.positions}
            else:
                yield from self._deliver(place, value)

    def _assigned(self, place: Place, step: Assignment) -> Iterator[Broken | Open]:
        if step.what == "updated":
            if step.order != self._end and self._holders:
                self._holders.clear()
                yield Open("held-twice", self.key, UNRECORDED)
            self._end = step.end
        elif step.what == "acquired":
            holder = self._holders.get(step.segment)
            if holder is not None and holder[0] != step.reader and holder[0] in self._undecided:
                yield Open("held-twice", self.key, UNDECIDED)
            elif holder is not None and holder[0] != step.reader:
                text = f"reader {step.reader!r} acquired {step.segment}, which reader {holder[0]!r} held"
                yield Broken("held-twice", self.key, (holder[1], place), text, None, step.reader)
            self._holders[step.segment] = step.reader, place
        elif step.what == "reset":
            self._holders.clear()
        else:
            if step.what == "gone":
                self._left.add(step.reader)
            if not step.is_certain:
                self._undecided.add(step.reader)
                return
            is_all = step.what == "gone" or not step.segment
            for name in [*self._holders] if is_all else [step.segment]:
                if self._holders.get(name, ("",))[0] == step.reader:
                    del self._holders[name]

    def _deliver(self, place: Place, delivery: Delivery) -> Iterator[Broken]:
        segment, offset = delivery.segment, delivery.offset
        if delivery.is_moved:
            self._checkpoint.pop(segment, None)
            self._delivered = {name: value for name, value in self._delivered.items() if name[0] != segment}
        if delivery.event is None:
            return
        identity = segment, delivery.event if offset is None else offset
        before = self._delivered.get(identity)
        if before is not None and before[0] != delivery.reader and not {before[0], delivery.reader} & self._left:
            text = f"{_event(delivery)} went to reader {before[0]!r} and to reader {delivery.reader!r}"
            yield Broken("read-twice", self.key, (before[1], place), text)
        self._delivered[identity] = delivery.reader, place
        if offset is None or segment not in self._checkpoint:
            return
        limit, name, since = self._checkpoint[segment]
        if offset < limit and since.time_ns < delivery.invoked.time_ns:
            text = f"{_event(delivery)} was read after checkpoint {name!r} was complete at {limit}"
            yield Broken("unread-below-checkpoint", self.key, (since, place), text, limit, offset)


def _event(delivery: Delivery) -> str:
    where = "" if delivery.offset is None else f" at {delivery.offset}"
    return f"event {delivery.event!r} of {delivery.segment}{where}"


def _order(fact: Fact) -> tuple[int, int]:
    order = getattr(fact.value, "order", -1)
    return order, fact.place.time_ns if order < 0 else 0
