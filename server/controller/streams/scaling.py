"""Scaling of a stream: replaces segments with new segments that cover the same key ranges.

Invariant: a new epoch is recorded once its segments exist and the replaced segments are sealed, so a reader at the end
of a segment finds the successors. Until then the old epoch is current, for the configured delay, and `status` reports
that. Refused: segments that are not current, ranges that do not cover the same keys, fewer segments than the policy's
minimum. Follows `PersistentStreamBase.submitScale`, `ScaleOperationTask` and `StreamMetadataTasks.checkScale`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Literal

from segstore.server.controller.errors import IllegalState, InvalidArgument, ScaleRefused, SegmentStoreFailed
from segstore.server.controller.state import Core, Due, KeyRange, Scale, Stream, StreamSegment, history
from segstore.server.controller.state import operations as op
from segstore.wire.names import split_segment_id

_log = logging.getLogger(__name__)

ScaleStatus = Literal["IN_PROGRESS", "SUCCESS", "INVALID_INPUT"]


class Scaling:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def start(
        self, scope: str, name: str, sealed: Sequence[int], ranges: Iterable[KeyRange]
    ) -> tuple[list[StreamSegment], int]:
        """Accepts a scale; returns the new segments and the number of the epoch that ends. Repeating it is allowed.

        The new segments are numbered and returned in the order of `ranges`. Raises `TooMany` for more segments to seal,
        or more new key ranges, than a stream can have.
        """
        wanted = tuple(ranges)
        self._core.check_segments("segments to seal", len(sealed))
        self._core.check_segments("new key ranges", len(wanted))
        async with self._core.lock(scope, name):
            stream = self._core.state.stream(scope, name)
            if stream.sealed:
                raise IllegalState(f"stream {stream.full_name} is sealed")
            left = stream.current
            if stream.scale is not None:
                if set(stream.scale.sealed) != set(sealed) or set(stream.scale.ranges) != set(wanted):
                    raise IllegalState(f"another scale of stream {stream.full_name} is in progress")
            else:
                self._check(stream, sealed, wanted)
                self._begin(stream, tuple(sealed), wanted)
            accepted = wanted if stream.scale is None else stream.scale.ranges
            coming = history.next_epoch(left, sealed, accepted, self._core.now_ms()).segments
            await self._finish_or_retry(stream)
        new = (segment for segment in coming if segment.epoch == left.number + 1)
        return sorted(new, key=lambda segment: segment.number), left.number

    def status(self, scope: str, stream: str, epoch: int) -> ScaleStatus:
        """Returns the status of the scale that ends `epoch`."""
        if epoch < 0:
            raise InvalidArgument(f"epoch {epoch} is negative")
        current = self._core.state.stream(scope, stream).current
        if epoch > current.number:
            return "INVALID_INPUT"
        return "IN_PROGRESS" if epoch in (current.number, current.reference) else "SUCCESS"

    async def run(self, scope: str, name: str) -> None:
        """Executes a due scale; no-op if the stream was deleted."""
        async with self._core.lock(scope, name):
            stream = self._core.state.find_stream(scope, name)
            if stream:
                await self._finish_or_retry(stream)

    async def replace(self, stream: Stream, ranges: Sequence[KeyRange]) -> None:
        """Replaces all segments at once. The caller holds the stream's lock."""
        self._begin(stream, tuple(segment.id for segment in stream.current.segments), tuple(ranges))
        self._try_again_later(stream)
        await self.finish(stream)

    async def finish(self, stream: Stream) -> None:
        """Executes the accepted scale, if any. The caller holds the stream's lock."""
        if stream.scale is None:
            return
        core = self._core
        sealed = _as_current(stream, stream.scale)
        now_ms = core.now_ms()
        coming = history.next_epoch(stream.current, sealed, stream.scale.ranges, now_ms)
        for segment in coming.created.values():
            name = stream.segment_name(segment)
            await core.segments.create_segment(name, stream.config.scaling, stream.config.rollover_bytes)
        sizes = {
            identifier: await core.segments.seal_segment(stream.segment_name(stream.segment(identifier)))
            for identifier in sealed
        }
        core.record(op.ScaleFinished(stream.scope, stream.name, sealed, stream.scale.ranges, sizes, now_ms))

    async def finish_due(self, stream: Stream) -> None:
        """Calls `finish` if the delay has passed. The caller holds the stream's lock."""
        if stream.scale is not None and stream.scale.due_ms <= self._core.now_ms():
            await self.finish(stream)

    def _check(self, stream: Stream, sealed: Sequence[int], ranges: Sequence[KeyRange]) -> None:
        current = stream.current
        known = {segment.id for segment in current.segments}
        for identifier in sealed:
            if identifier not in known:
                raise ScaleRefused(stream.full_name, f"segment {identifier} is not a current one")
        if not history.ranges_match(current, sealed, ranges):
            raise InvalidArgument(f"the new key ranges do not cover the keys of segments {list(sealed)}")
        count = len(current.segments) - len(sealed) + len(ranges)
        self._core.check_segments("segments of a stream", count)
        if count < (least := stream.config.scaling.min_segments):
            raise ScaleRefused(stream.full_name, f"it has at least {least} segments, not {count}")

    def _begin(self, stream: Stream, sealed: tuple[int, ...], ranges: tuple[KeyRange, ...]) -> None:
        due_ms = self._core.now_ms() + self._core.config.scale_delay_ms
        scale = Scale(stream.current.number, sealed, ranges, due_ms)
        self._core.record(op.ScaleStarted(stream.scope, stream.name, scale))

    async def _finish_or_retry(self, stream: Stream) -> None:
        """Executes the scale if it is due. A timer is set first, so that work that fails or is cancelled is completed
        later.
        """
        core = self._core
        if stream.scale is None:
            return
        due_ms, now_ms = stream.scale.due_ms, core.now_ms()
        if due_ms > now_ms:
            core.schedule(due_ms, Due.SCALE, stream.scope, stream.name)
            return
        self._try_again_later(stream)
        try:
            await self.finish(stream)
        except SegmentStoreFailed as error:
            _log.warning("scaling stream %s is tried again: %s", stream.full_name, error)

    def _try_again_later(self, stream: Stream) -> None:
        core = self._core
        core.schedule(core.now_ms() + core.config.retry_ms, Due.SCALE, stream.scope, stream.name)


def _as_current(stream: Stream, scale: Scale) -> tuple[int, ...]:
    """Returns the ids of the segments to seal in the current epoch.

    Transactions rolled since the scale was accepted have given every segment a new epoch, but kept its number.
    """
    if scale.epoch == stream.current.number:
        return scale.sealed
    numbers = {split_segment_id(identifier)[1] for identifier in scale.sealed}
    return tuple(segment.id for segment in stream.current.segments if segment.number in numbers)
