"""Watermarks: the time window of a position in a stream, from the times that its writers note.

    async with pravega.time_windows("scope", "stream") as windows:
        window = await windows.at(events.cut)

Watermarks are read from their stream (`_MARK…`) as the position advances, each once; marks that the position has not
passed are kept.

Invariant: the lower bound never goes back. Follows `WatermarkReaderImpl` (Pravega's client).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

from segstore.client.controller import Cluster, StreamCut, checked_cut
from segstore.client.errors import NoSuchStream, ProtocolViolation, SegmentTruncated
from segstore.client.lifecycle import ClosedAfter
from segstore.client.stream import Revision, RevisionedStream
from segstore.wire.names import segment_name, split_segment_id
from segstore.wire.revisioned import Mark, decode_mark

_PREFIX: Final = "_MARK"
_MOST_EPOCHS: Final = 64


class TimeWindow(NamedTuple):
    """The range of the times that writers reported around a position.

    lower: at most the time of everything that follows; None near the head. upper: at least the time of everything
    before; None near the tail.
    """

    lower: int | None
    upper: int | None


class TimeWindows(ClosedAfter):
    """The time windows of one stream. Use with `async with`, or call `aclose`."""

    scope: Final[str]
    stream: Final[str]

    def __init__(self, cluster: Cluster, scope: str, stream: str) -> None:
        self.scope = scope
        self.stream = stream
        self._controller = cluster.controller
        self._marks = RevisionedStream(cluster.pool, cluster.locations, segment_name(scope, _PREFIX + stream, 0, 0))
        self._read_to: Revision | None = None
        self._ahead: deque[Mark] = deque()
        """Watermarks that were read and that the position has not passed."""
        self._passed: int | None = None
        self._ranges: dict[int, dict[int, tuple[float, float]]] = {}

    async def at(self, cut: Mapping[int, int]) -> TimeWindow:
        """Returns the time window of a position, which must not lie before an earlier call's.

        cut: of a reader, or of its group, whose other readers count. Raises CutError for a cut of another stream,
        ProtocolViolation, and the errors of requests.
        """
        offsets = checked_cut(self.scope, self.stream, cut)
        position = {number: (*(await self._range(number)), offset) for number, offset in offsets.items()}
        ahead = self._ahead
        while ahead and compared(position, ahead[0]) > 0:
            self._passed = ahead.popleft().lower
        if not ahead or compared(position, ahead[-1]) >= 0:
            await self._read_on(position)
        return TimeWindow(self._passed, ahead[-1].upper if ahead else None)

    async def cut_before(self, timestamp: int) -> StreamCut | None:
        """Returns the position of the last watermark whose upper bound is at most `timestamp`, or None.

        Everything before it is of that time or before. Independent of `at`. Raises ProtocolViolation, and the errors
        of requests.
        """
        last: Mark | None = None
        try:
            async with aclosing(self._marks.read(await self._marks.oldest())) as entries:
                async for entry in entries:
                    mark = self._decoded(entry.data)
                    if mark.upper > timestamp:
                        break
                    last = mark
        except NoSuchStream:
            return None  # no watermark was written yet
        if last is None:
            return None
        return StreamCut(self.scope, self.stream, {segment.segment_id: segment.offset for segment in last.segments})

    async def _read_on(self, position: Mapping[int, tuple[float, float, int]]) -> None:
        """Reads watermarks until one lies behind the position."""
        try:
            if self._read_to is None:
                self._read_to = await self._marks.oldest()
            async with aclosing(self._marks.read(self._read_to)) as entries:
                async for entry in entries:
                    self._read_to = entry.revision
                    mark = self._decoded(entry.data)
                    order = compared(position, mark)
                    if order > 0:
                        self._passed = mark.lower
                        continue
                    self._ahead.append(mark)
                    if order < 0:
                        return
        except NoSuchStream:
            return  # no watermark was written yet
        except SegmentTruncated as truncated:
            self._read_to = Revision(self._marks.segment, truncated.details["start_offset"])

    def _decoded(self, data: bytes) -> Mark:
        try:
            return decode_mark(data)
        except ValueError as cause:
            name = self._marks.segment
            raise ProtocolViolation(f"{name} has an entry that is not a watermark: {cause}", segment=name) from cause

    async def _range(self, segment_id: int) -> tuple[float, float]:
        """Returns a segment's key range; all keys for a segment that its epoch does not have."""
        epoch, _ = split_segment_id(segment_id)
        ranges = self._ranges.get(epoch)
        if ranges is None:
            segments = await self._controller.epoch_segments(self.scope, self.stream, epoch)
            ranges = {segment.segment_id: (segment.low, segment.high) for segment in segments}
            while len(self._ranges) >= _MOST_EPOCHS:
                del self._ranges[next(iter(self._ranges))]
            self._ranges[epoch] = ranges
        return ranges.get(segment_id, (0.0, 1.0))

    async def aclose(self) -> None:
        """Releases the flows. Can be called twice."""
        await self._marks.aclose()


def compared(position: Mapping[int, tuple[float, float, int]], mark: Mark) -> int:
    """Returns 1 for a position at or behind a watermark's, -1 for a position before it, 0 if segments disagree.

    position: segment id → low, high, offset. If two segments overlap, the segment with the higher id is later.
    """
    below = above = False
    for segment_id, (low, high, offset) in position.items():
        same = [segment for segment in mark.segments if segment.segment_id == segment_id]
        for segment in same or [segment for segment in mark.segments if segment.low < high and low < segment.high]:
            here, there = (segment_id, offset), (segment.segment_id, segment.offset)
            above = above or here > there
            below = below or here < there
    if below:
        return 0 if above else -1
    return 1
