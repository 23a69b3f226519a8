"""Writers' timestamps, and watermarks, which combine them for readers in a stream of its own (`_MARK…`).

A writer reports a timestamp with its position. While writers do, an event is written to that stream periodically: the
range of the active writers' timestamps and the farthest of their positions. Readers compare their own position with it
to determine their time range.

Invariants: neither the time nor the position of a writer goes back. From one watermark to the next the lower time
increases and no position goes back; an event is written once, and before the state records it. A writer whose timestamp
is not above the last watermark's lower time is waited for until the stream's timestamp aggregation timeout, then
forgotten; a removed writer is forgotten at once.

Follows `PersistentStreamBase.noteWriterMark`, `PeriodicWatermarking` and `Watermark` (Pravega). Deliberate difference:
the last watermark is kept in the state; the mark that Pravega sets in the stream of watermarks, for its controllers
only, is not written.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from segstore.server.controller.errors import ControllerError, NotFound, StreamIsSealed, TooMany
from segstore.server.controller.policies import Cut
from segstore.server.controller.state import (
    MARK_PREFIX,
    Core,
    Due,
    KeyRange,
    Stream,
    StreamSegment,
    Watermark,
    WriterMark,
    history,
)
from segstore.server.controller.state import operations as op
from segstore.wire import Event, encode
from segstore.wire.revisioned import Mark, MarkedSegment, encode_mark

if TYPE_CHECKING:
    from segstore.server.controller.streams.streams import Streams

NoteResult = Literal["SUCCESS", "INVALID_TIME", "INVALID_POSITION"]

_log = logging.getLogger(__name__)


class Writers:
    def __init__(self, core: Core) -> None:
        self._core = core

    def note(self, scope: str, stream: str, writer: str, timestamp: int, position: Mapping[int, int]) -> NoteResult:
        """Records that all events of this writer up to `position` have timestamps up to `timestamp`, unless one of them
        goes back; sets the stream's timer for watermarks. Raises `TooMany` for a writer beyond the limit.
        """
        core, writers = self._core, self._core.state.stream(scope, stream).writers
        core.check_writer(writer)
        mark, limit = writers.get(writer), core.config.max_writers
        if mark is None:
            if len(writers) >= limit:
                raise TooMany("writers that note times", len(writers) + 1, limit)
        elif mark.timestamp > timestamp:
            return "INVALID_TIME"
        elif any(offset < mark.position.get(segment, offset) for segment, offset in position.items()):
            return "INVALID_POSITION"
        core.record(op.WriterSet(scope, stream, writer, WriterMark(timestamp, dict(position))))
        core.schedule_once(core.config.watermark_every_ms, Due.WATERMARK, scope, stream)
        return "SUCCESS"

    def remove(self, scope: str, stream: str, writer: str) -> None:
        mark = self._core.state.stream(scope, stream).writers.get(writer)
        if mark is None:
            raise NotFound("writer", f"{writer} of stream {scope}/{stream}")
        self._core.record(op.WriterSet(scope, stream, writer, replace(mark, alive=False)))


class Watermarks:
    def __init__(self, core: Core, streams: Streams) -> None:
        self._core = core
        self._streams = streams
        self._behind_since: dict[str, dict[str, int]] = {}

    def clear(self) -> None:
        """Forgets since when writers have been behind."""
        self._behind_since.clear()

    async def run(self, scope: str, name: str) -> None:
        """Writes a watermark if it is due; sets a timer for the next watermark while there are active writers."""
        stream = self._core.state.find_stream(scope, name)
        if stream is None:
            self._behind_since.pop(f"{scope}/{name}", None)
            return
        active = self._active(stream)
        if not active:
            return
        self._core.schedule_once(self._core.config.watermark_every_ms, Due.WATERMARK, scope, name)
        last = stream.watermark
        if last is not None and any(mark.timestamp <= last.lower for mark in active):
            return
        bound = UpperBound(stream)
        for mark in active:
            bound.add(mark.position)
            await asyncio.sleep(0)
        if self._core.state.find_stream(scope, name) is not stream:
            return
        if bound.unknown:
            what = "writers of stream %s noted %d positions in segments that it never had"
            _log.warning(what, stream.full_name, bound.unknown)
        cut = bound.cut({} if last is None else last.cut)
        if not cut:
            return
        times = [mark.timestamp for mark in active]
        number = 1 if last is None else last.number + 1
        try:
            await self._write(stream, Watermark(number, min(times), max(times), cut))
        except ControllerError as error:
            _log.warning("the watermark of stream %s is retried next time: %s", stream.full_name, error)

    async def _write(self, stream: Stream, watermark: Watermark) -> None:
        scope, name = stream.scope, MARK_PREFIX + stream.name
        segments = await self._streams.current(scope, name)
        if not segments:
            raise StreamIsSealed(f"{scope}/{name}")
        event = encode(Event(encode_mark(mark_of(stream, watermark))))
        await self._core.segments.append_event(segments[0].name(scope, name), watermark.number, event)
        if self._core.state.find_stream(scope, stream.name) is stream:  # not deleted or recreated meanwhile
            self._core.record(op.WatermarkWritten(scope, stream.name, watermark))

    def _active(self, stream: Stream) -> list[WriterMark]:
        """Returns the marks of active writers; forgets inactive writers."""
        last, now_ms = stream.watermark, self._core.now_ms()
        behind_since = self._behind_since.setdefault(stream.full_name, {})
        active = []
        for writer, mark in tuple(stream.writers.items()):
            if last is None or mark.timestamp > last.lower:
                behind_since.pop(writer, None)
                active.append(mark)
                continue
            since_ms = behind_since.setdefault(writer, now_ms)
            if mark.alive and now_ms - since_ms < stream.config.timestamp_aggregation_timeout_ms:
                active.append(mark)
            else:
                del behind_since[writer]
                self._core.record(op.WriterSet(stream.scope, stream.name, writer, None))
        if not behind_since:
            del self._behind_since[stream.full_name]
        return active


class UpperBound:
    """Builds the smallest stream cut that no added position exceeds.

    Attributes:
        unknown: the number of added positions in segments that the stream never had, which are ignored.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._segments: list[StreamSegment] = []
        """Sorted by key; no two overlap."""
        self.unknown = 0
        self._offsets: dict[int, int] = {}

    def add(self, position: Mapping[int, int]) -> None:
        for identifier, offset in position.items():
            if (segment := history.find_segment(self._stream.epochs, identifier)) is None:
                self.unknown += 1
            else:
                self._raise_to(segment, offset)

    def cut(self, last: Mapping[int, int]) -> Cut:
        """Returns the stream cut, which is not before the last cut; empty if no position was in the stream.

        As in Pravega, keys that the positions do not cover are covered by segments of the newest epoch in the positions
        or the last cut, even if the last cut covers them.
        """
        if not self._segments:
            return {}
        missing = history.uncovered(self._segments)
        self.add(last)
        self._fill(missing)
        while missing := history.uncovered(self._segments):
            self._fill(missing)
        return dict(sorted(self._offsets.items()))

    def _fill(self, missing: Iterable[KeyRange]) -> None:
        newest = self._stream.epoch(max(segment.epoch for segment in self._segments))
        for start, end in missing:
            for segment in newest.overlapping(start, end):
                self._raise_to(segment, 0)

    def _raise_to(self, segment: StreamSegment, offset: int) -> None:
        """Raises the bound to an offset of a segment, which implies all segments before it."""
        # A writer that has written nothing to a segment reports -1, but readers cannot start from such a cut.
        offset = max(offset, 0)
        first = bisect_right(self._segments, segment.start, key=attrgetter("end"))
        across = self._segments[first : bisect_left(self._segments, segment.end, key=attrgetter("start"))]
        if any(other.id > segment.id for other in across):
            return
        self._segments[first : first + len(across)] = [segment]
        self._offsets[segment.id] = max(offset, self._offsets.get(segment.id, 0))
        for other in across:
            if other.id != segment.id:
                del self._offsets[other.id]


def mark_of(stream: Stream, watermark: Watermark) -> Mark:
    """Returns a watermark with the key ranges of its segments, for readers."""
    cut = ((stream.segment(identifier), offset) for identifier, offset in watermark.cut.items())
    segments = tuple(MarkedSegment(segment.id, segment.start, segment.end, offset) for segment, offset in cut)
    return Mark(watermark.lower, watermark.upper, segments)
