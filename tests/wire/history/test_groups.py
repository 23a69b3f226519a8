from __future__ import annotations

import pytest

from segstore.wire.history import Broken, Fact, Key, Open, Place
from segstore.wire.history.facts import Assignment
from segstore.wire.history.groups import GroupFold
from tests.wire.history.support import broken


def poll(reader: str, offset: int) -> str:
    return f'{reader} poll {{"segment": "s", "group": "g"}} → ok {{"events": [[{offset}, "e{offset}"]]}}\n'


def step(reader: str, what: str) -> str:
    return f'{reader} {what} {{"group": "g", "segment": "s"}}\n'.replace(
        ', "segment": "s"' if what == "leave" else "@", ""
    )


CHECKPOINT = 'm checkpoint {"group": "g", "name": "c", "positions": {"s": 9}}\n'


@pytest.mark.parametrize(
    ("history", "rules"),
    [
        (poll("a", 0) + poll("b", 5), {}),
        (poll("a", 0) + poll("b", 0), {"read-twice": 1}),
        (poll("a", 0) + step("a", "leave") + poll("b", 0), {}),
        (poll("a", 0) + CHECKPOINT + poll("b", 0), {"unread-below-checkpoint": 1}),
        (poll("a", 0) + CHECKPOINT + poll("b", 9), {}),
        (step("a", "acquire") + step("b", "acquire"), {"held-twice": 1}),
        (step("a", "acquire") + step("a", "release") + step("b", "acquire"), {}),
        (step("a", "acquire") + step("a", "leave") + step("b", "acquire"), {}),
        (step("a", "acquire") + step("a", "acquire"), {}),
    ],
)
def test_segments_and_deliveries(history: str, rules: dict[str, int]) -> None:
    assert broken(history) == rules


def test_holders_are_unknown_behind_an_update_that_was_not_recorded() -> None:
    for second, rules, unknown in ((48, ["held-twice"], 0), (60, [], 1)):
        fold = GroupFold(Key("group", "g"))
        steps = [
            *(Assignment("updated", "", order=0, end=48), Assignment("acquired", "a", "s", 0)),
            *(Assignment("updated", "", order=second, end=90), Assignment("acquired", "b", "s", second)),
        ]
        for assignment in steps:
            list(fold.see(Fact(fold.key, Place("", 0, 0, 1, 0), assignment)))
        findings = list(fold.end())
        assert [finding.rule for finding in findings if isinstance(finding, Broken)] == rules
        assert sum(isinstance(finding, Open) for finding in findings) == unknown
