"""The state of a reader group of Java clients: what such a client wrote and made, each rule, hostile bytes."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.reader_groups import (
    AcquireSegment,
    AddReader,
    CheckpointReader,
    CreateCheckpoint,
    GroupConfig,
    GroupState,
    InitialState,
    ReleaseSegment,
    RemoveReader,
    SegmentCompleted,
    Update,
    UpdateDistance,
)
from segstore.wire.revisioned import encode_initial
from tests.looped import looped
from tests.wire.reader_groups.java import java_events, java_updates

ZERO, ONE, TWO, NEXT = (f"scope/stream/{each}" for each in ("0.#epoch.0", "1.#epoch.0", "2.#epoch.0", "3.#epoch.1"))


def facts(state: GroupState) -> dict[str, Any]:
    return {name: value for name, value in vars(state).items() if not name.startswith("_")}


def group(*updates: Update) -> GroupState:
    """A group of two segments and the reader "r", after some updates."""
    state = GroupState()
    for update in (InitialState(GroupConfig({"scope/stream": {}}), {ZERO: 0, ONE: 5}, {}), AddReader("r"), *updates):
        state.apply(update)
    return state


def test_what_a_java_client_wrote_is_replayed() -> None:
    state = GroupState()
    created, added, acquired, removed = java_events()
    state.apply_record(created)
    assert (list(state.config.starts), state.readers, state.unassigned) == (["scope/stream"], {}, {ZERO: 0, ONE: 0})
    state.apply_record(added)
    assert state.reported() == {"reader": {}}
    state.apply_record(acquired)
    assert (state.reported(), state.unassigned) == ({"reader": {ZERO: 0, ONE: 0}}, {})
    state.apply_record(removed)
    assert (state.reported(), state.unassigned) == ({}, {ZERO: 68, ONE: 98})


def test_after_each_update_the_state_is_that_of_a_java_client() -> None:
    state = GroupState()
    for name, update, after in java_updates():
        state.apply_bytes(update)
        theirs, ours = GroupState(), GroupState()
        theirs.apply_bytes(after)
        ours.apply_bytes(state.encode())
        assert facts(state) == facts(theirs) == facts(ours) == facts(state.copy()), name


def test_a_whole_state_replaces_all_before_it() -> None:
    *_, (_, _, last) = java_updates()
    state = group()
    state.apply_record(encode_initial(last))
    assert (state.readers, state.unassigned) == ({}, {"scope/stream/9.#epoch.2": 0})


def test_a_copy_is_independent() -> None:
    state = group(AcquireSegment("r", ZERO), CreateCheckpoint("c"))
    before = facts(state.copy())
    copy = state.copy()
    for update in (
        SegmentCompleted("r", ZERO, {NEXT: [0, 1]}, {NEXT: (0.0, 0.5)}),
        CheckpointReader("c", "r", {}),
        RemoveReader("r", {}),
    ):
        copy.apply(update)
    assert facts(state) == before != facts(copy)


def test_a_segment_is_unassigned_once_all_its_predecessors_are_read() -> None:
    state = group(AcquireSegment("r", ZERO), AcquireSegment("r", ONE))
    state.apply(SegmentCompleted("r", ZERO, {NEXT: [0, 1], TWO: [0]}))
    assert (state.future, state.unassigned) == ({NEXT: {1}}, {TWO: 0})
    state.apply(SegmentCompleted("r", ONE, {NEXT: [0, 1]}))
    assert (state.future, state.unassigned, state.readers) == ({}, {TWO: 0, NEXT: 0}, {"r": {}})


def test_positions_are_those_that_readers_report_and_only_of_segments_that_are_left() -> None:
    state = group(AcquireSegment("r", ZERO))
    state.apply(UpdateDistance("r", 1, {ZERO: 40, NEXT: 9}))
    assert state.reported() == {"r": {ZERO: 40}}
    state.apply(ReleaseSegment("r", ZERO, 44))
    assert (state.unassigned, state.read) == ({ONE: 5, ZERO: 44}, {ZERO: 44, ONE: 5})


@looped(
    ("update", "why"),
    [
        (AddReader("r"), "the reader 'r' is online already"),
        (AcquireSegment("r", NEXT), "cannot acquire"),
        (AcquireSegment("s", ZERO), "cannot acquire"),
        (ReleaseSegment("r", ZERO, 1), "has no segment"),
        (SegmentCompleted("s", ZERO, {}), "has no segment"),
        (CheckpointReader("c", "s", {}), "of a checkpoint is not online"),
    ],
)
def test_updates_that_contradict_the_state_are_refused(update: Update, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        group().apply(update)


def test_a_reader_takes_a_checkpoint_once() -> None:
    state = group(AddReader("s"), CreateCheckpoint("c"), CheckpointReader("c", "r", {}))
    with pytest.raises(ValueError, match="the reader 'r' has taken the checkpoint 'c' already"):
        state.apply(CheckpointReader("c", "r", {}))


def test_checkpoints_are_bounded_and_need_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.wire.reader_groups.state._MOST_CHECKPOINTED", 9)
    state = group(*[CreateCheckpoint(f"c{number}") for number in range(4)])
    with pytest.raises(ValueError, match="4 checkpoints are too many"):
        state.apply(CreateCheckpoint("d"))
    without = GroupState(keeps_checkpoints=False)
    without.apply_bytes(state.encode())
    without.apply(CreateCheckpoint("d"))
    assert without.checkpoints.names == []


def test_a_group_that_was_never_written_has_no_state() -> None:
    with pytest.raises(ValueError, match="has no state"):
        GroupState().encode()


@given(st.data())
def test_damaged_events_are_refused_or_replayed(data: st.DataObject) -> None:
    state = GroupState()
    *_, (_, _, whole) = java_updates()[:20]
    for event in (*java_events(), encode_initial(whole)):
        damaged = bytearray(event)
        for _ in range(data.draw(st.integers(0, 2))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(damaged)))
        with suppress(ValueError):
            state.apply_record(bytes(damaged[:cut]))
            assert set(state.reported()) == set(state.readers)
