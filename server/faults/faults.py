"""The fault rules of a running mock, with their holds and a log of their decisions.

    store.faults.add('type = APPEND_BLOCK_END', nth=3, do="close after", name="lost ack")
    store.faults.add("type = READ_SEGMENT", do=["WrongHost", "NoSuchSegment", "ok", "close"])
    store.faults.round_trip_ms = 5
    ...
    assert [str(each) for each in store.faults.decisions] == [...]

One `Faults` serves all stores of a cluster. `segstore.server.faults.decisions` decides, purely, and
`segstore.server.faults.lane` applies the decisions. Time is the store's clock.

Invariants: no hold outlives `clear` or its connection; held traffic is released in the order it was held; a wait calls
back once, unless it was cancelled before; a rule that never matched is reported by `unmatched` and, when the store
stops, in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from pydantic import ValidationError

from segstore.server.config import first_problem
from segstore.server.faults.decisions import Decider, NoSuchRule, Wait
from segstore.server.faults.file import faults_of
from segstore.server.faults.functions import Function, Functions
from segstore.server.faults.near import MOST_LOOKED_AT, near_misses
from segstore.server.faults.observe import Observed, Observer, check_wait
from segstore.server.faults.rules import Action, Call, FaultSettings, Hold, Rule, RuleOptions
from segstore.server.toxics import Toxics
from segstore.wire.printable import first_of, printable

if TYPE_CHECKING:
    from segstore.server.clock import Clock, TimerHandle
    from segstore.server.faults.observe import Seen

log = logging.getLogger(__name__)

_MOST_REPORTED: Final = 5
_LONGEST: Final = 1_000
F = TypeVar("F", bound=Function)


class NoFaults(RuntimeError):
    """The server was started without fault rules."""

    def __init__(self) -> None:
        super().__init__("there are no faults here: the mock was made with watched=False, or the store without faults")


class Waiting:
    """A pending wait: a delay, then the holds in turn. It calls `resume` when it ends, possibly at once.

    pending: the waits of the same connection, including this wait until it ends or is cancelled. task: the function
    that the last hold waits for, if any; it is cancelled when the wait ends first.
    """

    def __init__(
        self,
        faults: Faults,
        wait: Wait,
        resume: Callable[[], object],
        pending: set[Waiting],
        task: asyncio.Task[None] | None = None,
    ) -> None:
        self._faults = faults
        self._holds = list(wait.holds)
        self._resume = resume
        self._pending = pending
        self._task = task
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
            self._cancel_task()

    def released_by_rule(self) -> None:
        """The rule releases this wait. If its own function asks for that, the wait ends when the function returns."""
        current = None if self._task is None else asyncio.current_task()
        if current is not None and current is self._task:
            current.add_done_callback(lambda _: self.advance())
        else:
            self.advance()

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def release(self) -> None:
        """Ends the current hold, as if its rule had released this wait."""
        self._faults._forget(self)
        self.advance()

    def cancel(self) -> None:
        """Cancels the wait; nothing is called back."""
        self._pending.discard(self)
        self._holds.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._cancel_task()
        self._faults._forget(self)


class FaultWaits:
    """The pending waits of one connection. Its owner calls `clear` when the connection is closed.

    Attributes:
        is_cleared: whether the connection is closed.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._pending: set[Waiting] = set()
        self.is_cleared = False

    def add(self, wait: Wait, resume: Callable[[], object], task: asyncio.Task[None] | None = None) -> Waiting | None:
        """Calls `resume` when the wait ends, possibly at once. After `clear`, returns None and never calls it.

        task: the function that a hold waits for; it is cancelled with the wait.
        """
        return None if self.is_cleared else Waiting(self._faults, wait, resume, self._pending, task)

    def clear(self) -> None:
        """Cancels all waits; nothing is called back afterwards."""
        self.is_cleared = True
        for waiting in tuple(self._pending):
            waiting.cancel()


class Faults(Decider):
    """The fault rules of a store or a cluster, their holds and the log of their decisions.

    Attributes:
        clock: measures delays.
        observer: log of requests; None if they are not recorded.
        requests: the number of the last request.
        toxics: disturbances of the bytes below the protocol.
        functions: the functions that rules have called, and their errors.
        at_start: `general`, as the server was started with it.
    """

    def __init__(
        self, clock: Clock, source: FaultSettings | Path | str | None = None, *, observer: Observer | None = None
    ) -> None:
        """source: as in `load`."""
        super().__init__()
        self.clock = clock
        self.observer = observer
        self.started_s = clock.now_s()
        self.functions = Functions()
        self.toxics = Toxics(clock, lambda: self.seed)
        self._held: dict[str, dict[Waiting, None]] = {}
        self._holding: list[tuple[str, int, asyncio.Future[None]]] = []
        self.requests = 0
        self._connections = 0
        self.load(FaultSettings() if source is None else source)
        self.at_start = self.general

    @classmethod
    def of_mock(cls, clock: Clock, source: FaultSettings | Path | str | None, *, watched: bool) -> Self | None:
        """Returns the fault rules of a mock that logs its requests; None for an unwatched mock."""
        if watched:
            return cls(clock, source, observer=Observer())
        if source is not None:
            raise ValueError("faults need watched=True")
        return None

    @property
    def round_trip_ms(self) -> float | Mapping[int, float]:
        """The minimum delay of every reply; one number, or a mapping from store number to delay.

        Setting it raises ValueError for values that a fault file may not have.
        """
        return self._round_trip_ms

    @round_trip_ms.setter
    def round_trip_ms(self, delay_ms: float | Mapping[int, float]) -> None:
        try:
            self._round_trip_ms = FaultSettings.model_validate({"round_trip_ms": delay_ms}).round_trip_ms
        except ValidationError as error:
            raise ValueError(first_problem(error, FaultSettings)) from error

    @property
    def general(self) -> FaultSettings:
        """The seed and the round-trip time, without rules and toxics."""
        return FaultSettings.model_validate({"seed": self.seed, "round_trip_ms": self.round_trip_ms})

    def start_over(self, general: FaultSettings) -> None:
        """Removes all rules and toxics, decisions and recorded requests; sets the seed and the round-trip time."""
        self.clear()
        self.toxics.clear()
        self.forget_decisions()
        if self.observer is not None:
            self.observer.clear()
        self.load(general)

    # --- rules ------------------------------------------------------------------------------------------------------

    def add(
        self,
        match: str | Rule = "",
        do: str | Action | Function | Mapping[str, Any] | Sequence[Any] = (),
        **rest: Unpack[RuleOptions],
    ) -> str:
        """Appends a rule and returns its name.

        match: a filter, or a whole `Rule`. do: an action as a value, word, object or function, or a list of these (a
        stack).
        Keyword arguments are the fields of `Rule`. Raises ValueError for an invalid rule, a name that is taken, or
        fields beside a whole rule.
        """
        if isinstance(match, Rule):
            if beside := [*(["do"] if do != () else []), *rest]:
                raise ValueError(f"{beside[0]}: a whole rule is given, which has its own fields")
            return super().add(match)
        try:
            rule = Rule(match=match, do=do, **rest)  # type: ignore[arg-type]  # checked
        except ValidationError as error:
            raise ValueError(first_problem(error, Rule)) from error
        if rest.get("nth") == []:
            raise ValueError("nth: the list must not be empty")
        return super().add(rule)

    def load(self, source: Path | str | FaultSettings) -> None:
        """Adds the rules and toxics of a fault file; replaces the seed and round-trip times. Raises as `faults_of`."""
        settings = faults_of(source)
        self.seed = settings.seed
        self.round_trip_ms = settings.round_trip_ms
        for rule in settings.rules:
            self.add(rule)
        for toxic in settings.toxics:
            self.toxics.add(toxic)

    # --- holds ------------------------------------------------------------------------------------------------------

    def held(self, name: str) -> int:
        """Returns the number of requests and replies that a rule holds now; 0 if it was removed."""
        return len(self._held.get(name, ()))

    def release(self, name: str) -> int:
        """Releases the requests held by a rule, oldest first, and returns their number. The rule still holds later
        matches.

        Raises NoSuchRule.
        """
        self._rule(name)
        return self._release(name)

    def _changed(self, *ended: str) -> None:
        super()._changed(*ended)
        for rule in [held for held in self._held if held in ended]:
            self._release(rule)
        self._notify_held()

    def _release(self, name: str) -> int:
        waiting = self._held.pop(name, {})
        for wait in waiting:
            wait.released_by_rule()
        return len(waiting)

    async def wait_held(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Waits until a rule holds `count` requests or replies. Raises TimeoutError; NoSuchRule, at once if the rule
        is removed meanwhile; ValueError for a rule that holds nothing, an invalid count or time-out.
        """
        check_wait(count, timeout_s)
        rule = self._rule(name).rule
        if not any(isinstance(action, Hold | Call) for action in rule.do):
            words = dict.fromkeys(action.word for action in rule.do)
            raise ValueError(f"rule {name!r} holds nothing: its action is {' and '.join(words)}")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (name, count, done)
        self._holding.append(entry)
        self._notify_held()
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError as error:
            now = self._rule(name)
            text = f"{name!r} held {self.held(name)} and not {count} within {timeout_s:g} s"
            text += f"; it has matched {now.matched} and fired {now.fired.total()} times"
            near = [] if now.matched else self._near(now.rule, self._latest())
            raise TimeoutError("\n  ".join([text, *near])) from error
        finally:
            self._holding.remove(entry)

    def _notify_held(self) -> None:
        for name, count, done in self._holding:
            if done.done():
                continue
            if name not in self._rules:
                done.set_exception(NoSuchRule(name, tuple(self._rules)))
            elif self.held(name) >= count:
                done.set_result(None)

    def is_enabled(self, name: str) -> bool:
        """Whether a rule exists and is enabled."""
        return name in self._rules and self._rules[name].enabled

    def _hold(self, name: str, waiting: Waiting) -> None:
        if not self.is_enabled(name):
            waiting.advance()  # the rule was cleared or disabled while this waited for something else
            return
        self._held.setdefault(name, {})[waiting] = None
        self._notify_held()

    def _forget(self, waiting: Waiting) -> None:
        for held in self._held.values():
            held.pop(waiting, None)

    # --- what has happened ------------------------------------------------------------------------------------------

    def unmatched(self) -> list[str]:
        """Returns a text for each rule that never matched, or that matched but never fired.

        The first line names the rule; further lines are the nearest requests, if requests are recorded.
        """
        return list(self.each_unmatched())

    def each_unmatched(self) -> Iterator[str]:
        """Yields the texts of `unmatched`."""
        tallies = self.tallies()
        latest = () if all(tally.matched for tally in tallies) else self._latest()
        for tally in tallies:
            if not tally.matched:
                text = f"fault {tally.name!r} has matched nothing: {_described(tally.rule)}"
                yield "\n  ".join([text, *self._near(tally.rule, latest)])
        for tally in tallies:
            if tally.matched and not tally.fired:
                yield f"fault {tally.name!r} has matched, but never fired: {_described(tally.rule)}"

    def unmatched_report(self) -> list[str]:
        """Returns the first texts of `unmatched`; the last text has the number of further rules."""
        total = sum(not tally.fired for tally in self.tallies())
        what = "fault rules have matched nothing or never fired"
        return list(first_of(self.each_unmatched(), total, _MOST_REPORTED, what))

    def _latest(self) -> Sequence[Seen]:
        """The latest requests, newest first; none if they are not kept."""
        return () if self.observer is None else tuple(islice(self.observer.newest_first(), MOST_LOOKED_AT))

    def _near(self, rule: Rule, latest: Sequence[Seen]) -> list[str]:
        """Returns the requests nearest to a rule that never matched. latest: newest first.

        Replies are not recorded. Requests taken from the traffic do not name their store.
        """
        if rule.on == "reply":
            return []
        of_its_kind = (seen for seen in latest if (seen.call is not None) == rule.about_calls)
        names_store = self.observer is not None and self.observer.history is None
        return list(near_misses(of_its_kind, rule.filter, store=rule.store if names_store else None))

    async def aclose(self) -> None:
        """The server has stopped: cancels functions, and logs warnings about the first rules that never fired.

        Raises FaultFunctionError if a function has failed, once for an error.
        """
        for text in self.unmatched_report():
            for line in text.splitlines():
                log.warning("%s", line)
        if self.observer is None and not all(tally.matched for tally in self.tallies()):
            log.warning("where the latest traffic is kept (--http-port), the requests nearest to such a rule are shown")
        await self.functions.aclose()

    # --- for connections --------------------------------------------------------------------------------------------

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def next_request(self, count: int = 1) -> int:
        """Returns the number of the first of `count` requests that no recorder has numbered."""
        self.requests += count
        return self.requests - count + 1

    def round_trip_s(self, store: int) -> float:
        """Returns the minimum delay of a store's replies."""
        delay_ms = self._round_trip_ms
        return (delay_ms.get(store, 0.0) if isinstance(delay_ms, Mapping) else delay_ms) / 1000


def fault_decorator(add: Callable[..., str], match: str, rest: RuleOptions) -> Callable[[F], F]:
    """Returns a decorator that adds a function as a rule. add: `Faults.add`, or a call of the same kind.

    Raises ValueError if the decorator is used without a call.
    """
    if callable(match):
        raise ValueError('write @….fault() or @….fault("type = …"): without parentheses, no rule is made')

    def added(function: F) -> F:
        name = getattr(function, "__name__", None)  # objects that are called have none
        add(match, function, **({} if name is None else {"name": name}) | rest)
        return function

    return added


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

    def fault(self, match: str = "", **rest: Unpack[RuleOptions]) -> Callable[[F], F]:
        """Decorates a function to decide about the requests that match: a rule with the function's name.

        The function may be a coroutine; it is given a `FaultRequest`. Keyword arguments are the fields of `Rule`.
        Raises ValueError as `Faults.add`, and NoFaults.
        """
        return fault_decorator(self.faults.add, match, rest)


def _described(rule: Rule) -> str:
    """Returns the rule's non-default fields, for messages."""
    fields = rule.model_dump(exclude_defaults=True).items()
    return printable(", ".join(f"{name} {value!r}" for name, value in fields if name != "do"), _LONGEST)
