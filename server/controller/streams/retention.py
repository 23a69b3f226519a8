"""Retention: decides where a stream's policy allows truncation. Pure: takes cuts, returns a cut.

Stream cuts are recorded periodically, with their times and the bytes written before them. Without subscribers, a stream
is truncated at the latest recorded cut that leaves the data required by the policy. With subscribers, it is truncated
at the slowest subscriber's position, within the policy's bounds: at least the limit is always kept, and at most the
maximum, if set.

Invariant: the recorded cuts never go backwards, so that bisection finds cuts.

Follows the retention part of `StreamMetadataTasks`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from segstore.server.controller.policies import Cut, RetentionPolicy, RetentionType
from segstore.server.controller.state import Comparison, Epoch, RetentionCut, Stream, history


def truncation_point(stream: Stream, policy: RetentionPolicy, subscribers: Cut, now_ms: int) -> Cut | None:
    """Returns where to truncate, or None. subscribers: position of the slowest subscribers; {} without subscribers."""
    cuts = stream.retention_cuts
    if not cuts:
        return None
    if policy.kind is RetentionType.SIZE:
        return _by_size(stream, policy, cuts, subscribers)
    return _by_time(stream, policy, cuts, subscribers, now_ms)


def obsolete(epochs: Sequence[Epoch], cuts: Sequence[RetentionCut], cut: Cut) -> int:
    """Returns how many of the recorded cuts, from the first, are at or before a truncation and can be dropped."""
    return bisect_left(
        cuts, True, key=lambda old: old.cut != cut and history.compare(epochs, old.cut, cut) is not Comparison.BEFORE
    )


def _bounds(
    policy: RetentionPolicy, cuts: Sequence[RetentionCut], left: Callable[[RetentionCut], int]
) -> tuple[RetentionCut | None, RetentionCut | None]:
    """Returns the recorded cuts that leave the least above the limit, and the most within the maximum (else the same).

    `left` returns how much, in the policy's unit, a truncation at a cut would leave.
    """
    enough = [cut for cut in cuts if left(cut) >= policy.limit]
    if not enough:
        return None, None
    least = min(enough, key=left)
    within = [cut for cut in enough if not policy.maximum or left(cut) <= policy.maximum]
    return least, max(within, key=left) if within else least


def _before(stream: Stream, cuts: Sequence[RetentionCut], bound: Cut) -> Cut | None:
    """Returns the latest recorded cut before a position."""
    count = bisect_left(
        cuts, True, key=lambda old: history.compare(stream.epochs, old.cut, bound) is not Comparison.BEFORE
    )
    return cuts[count - 1].cut if count else None


def _by_size(stream: Stream, policy: RetentionPolicy, cuts: Sequence[RetentionCut], subscribers: Cut) -> Cut | None:
    size = cuts[-1].size
    least, most = _bounds(policy, cuts, lambda cut: size - cut.size)
    if not subscribers:
        return None if least is None else least.cut
    left = size - stream.size_till(subscribers)
    if left < policy.limit:
        # The subscribers are so far ahead that truncating there would leave too little.
        if least is None:
            return None
        if history.compare(stream.epochs, least.cut, subscribers) is Comparison.BEFORE:
            return least.cut
        return _before(stream, cuts, subscribers)
    if not policy.maximum or left < policy.maximum or most is None:
        return subscribers
    return most.cut if size - most.size < left else subscribers


def _by_time(
    stream: Stream, policy: RetentionPolicy, cuts: Sequence[RetentionCut], subscribers: Cut, now_ms: int
) -> Cut | None:
    least, most = _bounds(policy, cuts, lambda cut: now_ms - cut.recorded_ms)
    if least is None or most is None:
        return None
    if not subscribers:
        return least.cut
    order = history.compare(stream.epochs, least.cut, subscribers)
    if order is Comparison.BEFORE:
        return least.cut
    if order is Comparison.OVERLAPS:
        return _before(stream, cuts, subscribers)
    overdue = [cut for cut in cuts if policy.maximum and now_ms - cut.recorded_ms >= policy.maximum]
    if not overdue:
        return subscribers
    latest = overdue[-1].cut
    order = history.compare(stream.epochs, subscribers, latest)
    if order is Comparison.EQUAL_OR_AFTER:
        return subscribers
    return most.cut if order is Comparison.BEFORE else latest
