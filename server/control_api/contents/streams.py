"""Routes for scopes, their streams, and the history of a stream's segments.

A stream may have had any number of segments: a page walks their history from the segment after which it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from operator import attrgetter
from typing import Annotated, Final, Literal, get_args

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

_SCALING: Final = get_args(m.ScalingKind)


router = APIRouter(prefix="/v1")


@router.get("/scopes", tags=["scopes"], summary="Names of scopes")
async def list_scopes(controlled: Here, after: After = "", limit: Limit = 500) -> m.ScopeList:
    names, following = named(controller_of(controlled).scopes.names, after, limit)
    return m.ScopeList(scopes=names, next=following)


@router.get("/scopes/{scope}", tags=["scopes"], summary="A scope")
async def get_scope(controlled: Here, scope: Scope) -> m.ScopeDetails:
    known = controller_of(controlled).state.scope(scope)
    return m.ScopeDetails(
        scope=scope,
        created_ms=known.created_ms,
        streams=len(known.streams),
        reader_groups=len(known.reader_groups),
        tables=len(known.tables),
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

    page, following = named(names, after, limit)
    streams = [controller.state.find_stream(scope, name) for name in page]
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
    known = controller.streams.get(scope, stream)
    listed = []
    async for listed_segment in _segments(known, after, only_open=only_open):
        listed.append(listed_segment)
        if len(listed) > limit:
            break
    page = listed[:limit]
    alive = [known.segment_name(segment) for segment in page if segment.id not in known.deleted]
    infos = await answers(controller.segments.segment_info, alive)
    return m.SegmentPage(
        epoch=known.current.number,
        segments=[_segment(controller, known, segment, infos.get(known.segment_name(segment))) for segment in page],
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
    return m.StreamDetails.of(
        config,
        **_summary(stream).model_dump(),
        scaling=m.ScalingView.of(scaling, kind=_SCALING[scaling.kind]),
        retention=None if retention is None else m.RetentionView.of(retention, kind=retention.kind.name.lower()),
        scaling_now=stream.scale is not None,
        head=position_text(stream.head()),
        subscribers=sorted(stream.subscribers),
    )


async def _segments(stream: KnownStream, after: int, *, only_open: bool) -> AsyncIterator[StreamSegment]:
    """Yields the segments after an id, by id."""
    if only_open:
        for segment in () if stream.sealed else sorted(stream.current.segments, key=attrgetter("id")):
            if segment.id > after:
                yield segment
        return
    born = max(0, split_segment_id(after)[0]) if -1 <= after < 1 << 63 else len(stream.epochs)
    for number in range(born, len(stream.epochs)):
        epoch = stream.epochs[number]
        await asyncio.sleep(0)
        for identifier in sorted(epoch.created):
            if identifier > after:
                yield epoch.created[identifier]


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
        predecessors=[predecessor.id for predecessor in before],
        successors=[successor.id for successor in after],
    )
