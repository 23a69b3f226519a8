"""The state of a reader group in a table: entries that are read, refused and written, and each rule for them."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.wire.reader_groups import (
    AcquireSegment,
    AddReader,
    CheckpointReader,
    GroupConfig,
    InitialState,
    ReleaseSegment,
    RemoveReader,
    SegmentCompleted,
    StoredGroup,
    Update,
    UpdateDistance,
)
from segstore.wire.reader_groups.stored import ASSIGNED, CONFIG, DISTANCE, FUTURE, ONLY, UNASSIGNED
from segstore.wire.reader_groups.table import (
    TOMBSTONE,
    cbor_encode,
    encode_config,
    encode_offset,
    encode_offsets,
    encode_predecessors,
    encode_value,
)
from tests.looped import looped

SEGMENT = "s/x/0.#epoch.0"
GONE = encode_value(TOMBSTONE, cbor_encode({}))
ONE, TWO, NEXT, OTHER = "s/x/0.#epoch.0", "s/x/1.#epoch.0", "s/x/2.#epoch.1", "s/y/2.#epoch.1"
CREATED = InitialState(GroupConfig({"s/x": {}, "s/y": {}}, checkpoint_ms=-1), {ONE: 0, TWO: 5}, {})


def facts(group: StoredGroup) -> dict[str, Any]:
    return {name: value for name, value in vars(group).items() if not name.startswith("_")}


def written(group: StoredGroup, *updates: Update) -> tuple[StoredGroup, list[tuple[str, str, bool]]]:
    """The group as another client reads it after updates, and the entries: map, key, and whether it is written."""
    draft, other = group.copy(), group.copy()
    for update in updates:
        draft.apply(update)
    entries = group.changes_to(draft)
    for entry in entries:
        other.take(*entry)
    for name in ("config", "readers", "unassigned", "future"):
        assert getattr(other, name) == getattr(draft, name), name
    return other, [(outer, inner, value != GONE) for outer, inner, value in entries]


def test_entries_of_each_map_are_taken_and_tombstones_and_removals_forgotten() -> None:
    group = StoredGroup()
    group.take(CONFIG, ONLY, encode_value("config", encode_config(GroupConfig({"s/x": {}}))))
    group.take(ASSIGNED, "one", encode_value("offsets", encode_offsets({SEGMENT: 7})))
    group.take(UNASSIGNED, "s/x/1.#epoch.0", encode_value("offset", encode_offset(9)))
    group.take(FUTURE, "s/x/2.#epoch.1", encode_value("set", encode_predecessors([0, 1])))
    group.take("a map of later clients", "key", encode_value("other", b"\0"))
    assert group.config == GroupConfig({"s/x": {}}, checkpoint_ms=-1)
    assert group.readers == {"one": {SEGMENT: 7}}
    assert group.unassigned == {"s/x/1.#epoch.0": 9}
    assert group.future == {"s/x/2.#epoch.1": {0, 1}}
    group.take(ASSIGNED, "one", GONE)
    group.take(UNASSIGNED, "s/x/1.#epoch.0", None)
    group.take(FUTURE, "s/x/2.#epoch.1", GONE)
    group.take(CONFIG, ONLY, GONE)
    assert facts(group) == facts(StoredGroup())


@looped(
    ("outer", "inner", "value", "why"),
    [
        (UNASSIGNED, "no segment", encode_value("offset", encode_offset(0)), "not a stream segment"),
        (UNASSIGNED, SEGMENT, encode_value("offset", cbor_encode({"read": -1})), "not an offset"),
        (ASSIGNED, "one", b"\xff", "no supported type"),
        (FUTURE, SEGMENT, encode_value("set", cbor_encode("text")), "not a list of segments"),
    ],
)
def test_malformed_entries_are_refused(outer: str, inner: str, value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StoredGroup().take(outer, inner, value)


def test_each_update_writes_the_entries_that_it_changes_those_that_are_gone_last() -> None:
    group, entries = written(StoredGroup(), CREATED)
    assert entries == [(CONFIG, ONLY, True), (UNASSIGNED, ONE, True), (UNASSIGNED, TWO, True)]
    group, entries = written(group, AddReader("r"), AcquireSegment("r", ONE))
    assert entries == [(ASSIGNED, "r", True), (DISTANCE, "r", True), (UNASSIGNED, ONE, False)]
    group, entries = written(group, CheckpointReader("c", "r", {ONE: 7}), UpdateDistance("r", 1, {ONE: 9}))
    assert (entries, group.readers) == ([(ASSIGNED, "r", True)], {"r": {ONE: 7}})
    group, entries = written(group, ReleaseSegment("r", ONE, 8))
    assert entries == [(ASSIGNED, "r", True), (UNASSIGNED, ONE, True)]
    assert (group.readers, group.unassigned) == ({"r": {}}, {ONE: 8, TWO: 5})
    group, entries = written(group, AcquireSegment("r", TWO), RemoveReader("r", {TWO: 6}))
    assert entries == [(UNASSIGNED, TWO, True), (ASSIGNED, "r", False), (DISTANCE, "r", False)]
    assert group.changes_to(group.copy()) == []


def test_a_successor_waits_for_its_predecessors_and_for_none_of_another_stream() -> None:
    group, _ = written(StoredGroup(), CREATED, AddReader("r"), AcquireSegment("r", ONE), AcquireSegment("r", TWO))
    group.take(FUTURE, OTHER, encode_value("set", encode_predecessors([0])))
    group, entries = written(group, SegmentCompleted("r", ONE, {NEXT: [0, 1]}))
    assert entries == [(ASSIGNED, "r", True), (FUTURE, NEXT, True)]
    assert group.future == {OTHER: {0}, NEXT: {1}}
    group, entries = written(group, SegmentCompleted("r", TWO, {NEXT: [0, 1]}))
    assert entries == [(ASSIGNED, "r", True), (UNASSIGNED, NEXT, True), (FUTURE, NEXT, False)]
    assert (group.unassigned, group.future) == ({NEXT: 0}, {OTHER: {0}})
