"""Background work on a stream: retention, and scaling by load.

Invariant: a stream has at most one timer of each kind, and none once it is deleted, sealed, or has no such policy. Load
averages are not part of the state: a restarted controller measures them from scratch.
"""

from __future__ import annotations

import logging

from segstore.server.controller.errors import ControllerError
from segstore.server.controller.policies import ScalingType
from segstore.server.controller.state import Core, Due, RetentionCut, Stream, history
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.autoscale import Watch, decide, measure
from segstore.server.controller.streams.retention import obsolete, truncation_point
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
            await self.retain(stream)
        except ControllerError as error:
            _log.warning("retention of stream %s is retried next time: %s", stream.full_name, error)
        self.watch(scope, name)

    async def retain(self, stream: Stream) -> None:
        """Applies retention once. Raises ControllerError."""
        policy = stream.config.retention
        if policy is None:
            return
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
