"""Facts of requests about segments, once they are answered, or if they never are.

`OF_SEGMENTS` maps a request's type to a function of the reply's place, the request and the reply; `UNANSWERED_SEGMENTS`
to a function of the request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from segstore.wire.commands import (
    CreateSegment,
    CreateTransientSegment,
    DeleteSegment,
    GetStreamSegmentInfo,
    MergeSegments,
    MergeSegmentsBatch,
    ReadSegment,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsTruncated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    StreamSegmentInfo,
    TruncateSegment,
    WrongHost,
)
from segstore.wire.history.facts import Changed, Fact, Lost, Passed, Place, Read, Waiting, positions_key, segment_key
from segstore.wire.schema import Command

Maker = Callable[[Place, Waiting, Command], Iterator[Fact]]
Unanswered = Callable[[Waiting], Iterator[Fact]]


def _changed(place: Place, segment: str, what: str, asked: Place, **facts: Any) -> Iterator[Fact]:
    yield Fact(segment_key(segment), place, Changed(segment, what, asked, **facts))


def _read(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, SegmentRead):
        read = Read(reply.segment, reply.offset, bytes(reply.data), reply.end_of_segment, request.place)
        yield Fact(segment_key(reply.segment), place, read)
        if read.data:
            yield _passed(place, reply.segment, reply.offset, reply.offset + len(read.data))
    elif isinstance(reply, SegmentIsTruncated):
        yield _passed(place, reply.segment, 0, reply.start_offset)
    elif isinstance(reply, WrongHost):
        yield _passed(place, request.command.segment, 0, -1)


def _passed(place: Place, segment: str, start: int, end: int) -> Fact:
    return Fact(positions_key(segment), place, Passed(segment, start, end))


def _simple(kind: type[Command], what: str) -> Maker:
    """Returns the maker for a request whose success names the segment, and nothing else."""

    def make(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
        if isinstance(reply, kind):
            yield from _changed(place, reply.segment, what, request.place)  # type: ignore[attr-defined]

    return make


def _deleted(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    what = "deleted" if isinstance(reply, SegmentDeleted) else "not deleted"
    yield from _changed(place, request.command.segment, what, request.place)


def deleting(request: Waiting) -> Iterator[Fact]:
    """Yields the fact of a request to delete a segment: it may be applied from now on."""
    yield from _changed(request.place, request.command.segment, "deleting", request.place)


def _truncated(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, SegmentTruncated):
        offset = request.command.truncation_offset
        yield from _changed(place, request.command.segment, "truncated", request.place, offset=offset)


def _merged(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, SegmentsMerged):
        merge = request.command
        length = reply.new_target_write_offset
        yield from _changed(place, merge.target, "merged", request.place, offset=length, source=merge.source)


def _batch_merged(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, SegmentsBatchMerged):
        target = request.command.target_segment_id
        for source, length in zip(reply.sources, reply.new_target_write_offset, strict=False):
            yield from _changed(place, target, "merged", request.place, offset=length, source=source)


def _described(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, StreamSegmentInfo) and reply.exists:
        facts = {"offset": reply.write_offset, "start": reply.start_offset, "is_sealed": reply.is_sealed}
        yield from _changed(place, reply.segment_name, "described", request.place, **facts)
        if reply.start_offset > 0:
            yield _passed(place, reply.segment_name, 0, reply.start_offset)


OF_SEGMENTS: Final[dict[type[Command], Maker]] = {
    ReadSegment: _read,
    CreateSegment: _simple(SegmentCreated, "created"),
    CreateTransientSegment: _simple(SegmentCreated, "created"),
    SealSegment: _simple(SegmentSealed, "sealed"),
    DeleteSegment: _deleted,
    TruncateSegment: _truncated,
    MergeSegments: _merged,
    MergeSegmentsBatch: _batch_merged,
    GetStreamSegmentInfo: _described,
}


def _lost_truncation(request: Waiting) -> Iterator[Fact]:
    segment, offset = request.command.segment, request.command.truncation_offset
    yield Fact(segment_key(segment), request.place, Lost(segment, "truncated", offset=offset))


def _lost_merge(request: Waiting) -> Iterator[Fact]:
    command = request.command
    target = command.target if isinstance(command, MergeSegments) else command.target_segment_id
    sources = (command.source,) if isinstance(command, MergeSegments) else command.source_segment_ids
    for source in sources:
        yield Fact(segment_key(target), request.place, Lost(target, "merged", source))


UNANSWERED_SEGMENTS: Final[dict[type[Command], Unanswered]] = {
    TruncateSegment: _lost_truncation,
    MergeSegments: _lost_merge,
    MergeSegmentsBatch: _lost_merge,
}
