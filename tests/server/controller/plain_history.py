"""Reference implementation of the stream-cut functions of `history`: compares every pair of segments."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from segstore.server.controller.state import Comparison, Epoch, StreamSegment

__all__ = ["between", "compare", "is_at_or_after", "lower_bound", "sealed_in", "span", "successors", "valid"]


def every(epochs: Sequence[Epoch]) -> dict[int, StreamSegment]:
    return {segment.id: segment for epoch in epochs for segment in epoch.segments}


def meet(one: StreamSegment, other: StreamSegment) -> bool:
    return one.start < other.end and other.start < one.end


def last_epoch(epochs: Sequence[Epoch], segment: StreamSegment) -> int:
    return max(epoch.number for epoch in epochs if segment in epoch.segments)


def sealed_in(epochs: Sequence[Epoch], identifier: int) -> int | None:
    segment = every(epochs).get(identifier)
    if segment is None or segment in epochs[-1].segments:
        return None
    return last_epoch(epochs, segment) + 1


def successors(epochs: Sequence[Epoch], identifier: int) -> dict[StreamSegment, list[int]]:
    sealed = sealed_in(epochs, identifier)
    if sealed is None:
        return {}
    segment = every(epochs)[identifier]
    before, after = epochs[sealed - 1].segments, epochs[sealed].segments
    return {each: [one.id for one in before if meet(one, each)] for each in after if meet(each, segment)}


def valid(epochs: Sequence[Epoch], cut: Mapping[int, int]) -> bool:
    known = every(epochs)
    if any(each not in known for each in cut):
        return False
    reached = sorted((known[each] for each, offset in cut.items() if offset >= 0), key=lambda each: each.start)
    future = [known[each] for each, offset in cut.items() if offset < 0]
    if not reached or any(meet(one, other) for one, other in combinations(reached, 2)):
        return False
    edges = [0.0, *(key for each in reached for key in (each.start, each.end)), 1.0]
    holes = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
    covered = all(any(each.start < end and start < each.end for each in future) for start, end in holes)
    return covered and not any(meet(one, each) and one.id >= each.id for one in reached for each in future)


def span(epochs: Sequence[Epoch], cut: Mapping[int, int]) -> dict[StreamSegment, int]:
    touched = epochs[: (max(cut) >> 32) + 1]
    known = every(touched)
    return {known[each]: last_epoch(touched, known[each]) for each in cut if each in known}


def is_at_or_after(epochs: Sequence[Epoch], cut: Mapping[int, int], other: Mapping[int, int]) -> bool:
    mine, others = span(epochs, cut), span(epochs, other)
    return not any(
        (one.id == two.id and cut[one.id] < other[two.id]) or (meet(one, two) and mine[one] < others[two])
        for one in mine
        for two in others
    )


def compare(epochs: Sequence[Epoch], cut: Mapping[int, int], other: Mapping[int, int]) -> Comparison:
    pairs = [(one.id, two.id) for one in span(epochs, cut) for two in span(epochs, other) if meet(one, two)]
    places = [(cut[one], other[two]) if one == two else (one, two) for one, two in pairs]
    if not any(mine < theirs for mine, theirs in places):
        return Comparison.EQUAL_OR_AFTER
    return Comparison.OVERLAPS if any(mine > theirs for mine, theirs in places) else Comparison.BEFORE


def between(epochs: Sequence[Epoch], start: Mapping[int, int], end: Mapping[int, int]) -> list[int] | None:
    """None for cuts in the wrong order."""
    first = span(epochs, start) if start else dict.fromkeys(epochs[0].segments, 0)
    last = span(epochs, end) if end else dict.fromkeys(epochs[-1].segments, epochs[-1].number)
    if start and end and not is_at_or_after(epochs, end, start):
        return None
    touched = epochs[min(first.values()) : max(last.values()) + 1]
    return sorted(
        each.id
        for each in every(touched).values()
        if all(one.id <= each.id for one in first if meet(one, each))
        and all(each.id <= one.id for one in last if meet(one, each))
    )


def lower_bound(epochs: Sequence[Epoch], cuts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    earliest: dict[int, int] = {}
    for cut in cuts:
        for identifier, offset in cut.items():
            earliest[identifier] = min(offset, earliest.get(identifier, offset))
    known, bound = every(epochs), dict[int, int]()
    for identifier in sorted(earliest):
        segment = known[identifier]
        before = [known[each] for each in bound if meet(known[each], segment)]
        edges = sorted({segment.start, segment.end, *(key for each in before for key in (each.start, each.end))})
        inside = [edge for edge in edges if segment.start <= edge < segment.end]
        if before and all(any(each.start <= key < each.end for each in before) for key in inside):
            continue
        bound[identifier] = -1 if before else earliest[identifier]
    return bound
