"""Reads a range of a segment as Arrow batches, one row per event.

    event binary, segment string, offset long, length int, epoch int, time timestamp

`offset` is the offset of the event's header, `length` the size of the event without it; the next event of the segment
starts 8 + `length` bytes later. `time` is when the event was stored, to about 10 ms, according to the segment's index;
null without an index. Only a schema that names them has `epoch` and `time`.

Invariants: at most one batch and one read are held in memory; the rows belong to the range, whatever is written after
it. Refused: a range that no longer exists (`DataLost`), unless the options allow skipping it; a segment whose bytes are
not events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from segstore.client.errors import SegmentMissing, SegmentTruncated
from segstore.client.stream import EventDecoder, FramedEvent
from segstore.pipeline.stream.options import StreamOptions
from segstore.pipeline.stream.plan import ByteRange, DataLost, first_offset
from segstore.pipeline.stream.segments import Segments, opened
from segstore.pipeline.stream.timeline import Timeline
from segstore.pipeline.trace.options import OptionError
from segstore.wire.names import split_segment_id

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

DEFAULT: Final = ("event", "segment", "offset", "length")
COLUMNS: Final = {
    "event": "binary",
    "segment": "string",
    "offset": "bigint",
    "length": "int",
    "epoch": "int",
    "time": "timestamp",
}
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 10_000
_AHEAD_BYTES: Final = 8 << 20
_YEAR_10000_MS: Final = 253_402_300_800_000
"""Later times, which only a client can have put into an index, count as unknown."""


def wanted_names(fields: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the columns of a schema of (name, type), as spelled, in any case. Raises OptionError."""
    names = []
    for spelled, kind in fields:
        name = spelled.lower()
        if name not in COLUMNS:
            raise OptionError(f"a stream has no column {spelled!r}; it has {', '.join(COLUMNS)}", "schema", spelled)
        if kind != COLUMNS[name]:
            raise OptionError(f"the column {name!r} is a {COLUMNS[name]}, not a {kind}", "schema", kind)
        names.append(spelled)
    return tuple(names)


def range_batches(options: StreamOptions, part: ByteRange, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a range in order. Raises DataLost, and the client's errors."""
    with asyncio.Runner() as runner:
        batches = _batches(options, part, names)
        try:
            while (batch := runner.run(_next(batches))) is not None:
                yield batch
        finally:
            runner.run(batches.aclose())


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


async def _batches(options: StreamOptions, part: ByteRange, names: tuple[str, ...]) -> Any:
    rows: list[FramedEvent] = []
    size = 0
    times: list[int | None] = []
    async with opened(options, "READ") as segments:
        line = await _timeline(segments, part) if "time" in map(str.lower, names) else None
        async for events in events_of(segments, options, part):
            rows += events
            times += [] if line is None else [await line.time_of(event.offset) for event in events]
            size += sum([len(event.data) for event in events])
            if size >= _BATCH_BYTES or len(rows) >= _BATCH_ROWS:
                yield _batch(part, rows, times, names)
                rows, times, size = [], [], 0
    if rows:
        yield _batch(part, rows, times, names)


async def _timeline(segments: Segments, part: ByteRange) -> Timeline | None:
    info = await segments.find(part.segment)
    if info is None:  # `events_of` reports it
        return None
    line = Timeline(segments, part.segment, part.start, part.end, info.last_modified, 0, events=False)
    await line.open()
    return line


def _batch(part: ByteRange, rows: list[FramedEvent], times: list[int | None], names: tuple[str, ...]) -> pa.RecordBatch:
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name in names:
        match name.lower():
            case "event":
                columns[name] = pa.array([row.data for row in rows], pa.binary())
            case "segment":
                columns[name] = pa.repeat(pa.scalar(part.segment, pa.string()), len(rows))
            case "offset":
                columns[name] = pa.array([row.offset for row in rows], pa.int64())
            case "epoch":
                columns[name] = pa.repeat(pa.scalar(split_segment_id(part.segment_id)[0], pa.int32()), len(rows))
            case "time":
                in_us = [None if time_ is None or time_ >= _YEAR_10000_MS else time_ * 1000 for time_ in times]
                columns[name] = pa.array(in_us, pa.timestamp("us", "UTC"))
            case _:
                columns[name] = pa.array([len(row.data) for row in rows], pa.int32())
    if not columns:  # count() requests no column, but needs rows
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    return pa.RecordBatch.from_pydict(columns)


async def events_of(segments: Segments, options: StreamOptions, part: ByteRange) -> AsyncIterator[list[FramedEvent]]:
    """Yields the events of a range in groups. Raises DataLost."""
    start = await _start(segments, options, part)
    if start is None:
        return
    limit = segments.client.pool.settings.max_large_event_bytes
    reader = segments.reader(part.segment, start, read_ahead=part.end - start > _AHEAD_BYTES)
    decoder = EventDecoder(part.segment, start, limit)
    try:
        while decoder.offset < part.end:
            chunk = await reader.read()
            inside = chunk.view[: part.end - chunk.offset]
            events = decoder.feed(inside)
            if events:
                yield events
            if decoder.offset < part.end and (chunk.at_tail or chunk.end_of_segment):
                ends = chunk.offset + len(chunk.view)
                if ends < part.end:
                    raise DataLost(f"{part.segment} ends at {ends}, not at {part.end}", part.segment, ends, part.end)
            if chunk.offset + len(inside) >= part.end and decoder.partial:
                raise DataLost(
                    f"no event of {part.segment} ends at {part.end}: does the offset come from a cut?",
                    part.segment,
                    decoder.offset,
                    part.end,
                )
    except (SegmentMissing, SegmentTruncated) as cause:
        lost = DataLost(
            f"{part.segment} was read to {decoder.offset} of {part.end}, then: {cause}",
            part.segment,
            decoder.offset,
            part.end,
        )
        if options.fail_on_data_loss:
            raise lost from cause
        log.warning("%s", lost)
    finally:
        reader.close()


async def _start(segments: Segments, options: StreamOptions, part: ByteRange) -> int | None:
    """Returns the first readable offset of the range, None if it is gone. A read past the end would never return."""
    info = await segments.find(part.segment)
    start = first_offset(part.segment, part.start, info, options)
    if info is None:
        log.warning("%s is gone: nothing of %d to %d was read", part.segment, part.start, part.end)
        return None
    if info.write_offset < part.end:
        shorter = f"{part.segment} ends at {info.write_offset}, but was to be read to {part.end}"
        raise DataLost(shorter, part.segment, info.write_offset, part.end)
    if start > part.start:
        log.warning("%s was truncated at %d: bytes from %d were not read", part.segment, start, part.start)
    return start if start < part.end else None
