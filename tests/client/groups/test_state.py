"""Changes that a reader group agrees on, without a server: who has what, and that nothing is lost or twice."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.controller import Successor, name_of
from segstore.client.errors import ConditionFailed, ReaderExists, ReaderOffline
from segstore.client.groups.state import Draft, Share, is_over, recorded, share
from segstore.client.routing import SegmentRange
from segstore.wire.reader_groups import (
    SILENT,
    CheckpointReader,
    GroupConfig,
    GroupState,
    InitialState,
    Update,
    UpdateDistance,
    encode_update,
)
from tests.looped import looped
from tests.wire.reader_groups.test_state import facts

CONFIG = GroupConfig({"a/s": {}})


def segment(number: int, epoch: int = 0) -> str:
    return f"a/s/{number}.#epoch.{epoch}"


def successor(number: int, epoch: int, before: list[int]) -> Successor:
    identifier = (epoch << 32) + number
    return Successor(SegmentRange(identifier, name_of("a", "s", identifier), 0.0, 0.5), tuple(before))


def draft(state: GroupState) -> Draft:
    return Draft("a/g", state)


def group(unassigned: int, **readers: int) -> Draft:
    """A group with so many segments with no reader and with each reader, whose state is a draft's."""
    state = GroupState()
    count = unassigned + sum(readers.values())
    state.apply(InitialState(CONFIG, {segment(number): 10 * number for number in range(count)}, {}))
    made = draft(state)
    for reader, segments in readers.items():
        made.join(reader)
        made.acquire(reader, segments)
    return made


def test_an_offline_reader_changes_nothing_and_is_named() -> None:
    made = group(2, first=1)
    with pytest.raises(ReaderExists, match="first of a/g is already online"):
        made.join("first")
    before = list(made.updates)
    for change in (
        lambda: made.acquire("late", 1),
        lambda: made.release("late", {}),
        lambda: made.record("late", {}),
        lambda: made.report("late", 0),
        lambda: made.end("late", segment(0), []),
        lambda: made.quit("late", {}),
    ):
        with pytest.raises(ReaderOffline, match="late of a/g is not online") as caught:
            change()
        assert caught.value.details["reader"] == "late"
    assert made.updates == before


def test_a_reader_that_goes_offline_leaves_its_segments_where_it_was() -> None:
    made = group(0, first=2)
    made.record("first", {segment(0): 7, segment(9): 7})
    made.quit("first", {segment(1): 99, segment(9): 3})
    assert made.state.unassigned == {segment(0): 7, segment(1): 99}
    assert made.state.readers == {}


def test_recorded_positions_are_those_of_no_checkpoint() -> None:
    made = group(0, first=2)
    made.begin_checkpoint("recorded")
    made.updates.clear()
    made.record("first", {segment(0): 7})
    assert made.updates == [CheckpointReader("recorded'", "first", {segment(0): 7, segment(1): 10})]
    assert made.awaited("first") == ["recorded"]
    made.record("first", {segment(0): 7})
    assert len(made.updates) == 1
    assert recorded(made.state) == {segment(0): 7, segment(1): 10}


def test_readers_in_java_are_shown_positions_and_lag_with_each_change() -> None:
    made = group(0, first=1)
    made.updates.clear()
    made.report("first", 5)
    assert made.updates == []
    made.record("first", {segment(0): 7})
    made.report("first", 50_000)
    assert made.updates[1:] == [UpdateDistance("first", 50_000, {segment(0): 7}, {segment(0): None})]
    assert (made.state.distances, made.state.read) == ({"first": 50_000}, {segment(0): 7})


def test_a_successor_starts_when_all_its_predecessors_have_ended() -> None:
    made = group(0, first=1, second=1)
    merged = [successor(2, 1, [0, 1])]
    made.end("first", segment(0), merged)
    assert (made.state.future, made.state.unassigned) == ({segment(2, 1): {1}}, {})
    made.end("first", segment(0), merged)
    made.end("second", segment(1), merged)
    assert (made.state.future, made.state.unassigned) == ({}, {segment(2, 1): 0})
    assert made.state.ranges == {segment(2, 1): (0.0, 0.5)}
    assert not is_over(made.state, "first")
    made.acquire("first", 1)
    made.end("first", segment(2, 1), [])
    assert is_over(made.state, "first")


def test_a_segment_that_another_reader_has_read_to_the_end_of_the_group_is_read() -> None:
    made = group(0, first=0, second=1)
    (name,) = made.state.readers["second"]
    made.state.ends = {name: 7}
    made.record("second", {name: 6})
    assert not is_over(made.state, "first")
    made.record("second", {name: 7})
    assert is_over(made.state, "first")
    assert not is_over(made.state, "second"), "which completes it"


@looped(
    ("unassigned", "mine", "others", "expected"),
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
    unassigned: int, mine: int, others: list[int], expected: tuple[int, int]
) -> None:
    made = group(unassigned, me=mine, **{f"other-{number}": each for number, each in enumerate(others)})
    assert share(made.state, "me") == Share(*expected)


@given(st.integers(0, 12), st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_readers_that_follow_their_shares_come_to_rest_in_balance(unassigned: int, counts: list[int]) -> None:
    made = group(unassigned, **{f"r{number}": each for number, each in enumerate(counts)})
    everything = recorded(made.state)
    for _ in range(40):
        moved = False
        for reader in list(made.state.readers):
            wanted = share(made.state, reader)
            made.acquire(reader, wanted.acquire)
            made.release(reader, dict(list(made.state.readers[reader].items())[: wanted.release]))
            moved = moved or any(wanted)
        if not moved:
            break
    sizes = [len(segments) for segments in made.state.readers.values()]
    assert not moved
    assert made.state.unassigned == {}
    assert max(sizes) - min(sizes) <= 1
    assert recorded(made.state) == everything


def test_what_is_written_is_what_others_see() -> None:
    made = group(3, first=2)
    begun = InitialState(CONFIG, {segment(number): 10 * number for number in range(5)}, {})
    made.record("first", {segment(1): 12})
    made.end("first", segment(0), [successor(7, 1, [0, 1])])
    made.acquire("first", 1)
    made.end("first", segment(1), [successor(7, 1, [0, 1])])
    made.release("first", {segment(2): 33})
    made.begin_checkpoint("c")
    made.quit("first", {})
    seen = GroupState()
    updates: list[Update] = [begun, *made.updates]
    for update in updates:
        seen.apply_bytes(encode_update(update))
    assert facts(seen) == facts(made.state)


def test_a_checkpoint_is_complete_when_each_reader_has_taken_it() -> None:
    made = group(1, one=1, two=1)
    made.begin_checkpoint("c")
    assert made.awaited("one") == made.awaited("two") == ["c"]
    with pytest.raises(ConditionFailed, match="a checkpoint c of a/g is in progress"):
        made.begin_checkpoint("c")
    made.take_checkpoint("c", "one", {segment(0): 7})
    made.take_checkpoint("c", "one", {segment(0): 8})  # has taken it already
    checkpoints = made.state.checkpoints
    assert (checkpoints.waiting, checkpoints.complete("c")) == ({"c": ["two"]}, None)
    made.take_checkpoint("c", "two", {segment(1): 12, segment(9): 1})
    positions = {segment(0): 7, segment(1): 12, segment(2): 20}
    assert checkpoints.complete("c") == checkpoints.last == positions
    with pytest.raises(ConditionFailed, match="a checkpoint c of a/g was taken before"):
        made.begin_checkpoint("c")
    made.end_checkpoint("c")
    assert checkpoints.names == ["c"]
    made.begin_checkpoint("d")
    made.quit("one", {})
    made.quit("two", {})
    made.end_checkpoint("d")
    assert checkpoints.names == ["d"]


def test_no_more_checkpoints_are_in_progress_than_configured_silent_ones_apart() -> None:
    made = group(0, one=1)
    for name in ("c1", f"x{SILENT}", "c2", "c3"):
        made.begin_checkpoint(name)
    with pytest.raises(ConditionFailed, match="the checkpoints c1, c2, c3 of a/g are in progress"):
        made.begin_checkpoint("c4")
    assert made.awaited("one") == ["c1", f"x{SILENT}", "c2", "c3"]


def test_a_checkpoint_is_cancelled_unless_others_would_be_too() -> None:
    made = group(0, one=1)
    made.begin_checkpoint("c")
    made.begin_checkpoint("d")
    made.cancel_checkpoint("c")
    assert made.awaited("one") == ["c", "d"]
    made.take_checkpoint("c", "one", {})
    made.cancel_checkpoint("d")
    assert made.awaited("one") == []


def test_an_automatic_checkpoint_begins_when_none_is_in_progress_and_replaces_those_before() -> None:
    made = group(0, one=1)
    made.begin_automatic_checkpoint(UUID(int=1))
    made.begin_automatic_checkpoint(UUID(int=2))
    assert made.awaited("one") == [str(UUID(int=1))]
    made.take_checkpoint(str(UUID(int=1)), "one", {})
    made.begin_automatic_checkpoint(UUID(int=2))
    assert made.state.checkpoints.names == made.awaited("one") == [str(UUID(int=2))]


def test_a_reader_that_a_checkpoint_waits_for_gets_no_segments() -> None:
    made = group(1, one=2)
    made.begin_checkpoint("c")
    made.acquire("one", 9)
    assert made.state.unassigned == {segment(2): 20}
    made.quit("one", {segment(1): 25})
    assert made.state.checkpoints.complete("c") == {segment(0): 0, segment(1): 25, segment(2): 20}
