"""Looking at stores: their segments and their connections."""

from __future__ import annotations

import asyncio
import heapq
from typing import Annotated

from fastapi import APIRouter, Path, Query

from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.models import (
    AllSegments,
    ConnectionInfo,
    Connections,
    SegmentDetails,
    SegmentSummary,
)
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.store.errors import StoreError
from segstore.server.store.segment import Segment
from segstore.wire.names import is_index

__all__ = ["router"]

_AT_ONCE = 20_000
_Name = Annotated[str, Path(max_length=65_535, description="The segment's full name; `#` is written `%23`.")]
_Limit = Annotated[int, Query(ge=1, le=10_000, description="At most so many.")]


def router(controlled: Controlled) -> APIRouter:
    made = APIRouter(prefix="/v1")

    @made.get("/segments", tags=["segments"], summary="Segments by name")
    async def list_segments(
        prefix: Annotated[str, Query(description="Only names that begin so.")] = "",
        after: Annotated[str, Query(description="Only names behind this one: `next` of the page before.")] = "",
        limit: _Limit = 100,
        indexes: Annotated[bool, Query(description="Those of indexes too.")] = False,
    ) -> AllSegments:
        names: list[tuple[str, int, int]] = []
        for store in controlled.stores:
            for container in list(store.store.containers.values()):
                for done, name in enumerate(list(container.segments), 1):
                    if name.startswith(prefix) and name > after and (indexes or not is_index(name)):
                        names.append((name, store.number, container.container_id))
                    if done % _AT_ONCE == 0:
                        await asyncio.sleep(0)
        page = heapq.nsmallest(limit + 1, names)
        found = []
        for name, _, _ in page[:limit]:
            segment = _find(controlled, name)
            if segment is not None:  # it may be gone since
                found.append(segment)
        return AllSegments(
            segments=[_summary(number, container, segment) for number, container, segment in found],
            next=shown(page[limit - 1][0]) if len(page) > limit else None,
        )

    @made.get("/segments/{name:path}", tags=["segments"], summary="One segment")
    async def get_segment(name: _Name) -> SegmentDetails:
        found = _find(controlled, name)
        if found is None:
            raise ApiProblem(404, f"there is no segment {name[:200]!r} in the stores of this process", "path.name")
        number, container, segment = found
        counts = next(each for each in controlled.stores if each.number == number).service.writer_counts
        return SegmentDetails(
            **_summary(number, container, segment).model_dump(),
            last_modified_ms=segment.last_modified_ms,
            events=segment.event_count,
            kind=_kind(segment),
            attributes=segment.attribute_count(),
            writers=0 if counts is None else len(counts.of(name)),
        )

    @made.get("/connections", tags=["connections"], summary="Open connections")
    async def list_connections(limit: _Limit = 1_000) -> Connections:
        found = [
            ConnectionInfo(
                store=store.number,
                peer=shown(session.peer),
                admin=each.admin,
                writers=session.writer_count,
                waiting_reads=len(session.reads),
                held_bytes=each.held_bytes,
            )
            for store in controlled.stores
            for each in store.hub.connections
            if (session := each.session) is not None
        ]
        found.sort(key=lambda each: (each.store, each.peer))
        return Connections(total=len(found), connections=found[:limit])

    return made


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
    return SegmentSummary(
        name=shown(segment.name),
        store=number,
        container=container,
        length=segment.length,
        start_offset=segment.start_offset,
        sealed=segment.sealed,
    )


def _kind(segment: Segment) -> str:
    if is_index(segment.name):
        return "index"
    if segment.is_table:
        return "table"
    return "transient" if segment.is_transient else "stream"
