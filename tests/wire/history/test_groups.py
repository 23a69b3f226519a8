from __future__ import annotations

import pytest

from tests.wire.history.support import broken, judged_lines


def poll(reader: str, offset: int) -> str:
    return f'{reader} poll {{"segment": "s", "group": "g"}} → ok {{"events": [[{offset}, "e{offset}"]]}}\n'


def step(reader: str, what: str, outcome: str = "ok") -> str:
    segment = "" if what == "leave" else ', "segment": "s"'
    return f'{reader} {what} {{"group": "g"{segment}}} → {outcome}\n'


SEND = 'w send {"segment": "s", "event": "e"}\n'
EVENT = '{} poll {{"segment": "s", "group": "g"}} → ok {{"events": ["e"]}}\n'
CHECKPOINT = 'm checkpoint {"group": "g", "name": "c", "positions": {"s": 9}}\n'


@pytest.mark.parametrize(
    ("history", "rules"),
    [
        (poll("a", 0) + poll("b", 5), {}),
        (poll("a", 0) + poll("b", 0), {"read-twice": 1}),
        (poll("a", 0) + step("a", "leave") + poll("b", 0), {}),
        (poll("a", 0) + CHECKPOINT + poll("b", 0), {"unread-below-checkpoint": 1}),
        (poll("a", 0) + CHECKPOINT + poll("b", 9), {}),
        (CHECKPOINT + poll("b", 0).replace('"g"}', '"g", "moved": true}'), {}),
        (poll("a", 0) + poll("b", 0).replace('"g"}', '"g", "moved": true}'), {}),
        (poll("a", 0) + poll("a", 0), {"nonmonotonic-poll": 1}),
        (poll("a", 5) + poll("a", 0).replace('"g"', '"h"'), {}),
        (SEND + EVENT.format("a") + EVENT.format("b"), {"read-twice": 1}),
        (SEND * 2 + EVENT.format("a") + EVENT.format("b"), {}),
        (EVENT.format("a") + EVENT.format("b"), {}),
        (step("a", "acquire") + step("b", "acquire"), {"held-twice": 1}),
        (step("a", "acquire") + step("a", "release") + step("b", "acquire"), {}),
        (step("a", "acquire") + step("a", "leave") + step("b", "acquire"), {}),
        (step("a", "acquire") + 'a leave {"group": "g", "segment": "t"}\n' + step("b", "acquire"), {}),
        (step("a", "acquire") + step("a", "acquire"), {}),
        *((step("a", "acquire") + step("a", what, "info") + step("b", "acquire"), {}) for what in ("release", "leave")),
        (step("a", "acquire") + step("a", "release", "info") + step("a", "acquire") + step("b", "acquire"), {}),
        (step("a", "acquire") + step("a", "release", "fail") + step("b", "acquire"), {"held-twice": 1}),
    ],
)
def test_segments_and_deliveries(history: str, rules: dict[str, int]) -> None:
    assert broken(history) == rules


@pytest.mark.parametrize(("begun", "rules"), [(("release", "acquire"), []), (("acquire", "release"), ["held-twice"])])
def test_a_segment_may_be_released_when_the_operation_begins(begun: tuple[str, str], rules: list[str]) -> None:
    a, b = ({"process": process, "value": {"group": "g", "segment": "s"}} for process in "ab")
    held = [{"type": end, "f": "acquire", **a} for end in ("invoke", "ok")]
    release, acquire = (
        [{"type": end, "f": f, **who} for end in ("invoke", "ok")] for f, who in (("release", a), ("acquire", b))
    )
    steps = [release[0], *acquire, release[1]] if begun[0] == "release" else [*acquire, *release]
    assert [verdict.rule for verdict in judged_lines([*held, *steps]).broken] == rules


def test_a_poll_that_began_before_the_checkpoint_was_complete_may_be_below_it() -> None:
    value = {"process": "a", "f": "poll", "value": {"segment": "s", "group": "g", "events": [[0, "e"]]}}
    checkpoint = {"process": "m", "f": "checkpoint", "value": {"group": "g", "name": "c", "positions": {"s": 9}}}
    lines = [(value, "invoke"), (checkpoint, "invoke"), (checkpoint, "ok"), (value, "ok")]
    assert not judged_lines([{"type": end, **line} for line, end in lines]).broken
