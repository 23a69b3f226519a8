from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from segstore.wire.history import Broken, Fact, Key, Place
from segstore.wire.history.facts import GroupUpdate, Passed
from segstore.wire.history.positions import ELSEWHERE, PositionsFold
from segstore.wire.reader_groups import (
    AcquireSegment,
    AddReader,
    CheckpointReader,
    CreateCheckpoint,
    GroupConfig,
    InitialState,
    ReleaseSegment,
    RemoveReader,
    SegmentCompleted,
    Update,
    UpdateDistance,
)

S = "s/t/0.#epoch.0"


def start(offset: int = 0) -> InitialState:
    return InitialState(GroupConfig({}), {S: offset}, {})


def joined(reader: str) -> list[Update]:
    return [AddReader(reader), AcquireSegment(reader, S)]


def at(reader: str, offset: int) -> UpdateDistance:
    return UpdateDistance(reader, 0, {S: offset})


A, B = joined("a"), joined("b")
CHECKPOINT: list[Update] = [CreateCheckpoint("c"), CheckpointReader("c", "a", {S: 30})]


def findings(updates: Sequence[Update], reads: Sequence[tuple[int, ...]], orders: Sequence[int] = ()) -> Counter[str]:
    """Returns how often each rule is broken, or open, of which the reason is counted.

    reads: start and end of bytes that were read, and the connection if it is not 1. orders: offsets of the updates,
    each of one byte; by default all.
    """
    fold, counted = PositionsFold(Key("positions", "s")), Counter[str]()
    for place, (begin, end, *connection) in enumerate(reads):
        list(fold.see(Fact(fold.key, Place("", 0, place, *(connection or [1]), 0), Passed(S, begin, end))))
    for order, update in sorted(zip(orders or range(len(updates)), updates, strict=True), key=lambda pair: -pair[0]):
        value = GroupUpdate("s/_RGg/0.#epoch.0", order, order + 1, (update,))
        list(fold.see(Fact(fold.key, Place("", 0, order, 1, 0), value)))
    for finding in fold.end():
        counted[finding.rule if isinstance(finding, Broken) else f"{finding.rule}: {finding.why}"] += 1
    return counted


GAP = [(0, 10), (20, 30)]


@pytest.mark.parametrize(
    ("updates", "reads", "rules"),
    [
        ([start(), *A, at("a", 30)], GAP, {"poll-skip": 1}),
        ([start(), *A, at("a", 25), at("a", 30)], GAP, {"poll-skip": 1}),
        ([start(), *A, at("a", 10)], GAP, {}),
        ([start(), *A, at("a", 30)], [(20, 25), (10, 15), (0, 10), (25, 30), (12, 20)], {}),
        ([start(), *A, at("a", 30)], [(20, 30)], {}),  # a store may have no recording
        ([start(), *A, at("a", 30)], [(0, 10)], {}),
        ([start(), *A, at("a", 30)], [*GAP, (5, -1)], {f"poll-skip: {ELSEWHERE}": 1}),
        ([start(), *A, at("a", 30)], [(0, 10), (20, 25, 2), (25, 30)], {f"poll-skip: {ELSEWHERE}": 1}),
        ([start(), *A, at("a", 30)], [(0, 5, 2), (5, 10), (20, 25), (25, 30, 2)], {"poll-skip": 1}),
        ([start(20), *A, at("a", 30)], GAP, {}),
        ([start(), *A, at("b", 30), at("a", -1)], GAP, {}),  # of a reader that has not the segment; of an end
        ([*A, at("a", 30)], GAP, {}),  # the group is older
        ([start(), *A, *CHECKPOINT], GAP, {"unread-below-checkpoint": 1}),
        ([start(), *A, AddReader("b"), *CHECKPOINT], GAP, {}),  # not complete
        ([start(), *A, at("a", 9), at("a", 8)], [], {"nonmonotonic-poll": 1}),
        ([start(), *A, at("a", 9), ReleaseSegment("a", S, 8)], [], {"nonmonotonic-poll": 1}),
        ([start(), *A, at("a", 9), start(), *A, at("a", 8)], [], {}),
        ([start(), *A, ReleaseSegment("a", S, 9), *B, at("b", 9), at("b", 8)], [], {"read-twice": 1}),
        ([start(), *A, at("a", 9), RemoveReader("a", {}), *B, at("b", 8)], [], {}),
        ([start(), *A, at("a", 9), RemoveReader("a", {S: 9}), *B, at("b", 8)], [], {"read-twice": 1}),
        ([start(), *A, RemoveReader("a", {S: 20}), *B, at("b", 30)], GAP, {}),  # a user has chosen it
        ([start(), *A, *B, at("b", 30)], GAP, {"held-twice": 1}),
        ([*A, *B], [], {"held-twice": 1}),
        ([*A, ReleaseSegment("a", S, 9), *B, SegmentCompleted("b", S, {}), *A, RemoveReader("a", {}), *B], [], {}),
        ([*A, start(), *B], [], {}),
    ],
)
def test_positions(updates: list[Update], reads: list[tuple[int, ...]], rules: dict[str, int]) -> None:
    assert findings(updates, reads) == rules


def test_positions_and_holders_are_unknown_behind_an_update_that_was_not_recorded() -> None:
    why = "updates of the group's state are missing in the recording"
    unknown = {f"poll-skip: {why}": 1, f"held-twice: {why}": 1}
    assert findings([start(), *A, at("a", 30)], GAP, [0, 1, 2, 4]) == unknown
    assert findings([start(), *A, start(), *B], GAP, [0, 1, 2, 4, 5, 6]) == unknown
