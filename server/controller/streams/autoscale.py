"""Scaling by load: decides from segment rates which segments to split or merge. Pure: no clock, no store.

A segment's rate is averaged over 2, 5, 10 and 20 minutes with exponential decay. A segment well above the policy's
target for some time is split. A segment below it for 20 minutes is cold, and cold neighbours are merged. The thresholds
are Pravega's (`AutoScaleProcessor`, `SegmentAggregates`, `AutoScaleTask`); the length of a minute is configurable
(`minute_ms`).

A segment without events for `silence_minutes` is cold, whatever its rates were. Invariant: new segments always cover
the keys of the replaced segments, and their number stays between the policy's minimum and a stream's maximum.
Deliberate difference: rates are measured at every tick, including idle segments; Pravega's segment store reports on
writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from segstore.server.controller.config import AutoScaling
from segstore.server.controller.policies import ScalingPolicy, ScalingType
from segstore.server.controller.segment_admin import Load
from segstore.server.controller.state import Epoch, KeyRange, history

_WINDOWS = (2, 5, 10, 20)
"""Minutes over which a segment's rate is averaged."""
_COLD_MINUTES = 10
"""How long a segment stays cold once it is cold."""


class ScaleDecision(NamedTuple):
    """Replace these segments with new ones for these ranges."""

    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]


class Watch(msgspec.Struct):
    """The load of one segment; times in milliseconds, rates in the policy's unit per second."""

    since_ms: int
    taken_ms: int
    total: float
    written_ms: int
    asked_up_ms: int
    asked_down_ms: int
    cold_until_ms: int = 0
    rates: dict[int, float] = msgspec.field(default_factory=lambda: dict.fromkeys(_WINDOWS, 0.0))
    """By the length of the window in minutes."""

    @classmethod
    def begin(cls, now_ms: int, total: float) -> Watch:
        """Starts to watch a segment. Earlier writes do not count, and a new segment is not scaled for a while."""
        return cls(
            since_ms=now_ms, taken_ms=now_ms, total=total, written_ms=now_ms, asked_up_ms=now_ms, asked_down_ms=now_ms
        )

    def take(self, now_ms: int, total: float, minute_ms: int) -> None:
        """Updates the rates with the writes since the last call."""
        elapsed_ms = now_ms - self.taken_ms
        if elapsed_ms <= 0:
            return
        if total > self.total:
            self.written_ms = now_ms
        rate = max(total - self.total, 0.0) * 1000.0 / elapsed_ms
        self.taken_ms, self.total = now_ms, total
        for minutes, before in self.rates.items():
            weight = 1.0 if before == 0.0 else 1.0 - math.exp(-elapsed_ms / (minutes * minute_ms))
            self.rates[minutes] = before + weight * (rate - before)


def measure(load: Load, policy: ScalingPolicy) -> float:
    """Returns a load in the policy's unit."""
    return load.bytes / 1024 if policy.kind is ScalingType.KBYTES_PER_S else float(load.events)


def _is_silent(watch: Watch, now_ms: int, settings: AutoScaling) -> bool:
    """Whether a segment has had no events for `silence_minutes`; such a segment is cold at any rate."""
    return now_ms - watch.written_ms >= settings.silence_minutes * settings.minute_ms


def parts_wanted(watch: Watch, target: int, now_ms: int, settings: AutoScaling) -> int:
    """Returns the number of segments into which this one should be split; 1: leave it, 0: it is cold."""
    if target > 0 and _is_silent(watch, now_ms, settings):
        return 0
    age = (now_ms - watch.since_ms) / settings.minute_ms
    if target <= 0 or age <= settings.cooldown_minutes:
        return 1
    last_2, last_5, last_10, last_20 = watch.rates.values()
    if (last_2 > 5.0 * target and age > 2) or (last_5 > 2.0 * target and age > 5) or (last_10 > target and age > 10):
        return max(2, int(max(last_2, last_5, last_10) / target))
    low = max(last_2, last_5, last_10) < target
    return 0 if low and last_20 < target / 2 and age > 20 else 1


def decide(
    current: Epoch,
    policy: ScalingPolicy,
    watches: Mapping[int, Watch],
    now_ms: int,
    settings: AutoScaling,
    max_segments: int,
) -> ScaleDecision | None:
    """Returns the next split or merge of a stream, if any; records requests and cold segments in the watches.

    Splits come first, as long as the stream may have more segments. Only one change is decided at a time; the next tick
    sees the resulting epoch. A silent segment is considered regardless of its last request.
    """
    mute_ms = settings.mute_minutes * settings.minute_ms
    room = max_segments - len(current.segments) + 1
    wanted = {
        segment.id: parts_wanted(watches[segment.id], policy.target_rate, now_ms, settings)
        for segment in current.segments
        if segment.id in watches
    }
    for segment in current.segments:
        watch = watches.get(segment.id)
        if watch is not None and wanted[segment.id] > 1 < room and now_ms - watch.asked_up_ms > mute_ms:
            watch.asked_up_ms = watch.asked_down_ms = now_ms
            parts = min(max(2, wanted[segment.id]), max(2, policy.factor), room)
            return ScaleDecision((segment.id,), tuple(history.equal_ranges(parts, segment.start, segment.end)))
    for at, segment in enumerate(current.segments):
        watch = watches.get(segment.id)
        if watch is None or wanted[segment.id] != 0:
            continue
        if now_ms - watch.asked_down_ms > mute_ms or _is_silent(watch, now_ms, settings):
            watch.asked_up_ms, watch.asked_down_ms = 0, now_ms
            watch.cold_until_ms = now_ms + _COLD_MINUTES * settings.minute_ms
            if (merge := _merge(current, policy, watches, at, now_ms)) is not None:
                return merge
    return None


def _merge(
    current: Epoch, policy: ScalingPolicy, watches: Mapping[int, Watch], at: int, now_ms: int
) -> ScaleDecision | None:
    """Merges the cold segment at an index with its cold neighbours, as far as the minimum allows."""
    spare = len(current.segments) - policy.min_segments
    together = [
        segment
        for segment in current.segments[max(at - 1, 0) : at + 2]
        if segment.id in watches and watches[segment.id].cold_until_ms > now_ms
    ]
    together = together[: max(spare, 0) + 1]
    if len(together) < 2:
        return None
    return ScaleDecision(tuple(segment.id for segment in together), ((together[0].start, together[-1].end),))
