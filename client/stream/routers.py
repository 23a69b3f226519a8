"""Routers choose the segment of an event: by key, round-robin, round-robin over a few, or always the same (PIP-79).

A user passes a stateless `Router`, which can serve any number of writers. Each writer creates its own `Choice` from it,
which maps each event to a position in [0, 1); the event goes to the segment that owns the position. So an event keeps
its position when its segment is sealed, and follows it to the successor.

Invariants: `peek` returns the position of the next event without a routing key (79.4); a limited choice keeps its
segments as long as they or their successors exist, and adds new ones only up to its limit (79.5). Pure: the caller
passes the `Random`. Follows `PartialRoundRobinMessageRouterImpl` and `RoundRobinPartitionMessageRouterImpl` (Pulsar).
Deliberate difference: `SinglePartition` also takes events with a routing key, so that it has exactly one segment
writer; the reference hashes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random

from segstore.client.routing import RangeRouter
from segstore.wire.hashing import position_of


class Choice(ABC):
    """Chooses the positions of one writer's events.

    Attributes:
        by_key: whether events with the same routing key have the same position.
    """

    by_key: bool

    @abstractmethod
    def peek(self, ranges: RangeRouter) -> float:
        """Returns the position of the next event without a routing key, without consuming it."""

    @abstractmethod
    def take(self, ranges: RangeRouter, routing_key: str | None) -> float:
        """Returns the position of an event and advances."""


class Router(ABC):
    """A routing policy."""

    @abstractmethod
    def choice(self, random: Random) -> Choice:
        """Creates the choice of one writer."""


@dataclass(frozen=True)
class HashedKey(Router):
    """Pravega's rule: hashes the routing key; an event without one goes to a random position."""

    def choice(self, random: Random) -> Choice:
        return _Hashed(random)


@dataclass(frozen=True)
class RoundRobin(Router):
    """Sends events without a routing key to all segments round-robin, and keyed events by hash, in order."""

    def choice(self, random: Random) -> Choice:
        return _InTurn(random, None, by_key=True)


@dataclass(frozen=True)
class PartialRoundRobin(Router):
    """Sends events round-robin to at most `limit` randomly chosen segments; routing keys are ignored.

    Events with the same key are therefore ordered only within each segment.
    """

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"PartialRoundRobin needs at least one segment, not {self.limit}")

    def choice(self, random: Random) -> Choice:
        return _InTurn(random, self.limit, by_key=False)


@dataclass(frozen=True)
class SinglePartition(Router):
    """Sends all events to one randomly chosen segment, then to its successor; routing keys are ignored."""

    def choice(self, random: Random) -> Choice:
        return _InTurn(random, 1, by_key=False)


class _Hashed(Choice):
    __slots__ = ("_next", "_random", "by_key")

    def __init__(self, random: Random) -> None:
        self.by_key = True
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
    """Round-robin over members, which are positions in different segments. limit: maximum number; None for all."""

    __slots__ = ("_at", "_limit", "_members", "_random", "_version", "by_key")

    def __init__(self, random: Random, limit: int | None, *, by_key: bool) -> None:
        self._random = random
        self._limit = limit
        self.by_key = by_key
        self._members: list[float] = []
        self._at = 0
        self._version = -1

    def peek(self, ranges: RangeRouter) -> float:
        if ranges.version != self._version:
            self._look(ranges)
        return self._members[self._at]

    def take(self, ranges: RangeRouter, routing_key: str | None) -> float:
        if routing_key is not None and self.by_key:
            return position_of(routing_key)
        position = self.peek(ranges)
        self._at = (self._at + 1) % len(self._members)
        return position

    def _look(self, ranges: RangeRouter) -> None:
        """Keeps existing members, but one per segment after merges, and fills up with random new members."""
        self._version = ranges.version
        turn = self._members[self._at] if self._members else None
        by_segment = {ranges.route(position).segment_id: position for position in reversed(self._members)}
        members = [position for position in self._members if by_segment[ranges.route(position).segment_id] == position]
        others = {
            piece.segment_id: piece.low for piece in reversed(ranges.pieces) if piece.segment_id not in by_segment
        }
        count = len(others) if self._limit is None else min(len(others), self._limit - len(members))
        members += self._random.sample(sorted(others.values()), count)
        self._members = members
        # The next member stays next; if it has gone, the member that took over its segment is next.
        self._at = 0 if turn is None else members.index(by_segment[ranges.route(turn).segment_id])
