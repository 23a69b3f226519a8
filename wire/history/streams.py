"""Judges a stream across its segments: the order of each routing key, and time windows.

Facts are `KeyedEvent`, `Noted` and `Window`. Two events of a key have an order if the second was sent after the first
was acknowledged. A time window comes from the smallest of the times that all writers noted last.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from segstore.wire.history.facts import Broken, Fact, Key, KeyedEvent, Noted, Open, Place, Window


class StreamFold:
    """Follows the routing keys and times of one stream. Memory grows with its events that have a routing key."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._sent: dict[str, dict[Any, tuple[int, int, Place] | None]] = {}
        """Routing key → event → time of its start and of its acknowledgement, and place; None if they are not known."""
        self._reads: list[tuple[Place, KeyedEvent]] = []
        self._times: list[tuple[int, int, Place, Noted | Window]] = []
        """The starts of notes, then their ends and those of windows: time, rank at this time, place, value."""

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        """Takes the next fact."""
        value = fact.value
        if isinstance(value, KeyedEvent):
            if value.what == "read":
                self._reads.append((fact.place, value))
                return iter(())
            times = value.invoked.time_ns, fact.place.time_ns, fact.place
            sent = self._sent.setdefault(value.routing_key, {})
            sent[value.event] = None if value.event in sent or value.outcome != "ok" else times
        elif isinstance(value, Noted):
            self._times.append(((value.invoked or fact.place).time_ns, 0, fact.place, value))
            self._times.append((fact.place.time_ns, 1, fact.place, value))
        elif isinstance(value, Window):
            self._times.append((fact.place.time_ns, 1, fact.place, value))
        return iter(())

    def end(self) -> Iterator[Broken | Open]:
        """Yields the broken rules."""
        yield from self._ordered()
        yield from self._closed()

    def _ordered(self) -> Iterator[Broken]:
        read: dict[tuple[str, str], tuple[Any, Place]] = {}
        """Routing key and reader → the event read last, and its place."""
        for place, value in self._reads:
            sent = self._sent.get(value.routing_key, {})
            before = read.get((value.routing_key, value.who)) if value.outcome != "moved" else None
            if before is not None and before[1] != place and before[1].time_ns > value.invoked.time_ns:
                before = None  # the order of two reads at the same time is not known
            this, last = sent.get(value.event), sent.get(before[0]) if before is not None else None
            if before is not None and this is not None and last is not None and this[1] < last[0]:
                text = (
                    f"event {value.event!r} of key {value.routing_key!r} was read after {before[0]!r}, "
                    "which was sent after it had been acknowledged"
                )
                yield Broken("key-order", self.key, (this[2], last[2], before[1], place), text)
            read[value.routing_key, value.who] = value.event, place

    def _closed(self) -> Iterator[Broken]:
        """Windows that began above a writer's time.

        A window may be older than a writer if any time so far was as high as the window.
        """
        latest: dict[str, int] = {}
        """Writer → its highest time, if it may have been noted."""
        joined: dict[str, tuple[float, Place]] = {}
        """Writer → the highest of all times when its first was noted for certain, and the place."""
        highest = -inf
        for _, rank, place, value in sorted(self._times, key=lambda step: step[:2]):
            if isinstance(value, Window):
                yield from self._compared(place, value, latest, joined)
            elif value.time is None:
                joined.pop(value.writer, None)
                latest.pop(value.writer, None)
            elif rank == 0:
                latest[value.writer] = max(value.time, latest.get(value.writer, value.time))
                highest = max(highest, value.time)
            elif value.is_certain and value.writer in latest:
                joined.setdefault(value.writer, (highest, place))

    def _compared(
        self, place: Place, window: Window, latest: dict[str, int], joined: dict[str, tuple[float, Place]]
    ) -> Iterator[Broken]:
        for writer, (highest, noted) in joined.items():
            time = latest[writer]
            if max(time, highest) < window.lower and noted.time_ns < window.invoked.time_ns:
                text = f"a window begins at {window.lower}, but the last time of writer {writer!r} is {time}"
                yield Broken("window-over-event", self.key, (noted, place), text, time, window.lower)
                return
