"""Routes for scopes, their streams, and the history of a stream's segments.

A stream may have had any number of segments: a page walks their history from the segment after which it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query

from segstore.server.control_api.contents import models as m
from segstore.server.control_api.contents.asking import After, Limit, answers, named
from segstore.server.control_api.controlled import Here
from segstore.server.control_api.problems import shown
from segstore.server.control_api.steering import Scope, Stream, controller_of, position_text
from segstore.server.controller import Controller, SegmentStoreFailed
from segstore.server.controller.state import Stream as KnownStream
from segstore.server.controller.state import StreamSegment, history
from segstore.wire import StreamSegmentInfo
from segstore.wire.names import split_segment_id

_SCALING: Final[tuple[Literal["fixed", "kbytes_per_s", "events_per_s"], ...]] = (
    "fixed",
    "kbytes_per_s",
    "events_per_s",
)


router = APIRouter(prefix="/v1")


@router.get("/scopes", tags=["scopes"], summary="Names of scopes")
async def list_scopes(controlled: Here, after: After = "", limit: Limit = 500) -> m.ScopeList:
    names, following = named(controller_of(controlled).scopes.names, after, limit)
    return m.ScopeList(scopes=names, next=following)


@router.get("/scopes/{scope}", tags=["scopes"], summary="A scope")
async def get_scope(controlled: Here, scope: Scope) -> m.ScopeDetails:
    found = controller_of(controlled).state.scope(scope)
    return m.ScopeDetails(
        scope=scope,
        created_ms=found.created_ms,
        streams=len(found.streams),
        reader_groups=len(found.reader_groups),
        tables=len(found.tables),
    )


@router.get("/streams/{scope}", tags=["streams"], summary="Streams of a scope")
async def list_streams(
    controlled: Here,
    scope: Scope,
    after: After = "",
    limit: Limit = 100,
    internal: Annotated[bool, Query(description="Whether to list internal streams, whose names begin with _.")] = False,
) -> m.StreamPage:
    controller = controller_of(controlled)

    def names(token: str) -> tuple[list[str], str]:
        return controller.streams.names(scope, token, lambda name: internal or not name.startswith("_"))

    found, following = named(names, after, limit)
    streams = [controller.state.find_stream(scope, name) for name in found]
    return m.StreamPage(streams=[_summary(stream) for stream in streams if stream is not None], next=following)


@router.get("/streams/{scope}/{stream}", tags=["streams"], summary="A stream and its configuration")
async def get_stream(controlled: Here, scope: Scope, stream: Stream) -> m.StreamDetails:
    return _details(controller_of(controlled).streams.get(scope, stream))


@router.get("/streams/{scope}/{stream}/segments", tags=["streams"], summary="Segments of a stream, by epoch")
async def list_stream_segments(
    controlled: Here,
    scope: Scope,
    stream: Stream,
    after: Annotated[int, Query(description="`next` of the previous page.")] = -1,
    limit: Limit = 100,
    only_open: Annotated[bool, Query(alias="open", description="Only segments that take writes.")] = False,
) -> m.SegmentPage:
    controller = controller_of(controlled)
    found = controller.streams.get(scope, stream)
    segments = _open(found, after) if only_open else _segments(controller, found, after)
    return await _page(controller, found, segments, limit)


async def _page(
    controller: Controller, stream: KnownStream, segments: AsyncIterator[StreamSegment], limit: int
) -> m.SegmentPage:
    """The first `limit` of the segments."""
    listed = []
    async for segment in segments:
        listed.append(segment)
        if len(listed) > limit:
            break
    page = listed[:limit]
    alive = [stream.segment_name(each) for each in page if each.id not in stream.deleted]
    infos = await answers(controller.segments.segment_info, alive)
    return m.SegmentPage(
        epoch=stream.current.number,
        segments=[_segment(controller, stream, each, infos.get(stream.segment_name(each))) for each in page],
        next=page[-1].id if len(listed) > limit else None,
    )


def _summary(stream: KnownStream) -> m.StreamSummary:
    return m.StreamSummary.of(
        stream,
        stream=stream.name,
        epoch=stream.current.number,
        open_segments=0 if stream.sealed else len(stream.current.segments),
        transactions=len(stream.transactions),
        tags=[shown(tag) for tag in stream.config.tags],
    )


def _details(stream: KnownStream) -> m.StreamDetails:
    config = stream.config
    scaling, retention = config.scaling, config.retention
    head = position_text(stream.head())
    return m.StreamDetails(
        **_summary(stream).model_dump(),
        scaling=m.ScalingView.of(scaling, kind=_SCALING[scaling.kind]),
        retention=None if retention is None else m.RetentionView.of(retention, kind=retention.kind.name.lower()),
        rollover_bytes=config.rollover_bytes,
        timestamp_aggregation_timeout_ms=config.timestamp_aggregation_timeout_ms,
        scaling_now=stream.scale is not None,
        head=head,
        subscribers=sorted(stream.subscribers),
    )


async def _segments(controller: Controller, stream: KnownStream, after: int) -> AsyncIterator[StreamSegment]:
    """Yields the segments after an id, by id."""
    born = max(0, split_segment_id(after)[0]) if -1 <= after < 1 << 63 else len(stream.epochs)
    for number in range(born, len(stream.epochs)):
        epoch = stream.epochs[number]
        await asyncio.sleep(0)
        for identifier in sorted(epoch.created):
            if identifier > after:
                yield epoch.created[identifier]


async def _open(stream: KnownStream, after: int) -> AsyncIterator[StreamSegment]:
    """Yields the segments that take writes and are after an id, by id."""
    if not stream.sealed:
        for each in sorted(stream.current.segments, key=lambda each: each.id):
            if each.id > after:
                yield each


def _segment(
    controller: Controller, stream: KnownStream, segment: StreamSegment, info: StreamSegmentInfo | None
) -> m.SegmentOfStream:
    name = stream.segment_name(segment)
    sealed = history.sealed_in(stream.epochs, segment)
    deleted = segment.id in stream.deleted
    before = stream.epochs[segment.epoch - 1].overlapping(segment.start, segment.end) if segment.epoch else ()
    after = () if sealed is None else stream.epochs[sealed].overlapping(segment.start, segment.end)
    status: Literal["open", "sealed", "deleted"] = "deleted" if deleted else "open"
    if not deleted and (stream.sealed or sealed is not None):
        status = "sealed"
    try:
        owner = None if deleted else controller.segments.owner_of(name)
    except SegmentStoreFailed:
        owner = None
    return m.SegmentOfStream.of(
        segment,
        name=name,
        until_epoch=sealed,
        low=segment.start,
        high=segment.end,
        status=status,
        store=None if owner is None else str(owner),
        start_offset=None if info is None else info.start_offset,
        length=None if info is None else info.write_offset,
        predecessors=[each.id for each in before],
        successors=[each.id for each in after],
    )
