"""Judges a stream across its segments: the order of each routing key, and time windows.

Facts are `LoggedEvent`, and `ReportedOperation` of times and windows. Two events of a key have an order if the second
was sent after the first was acknowledged. A time window comes from the smallest of the times that all writers noted
last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from segstore.wire.history.facts import Broken, Fact, Key, LoggedEvent, Open, Place
from segstore.wire.history.lines import Ended, NoteTime, TimeWindow


class StreamFold:
    """Follows the routing keys and times of one stream. Memory grows with its events that have a routing key."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._sent: dict[tuple[str, Any], Fact | None] = {}
        """Routing key and event → its only send, which was acknowledged; None for other sends."""
        self._reads: list[Fact] = []
        self._times: list[Fact] = []

    def see(self, fact: Fact) -> Iterable[Broken | Open]:
        """Takes the next fact; all are judged at the end."""
        value = fact.value
        if not isinstance(value, LoggedEvent):
            self._times.append(fact)
        elif value.what == "read":
            self._reads.append(fact)
        else:
            name = value.routing_key or "", value.event
            self._sent[name] = None if name in self._sent or value.outcome != "ok" else fact
        return ()

    def end(self) -> Iterator[Broken | Open]:
        yield from self._ordered()
        yield from self._closed()

    def _ordered(self) -> Iterator[Broken]:
        latest: dict[tuple[str, str], Fact] = {}
        """Routing key and reader → its last read."""
        for read in self._reads:
            key, event, invoked = read.value.routing_key, read.value.event, read.value.invoked
            before = latest.get((key, read.value.who)) if read.value.outcome != "moved" else None
            latest[key, read.value.who] = read
            if before is None or (before.place != read.place and before.place.time_ns > invoked.time_ns):
                continue  # the order of two reads at the same time is not known
            this, last = self._sent.get((key, event)), self._sent.get((key, before.value.event))
            if this is not None and last is not None and this.place.time_ns < last.value.invoked.time_ns:
                text = (
                    f"event {event!r} of key {key!r} was read after {before.value.event!r}, "
                    "which was sent after it had been acknowledged"
                )
                yield Broken("key-order", self.key, (this.place, last.place, before.place, read.place), text)

    def _closed(self) -> Iterator[Broken]:
        """Windows that began above a writer's time.

        A window may be older than a writer if any time so far was as high as the window.
        """
        latest: dict[str, int] = {}
        """Writer → its highest time, if it may have been noted."""
        joined: dict[str, tuple[float, Place]] = {}
        """Writer → the highest of all times when its first was noted for certain, and the place."""
        highest = -inf
        # Notes count from their starts to their ends, windows at their ends.
        steps = [(fact.place.time_ns, 1, fact) for fact in self._times]
        steps += [
            (fact.value.ended.invoked.time_ns, 0, fact)
            for fact in self._times
            if isinstance(fact.value.operation, NoteTime)
        ]
        for _, rank, (_, place, (operation, ended)) in sorted(steps, key=lambda step: step[:2]):
            if isinstance(operation, TimeWindow):
                yield from self._compared(operation.lower, ended, latest, joined)
            elif operation.timestamp is None:
                joined.pop(ended.who, None)
                latest.pop(ended.who, None)
            elif rank == 0:
                latest[ended.who] = max(operation.timestamp, latest.get(ended.who, operation.timestamp))
                highest = max(highest, operation.timestamp)
            elif ended.outcome == "ok" and ended.who in latest:
                joined.setdefault(ended.who, (highest, place))

    def _compared(
        self, lower: int, ended: Ended, latest: dict[str, int], joined: dict[str, tuple[float, Place]]
    ) -> Iterator[Broken]:
        for writer, (highest, noted) in joined.items():
            time = latest[writer]
            if max(time, highest) < lower and noted.time_ns < ended.invoked.time_ns:
                text = f"a window begins at {lower}, but the last time of writer {writer!r} is {time}"
                yield Broken("window-over-event", self.key, (noted, ended.place), text, time, lower)
                return
