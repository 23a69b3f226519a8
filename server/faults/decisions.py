"""Decides which fault rules fire for a request or reply: a pure function of the rules, their counts and the subject.

Invariants: the same rules, seed and workload give the same decisions, in the same order. Random numbers derive from the
seed, the rule's name, the connection's number and the number of earlier draws on that connection, so they do not depend
on how connections are interleaved. No clock, no I/O.

Rules are evaluated in order. Delays and holds of all firing rules add up. The first other action that fires is taken;
later rules with such actions are not evaluated and do not count. Replies that a rule has made are not evaluated again.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from segstore.server.config import UnknownName
from segstore.server.faults.rules import Action, Delay, Hold, Rule
from segstore.wire import AppendBlockEnd
from segstore.wire.printable import printable
from segstore.wire.request_id import flow_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segstore.server.faults.observe import Seen

_LOG_BYTES: Final = 64 * 1024 * 1024
_DECISION_BYTES: Final = 300
"""Approximate memory of a decision without its segment names."""


class Decision(msgspec.Struct, frozen=True):
    """One firing of a rule. request: the number of the request; nth: the number of matches so far, including this.

    event_number: of an append; -1 for others.
    """

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
    event_number: int = -1

    def __str__(self) -> str:
        about = f" of {', '.join(self.segments)}" if self.segments else ""
        return printable(
            f"{self.rule}: {self.action} at {self.direction} {self.request}, {self.type_name}{about} "
            f"on connection {self.connection}, match {self.nth}"
        )


class Tally(msgspec.Struct, frozen=True):
    """The counts of a rule: matches and firings, and whether the rule is enabled."""

    name: str
    rule: Rule
    matched: int
    fired: int
    enabled: bool = True


class Wait(msgspec.Struct, frozen=True):
    """A wait: a delay in seconds, then holds by the named rules. overtake: whether later traffic may pass it.

    Always False for an empty wait.
    """

    seconds: float = 0.0
    holds: tuple[str, ...] = ()
    overtake: bool = False

    def __bool__(self) -> bool:
        return bool(self.seconds or self.holds)


class Plan(msgspec.Struct, frozen=True):
    """The outcome of a decision: waits before the request is executed and before its reply is sent, and one action."""

    rule: str = ""
    action: Action | None = None
    before: Wait = Wait()
    after: Wait = Wait()


NO_PLAN: Final = Plan()
"""For nearly all requests."""


class NoSuchRule(UnknownName):
    """No rule has that name."""

    kind = "rule"


class _Rule:
    """A rule, its filter and its counts."""

    def __init__(self, rule: Rule, name: str) -> None:
        self.rule = rule
        self.name = name
        self.matches = rule.filter
        self.waits = all(isinstance(action, Delay | Hold) for action in rule.do)
        self.enabled = True
        self.matched = 0
        self.counts: Counter[Any] = Counter()
        self.fired: Counter[Any] = Counter()
        self.draws: Counter[int] = Counter()


class Decider:
    """Evaluates fault rules and keeps their counts.

    Attributes:
        forgotten_decisions: number of older decisions that were discarded.
        looks_at_replies: whether an enabled rule matches replies.
        looks_at_appends: whether an enabled rule may match an unconditional append.
        looks_at_payloads: whether an enabled rule reads payloads.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.forgotten_decisions = 0
        self.looks_at_replies = self.looks_at_appends = self.looks_at_payloads = False
        self._log: deque[Decision] = deque()
        self._log_bytes = 0
        self._rules: dict[str, _Rule] = {}
        self._named = 0

    def add(self, rule: Rule) -> str:
        """Appends a rule and returns its name. Raises ValueError if the name is taken."""
        self._named += 1
        while not rule.name and f"rule {self._named}" in self._rules:
            self._named += 1
        name = rule.name or f"rule {self._named}"
        if name in self._rules:
            raise ValueError(f"there is a rule with the name {name!r}")
        self._rules[name] = counted = _Rule(rule, name)
        self._look_at(counted)
        return name

    def replace(self, name: str, rule: Rule) -> str:
        """Replaces a rule at its place, with new counts, and releases the requests that it holds; returns the new
        name.

        The old name stays unless `rule` has a name. Raises NoSuchRule, and ValueError as `add`.
        """
        old, new = self._rule(name), rule.name or name
        if new != name and new in self._rules:
            raise ValueError(f"there is a rule with the name {new!r}")
        replacement = _Rule(rule, new)
        replacement.enabled = old.enabled
        rules = (replacement if counted is old else counted for counted in self._rules.values())
        self._rules = {counted.name: counted for counted in rules}
        self._changed(name)
        return new

    def clear(self, name: str | None = None) -> None:
        """Removes one rule, or all, and releases the held requests. Raises NoSuchRule."""
        removed = list(self._rules) if name is None else [self._rule(name).name]
        for rule in removed:
            del self._rules[rule]
        self._changed(*removed)

    def disable(self, name: str) -> None:
        """Disables a rule and releases the requests that it holds; its position and counts stay. Raises NoSuchRule."""
        self._rule(name).enabled = False
        self._changed(name)

    def enable(self, name: str) -> None:
        """Enables a disabled rule. Raises NoSuchRule."""
        self._rule(name).enabled = True
        self._changed()

    def _rule(self, name: str) -> _Rule:
        if name not in self._rules:
            raise NoSuchRule(name, tuple(self._rules))
        return self._rules[name]

    def _changed(self, *ended: str) -> None:
        """Rules were enabled, or replaced, removed or disabled: these have `ended`."""
        self.looks_at_replies = self.looks_at_appends = self.looks_at_payloads = False
        for rule in self._rules.values():
            if rule.enabled:
                self._look_at(rule)

    def _look_at(self, counted: _Rule) -> None:
        """An enabled rule takes effect."""
        self.looks_at_replies |= counted.rule.on == "reply"
        self.looks_at_appends |= _may_match_append(counted)
        self.looks_at_payloads |= counted.matches is not None and "data" in counted.matches.names

    @property
    def rules(self) -> list[str]:
        """Names of the rules, in evaluation order."""
        return list(self._rules)

    @property
    def decisions(self) -> list[Decision]:
        """The last 64 MiB of decisions, in order: 100,000 or more, unless names are long.

        Without times, so that two runs can be compared.
        """
        return list(self._log)

    def forget_decisions(self) -> None:
        """Discards the decisions, and numbers rules without a name from 1 again where those are free."""
        self.forgotten_decisions += len(self._log)
        self._log.clear()
        self._log_bytes = self._named = 0

    def tallies(self) -> list[Tally]:
        """Returns the counts of each rule, in evaluation order: matches and firings."""
        return [
            Tally(rule.name, rule.rule, rule.matched, rule.fired.total(), rule.enabled) for rule in self._rules.values()
        ]

    def decide(self, seen: Seen) -> Plan | None:
        """Decides about a request or a reply, counts and records; returns None if no rule fires."""
        if not self._rules:
            return None
        on = "reply" if seen.direction else "request"
        chosen: tuple[str, Action] | None = None
        before: list[tuple[str, Delay | Hold]] = []
        after: list[tuple[str, Delay | Hold]] = []
        for rule in self._rules.values():
            if rule.rule.on != on or not rule.enabled or (chosen is not None and not rule.waits):
                continue
            action = self._asked(rule, seen)
            if isinstance(action, Delay | Hold):
                (before if action.at == "before" and on == "request" else after).append((rule.name, action))
            elif action is not None and chosen is None:
                chosen = rule.name, action
        if chosen is None and not before and not after:
            return None
        name, act = chosen or ("", None)
        return Plan(name, act, _together(before), _together(after))

    def _asked(self, counted: _Rule, seen: Seen) -> Action | None:
        """Returns the action if the rule fires."""
        rule = counted.rule
        # It does not fire in four cases: 1. no match; 2. an unselected match; 3. `times` is used up; 4. chance.
        if rule.store not in (None, seen.store) or rule.about_calls != (seen.call is not None):
            return None
        if counted.matches is not None and not counted.matches(seen):
            return None
        key = _key(rule, seen)
        counted.matched += 1
        counted.counts[key] += 1
        nth, fired = counted.counts[key], counted.fired[key]
        if rule.nth and nth not in rule.nth:
            return None
        if nth <= rule.skip or (nth - rule.skip) % rule.every:
            return None
        if rule.times is not None and fired >= rule.times:
            return None
        if rule.probability < 1 and not self._by_chance(counted, seen.connection):
            return None
        counted.fired[key] += 1
        action: Action = rule.do[fired % len(rule.do)]
        self._record(counted.name, action, nth, seen)
        return action

    def _by_chance(self, counted: _Rule, connection: int) -> bool:
        drawn = counted.draws[connection]
        counted.draws[connection] += 1
        digest = hashlib.blake2b(repr((self.seed, counted.name, connection, drawn)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < counted.rule.probability * 2**64

    def _record(self, name: str, action: Action, nth: int, seen: Seen) -> None:
        seen.faults = (*seen.faults, f"{name}: {action.word}")
        place = seen.number, seen.store, seen.connection, "reply" if seen.direction else "request"
        about = seen.type_name, seen.segments, seen.request_id, seen.event_number
        decision = Decision(name, action.word, nth, *place, *about)
        self._log.append(decision)
        self._log_bytes += _cost(decision)
        while self._log_bytes > _LOG_BYTES:
            self._log_bytes -= _cost(self._log.popleft())
            self.forgotten_decisions += 1


class _AnyAppend(NamedTuple):
    """The attributes that all unconditional appends have in common."""

    kind: str = "frame"
    type_name: str = AppendBlockEnd.type_name
    code: int = AppendBlockEnd.code
    direction: int = 0
    malformed: bool = False
    call: None = None
    status: None = None


def _may_match_append(counted: _Rule) -> bool:
    """Whether a rule may match an unconditional append: False if the common attributes of appends exclude a match."""
    if counted.rule.on == "reply":
        return False
    try:
        return counted.matches is None or counted.matches(_AnyAppend())  # type: ignore[arg-type]
    except AttributeError:  # it depends on the append
        return True


def _cost(decision: Decision) -> int:
    """Approximate memory of a decision, in bytes."""
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
