"""Background work on a stream: retention, and scaling by load.

Retention records stream cuts periodically, with their times and the bytes written before them. Without subscribers, a
stream is truncated at the latest recorded cut that leaves the data required by the policy. With subscribers, it is
truncated at the slowest subscriber's position, within the policy's bounds: at least the limit is always kept, and at
most the maximum, if set. Follows the retention part of `StreamMetadataTasks`.

Invariants: the recorded cuts never go backwards, so that bisection finds cuts; a stream has at most one timer of each
kind, and none once it is deleted, sealed, or has no such policy. Load averages are not part of the state: a restarted
controller measures them from scratch.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

from segstore.server.controller.errors import ControllerError
from segstore.server.controller.policies import Cut, RetentionPolicy, RetentionType, ScalingType
from segstore.server.controller.state import Comparison, Core, Due, Epoch, RetentionCut, Stream, history
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.autoscale import Watch, decide, measure
from segstore.server.controller.streams.scaling import Scaling
from segstore.server.controller.streams.streams import Streams

_log = logging.getLogger(__name__)


class Upkeep:
    def __init__(self, core: Core, streams: Streams, scaling: Scaling) -> None:
        self._core = core
        self._streams = streams
        self._scaling = scaling
        self._watches: dict[str, dict[int, Watch]] = {}

    def clear(self) -> None:
        """Forgets the measured rates of all streams."""
        self._watches.clear()

    def watch(self, scope: str, name: str) -> None:
        """Sets the timers that a stream's configuration requires. Call it when the configuration may have changed."""
        stream = self._find(scope, name)
        if stream is None:
            return
        if stream.config.retention is not None:
            self._core.schedule_once(self._core.config.retention_every_ms, Due.RETENTION, scope, name)
        if self._scales(stream):
            self._core.schedule_once(self._core.config.scaling.tick_ms, Due.LOAD, scope, name)

    async def run_retention(self, scope: str, name: str) -> None:
        """Records a stream cut and truncates data that the policy does not require."""
        stream = self._find(scope, name)
        if stream is None or stream.config.retention is None:
            return
        try:
            await self._retain(stream, stream.config.retention)
        except ControllerError as error:
            _log.warning("retention of stream %s is retried next time: %s", stream.full_name, error)
        self.watch(scope, name)

    async def _retain(self, stream: Stream, policy: RetentionPolicy) -> None:
        core = self._core
        length = core.segments.segment_length
        cut = {segment.id: await length(stream.segment_name(segment)) for segment in stream.current.segments}
        if self._find(stream.scope, stream.name) is not stream:  # it was deleted meanwhile
            return
        now_ms = core.now_ms()
        recorded = RetentionCut(now_ms, stream.size_till(cut), cut)
        core.record(op.RetentionCutRecorded(stream.scope, stream.name, recorded))
        subscribers = history.lower_bound(
            stream.epochs, [subscriber.cut for subscriber in stream.subscribers.values() if subscriber.cut]
        )
        point = truncation_point(stream, policy, subscribers, now_ms)
        if point is None:
            return
        await self._streams.truncate(stream.scope, stream.name, point)
        count = obsolete(stream.epochs, stream.retention_cuts, point)
        core.record(op.RetentionCutsForgotten(stream.scope, stream.name, count))

    async def run_load(self, scope: str, name: str) -> None:
        """Measures the rates of a stream's segments, and scales the stream if necessary."""
        full_name = f"{scope}/{name}"
        stream = self._find(scope, name)
        if stream is None or not self._scales(stream):
            self._watches.pop(full_name, None)
            return
        try:
            await self._take_load(stream, self._watches.setdefault(full_name, {}))
        except ControllerError as error:
            _log.warning("scaling of stream %s by load is retried next time: %s", full_name, error)
        self.watch(scope, name)

    async def _take_load(self, stream: Stream, watches: dict[int, Watch]) -> None:
        core = self._core
        settings = core.config.scaling
        current = stream.current
        loads = {segment.id: await core.segments.load(stream.segment_name(segment)) for segment in current.segments}
        now_ms = core.now_ms()
        for identifier, load in loads.items():
            if load is None:
                continue
            total = measure(load, stream.config.scaling)
            if (watch := watches.get(identifier)) is None:
                watches[identifier] = Watch.begin(now_ms, total)
            else:
                watch.take(now_ms, total, settings.minute_ms)
        for identifier in watches.keys() - loads.keys():
            del watches[identifier]
        decision = decide(current, stream.config.scaling, watches, now_ms, settings, core.config.max_segments)
        if decision is not None:
            _log.info("load scales stream %s: %s to %s", stream.full_name, decision.sealed, decision.ranges)
            await self._scaling.start(stream.scope, stream.name, decision.sealed, decision.ranges)

    def _scales(self, stream: Stream) -> bool:
        return self._core.config.scaling.enabled and stream.config.scaling.kind is not ScalingType.FIXED

    def _find(self, scope: str, name: str) -> Stream | None:
        stream = self._core.state.find_stream(scope, name)
        return None if stream is None or stream.sealed else stream


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
