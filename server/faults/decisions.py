"""Decides which fault rules fire for a request or reply: a pure function of the rules, their counts and the subject.

Invariants: the same rules, seed and workload give the same decisions, in the same order; chance is drawn from the seed,
the rule's name, the connection's number and how many on that connection fitted before, so it does not depend on how
connections are interleaved. No clock, no I/O.

Rules are asked in order. Delays and holds of all that fire add up; of the other actions the first that fires is taken,
and rules with such actions behind it are not asked and do not count. Nor are rules asked again about what they have
put into the place of something.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final

import msgspec

from segstore.server.faults.rules import Action, Delay, Hold, Rule, check_size
from segstore.wire.printable import printable
from segstore.wire.request_id import flow_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segstore.server.faults.observe import Seen

_LOG_BYTES: Final = 64 * 1024 * 1024
_DECISION_BYTES: Final = 300
"""What a decision takes beside the names of segments, roughly."""


class Decision(msgspec.Struct, frozen=True):
    """A rule has fired. request: the number of the request; nth: how many had fitted, this one included."""

    rule: str
    action: str
    nth: int
    request: int
    store: int
    connection: int
    direction: str
    type_name: str
    segments: tuple[str, ...]
    request_id: int | None

    def __str__(self) -> str:
        about = f" of {', '.join(self.segments)}" if self.segments else ""
        return printable(
            f"{self.rule}: {self.action} at {self.direction} {self.request}, {self.type_name}{about} "
            f"on connection {self.connection}, fit {self.nth}"
        )


class Tally(msgspec.Struct, frozen=True):
    """How a rule stands: how many requests or replies have fitted, at how many it fired, and whether it is asked."""

    name: str
    rule: Rule
    matched: int
    fired: int
    enabled: bool = True


class Wait(msgspec.Struct, frozen=True):
    """Something waits: so many seconds, then until the rules named release it; what is behind it may overtake it.

    What does not wait is not overtaken.
    """

    seconds: float = 0.0
    holds: tuple[str, ...] = ()
    overtake: bool = False

    def __bool__(self) -> bool:
        return bool(self.seconds or self.holds)


class Plan(msgspec.Struct, frozen=True):
    """What is to happen: waits before the request is carried out and before its reply leaves, and one other action."""

    rule: str = ""
    action: Action | None = None
    before: Wait = Wait()
    after: Wait = Wait()


class _Rule:
    """A rule, its filter and its counts."""

    __slots__ = ("counts", "draws", "enabled", "fired", "holds", "matched", "name", "rule", "waits")

    def __init__(self, rule: Rule, name: str) -> None:
        self.rule = rule
        self.name = name
        self.holds = rule.filter
        self.waits = all(isinstance(each, Delay | Hold) for each in rule.do)
        self.enabled = True
        self.matched = 0
        self.counts: Counter[Any] = Counter()
        self.fired: Counter[Any] = Counter()
        self.draws: Counter[int] = Counter()


class Decider:
    """Rules with their counts.

    Attributes:
        decisions: the last 64 MiB of them, which is 100,000 and more unless names are long.
        forgotten_decisions: how many there were before these.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.decisions: deque[Decision] = deque()
        self.forgotten_decisions = 0
        self._log_bytes = 0
        self._rules: list[_Rule] = []
        self._named = 0

    def add(self, rule: Rule) -> str:
        """Appends a rule; returns its name. Raises ValueError for a name that is taken, or for one rule too many."""
        check_size([*(each.rule for each in self._rules), rule])
        self._named += 1
        while not rule.name and any(each.name == f"rule {self._named}" for each in self._rules):
            self._named += 1
        name = rule.name or f"rule {self._named}"
        if any(each.name == name for each in self._rules):
            raise ValueError(f"there is a rule with the name {name!r}")
        self._rules.append(_Rule(rule, name))
        return name

    def remove(self, name: str | None = None) -> None:
        """Takes a rule out, or all. Raises KeyError."""
        left = [] if name is None else [each for each in self._rules if each.name != name]
        if name is not None and len(left) == len(self._rules):
            raise KeyError(name)
        self._rules = left

    def enable(self, name: str, *, on: bool) -> None:
        """A rule is asked from now on, or not. Raises KeyError."""
        found = next((each for each in self._rules if each.name == name), None)
        if found is None:
            raise KeyError(name)
        found.enabled = on

    def is_asked(self, name: str) -> bool:
        """Whether there is such a rule, and it is asked."""
        return any(each.enabled for each in self._rules if each.name == name)

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    @property
    def names(self) -> list[str]:
        """Of the rules, in order."""
        return [each.name for each in self._rules]

    @property
    def looks_at_replies(self) -> bool:
        return any(each.rule.on == "reply" and each.enabled for each in self._rules)

    def unmatched(self) -> list[tuple[str, Rule]]:
        """The rules that nothing has fitted so far, with their names."""
        return [(each.name, each.rule) for each in self._rules if not each.matched]

    def unfired(self) -> list[tuple[str, Rule]]:
        """The rules that something has fitted, but that have not fired."""
        return [(each.name, each.rule) for each in self._rules if each.matched and not each.fired]

    def tallies(self) -> list[Tally]:
        """How each rule stands, in order."""
        return [Tally(each.name, each.rule, each.matched, each.fired.total(), each.enabled) for each in self._rules]

    def decide(self, seen: Seen) -> Plan | None:
        """What is to happen with a request, or a reply; None if nothing is. Counts and records."""
        on = "reply" if seen.direction else "request"
        chosen: tuple[str, Action] | None = None
        before: list[tuple[str, Delay | Hold]] = []
        after: list[tuple[str, Delay | Hold]] = []
        for each in self._rules:
            if each.rule.on != on or not each.enabled or (chosen is not None and not each.waits):
                continue
            action = self._asked(each, seen)
            if isinstance(action, Delay | Hold):
                (before if action.at == "before" and on == "request" else after).append((each.name, action))
            elif action is not None and chosen is None:
                chosen = each.name, action
        if chosen is None and not before and not after:
            return None
        name, act = chosen or ("", None)
        return Plan(name, act, _together(before), _together(after))

    def _asked(self, each: _Rule, seen: Seen) -> Action | None:
        """The action if the rule fires."""
        rule = each.rule
        if rule.store is not None and rule.store != seen.store:
            return None
        if each.holds is not None and not each.holds(seen):
            return None
        key = _key(rule, seen)
        each.matched += 1
        each.counts[key] += 1
        nth, fired = each.counts[key], each.fired[key]
        if rule.nth and nth not in rule.nth:
            return None
        if nth <= rule.skip or (nth - rule.skip) % rule.every:
            return None
        if rule.times is not None and fired >= rule.times:
            return None
        if rule.probability < 1 and not self._by_chance(each, seen.connection):
            return None
        each.fired[key] += 1
        action: Action = rule.do[fired % len(rule.do)]
        self._record(each.name, action, nth, seen)
        return action

    def _by_chance(self, each: _Rule, connection: int) -> bool:
        drawn = each.draws[connection]
        each.draws[connection] += 1
        digest = hashlib.blake2b(repr((self.seed, each.name, connection, drawn)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < each.rule.probability * 2**64

    def _record(self, name: str, action: Action, nth: int, seen: Seen) -> None:
        seen.faults = (*seen.faults, f"{name}: {action.word}")
        direction = "reply" if seen.direction else "request"
        self.decisions.append(
            Decision(
                name,
                action.word,
                nth,
                seen.number,
                seen.store,
                seen.connection,
                direction,
                seen.type_name,
                seen.segments,
                seen.request_id,
            )
        )
        self._log_bytes += _cost(self.decisions[-1])
        while self._log_bytes > _LOG_BYTES:
            self._log_bytes -= _cost(self.decisions.popleft())
            self.forgotten_decisions += 1


def _cost(decision: Decision) -> int:
    """Memory that it takes, roughly."""
    return _DECISION_BYTES + sum(map(getsizeof, decision.segments))


def _key(rule: Rule, seen: Seen) -> Any:
    match rule.each:
        case "connection":
            return seen.connection
        case "segment":
            return seen.segments[:1]
        case "writer":
            return seen.writer_id
        case "flow":
            return None if seen.request_id is None else (seen.connection, flow_of(seen.request_id))
    return None


def _together(waits: Iterable[tuple[str, Delay | Hold]]) -> Wait:
    seconds, holds, overtake = 0.0, [], False
    for name, action in waits:
        if isinstance(action, Delay):
            seconds += action.delay_ms / 1000
        else:
            holds.append(name)
        overtake = overtake or action.overtake
    return Wait(seconds, tuple(holds), overtake and bool(seconds or holds))
