"""PIP-79, how segments are chosen: pure, without a socket."""

from random import Random
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.routing import RangeRouter, SegmentRange
from segstore.client.segment import SegmentWriterStats, WriterStats, add_up
from segstore.client.stream import HashedKey, PartialRoundRobin, RoundRobin, Router, SinglePartition
from segstore.client.stream.routers import Choice
from segstore.wire.hashing import position_of
from segstore.wire.names import writer_id
from tests.looped import looped


def ranges(count: int) -> RangeRouter:
    return RangeRouter([part(number, number / count, (number + 1) / count) for number in range(count)])


def part(number: int, low: float, high: float) -> SegmentRange:
    return SegmentRange(number, f"s/{number}", low, high)


def split(of: RangeRouter, number: int, *new: int) -> None:
    """Seals a segment and gives its range to new ones in equal parts."""
    old = next(segment for segment in of.segments if segment.segment_id == number)
    step = (old.high - old.low) / len(new)
    edges = [old.low + step * at for at in range(len(new))] + [old.high]
    of.replace(number, [part(each, edges[at], edges[at + 1]) for at, each in enumerate(new)])


def taken(choice: Choice, of: RangeRouter, count: int, key: str | None = None) -> list[int]:
    return [of.route(choice.take(of, key)).segment_id for _ in range(count)]


ALL = [HashedKey(), RoundRobin(), PartialRoundRobin(3), SinglePartition()]


@pytest.mark.seed("79.4")
@looped("router", ALL)
@looped("seed", range(5))
def test_what_is_peeked_is_what_the_next_event_gets(router: Router, seed: int) -> None:
    choice, of = router.choice(Random(seed)), ranges(7)
    for _ in range(20):
        peeked = choice.peek(of)
        assert choice.peek(of) == peeked
        assert choice.take(of, None) == peeked


@pytest.mark.seed("79.4")
def test_an_event_with_a_key_does_not_take_what_was_peeked() -> None:
    for router in (HashedKey(), RoundRobin()):
        choice, of = router.choice(Random(1)), ranges(7)
        peeked = choice.peek(of)
        assert choice.take(of, "a key") == position_of("a key")
        assert choice.take(of, None) == peeked


@pytest.mark.seed("79.5")
def test_a_limit_that_is_no_positive_number_of_segments_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one segment, not 0"):
        PartialRoundRobin(0)


@pytest.mark.seed("79.5")
@looped(("limit", "count"), [(3, 10), (3, 3), (3, 2), (1, 5), (100, 4)])
def test_a_subset_of_the_limit_is_used_in_turn(limit: int, count: int) -> None:
    choice, of = PartialRoundRobin(limit).choice(Random(2)), ranges(count)
    used = min(limit, count)
    found = taken(choice, of, used * 3)
    assert len(set(found)) == used
    assert found == found[:used] * 3


@pytest.mark.seed("79.5")
def test_the_subset_is_random_and_keys_do_not_matter() -> None:
    subsets = {frozenset(taken(PartialRoundRobin(3).choice(Random(seed)), ranges(10), 3)) for seed in range(30)}
    assert len(subsets) > 10
    with_keys = taken(PartialRoundRobin(3).choice(Random(4)), ranges(10), 9, key="one key")
    assert with_keys == taken(PartialRoundRobin(3).choice(Random(4)), ranges(10), 9)


@pytest.mark.seed("79.5")
def test_at_its_limit_a_split_segment_is_followed_to_where_its_events_went() -> None:
    choice, of = PartialRoundRobin(2).choice(Random(6)), ranges(4)
    first, second = taken(choice, of, 2)
    position = choice.peek(of)
    assert of.route(position).segment_id == first
    split(of, first, 10, 11)
    assert set(taken(choice, of, 4)) == {of.route(position).segment_id, second}


@pytest.mark.seed("79.5")
def test_members_that_are_merged_make_room_for_another() -> None:
    choice, of = PartialRoundRobin(2).choice(Random(0)), ranges(3)
    old = set(taken(choice, of, 2))
    merged = part(9, 0.0, 1.0)
    for each in old:
        of.replace(each, [merged])
    assert set(taken(choice, of, 4)) == {9, *({0, 1, 2} - old)}


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32), st.lists(st.integers(0, 50), max_size=8))
def test_a_subset_never_exceeds_its_limit_nor_drops_a_member(
    limit: int, count: int, seed: int, splits: list[int]
) -> None:
    choice, of, fresh = PartialRoundRobin(limit).choice(Random(seed)), ranges(count), 1_000
    for each in splits:
        before = set(taken(choice, of, limit))
        victim = of.segments[each % len(of.segments)].segment_id
        split(of, victim, fresh, fresh + 1)
        fresh += 2
        after = set(taken(choice, of, limit))
        assert len(after) == min(limit, len(of.segments))
        assert before - {victim} <= after


@pytest.mark.seed("79.6")
def test_a_single_partition_is_one_for_all_events() -> None:
    for seed in range(10):
        choice, of = SinglePartition().choice(Random(seed)), ranges(6)
        assert len({*taken(choice, of, 9), *taken(choice, of, 3, "a"), *taken(choice, of, 3, "b")}) == 1
    assert len({taken(SinglePartition().choice(Random(seed)), ranges(6), 1)[0] for seed in range(40)}) == 6


@pytest.mark.seed("79.6")
def test_a_round_robin_uses_all_and_those_that_are_new() -> None:
    choice, of = RoundRobin().choice(Random(1)), ranges(5)
    assert set(taken(choice, of, 5)) == set(range(5))
    split(of, 2, 7, 8)
    assert set(taken(choice, of, 6)) == {0, 1, 3, 4, 7, 8}
    assert len(set(taken(choice, of, 9, key="a key"))) == 1


@pytest.mark.seed("79.6")
def test_the_default_is_the_hash_of_the_key() -> None:
    choice, of = HashedKey().choice(Random(1)), ranges(8)
    for key in ("a", "b", "sensor-7", ""):
        assert taken(choice, of, 2, key) == [int(position_of(key) * 8)] * 2
    assert len(set(taken(choice, of, 100))) == 8


@pytest.mark.seed("79.8")
def test_a_writers_id_is_made_of_its_name_and_the_segment() -> None:
    assert writer_id("w", "a/s/0.#epoch.0") == writer_id("w", "a/s/0.#epoch.0")
    ids = {writer_id(name, segment) for name in ("w", "v", "w/a") for segment in ("/a", "a", "b")}
    assert len(ids) == 9
    assert all(each.version == 5 for each in ids)
    namespace = uuid5(UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8"), "segstore:writers")
    assert writer_id("w", "s") == uuid5(uuid5(namespace, "w"), "s")


@pytest.mark.seed("79.8")
def test_statistics_add_up_by_name_whatever_subset_each_has() -> None:
    def one(name: str, events: int, **segments: int) -> WriterStats:
        of = {key: SegmentWriterStats(1, 1, 0, 0, last) for key, last in segments.items()}
        return WriterStats(name, events, events * 10, of)

    found = add_up([one("v", 1, c=1), one("w", 5, a=3, b=2), one("v", 2, a=9), one("w", 7, b=7)])
    assert set(found) == {"v", "w"}
    assert (found["v"].events, found["v"].bytes, found["v"].last_sequence) == (3, 30, 9)
    assert (found["w"].events, found["w"].connected, set(found["w"].segments)) == (12, 3, {"a", "b"})
    assert found["w"].segments["b"] == SegmentWriterStats(2, 2, 0, 0, 7)
    assert add_up([]) == {}
