"""Route for the last events of a stream's segments.

Events have no marks at their ends, so they are found forwards, from an offset at which an append has ended: the index
of a segment records such offsets. The part of the segment that is read grows until it has enough events. Invariant: at
most `_MOST_READ` bytes of a segment are read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query

from segstore.server.control_api.contents import models as m
from segstore.server.control_api.controlled import Here
from segstore.server.control_api.detail import readable_form
from segstore.server.control_api.problems import shown
from segstore.server.control_api.steering import Scope, Stream, controller_of
from segstore.server.controller import SegmentAdmin, SegmentStoreFailed
from segstore.server.controller.state import Stream as KnownStream
from segstore.server.controller.state import StreamSegment
from segstore.wire.codec import HEADER_BYTES
from segstore.wire.inspect import PayloadPart, payload_parts

_MOST_SEGMENTS: Final = 20
_MOST_EPOCHS: Final = 10
_FIRST_READ: Final = 64 * 1024
_MOST_READ: Final = 16 * 1024 * 1024
_LARGER: Final = 4
_AT_ONCE: Final = 5_000


router = APIRouter(prefix="/v1")


@router.get("/streams/{scope}/{stream}/tail", tags=["events"], summary="The last events of a stream's segments")
async def read_tail(
    controlled: Here,
    scope: Scope,
    stream: Stream,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of events of each segment.")] = 10,
    segment: Annotated[
        int | None, Query(ge=0, lt=1 << 63, description="The id of a segment; else the segments of the last epoch.")
    ] = None,
) -> m.StreamTail:
    controller = controller_of(controlled)
    known = controller.streams.get(scope, stream)
    if segment is not None:
        return await _tails(controller.segments, known, (known.segment(segment),), limit)
    last = None
    for epoch in known.epochs[: -_MOST_EPOCHS - 1 : -1]:
        tail = await _tails(controller.segments, known, epoch.segments, limit)
        last = last or tail
        if any(segment_tail.events or segment_tail.why for segment_tail in tail.segments):
            return tail
    assert last is not None, "a stream has an epoch"
    return last


async def _tails(
    admin: SegmentAdmin, stream: KnownStream, segments: Sequence[StreamSegment], limit: int
) -> m.StreamTail:
    there = [segment for segment in segments if segment.id not in stream.deleted]
    tails = [await _tail(admin, segment.id, stream.segment_name(segment), limit) for segment in there[:_MOST_SEGMENTS]]
    return m.StreamTail(segments=tails, segment_count=len(there))


async def _tail(admin: SegmentAdmin, identifier: int, name: str, limit: int) -> m.SegmentTail:
    try:
        info = await admin.segment_info(name)
        parts, left_out = await _last(admin, name, info.start_offset, info.write_offset, limit)
    except SegmentStoreFailed as error:
        return m.SegmentTail(id=identifier, name=name, length=None, events=[], left_out=False, why=shown(str(error)))
    events = []
    for offset, part in parts:
        form, text = readable_form(part.data)
        events.append(m.TailEvent(offset=offset, size=part.size, kind=part.kind, form=form, text=text))
    why = "" if events or not left_out else f"no event begins in its last {_MOST_READ >> 20} MiB"
    return m.SegmentTail(id=identifier, name=name, length=info.write_offset, events=events, left_out=left_out, why=why)


async def _last(
    admin: SegmentAdmin, name: str, start: int, end: int, limit: int
) -> tuple[list[tuple[int, PayloadPart]], bool]:
    """Returns the last parts of a segment with their offsets, and whether there is anything before them."""
    size = _FIRST_READ
    while True:
        is_all = size >= end - start
        at = start if is_all else await admin.locate_offset(name, end - size)
        parts, count = await _parts(await admin.read_segment(name, at, end - at), at, limit)
        if is_all or count >= limit or size >= _MOST_READ or (parts and parts[-1][1].kind == "data"):
            return parts, count > limit or at > start
        size *= _LARGER


async def _parts(data: bytes, at: int, limit: int) -> tuple[list[tuple[int, PayloadPart]], int]:
    """Returns the last parts of bytes that begin at an offset, and the number of all. Yields to the loop regularly."""
    last: deque[tuple[int, PayloadPart]] = deque(maxlen=limit)
    count = 0
    for count, part in enumerate(payload_parts(data), 1):
        last.append((at, part))
        at += part.size + (0 if part.kind == "data" else HEADER_BYTES)
        if count % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return list(last), count
