"""Watermarks: the times that a stream's writers noted, told to its readers in a stream of its own (`_MARK…`).

While writers note times, every so often the lowest time that all active ones have reached, and the farthest positions
at which they stood, become one event of that stream. Readers hold their own position against it and so know between
which times they are.

Invariant: from one watermark to the next the lower time rises and no position goes back; an event is written before the
state tells of it, and once. A writer that has not noted a time above the last watermark's is waited for as long as the
stream's timestamp aggregation timeout allows, then forgotten; one that said it is gone, at once.

Follows `PeriodicWatermarking` and `Watermark` (Pravega). Deliberate difference: the last watermark is kept here, and
the mark that Pravega sets in the stream of watermarks, for its controllers alone, is not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from segstore.server.controller.core import Core, Due
from segstore.server.controller.epochs import Segment, uncovered
from segstore.server.controller.errors import ControllerError, NotFound, StreamSealed
from segstore.server.controller.operations import WatermarkWritten, WriterForgotten
from segstore.server.controller.policies import Cut
from segstore.server.controller.state import MARK_PREFIX, Stream, Watermark, WriterMark
from segstore.server.controller.streams import Streams
from segstore.wire import Event, encode

__all__ = ["Watermarks", "encode_watermark", "upper_bound"]

_log = logging.getLogger(__name__)

_TIMES: Final = Struct(">qq")
_SEGMENT: Final = Struct(">qdd")
_OFFSET: Final = Struct(">q")
_REVISION: Final = Struct(">BBBBi")
"""Of a serialized value: formats 0 and 0, one revision, its number 0, and its size."""

_SHORT, _MIDDLE = 1 << 7, 1 << 14


class Watermarks:
    """Writes them, for streams whose writers note times."""

    def __init__(self, core: Core, streams: Streams) -> None:
        self._core = core
        self._streams = streams
        self._behind_since: dict[str, dict[str, int]] = {}

    async def run(self, scope: str, stream: str) -> None:
        """Write a watermark if there is one to write; look again later while there are writers to look at."""
        holder = self._core.state.scopes.get(scope)
        found = None if holder is None else holder.streams.get(stream)
        if found is None:
            self._behind_since.pop(f"{scope}/{stream}", None)
            return
        active = self._active(found)
        if not active:
            return
        self._core.schedule_once(self._core.config.watermark_every_ms, Due.WATERMARK, scope, stream)
        last = found.watermark
        if last is not None and any(mark.timestamp <= last.lower for mark in active):
            return
        cut = upper_bound(found, [mark.position for mark in active], {} if last is None else last.cut)
        if not cut:
            return
        times = [mark.timestamp for mark in active]
        number = 1 if last is None else last.number + 1
        try:
            await self._write(found, Watermark(number, min(times), max(times), cut))
        except ControllerError as error:
            _log.warning("the watermark of stream %s waits for the next time: %s", found.full_name, error)

    async def _write(self, stream: Stream, watermark: Watermark) -> None:
        scope, name = stream.scope, MARK_PREFIX + stream.name
        segments = await self._streams.current(scope, name)
        if not segments:
            raise StreamSealed(f"{scope}/{name}")
        event = encode(Event(encode_watermark(stream, watermark)))
        await self._core.segments.append_event(segments[0].name(scope, name), watermark.number, event)
        if self._core.state.stream(scope, stream.name) is stream:  # and not one that was made again meanwhile
            self._core.record(WatermarkWritten(scope, stream.name, watermark))

    def _active(self, stream: Stream) -> list[WriterMark]:
        """The marks of the writers that count; forgets the others."""
        last, now_ms = stream.watermark, self._core.now_ms()
        behind_since = self._behind_since.setdefault(stream.full_name, {})
        active = []
        for writer, mark in list(stream.writers.items()):
            if last is None or mark.timestamp > last.lower:
                behind_since.pop(writer, None)
                active.append(mark)
                continue
            since_ms = behind_since.setdefault(writer, now_ms)
            if mark.alive and now_ms - since_ms < stream.config.timestamp_aggregation_timeout_ms:
                active.append(mark)
            else:
                del behind_since[writer]
                self._core.record(WriterForgotten(stream.scope, stream.name, writer))
        if not behind_since:
            del self._behind_since[stream.full_name]
        return active


def upper_bound(stream: Stream, positions: Iterable[Mapping[int, int]], last: Mapping[int, int]) -> Cut:
    """The earliest stream cut that none of the positions, and not the last one, goes beyond; empty if none has any.

    Keys that no position covers are covered from the newest epoch that one names. Segments that the stream never had,
    of a writer that says so, do not count.
    """
    bound: dict[Segment, int] = {}
    unknown: list[int] = []
    for position in (*positions, last):
        for identifier, offset in position.items():
            try:
                _raise_to(bound, stream.segment(identifier), offset)
            except NotFound:
                unknown.append(identifier)
    if unknown:
        _log.warning(
            "writers of stream %s noted %d positions in segments that it never had, such as %d",
            stream.full_name,
            len(unknown),
            unknown[0],
        )
    while missing := uncovered(sorted(bound, key=lambda each: each.start)) if bound else []:
        newest = stream.epoch(max(each.epoch for each in bound))
        for segment in newest.segments:
            if any(segment.start < end and start < segment.end for start, end in missing):
                _raise_to(bound, segment, 0)
    return {segment.id: offset for segment, offset in sorted(bound.items(), key=lambda each: each[0].id)}


def _raise_to(bound: dict[Segment, int], segment: Segment, offset: int) -> None:
    """Let the bound not lie before an offset of a segment: it stands for all segments before it."""
    if segment in bound:
        bound[segment] = max(offset, bound[segment])
    elif not any(each.overlaps(segment) and each.id > segment.id for each in bound):
        for each in [each for each in bound if each.overlaps(segment)]:
            del bound[each]
        bound[segment] = offset


def encode_watermark(stream: Stream, watermark: Watermark) -> bytes:
    """A watermark as the events of its stream hold it."""
    parts = [_TIMES.pack(watermark.lower, watermark.upper), _count(len(watermark.cut))]
    for identifier, offset in watermark.cut.items():
        segment = stream.segment(identifier)
        parts += (_value(_SEGMENT.pack(identifier, segment.start, segment.end)), _OFFSET.pack(offset))
    return _value(b"".join(parts))


def _value(content: bytes) -> bytes:
    return _REVISION.pack(0, 0, 1, 0, len(content)) + content


def _count(number: int) -> bytes:
    """A number in one, two or four bytes; the first bits tell in how many."""
    if number < _SHORT:
        return number.to_bytes(1, "big")
    if number < _MIDDLE:
        return (number | 0x8000).to_bytes(2, "big")
    return (number | 0xC000_0000).to_bytes(4, "big")
