"""Routes that list segments, describe a segment, and read its bytes."""

from __future__ import annotations

from bisect import bisect
from heapq import nsmallest
from itertools import accumulate
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response

from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.models import AllSegments, SegmentDetails, SegmentSummary
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.routes import NAME
from segstore.server.store import Segment, StoreError
from segstore.wire.names import is_index

_Name = Annotated[str, Path(max_length=65_535, description="The segment's full name; `#` is written `%23`.")]
_MOST_READ: Final = 8 * 1024 * 1024
_MOST_CHARACTERS: Final = 256 * 1024
"""Characters of the names on a page, unless one name is longer."""
_BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_Limit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of entries.")]


router = APIRouter(prefix="/v1")


@router.get("/segments", tags=["segments"], summary="Segments by name")
async def list_segments(
    controlled: Here,
    prefix: Annotated[str, Query(description="Only names with this prefix.")] = "",
    contains: Annotated[str, Query(max_length=65_535, description="Only names that contain this text.")] = "",
    after: Annotated[str, Query(description="Only names after this name: `next` of the previous page.")] = "",
    limit: _Limit = 100,
    indexes: Annotated[bool, Query(description="Whether to include index segments.")] = False,
) -> AllSegments:
    total, later = 0, list[tuple[str, str]]()
    async for segment in controlled.segments():
        listed = shown(segment.name)
        if listed.startswith(prefix) and contains in listed and (indexes or not is_index(segment.name)):
            total += 1
            if listed > after:
                later.append((listed, segment.name))
    names = [name for _, name in nsmallest(limit + 1, later)]
    fitting = bisect(list(accumulate(map(len, names))), _MOST_CHARACTERS)
    page = names[: max(1, min(limit, fitting))]
    places = [_find(controlled, name) for name in page]
    return AllSegments(
        total=total,
        segments=[_summary(*place) for place in places if place is not None],  # it may have been deleted meanwhile
        next=shown(page[-1]) if len(names) > len(page) else None,
    )


@router.get(f"/segments/{NAME}", tags=["segments"], summary="One segment")
async def get_segment(controlled: Here, name: _Name) -> SegmentDetails:
    place = _find(controlled, name)
    if place is None:
        raise _no_segment(name)
    number, container, segment = place
    return SegmentDetails.of(
        segment,
        **_summary(number, container, segment).model_dump(),
        events=segment.event_count,
        kind=_kind(segment),
        attributes=len(segment.attributes),
        writers=len(controlled.counts.of(name)),
    )


@router.get(
    f"/bytes/{NAME}",
    tags=["segments"],
    summary="Bytes of a segment, as they are stored",
    response_class=Response,
    responses=_BYTES,
)
async def read_bytes(
    controlled: Here,
    name: _Name,
    offset: Annotated[int | None, Query(alias="from", ge=0, description="Default: the start offset.")] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_READ, description="Maximum number of bytes.")] = _MOST_READ,
) -> Response:
    store = controlled.store_of(name)
    if store is None or _find(controlled, name) is None:
        raise _no_segment(name)
    info = store.store.segment_info(name)  # writes the entries that an index lacks
    at = info.start_offset if offset is None else offset
    if not info.start_offset <= at <= info.length:
        why = f"the segment has the bytes from {info.start_offset} to {info.length}"
        raise ApiProblem(422, f"offset {at} is not in the segment: {why}", "query.from")
    data = store.store.segment(name).read_bytes(at, min(limit, info.length - at))
    return Response(data, media_type="application/octet-stream")


def _no_segment(name: str) -> ApiProblem:
    return ApiProblem(404, f"there is no segment {name[:200]!r} in the stores of this process", "path.name")


def _find(controlled: Controlled, name: str) -> tuple[int, int, Segment] | None:
    store = controlled.store_of(name)
    if store is None:
        return None
    try:
        container = store.store.container_for(name)
        return store.number, container.container_id, container.segment(name)
    except StoreError:
        return None


def _summary(number: int, container: int, segment: Segment) -> SegmentSummary:
    return SegmentSummary.of(segment, name=shown(segment.name), store=number, container=container)


def _kind(segment: Segment) -> str:
    if is_index(segment.name):
        return "index"
    if segment.is_table:
        return "table"
    return "transient" if segment.is_transient else "stream"
