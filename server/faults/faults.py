"""The fault rules of a running mock, with the holds they cause and a log of their decisions.

    store.faults.add('type = APPEND_BLOCK_END', nth=3, do="close after", name="lost ack")
    store.faults.add("type = READ_SEGMENT", do=["WrongHost", "NoSuchSegment", "ok", "close"])
    store.faults.round_trip_ms = 5
    ...
    assert [str(each) for each in store.faults.decisions] == [...]

One `Faults` serves all stores of a cluster. `segstore.server.faults.decisions` decides, purely, and
`segstore.server.faults.lane` applies the decisions. Time is the store's clock.

Invariants: no hold outlives `clear` or its connection; held traffic is released in the order it was held; a rule that
never matched is reported by `unmatched` and, when the store stops, in the log.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import ValidationError

from segstore.server.faults.decisions import Decider, Decision, Plan, Tally, Wait
from segstore.server.faults.file import read_faults, rule_problem
from segstore.server.faults.observe import Observer, Seen
from segstore.server.faults.rules import Action, FaultSettings, Rule, RuleOptions
from segstore.wire import COMMANDS

if TYPE_CHECKING:
    from segstore.server.clock import Clock, TimerHandle

log = logging.getLogger(__name__)


class NoFaults(RuntimeError):
    """The server was started without fault rules."""

    def __init__(self) -> None:
        super().__init__("there are no faults here: the mock was made with watched=False, or the store without faults")


class NoSuchRule(KeyError):
    """No rule has that name. Attributes: name, known (the names of existing rules)."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        there = f"there are {', '.join(map(repr, self.known))}" if self.known else "there are no rules"
        return f"no rule has the name {self.name!r}; {there}"


class Waiting:
    """A pending wait: first a delay, then one hold after the other."""

    __slots__ = ("_faults", "_go_on", "_holds", "_timer")

    def __init__(self, faults: Faults, wait: Wait, go_on: Callable[[], None]) -> None:
        self._faults = faults
        self._holds = list(wait.holds)
        self._go_on: Callable[[], None] | None = go_on
        self._timer: TimerHandle | None = None
        if wait.seconds:
            self._timer = faults.clock.call_later(wait.seconds, self._next)
        else:
            self._next()

    def _next(self) -> None:
        self._timer = None
        if self._go_on is None:
            return
        if self._holds:
            self._faults._hold(self._holds.pop(0), self)
            return
        go_on, self._go_on = self._go_on, None
        go_on()

    def released(self) -> None:
        """Continues with the next hold, or calls back. Called when a hold is released."""
        self._next()

    def cancel(self) -> None:
        """Cancels the wait; nothing is called back."""
        self._go_on = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._faults._forget(self)


class Faults:
    """The fault rules of a store or a cluster, their holds and the log of their decisions.

    Attributes:
        clock: measures delays.
        observer: log of requests; None if they are not recorded.
        round_trip_ms: minimum delay of every reply; one number, or a mapping from store number to delay.
    """

    def __init__(
        self, clock: Clock, settings: FaultSettings | None = None, *, observer: Observer | None = None
    ) -> None:
        settings = settings or FaultSettings()
        self.clock = clock
        self.observer = observer
        self.started_s = clock.now_s()
        self.round_trip_ms: float | Mapping[int, float] = settings.round_trip_ms
        self._decider = Decider(settings.seed)
        self._looks_at_replies = False
        self._held: dict[str, list[Waiting]] = {}
        self._holding: list[tuple[str, int, asyncio.Future[None]]] = []
        self._requests = 0
        self._connections = 0
        self._add_all(settings.rules)

    # --- rules ------------------------------------------------------------------------------------------------------

    def add(
        self,
        match: str | Rule = "",
        do: str | Action | Mapping[str, Any] | Sequence[Any] = (),
        **rest: Unpack[RuleOptions],
    ) -> str:
        """Appends a rule and returns its name.

        match: a filter, or a whole `Rule`. do: an action as a value, word or object, or a list of these (a stack).
        Keyword arguments are the fields of `Rule`. Raises ValueError for an invalid rule or a name that is taken.
        """
        try:
            rule = (
                match if isinstance(match, Rule) else Rule(match=match, do=do, **rest)  # type: ignore[arg-type]  # checked
            )
        except ValidationError as error:
            raise ValueError(rule_problem(error)) from error
        name = self._decider.add(rule)
        self._looks_at_replies = self._decider.looks_at_replies
        return name

    def load(self, source: Path | str | FaultSettings) -> None:
        """Adds the rules of a fault file and replaces the seed and round-trip times. Raises FaultFileError."""
        settings = source if isinstance(source, FaultSettings) else read_faults(Path(source))
        self._decider.seed = settings.seed
        self.round_trip_ms = settings.round_trip_ms
        self._add_all(settings.rules)

    def _add_all(self, rules: Sequence[Rule]) -> None:
        for each in rules:
            self.add(each)

    def clear(self, name: str | None = None) -> None:
        """Removes one rule, or all, and releases what it holds. Raises NoSuchRule."""
        if name is not None:
            self._known(name)
        self._decider.remove(name)
        self._looks_at_replies = self._decider.looks_at_replies
        for each in [name] if name is not None else list(self._held):
            self._release(each)

    def disable(self, name: str) -> None:
        """Disables a rule and releases what it holds; its position and counts stay. Raises NoSuchRule."""
        self._enable(name, on=False)
        self._release(name)

    def enable(self, name: str) -> None:
        """Enables a disabled rule. Raises NoSuchRule."""
        self._enable(name, on=True)

    def _enable(self, name: str, *, on: bool) -> None:
        self._known(name)
        self._decider.enable(name, on=on)
        self._looks_at_replies = self._decider.looks_at_replies

    def _known(self, name: str) -> None:
        if name not in self._decider.names:
            raise NoSuchRule(name, tuple(self._decider.names))

    @property
    def rules(self) -> list[str]:
        """Names of the rules, in evaluation order."""
        return self._decider.names

    def tallies(self) -> list[Tally]:
        """Returns the counts of each rule: matches and firings."""
        return self._decider.tallies()

    @property
    def seed(self) -> int:
        return self._decider.seed

    # --- holds ------------------------------------------------------------------------------------------------------

    def held(self, name: str) -> int:
        """Returns the number of requests and replies that a rule holds now."""
        return len(self._held.get(name, ()))

    def release(self, name: str) -> int:
        """Releases what a rule holds now, oldest first, and returns how many. The rule still holds later matches.

        Raises NoSuchRule.
        """
        self._known(name)
        return self._release(name)

    def _release(self, name: str) -> int:
        waiting = self._held.pop(name, [])
        for each in waiting:
            each.released()
        return len(waiting)

    async def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Waits until a rule holds `count` requests or replies. Raises TimeoutError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (name, count, done)
        self._holding.append(entry)
        self._tell_held()
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError as error:
            raise TimeoutError(f"{name!r} held {self.held(name)} and not {count} within {timeout_s:g} s") from error
        finally:
            self._holding.remove(entry)

    def _tell_held(self) -> None:
        for name, count, done in self._holding:
            if self.held(name) >= count and not done.done():
                done.set_result(None)

    def _hold(self, name: str, waiting: Waiting) -> None:
        if not self._decider.is_asked(name):
            waiting.released()  # the rule was cleared or disabled while this waited for something else
            return
        self._held.setdefault(name, []).append(waiting)
        self._tell_held()

    def _forget(self, waiting: Waiting) -> None:
        for name, those in list(self._held.items()):
            if waiting in those:
                those.remove(waiting)
                if not those:
                    del self._held[name]

    # --- what has happened ------------------------------------------------------------------------------------------

    @property
    def decisions(self) -> list[Decision]:
        """The last 64 MiB of decisions, in order; without times, so that two runs can be compared."""
        return list(self._decider.decisions)

    def unmatched(self) -> list[str]:
        """Returns one line for each rule that never matched, or that matched but never fired."""
        never = [
            f"fault {name!r} has matched nothing: {_said(rule)}{_hint(rule)}"
            for name, rule in self._decider.unmatched()
        ]
        idle = [f"fault {name!r} has matched, but never fired: {_said(rule)}" for name, rule in self._decider.unfired()]
        return never + idle

    def report(self) -> None:
        """Logs a warning for each rule that never fired."""
        for line in self.unmatched():
            log.warning(line)

    # --- for connections --------------------------------------------------------------------------------------------

    @property
    def looks_at_replies(self) -> bool:
        """Whether an enabled rule matches replies."""
        return self._looks_at_replies

    def next_connection(self) -> int:
        """Returns the number of a new connection."""
        self._connections += 1
        return self._connections

    def next_request(self) -> int:
        """Returns the number of a new request."""
        self._requests += 1
        return self._requests

    def round_trip_s(self, store: int) -> float:
        """Returns the minimum delay of a store's replies."""
        given = self.round_trip_ms
        return (given.get(store, 0.0) if isinstance(given, Mapping) else given) / 1000

    def decide(self, seen: Seen) -> Plan | None:
        """Returns what rules do with a request or a reply; None if no rule fires."""
        return self._decider.decide(seen) if self._decider.has_rules else None

    def wait(self, wait: Wait, go_on: Callable[[], None]) -> Waiting:
        """Calls `go_on` when the wait ends, possibly at once."""
        return Waiting(self, wait, go_on)


_REPLIES = {
    name.casefold(): each.type_name
    for each in COMMANDS.values()
    if (each.is_reply or each.is_failure) and not each.is_request
    for name in (each.type_name, each.__name__)
}
"""Commands that only stores send, by both of their spellings."""


def _hint(rule: Rule) -> str:
    """Returns a hint if a rule matches requests but its filter names a reply."""
    words = re.findall(r"\w+", rule.match) if rule.on == "request" else []
    replies = [_REPLIES[word.casefold()] for word in words if word.casefold() in _REPLIES]
    return f"; {replies[0]} is a reply, and replies are matched with on: reply" if replies else ""


def _said(rule: Rule) -> str:
    """Returns the rule's non-default fields, for messages."""
    return ", ".join(
        f"{name} {value!r}" for name, value in rule.model_dump(exclude_defaults=True).items() if name != "do"
    )
