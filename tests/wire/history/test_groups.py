from __future__ import annotations

import pytest

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
