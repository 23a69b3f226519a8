"""Routes for append statistics of streams, per writer and per writer name (79.8).

Writers are identified by name or id, never by their position in a list, so each sum is right whichever segments of the
stream a writer is connected to.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.models import StreamStats, WriterName, WriterNamesPage, WriterTotals
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.routes import NAME
from segstore.server.control_api.writer_names import MOST_NAMES
from segstore.server.store import Segment
from segstore.wire.names import is_index, parent_of, stream_of

_AT_ONCE = 20_000
_MOST_WRITERS = 2_000


router = APIRouter(prefix="/v1")


@router.get("/streams/{scope}/{stream}/stats", tags=["streams"], summary="A stream and its writers")
async def stream_stats(
    controlled: Here, scope: Annotated[str, Path(max_length=255)], stream: Annotated[str, Path(max_length=255)]
) -> StreamStats:
    own = [segment async for segment in controlled.segments() if _is_own(segment.name, f"{scope}/{stream}")]
    controller = controlled.controller()
    if not own and (controller is None or controller.state.find_stream(scope, stream) is None):
        raise ApiProblem(404, f"there is no stream {scope}/{stream}", "path")
    sums = await _sums(controlled, own)
    listed = nsmallest(_MOST_WRITERS, sums, key=lambda key: (isinstance(key, bytes), key))
    return StreamStats(
        scope=scope,
        stream=stream,
        segments=len(own),
        open_segments=sum(not segment.sealed for segment in own),
        events=sum(segment.event_count or 0 for segment in own),
        bytes=sum(segment.length - segment.start_offset for segment in own),
        writers=[_totals(key, *sums[key]) for key in listed],
        writer_count=len(sums),
        uncounted=controlled.counts.uncounted,
    )


@router.get("/writers", tags=["writers"], summary="Registered writer names")
async def list_writers(controlled: Here) -> WriterNamesPage:
    return WriterNamesPage(names=list(controlled.names), limit=MOST_NAMES)


@router.post("/writers", tags=["writers"], summary="Register a writer name", status_code=201)
async def register_writer(controlled: Here, writer: WriterName) -> WriterName:
    try:
        controlled.names.add(writer.name)
    except ValueError as error:
        raise ApiProblem(409, str(error), "body.name") from error
    return writer


@router.delete(f"/writers/{NAME}", tags=["writers"], summary="Remove a writer name", status_code=204)
async def remove_writer(controlled: Here, name: Annotated[str, Path(max_length=255)]) -> None:
    if name not in controlled.names:
        raise ApiProblem(404, f"no writer is registered as {name!r}", "path.name")
    controlled.names.remove(name, list(controlled.counts.all()))


async def _sums(controlled: Controlled, segments: list[Segment]) -> dict[str | bytes, list[int]]:
    """Returns the sums of writers, by name, or by id if the name is unknown: segments, connections, events, bytes.

    Yields to the loop regularly.
    """
    sums: dict[str | bytes, list[int]] = {}
    for segment in segments:
        counts = controlled.counts.of(segment.name)
        await controlled.names.find(segment.name, counts)
        for done, (id_bytes, count) in enumerate(list(counts.items()), 1):
            total = sums.setdefault(id_bytes if count.name is None else count.name, [0, 0, 0, 0])
            for at, number in enumerate((1, count.connected, count.events, count.bytes)):
                total[at] += number
            if done % _AT_ONCE == 0:
                await asyncio.sleep(0)
    return sums


def _totals(key: str | bytes, segments: int, connected: int, events: int, size: int) -> WriterTotals:
    name, writer_id = (key, None) if isinstance(key, str) else (None, UUID(bytes=key))
    return WriterTotals(name=name, id=writer_id, segments=segments, connected=connected, events=events, bytes=size)


def _is_own(segment: str, stream: str) -> bool:
    """Whether a segment belongs to the stream and is neither an index nor to be merged into another segment."""
    return (
        segment.startswith(f"{stream}/")
        and not is_index(segment)
        and parent_of(segment) is None
        and stream_of(segment) == stream
    )
