"""What a reader group agrees on, without a server: who has what, and that nothing is lost or twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.errors import ConditionFailed, ReaderExists, ReaderOffline
from segstore.client.groups.state import GroupState, Share
from segstore.wire.reader_groups import TOMBSTONE, GroupConfig, decode_value

CONFIG = GroupConfig({("a", "s"): "head"})


def segment(number: int, epoch: int = 0) -> str:
    return f"a/s/{number}.#epoch.{epoch}"


def group(unassigned: int, **readers: int) -> GroupState:
    """A group with so many segments with nobody and with each reader."""
    state = GroupState("a/g")
    count = unassigned + sum(readers.values())
    state.create(CONFIG, {segment(number): 10 * number for number in range(count)})
    for reader, segments in readers.items():
        state.join(reader)
        state.acquire(reader, segments)
    return state


def written(state: GroupState, tables: dict[tuple[str, str], bytes]) -> GroupState:
    """Another's view of it, from the entries."""
    tables.update({(outer, inner): value for outer, inner, value in state.changes()})
    seen = GroupState("a/g")
    for (outer, inner), value in tables.items():
        seen.take(outer, inner, value)
    return seen


def test_a_group_is_made_once() -> None:
    state = GroupState("a/g")
    assert state.create(CONFIG, {segment(0): 5})
    assert not state.create(GroupConfig({("a", "other"): "tail"}), {segment(1): 5})
    assert state.config == CONFIG
    assert state.unassigned == {segment(0): 5}


def test_who_is_offline_changes_nothing_and_is_named() -> None:
    state = group(2, first=1)
    with pytest.raises(ReaderExists, match="first of a/g is already online"):
        state.join("first")
    for change in (
        lambda: state.acquire("late", 1),
        lambda: state.release("late", {}),
        lambda: state.record("late", {}),
        lambda: state.end("late", segment(0), []),
        lambda: state.quit("late", {}),
        lambda: state.share("late"),
    ):
        with pytest.raises(ReaderOffline) as caught:
            change()
        assert caught.value.details["reader"] == "late"


def test_who_goes_offline_leaves_its_segments_where_it_was() -> None:
    state = group(0, first=2)
    state.record("first", {segment(0): 7, segment(9): 7})
    state.quit("first", {segment(1): 99, segment(9): 3})
    assert state.unassigned == {segment(0): 7, segment(1): 99}
    assert state.readers == {}


def test_a_successor_starts_when_all_its_predecessors_have_ended() -> None:
    state = group(0, first=1, second=1)
    merged = [(segment(2, 1), [0, 1])]
    state.end("first", segment(0), merged)
    assert state.future == {segment(2, 1): {1}}
    assert state.unassigned == {}
    state.end("first", segment(0), merged)
    state.end("second", segment(1), merged)
    assert state.future == {}
    assert state.unassigned == {segment(2, 1): 0}
    assert not state.over
    state.acquire("first", 1)
    state.end("first", segment(2, 1), [])
    assert state.over


def test_segments_of_another_stream_are_no_predecessors() -> None:
    state = GroupState("a/g")
    state.create(CONFIG, {segment(0): 0, segment(1): 0, "a/t/1.#epoch.0": 0})
    state.join("first")
    state.acquire("first", 3)
    state.end("first", segment(0), [(segment(2, 1), [0, 1])])
    state.end("first", "a/t/1.#epoch.0", [])
    assert state.future == {segment(2, 1): {1}}


@pytest.mark.parametrize(
    ("unassigned", "mine", "others", "share"),
    [
        (4, 0, [], (4, 0)),
        (4, 0, [0], (2, 0)),
        (3, 0, [2], (3, 0)),
        (1, 2, [2], (1, 0)),
        (1, 2, [1], (0, 0)),
        (0, 4, [0], (0, 2)),
        (0, 4, [0, 0], (0, 2)),
        (0, 2, [2, 0], (0, 1)),
        (1, 2, [0], (0, 0)),
        (2, 4, [0], (0, 1)),
        (0, 1, [0], (0, 0)),
        (0, 0, [5], (0, 0)),
    ],
)
def test_a_share_keeps_readers_within_one_segment(
    unassigned: int, mine: int, others: list[int], share: tuple[int, int]
) -> None:
    state = group(unassigned, me=mine, **{f"other-{number}": each for number, each in enumerate(others)})
    assert state.share("me") == Share(*share)


@given(st.integers(0, 12), st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_readers_that_follow_their_shares_come_to_rest_in_balance(unassigned: int, counts: list[int]) -> None:
    state = group(unassigned, **{f"r{number}": each for number, each in enumerate(counts)})
    everything = state.positions()
    for _ in range(40):
        moved = False
        for reader in list(state.readers):
            share = state.share(reader)
            state.acquire(reader, share.acquire)
            state.release(reader, dict(list(state.readers[reader].items())[: share.release]))
            moved = moved or any(share)
        if not moved:
            break
    sizes = [len(segments) for segments in state.readers.values()]
    assert not moved
    assert state.unassigned == {}
    assert max(sizes) - min(sizes) <= 1
    assert state.positions() == everything


def test_what_is_written_is_what_others_see() -> None:
    tables: dict[tuple[str, str], bytes] = {}
    state = group(3, first=2)
    assert vars_of(written(state, tables)) == vars_of(state)
    steps: list[Callable[[GroupState], object]] = [
        lambda draft: draft.end("first", segment(0), [(segment(7, 1), [0, 1])]),
        lambda draft: draft.acquire("first", 1),
        lambda draft: draft.record("first", {segment(1): 12}),
        lambda draft: draft.end("first", segment(1), [(segment(7, 1), [0, 1])]),
        lambda draft: draft.release("first", {segment(2): 33}),
        lambda draft: draft.quit("first", {}),
    ]
    for step in steps:
        draft = state.copy()
        step(draft)
        state = draft
        assert vars_of(written(state, tables)) == vars_of(state)
    assert state.copy().changes() == []
    gone = {key for key, value in tables.items() if decode_value(value)[0] == TOMBSTONE}
    assert ("assigned_segments", "first") in gone
    assert ("future_segments", segment(7, 1)) in gone


def vars_of(state: GroupState) -> tuple[object, Mapping[str, object], Mapping[str, int], Mapping[str, set[int]]]:
    return state.config, state.readers, state.unassigned, state.future


def test_a_change_of_a_copy_leaves_the_state() -> None:
    state = group(1, first=1).copy()
    before = vars_of(state.copy())
    draft = state.copy()
    draft.quit("first", {})
    assert vars_of(state) == before
    assert state.changes() == []


def test_entries_that_are_not_known_are_left_be() -> None:
    state = group(1)
    before = vars_of(state.copy())
    state.take("something", "else", None)
    assert vars_of(state) == before


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_complete_when_each_reader_has_taken_it() -> None:
    state = group(1, one=1, two=1)
    state.begin_checkpoint("c")
    assert state.awaited("one") == state.awaited("two") == ["c"]
    with pytest.raises(ConditionFailed, match="a checkpoint c of a/g is in progress"):
        state.begin_checkpoint("c")
    state.take_checkpoint("c", "one", {segment(0): 7})
    state.take_checkpoint("c", "one", {segment(0): 8})  # has taken it already
    seen = written(state, {})
    assert seen.checkpoints == {"c": (frozenset({"two"}), {segment(0): 7, segment(2): 20})}
    state.take_checkpoint("c", "two", {segment(1): 12})
    assert state.awaited("two") == []
    assert state.end_checkpoint("c") == (frozenset(), {segment(0): 7, segment(1): 12, segment(2): 20})
    assert state.end_checkpoint("c") is None
    assert written(state, {}).checkpoints == {}


def test_a_reader_that_a_checkpoint_waits_for_gets_no_segments_and_what_it_gives_up_is_recorded() -> None:
    state = group(0, one=3)
    state.join("late")
    state.begin_checkpoint("c")
    state.record("one", {segment(0): 5})
    state.release("one", {segment(1): 15})
    state.end("one", segment(0), [(segment(7, 1), [0])])
    assert state.acquire("one", 9) == {}
    state.take_checkpoint("c", "late", {})
    assert state.acquire("late", 9) == {segment(1): 15, segment(7, 1): 0}
    state.quit("one", {segment(2): 25})
    assert state.checkpoints["c"] == (frozenset(), {segment(0): 5, segment(1): 15, segment(2): 25})


def test_a_checkpoint_of_a_group_that_is_over_waits_for_no_reader() -> None:
    state = group(0, one=1)
    state.end("one", segment(0), [])
    state.begin_checkpoint("c")
    assert state.checkpoints["c"] == (frozenset(), {})
    state.begin_checkpoint("c")  # that one is complete
