"""Routers choose the segment of an event: by key, round-robin, round-robin over a few, or always the same (PIP-79).

A `Router` is what a user gives; it holds no state, so one may serve any number of writers. Of it a writer makes its own
`Choice`, which says where in the range [0, 1) the next event goes; the segment that takes that position is the one that
is chosen. So an event keeps its position when its segment is sealed, and follows it to the successor.

Invariants: what `peek` says is what the next event without a routing key gets (79.4); a choice among few keeps those
that it has for as long as they, or a successor, are there, and takes new ones only up to its limit (79.5). Pure: chance
comes from outside. Follows `PartialRoundRobinMessageRouterImpl` and `RoundRobinPartitionMessageRouterImpl` (Pulsar).
Deliberate differences: `SinglePartition` takes events with a routing key as well, so that it has exactly one writer; in
the reference they are hashed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random

from segstore.client.routing import RangeRouter, position_of


class Choice(ABC):
    """Where the events of one writer go."""

    @abstractmethod
    def peek(self, ranges: RangeRouter) -> float:
        """The position of the next event that has no routing key; it stays the next one's."""

    @abstractmethod
    def take(self, ranges: RangeRouter, routing_key: str | None) -> float:
        """The position of an event."""


class Router(ABC):
    """A way to choose."""

    @abstractmethod
    def choice(self, random: Random) -> Choice:
        """The choice of one writer."""


@dataclass(frozen=True)
class HashedKey(Router):
    """Pravega's rule: the hash of the routing key; an event without one goes anywhere."""

    def choice(self, random: Random) -> Choice:
        return _Hashed(random)


@dataclass(frozen=True)
class RoundRobin(Router):
    """Events without a routing key go to all segments in turn; those with one by its hash, which keeps their order."""

    def choice(self, random: Random) -> Choice:
        return _InTurn(random, None, by_key=True)


@dataclass(frozen=True)
class PartialRoundRobin(Router):
    """Events go in turn to at most `limit` segments, chosen at random; routing keys are ignored.

    So are the promises that go with them: the order of events with one key holds in each segment only.
    """

    limit: int

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int):
            raise TypeError(f"the limit of PartialRoundRobin is a number of segments, not {self.limit!r}")
        if self.limit < 1:
            raise ValueError(f"PartialRoundRobin needs at least one segment, not {self.limit}")

    def choice(self, random: Random) -> Choice:
        return _InTurn(random, self.limit, by_key=False)


@dataclass(frozen=True)
class SinglePartition(Router):
    """All events go to one segment, chosen at random, and later to its successor; routing keys are ignored."""

    def choice(self, random: Random) -> Choice:
        return _InTurn(random, 1, by_key=False)


class _Hashed(Choice):
    """By key, and without one by chance."""

    __slots__ = ("_next", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: float | None = None

    def peek(self, ranges: RangeRouter) -> float:
        if self._next is None:
            self._next = self._random.random()
        return self._next

    def take(self, ranges: RangeRouter, routing_key: str | None) -> float:
        if routing_key is not None:
            return position_of(routing_key)
        position, self._next = self.peek(ranges), None
        return position


class _InTurn(Choice):
    """In turn over the members: positions, each in another segment. limit: at most so many; None for all there are."""

    __slots__ = ("_at", "_by_key", "_limit", "_members", "_random", "_version")

    def __init__(self, random: Random, limit: int | None, *, by_key: bool) -> None:
        self._random = random
        self._limit = limit
        self._by_key = by_key
        self._members: list[float] = []
        self._at = 0
        self._version = -1

    def peek(self, ranges: RangeRouter) -> float:
        if ranges.version != self._version:
            self._look(ranges)
        return self._members[self._at]

    def take(self, ranges: RangeRouter, routing_key: str | None) -> float:
        if routing_key is not None and self._by_key:
            return position_of(routing_key)
        position = self.peek(ranges)
        self._at = (self._at + 1) % len(self._members)
        return position

    def _look(self, ranges: RangeRouter) -> None:
        """Keeps the members, one of those that have become one segment, and fills up with others, at random."""
        self._version = ranges.version
        turn = self._members[self._at] if self._members else None
        kept = {ranges.route(position).segment_id: position for position in reversed(self._members)}
        members = [position for position in self._members if kept[ranges.route(position).segment_id] == position]
        others = {
            piece.segment.segment_id: piece.low
            for piece in reversed(ranges.pieces)
            if piece.segment.segment_id not in kept
        }
        wanted = len(others) if self._limit is None else min(len(others), self._limit - len(members))
        members += self._random.sample(sorted(others.values()), wanted)
        self._members = members
        # Whose turn it was keeps it; who has gone gives it to the one that took over.
        self._at = 0 if turn is None else members.index(kept[ranges.route(turn).segment_id])
