"""Whether the operations on one register have an order that explains their results and respects their times.

This is the search of Wing and Gong, with Lowe's memo of visited states. A state is the register's content, as a token:
a version where versions are known, else a value. Two facts keep the search short: an operation that changes nothing may
take effect as soon as it can, and versions say in which order updates were stored.

Tokens that no given operation writes are foreign: a client that was not recorded wrote them, or they were there before.
They explain reads and conditions at any time; with versions, in the order of the versions. A value, unlike a version,
may also be both the first content and written later. If other clients are known to write, they may also have caused any
refusal, removed the content, and written any value.

Source: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); Lowe, "Testing for linearizability" (2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

ABSENT: Final = ("absent",)
UNKNOWN: Final = ("unknown",)
"""The content when the recording began."""
OTHER: Final = ("other",)
"""The content after an update whose version was not seen."""
MOST_STATES: Final = 100_000
MOST_AHEAD: Final = 2000
"""Bounds of a search: visited states, and steps that take effect before a step that started earlier."""

_State = tuple[Any, Any]
"""A register's token, and its highest version so far."""


class Step(NamedTuple):
    """An operation. needs, rejects: the token that is, or is not, the content when it takes effect; None for any.

    start, end: its times; end: inf if its outcome is unknown, so that it may take effect later or never. writes: the
    new token, None if it changes nothing.
    """

    start: float
    end: float
    needs: Any = None
    rejects: Any = None
    writes: Any = None


class _Search:
    def __init__(self, steps: Sequence[Step], *, versions: bool, others: bool) -> None:
        self._versions, self._others = versions, others
        needed = {step.needs for step in steps} - {None}
        rejects = any(step.rejects is not None for step in steps)
        self.steps = sorted((step for step in steps if step.end < inf), key=lambda step: (step.start, step.end))
        self.optional = [step for step in steps if step.end == inf and (rejects or step.writes in needed)]
        written = {step.writes for step in steps} - {None, ABSENT, OTHER}
        self._foreign = needed - (set() if others and not versions else written) - {ABSENT}
        certain = {step.needs for step in self.steps} - {None, ABSENT}
        known = sorted(certain | written) if versions else []
        self._before = dict(zip(known, [-1, *known], strict=False))

    def after(self, step: Step, state: _State) -> _State | None:
        """Returns the state after a step; None if it cannot take effect."""
        token, highest = state
        if step.needs is not None and step.needs != token:
            if step.needs is ABSENT:
                if token is not UNKNOWN and not self._others:
                    return None
            elif not self._is_foreign(step.needs, token) or not self._is_next(step.needs, highest):
                return None
            else:
                highest = step.needs
            token = step.needs
        if step.rejects is not None and step.rejects == token and not self._others:
            return None
        if step.writes is not None:
            token = step.writes
            if token is not ABSENT and token is not OTHER:
                if not self._is_next(token, highest):
                    return None
                highest = token
        return token, highest if self._versions else None

    def _is_foreign(self, needed: Any, token: Any) -> bool:
        return needed in self._foreign or (token is UNKNOWN and not self._versions)

    def _is_next(self, token: Any, highest: Any) -> bool:
        return not self._versions or bool(self._before.get(token, -1) <= highest < token)

    def run(self, initial: Any) -> bool | None:
        """Returns whether there is an order; None beyond the bounds of a search."""
        seen: set[Any] = set()
        # Steps before `at` and steps `ahead` are done, and the optional steps `used`.
        stack: list[tuple[int, frozenset[int], frozenset[int], _State]] = [
            (0, frozenset(), frozenset(), (initial, -1 if self._versions else None))
        ]
        while stack:
            at, ahead, used, state = stack.pop()
            at, ahead, choices, bound = self._advance(at, ahead, state)
            if at == len(self.steps):
                return True
            if len(ahead) > MOST_AHEAD:
                return None
            if (key := (at, ahead, used, state)) in seen:
                continue
            options = [
                (number, after)
                for number, step in enumerate(self.optional)
                if number not in used and step.start <= bound and (after := self.after(step, state)) is not None
            ]
            if options or len(choices) > 1:
                seen.add(key)
                if len(seen) > MOST_STATES:
                    return None
            stack += [(at, ahead, used | {number}, after) for number, after in options]
            choices.sort(key=lambda choice: self.steps[choice[0]].end, reverse=True)
            stack += [(at, ahead | {index}, used, after) for index, after in choices]
        return False

    def _advance(
        self, at: int, ahead: frozenset[int], state: _State
    ) -> tuple[int, frozenset[int], list[tuple[int, _State]], float]:
        """Lets all steps take effect that change nothing; returns the next choices and the time of the next end."""
        while True:
            while at in ahead:
                ahead -= {at}
                at += 1
            bound, choices = inf, list[tuple[int, _State]]()
            for index in range(at, len(self.steps)) if len(ahead) <= MOST_AHEAD else ():
                step = self.steps[index]
                if step.start > bound:
                    return at, ahead, choices, bound
                if index in ahead:
                    continue
                bound = min(bound, step.end)
                after = self.after(step, state)
                if after == state and step.writes is None:
                    ahead |= {index}
                    break
                if after is not None:
                    choices.append((index, after))
            else:
                return at, ahead, choices, bound


def is_linearizable(steps: Sequence[Step], initial: Any, *, versions: bool, others: bool = False) -> bool | None:
    """Returns whether the steps have an order that explains them; None if the search was cut off.

    initial: the first content. versions: whether tokens are versions, which only grow. others: whether other clients
    that were not recorded write, too.
    """
    return _Search(steps, versions=versions, others=others).run(initial)
