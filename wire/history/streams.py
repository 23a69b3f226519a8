"""Judges a stream across its segments: the order of each routing key, and time windows.

Facts are `KeyedEvent`, `Noted` and `Window`. Two events of a key have an order if the second was sent after the first
was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from segstore.wire.history.facts import Broken, Fact, Key, KeyedEvent, Noted, Open, Place, Window


class StreamFold:
    """Follows the routing keys and times of one stream. Memory grows with its events that have a routing key."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._sent: dict[str, dict[Any, tuple[int, int, Place]]] = {}
        """Routing key → event → time of its start and of its acknowledgement, and place."""
        self._read: dict[tuple[str, str], tuple[Any, Place]] = {}
        """Routing key and reader → the event read last, and its place."""
        self._times: dict[str, tuple[int, Place]] = {}
        self._window: tuple[int, Place] | None = None

    def see(self, fact: Fact) -> Iterator[Broken | Open]:
        """Takes the next fact."""
        value = fact.value
        if isinstance(value, KeyedEvent):
            if value.what == "sent":
                times = value.invoked.time_ns, fact.place.time_ns, fact.place
                self._sent.setdefault(value.routing_key, {}).setdefault(value.event, times)
            else:
                yield from self._ordered(fact.place, value)
        elif isinstance(value, Noted):
            if value.time is None:
                self._times.pop(value.writer, None)
            else:
                self._times[value.writer] = value.time, fact.place
        elif isinstance(value, Window):
            yield from self._closed(fact.place, value)

    def end(self) -> Iterator[Broken | Open]:
        """Yields nothing: all rules are decided when a fact comes."""
        return iter(())

    def _ordered(self, place: Place, value: KeyedEvent) -> Iterator[Broken]:
        sent = self._sent.get(value.routing_key, {})
        before = self._read.get((value.routing_key, value.who))
        this = sent.get(value.event)
        if before is not None and this is not None and (last := sent.get(before[0])) is not None and this[1] < last[0]:
            text = (
                f"event {value.event!r} of key {value.routing_key!r} was read after {before[0]!r}, "
                "which was sent after it had been acknowledged"
            )
            yield Broken("key-order", self.key, (this[2], last[2], before[1], place), text)
        self._read[value.routing_key, value.who] = value.event, place

    def _closed(self, place: Place, window: Window) -> Iterator[Broken]:
        late = min(self._times.items(), key=lambda item: item[1][0], default=None)
        if late is not None and late[1][0] < window.lower:
            writer, (time, noted) = late
            text = f"a window begins at {window.lower}, but the last time of writer {writer!r} is {time}"
            yield Broken("window-over-event", self.key, (noted, place), text, time, window.lower)
