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
from typing import TYPE_CHECKING, Any, Self, Unpack

from pydantic import ValidationError

from segstore.server.faults.decisions import Decider, Wait
from segstore.server.faults.file import read_faults, rule_problem
from segstore.server.faults.observe import Observed, Observer
from segstore.server.faults.rules import Action, FaultSettings, Rule, RuleOptions
from segstore.wire import COMMANDS

if TYPE_CHECKING:
    from segstore.server.clock import Clock, TimerHandle

log = logging.getLogger(__name__)


class NoFaults(RuntimeError):
    """The server was started without fault rules."""

    def __init__(self) -> None:
        super().__init__("there are no faults here: the mock was made with watched=False, or the store without faults")


class Waiting:
    """A pending wait: first a delay, then one hold after the other. It calls `resume` when it ends, possibly at once.

    pending: the waits of the same connection; this one is among them until it has ended or was cancelled.
    """

    def __init__(self, faults: Faults, wait: Wait, resume: Callable[[], object], pending: set[Waiting]) -> None:
        self._faults = faults
        self._holds = list(wait.holds)
        self._resume = resume
        self._pending = pending
        self._timer: TimerHandle | None = None
        pending.add(self)
        if wait.seconds:
            self._timer = faults.clock.call_later(wait.seconds, self.advance)
        else:
            self.advance()

    def advance(self) -> None:
        """Continues with the next hold, or ends: the delay has passed, or a hold was released."""
        if self._holds:
            self._faults._hold(self._holds.pop(0), self)
        elif self in self._pending:
            self._pending.discard(self)
            self._resume()

    def cancel(self) -> None:
        """Cancels the wait; nothing is called back."""
        self._pending.discard(self)
        self._holds.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._faults._forget(self)


class Faults(Decider):
    """The fault rules of a store or a cluster, their holds and the log of their decisions.

    Attributes:
        clock: measures delays.
        observer: log of requests; None if they are not recorded.
        round_trip_ms: minimum delay of every reply; one number, or a mapping from store number to delay.
    """

    def __init__(
        self, clock: Clock, settings: FaultSettings | None = None, *, observer: Observer | None = None
    ) -> None:
        super().__init__()
        self.clock = clock
        self.observer = observer
        self.started_s = clock.now_s()
        self.round_trip_ms: float | Mapping[int, float] = 0.0
        self._held: dict[str, list[Waiting]] = {}
        self._holding: list[tuple[str, int, asyncio.Future[None]]] = []
        self._requests = 0
        self._connections = 0
        self.load(settings or FaultSettings())

    @classmethod
    def of_mock(cls, clock: Clock, settings: FaultSettings | None, *, watched: bool) -> Self | None:
        """The fault rules of a mock that logs its requests; None for one that is not watched."""
        if watched:
            return cls(clock, settings, observer=Observer())
        if settings is not None:
            raise ValueError("faults need watched=True")
        return None

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
        return super().add(rule)

    def load(self, source: Path | str | FaultSettings) -> None:
        """Adds the rules of a fault file and replaces the seed and round-trip times. Raises FaultFileError."""
        settings = source if isinstance(source, FaultSettings) else read_faults(Path(source))
        self.seed = settings.seed
        self.round_trip_ms = settings.round_trip_ms
        for each in settings.rules:
            self.add(each)

    def clear(self, name: str | None = None) -> None:
        """Removes one rule, or all, and releases what it holds. Raises NoSuchRule."""
        super().clear(name)
        for each in [name] if name is not None else list(self._held):
            self._release(each)

    def disable(self, name: str) -> None:
        """Disables a rule and releases what it holds; its position and counts stay. Raises NoSuchRule."""
        super().disable(name)
        self._release(name)

    # --- holds ------------------------------------------------------------------------------------------------------

    def held(self, name: str) -> int:
        """Returns the number of requests and replies that a rule holds now."""
        return len(self._held.get(name, ()))

    def release(self, name: str) -> int:
        """Releases what a rule holds now, oldest first, and returns how many. The rule still holds later matches.

        Raises NoSuchRule.
        """
        self._rule(name)
        return self._release(name)

    def _release(self, name: str) -> int:
        waiting = self._held.pop(name, [])
        for each in waiting:
            each.advance()
        return len(waiting)

    async def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Waits until a rule holds `count` requests or replies. Raises TimeoutError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (name, count, done)
        self._holding.append(entry)
        self._notify_held()
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError as error:
            raise TimeoutError(f"{name!r} held {self.held(name)} and not {count} within {timeout_s:g} s") from error
        finally:
            self._holding.remove(entry)

    def _notify_held(self) -> None:
        for name, count, done in self._holding:
            if self.held(name) >= count and not done.done():
                done.set_result(None)

    def _hold(self, name: str, waiting: Waiting) -> None:
        if name not in self._rules or not self._rules[name].enabled:
            waiting.advance()  # the rule was cleared or disabled while this waited for something else
            return
        self._held.setdefault(name, []).append(waiting)
        self._notify_held()

    def _forget(self, waiting: Waiting) -> None:
        for name, those in list(self._held.items()):
            if waiting in those:
                those.remove(waiting)
                if not those:
                    del self._held[name]

    # --- what has happened ------------------------------------------------------------------------------------------

    def unmatched(self) -> list[str]:
        """Returns one line for each rule that never matched, or that matched but never fired."""
        tallies = self.tallies()
        never = [
            f"fault {each.name!r} has matched nothing: {_described(each.rule)}{_hint(each.rule)}"
            for each in tallies
            if not each.matched
        ]
        idle = [
            f"fault {each.name!r} has matched, but never fired: {_described(each.rule)}"
            for each in tallies
            if each.matched and not each.fired
        ]
        return never + idle

    def report(self) -> None:
        """Logs a warning for each rule that never fired."""
        for line in self.unmatched():
            log.warning(line)

    # --- for connections --------------------------------------------------------------------------------------------

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def next_request(self, count: int = 1) -> int:
        """Returns the number of the last of `count` requests."""
        self._requests += count
        return self._requests

    def round_trip_s(self, store: int) -> float:
        """Returns the minimum delay of a store's replies."""
        given = self.round_trip_ms
        return (given.get(store, 0.0) if isinstance(given, Mapping) else given) / 1000


class WithFaults(Observed):
    """A server with fault rules and a log of its requests. rules: None if it has neither."""

    def __init__(self, rules: Faults | None) -> None:
        self.rules = rules
        self.observer = None if rules is None else rules.observer

    @property
    def faults(self) -> Faults:
        """The fault rules. Raises NoFaults."""
        if self.rules is None:
            raise NoFaults
        return self.rules


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


def _described(rule: Rule) -> str:
    """Returns the rule's non-default fields, for messages."""
    return ", ".join(
        f"{name} {value!r}" for name, value in rule.model_dump(exclude_defaults=True).items() if name != "do"
    )
