"""The search finds an order exactly when trying all orders does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, permutations
from math import inf
from typing import Any

from segstore.wire.history.linearizable import ABSENT, OTHER, UNKNOWN, Step, is_linearizable


def explains(order: Sequence[Step], content: Any, foreign: set[Any], *, versions: bool, others: bool) -> bool:
    """Whether a register does what the steps say, one after the other."""
    highest = -1
    for step in order:
        if step.needs is not None and step.needs != content:
            first = step.needs is ABSENT and (content is UNKNOWN or others)
            first = first or (content is UNKNOWN and not versions)
            if not first and (step.needs not in foreign or (versions and step.needs <= highest)):
                return False
            content = step.needs
            highest = content if versions and content is not ABSENT else highest
        if step.rejects is not None and step.rejects == content and not others:
            return False
        if step.writes is not None:
            content = step.writes
            if versions and content is not ABSENT and content is not OTHER:
                if content <= highest:
                    return False
                highest = content
    return True


def by_trying_all(steps: list[Step], initial: Any, **kinds: bool) -> bool:
    certain = [step for step in steps if step.end < inf]
    optional = [step for step in steps if step.end == inf]
    foreign = {step.needs for step in steps} - {None, ABSENT}
    if kinds["versions"] or not kinds["others"]:
        foreign -= {step.writes for step in steps}
    return any(
        all(later.end >= earlier.start for at, earlier in enumerate(order) for later in order[at:])
        and explains(order, initial, foreign, **kinds)
        for count in range(len(optional) + 1)
        for chosen in combinations(optional, count)
        for order in permutations([*certain, *chosen])
    )


def history(chance: random.Random, *, versions: bool) -> list[Step]:
    steps = []
    for number in range(chance.randrange(1, 6)):
        start = chance.randrange(12)
        end: float = start + chance.randrange(6)
        token = chance.choice((1, 2, 3, ABSENT))
        kind = chance.randrange(6)
        if kind < 2:
            steps.append(Step(start, end, needs=token))
        elif kind == 2:
            steps.append(Step(start, end, rejects=token))
        else:
            end = inf if chance.random() < 0.3 else end
            written = chance.choice((number + 1 if versions else token, ABSENT))
            written = OTHER if versions and end == inf and written is not ABSENT else written
            steps.append(Step(start, end, needs=chance.choice((None, None, token)), writes=written))
    return steps


def test_the_search_agrees_with_trying_all_orders() -> None:
    chance = random.Random(7)
    verdicts: dict[tuple[bool, bool], int] = {}
    for number in range(3000):
        versions, kinds = number % 2 == 0, {"versions": number % 2 == 0, "others": number % 8 > 5}
        steps, initial = history(chance, versions=versions), chance.choice((UNKNOWN, ABSENT))
        expected = by_trying_all(steps, initial, **kinds)
        assert is_linearizable(steps, initial, **kinds) is expected, (steps, initial)
        verdicts[versions, expected] = verdicts.get((versions, expected), 0) + 1
    assert min(verdicts.values()) > 200, verdicts


def test_long_histories_of_versions_need_no_search() -> None:
    steps = [Step(10 * at, 10 * at + 25, needs=None, writes=at) for at in range(5000)]
    steps += [Step(10 * at + 26, 10 * at + 60, rejects=at) for at in range(5000)]
    steps += [Step(7 * at, inf, writes=OTHER) for at in range(20)]
    assert is_linearizable(steps, UNKNOWN, versions=True)


def test_a_step_that_waits_for_too_many_others_cuts_the_search_off() -> None:
    steps = [Step(0, 10**6, needs=5000), *(Step(10 * at, 10 * at + 1, writes=at) for at in range(1, 5001))]
    assert is_linearizable(steps, UNKNOWN, versions=True) is None
