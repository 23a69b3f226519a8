"""Epochs and stream cuts: key ranges, successors, what lies between two cuts, and the earliest of several."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.controller.policies import StreamConfig
from segstore.server.controller.state import Epoch, Stream
from segstore.server.controller.state.history import (
    between,
    compare,
    cut_span,
    equal_ranges,
    find_segment,
    first_epoch,
    is_at_or_after,
    lower_bound,
    next_epoch,
    ranges_match,
    sealed_in,
    successors,
    why_invalid,
)
from tests.looped import looped
from tests.server.controller import plain_history as plain


def identifier(epoch: int, number: int) -> int:
    return epoch << 32 | number


def split_then_merge() -> list[Epoch]:
    """0 covers all; 1 and 2 halve it; 3 joins them again."""
    first = first_epoch(1, 0, 0)
    second = next_epoch(first, [0], [(0.0, 0.5), (0.5, 1.0)], 10)
    third = next_epoch(second, [identifier(1, 1), identifier(1, 2)], [(0.0, 1.0)], 20)
    return [first, second, third]


A, B, C, D = 0, identifier(1, 1), identifier(1, 2), identifier(2, 3)


@st.composite
def histories(draw: st.DrawFn) -> list[Epoch]:
    """Any stream that was split and merged now and then."""
    epochs = [first_epoch(draw(st.integers(1, 4)), draw(st.integers(0, 50)), 0)]
    for now_ms in range(draw(st.integers(0, 6))):
        current = epochs[-1]
        at = draw(st.integers(0, len(current.segments) - 1))
        taken = current.segments[at : at + draw(st.integers(1, 2))]
        parts = equal_ranges(draw(st.integers(1, 3)), taken[0].start, taken[-1].end)
        epochs.append(next_epoch(current, [each.id for each in taken], parts, now_ms))
    return epochs


@given(st.integers(1, 2000))
def test_equal_ranges_cover_all_keys_whatever_their_number(count: int) -> None:
    ranges = equal_ranges(count)
    assert len(ranges) == count
    assert ranges[0][0] == 0.0
    assert ranges[-1][1] == 1.0
    assert all(left[1] == right[0] and left[0] < left[1] for left, right in pairwise(ranges))


@given(histories())
def test_every_epoch_covers_all_keys_without_overlap(epochs: list[Epoch]) -> None:
    for epoch in epochs:
        edges = [(each.start, each.end) for each in epoch.segments]
        assert ranges_match(epoch, [segment.id for segment in epoch.segments], [(0.0, 1.0)])
        assert edges == sorted(edges)
        assert why_invalid(epochs, {each.id: 0 for each in epoch.segments}) is None


@given(histories())
def test_a_reader_that_follows_successors_reads_every_segment_after_its_predecessors(epochs: list[Epoch]) -> None:
    """As a reader does: a segment is begun once all its predecessors are done."""
    every = {segment.id for epoch in epochs for segment in epoch.segments}
    done: set[int] = set()
    ahead = [segment.id for segment in epochs[0].segments]
    waiting: dict[int, set[int]] = {}
    while ahead:
        current = ahead.pop(0)
        assert current not in done
        done.add(current)
        for following, before in successors(epochs, current).items():
            left = waiting.setdefault(following.id, set(before))
            left.discard(current)
            if not left:
                ahead.append(following.id)
    assert done == every


def test_new_segments_are_numbered_after_all_of_the_epoch() -> None:
    numbers = [[segment.number for segment in epoch.segments] for epoch in split_then_merge()]
    assert numbers == [[0], [1, 2], [3]]


def test_a_segment_that_was_never_there_has_no_end_and_no_successors() -> None:
    epochs = split_then_merge()
    assert find_segment(epochs, identifier(1, 9)) is None
    assert successors(epochs, identifier(7, 1)) == {}
    assert successors(epochs, -1) == {}


@looped(
    ("cut", "why"),
    [
        ({}, "empty"),
        ({B: 0}, "nothing covers"),
        ({A: 0, B: 0, C: 0}, "overlap"),
        ({identifier(1, 7): 0}, "not one of the stream"),
        ({B: -1, C: -1}, "reached no segment"),
        ({A: -1, B: 3, C: 3}, "said to come"),
        ({D: 0, B: -1}, "said to come"),
    ],
)
def test_an_invalid_cut_is_refused_with_the_reason(cut: dict[int, int], why: str) -> None:
    said = why_invalid(split_then_merge(), cut)
    assert why in said


def test_the_size_up_to_a_cut_counts_sealed_segments_whole() -> None:
    epochs = split_then_merge()
    sizes = {A: 100, B: 10, C: 20}
    stream = Stream("a", "s", StreamConfig(), 0, epochs, sizes=sizes)
    assert stream.size_till({D: 7}) == 137
    assert stream.size_till({B: 4, C: 5}) == 109
    assert stream.size_till({B: 4, C: -1}) == 104
    assert stream.size_till({A: 40}) == 40


@looped(
    "ranges",
    [[(0.0, 0.5)], [(0.0, 0.6), (0.5, 1.0)], [(0.5, 0.5), (0.0, 1.0)], [(0.0, float("nan"))], [(-0.5, 1.0)], []],
)
def test_ranges_that_do_not_cover_the_same_keys_do_not_match(ranges: list[tuple[float, float]]) -> None:
    assert not ranges_match(first_epoch(1, 0, 0), [0], ranges)


@st.composite
def cuts(draw: st.DrawFn, epochs: list[Epoch]) -> dict[int, int]:
    """A cut of the stream: one that a reader could have, or arbitrary segments."""
    if draw(st.booleans()):
        every = sorted({segment.id for epoch in epochs for segment in epoch.segments})
        named = draw(st.lists(st.sampled_from(every), min_size=1, max_size=6, unique=True))
        return {each: draw(st.integers(-1, 3)) for each in named}
    cut = {each.id: draw(st.integers(0, 3)) for each in draw(st.sampled_from(epochs)).segments}
    for _ in range(draw(st.integers(0, 3))):
        following = successors(epochs, draw(st.sampled_from(sorted(cut))))
        ended = {each for before in following.values() for each in before}
        if ended <= cut.keys() and draw(st.booleans()):
            cut = {each: offset for each, offset in cut.items() if each not in ended}
            cut |= {each.id: draw(st.integers(0, 3)) for each in following}
        else:
            cut |= {each.id: -1 for each in following if each.id not in cut}
    return cut


@given(histories(), st.data())
def test_comparisons_of_cuts_equal_those_of_every_pair_of_segments(epochs: list[Epoch], data: st.DataObject) -> None:
    one, other = data.draw(cuts(epochs)), data.draw(cuts(epochs))
    for cut in (one, other):
        assert (why_invalid(epochs, cut) is None) == plain.valid(epochs, cut)
        assert cut_span(epochs, cut) == plain.span(epochs, cut)
    assert is_at_or_after(epochs, one, other) == plain.is_at_or_after(epochs, one, other)
    assert compare(epochs, one, other) is plain.compare(epochs, one, other)
    assert lower_bound(epochs, [one, other]) == plain.lower_bound(epochs, [one, other])
    for start, end in ((one, other), ({}, one), (one, {}), ({}, {})):
        expected = plain.between(epochs, start, end)
        if expected is None:
            with pytest.raises(ValueError, match="before"):
                between(epochs, start, end)
        else:
            assert [each.id for each in between(epochs, start, end)] == expected


@given(histories())
def test_successors_of_a_segment_equal_those_found_in_every_epoch(epochs: list[Epoch]) -> None:
    for each in {segment.id for epoch in epochs for segment in epoch.segments} | {-1, 99, identifier(9, 0)}:
        segment = find_segment(epochs, each)
        assert (None if segment is None else sealed_in(epochs, segment)) == plain.sealed_in(epochs, each)
        assert successors(epochs, each) == plain.successors(epochs, each)
