from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from segstore.wire.history import Broken, Fact, Key, Place
from segstore.wire.history.facts import GroupUpdate, Passed, TableUpdate
from segstore.wire.history.positions import ELSEWHERE, RECREATED, UNRECORDED, PositionsFold
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
    values = [
        GroupUpdate("s/_RGg/0.#epoch.0", order, order + 1, (update,))
        for order, update in zip(orders or range(len(updates)), updates, strict=True)
    ]
    return judged(values, reads)


def judged(updates: Sequence[GroupUpdate | TableUpdate], reads: Sequence[tuple[int, ...]]) -> Counter[str]:
    fold, counted = PositionsFold(Key("positions", "s")), Counter[str]()
    for place, (begin, end, *connection) in enumerate(reads):
        list(fold.see(Fact(fold.key, Place("", 0, place, *(connection or [1]), 0), Passed(S, begin, end))))
    for value in sorted(updates, key=lambda update: -update.order):
        list(fold.see(Fact(fold.key, Place("", 0, value.order, 1, 0), value)))
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
    unknown = {f"poll-skip: {UNRECORDED}": 1, f"held-twice: {UNRECORDED}": 1}
    assert findings([start(), *A, at("a", 30)], GAP, [0, 1, 2, 4]) == unknown
    assert findings([start(), *A, start(), *B], GAP, [0, 1, 2, 4, 5, 6]) == unknown


Entries = tuple[Mapping[str, Mapping[str, int] | None], Mapping[str, int]]


def has(reader: str, offset: int) -> Entries:
    return {reader: {S: offset}}, {}


def gives_up(reader: str, offset: int) -> Entries:
    return {reader: {}}, {S: offset}


def leaves(reader: str, offset: int) -> Entries:
    return {reader: None}, {S: offset}


def table(*updates: Entries, order: int = -1) -> list[TableUpdate]:
    """Returns updates of a table, each of the version before. order: the version that the first update names."""
    return [TableUpdate("s/g_kvtable/0.#epoch.0", at, at + 1, *entries) for at, entries in enumerate(updates, order)]


@pytest.mark.parametrize(
    ("updates", "reads", "rules"),
    [
        (table(has("a", 0), has("a", 30)), GAP, {"poll-skip": 1}),
        (table(has("a", 20), has("a", 30)), GAP, {}),
        (table(has("a", 0), gives_up("a", 30)), GAP, {"poll-skip": 1}),
        (table(has("a", 0), has("a", 30), order=7), GAP, {}),  # the group is older
        (table(has("a", 0), leaves("a", 20), has("b", 20), has("b", 30)), GAP, {}),  # a user has chosen it
        (table(has("a", 0), ({"a": {}}, {}), has("b", 0)), [], {}),
        (table(has("a", 0), has("a", 9), has("a", 8)), [], {"nonmonotonic-poll": 1}),
        (table(has("a", 9), gives_up("a", 8)), [], {"nonmonotonic-poll": 1}),
        (table(has("a", 0), gives_up("a", 9), has("b", 8)), [], {"read-twice": 1}),
        (table(has("a", 9), leaves("a", 5), has("b", 5)), [], {}),
        (table(has("a", 0), has("b", 0)), [], {"held-twice": 1}),
        (table(({"a": {S: 0}, "b": {}}, {}), ({"b": {S: 0}, "a": {}}, {S: 0}), order=7), [], {}),
        (
            table(has("a", 0)) + table(has("b", 0), order=5),
            [],
            dict.fromkeys([f"poll-skip: {UNRECORDED}", f"held-twice: {UNRECORDED}"], 1),
        ),
        (table(has("a", 0)) + table(has("b", 0)), [], {f"poll-skip: {RECREATED}": 1}),
    ],
)
def test_positions_in_a_table(updates: list[TableUpdate], reads: list[tuple[int, ...]], rules: dict[str, int]) -> None:
    assert judged(updates, reads) == rules
