"""Routing keys find their segments as Pravega's clients find them, and scaling moves only what it must."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.errors import ProtocolViolation
from segstore.client.routing import RangeRouter, SegmentRange
from tests.looped import looped


def segment(number: int, low: float, high: float) -> SegmentRange:
    return SegmentRange(number, f"s/{number}", low, high)


def test_ranges_include_their_low_end_only() -> None:
    router = RangeRouter([segment(1, 0.5, 1.0), segment(0, 0.0, 0.5)])
    assert [router.route(at).segment_id for at in (0.0, 0.49, 0.5, 0.99)] == [0, 0, 1, 1]


@looped("ranges", [[], [(0.0, 0.5)], [(0.0, 0.6), (0.5, 1.0)], [(0.0, 0.4), (0.5, 1.0)], [(0.1, 1.0)], [(0.0, 1.5)]])
def test_segments_that_do_not_cover_the_range_once_are_refused(ranges: list[tuple[float, float]]) -> None:
    with pytest.raises(ProtocolViolation, match=r"gap|end"):
        RangeRouter([segment(number, *each) for number, each in enumerate(ranges)])


def test_a_merge_moves_the_part_of_the_sealed_segment_only() -> None:
    router = RangeRouter([segment(0, 0.0, 0.3), segment(1, 0.3, 1.0)])
    merged = segment(2, 0.0, 1.0)
    router.replace(0, [merged])
    assert router.route(0.2) == segment(2, 0.0, 0.3)
    assert router.route(0.5).segment_id == 1, "until it is found sealed too"
    router.replace(1, [merged])
    assert [piece.segment_id for piece in router.segments] == [2]


def test_a_split_gives_each_successor_its_part() -> None:
    router = RangeRouter([segment(0, 0.0, 1.0)])
    router.replace(0, [segment(1, 0.0, 0.25), segment(2, 0.25, 1.0)])
    assert [router.route(at).segment_id for at in (0.1, 0.25, 0.9)] == [1, 2, 2]
    router.replace(0, [])
    assert len(router.segments) == 2, "a segment that takes nothing is no error"


def test_successors_that_leave_a_gap_are_refused_and_nothing_changes() -> None:
    router = RangeRouter([segment(0, 0.0, 1.0)])
    with pytest.raises(ProtocolViolation, match=r"gap|end"):
        router.replace(0, [segment(1, 0.0, 0.25)])
    assert router.route(0.9).segment_id == 0


@given(st.integers())
def test_whatever_is_split_and_merged_every_position_has_its_segment(seed: int) -> None:
    random = Random(seed)
    router = RangeRouter([segment(0, 0.0, 1.0)])
    number = 1
    for _ in range(12):
        victim = random.choice(router.segments)
        cut = random.uniform(victim.low, victim.high)
        if not victim.low < cut < victim.high:
            continue
        router.replace(victim.segment_id, [segment(number, victim.low, cut), segment(number + 1, cut, victim.high)])
        number += 2
    for _ in range(50):
        at = random.random()
        found = router.route(at)
        assert found.low <= at < found.high
