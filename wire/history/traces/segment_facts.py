"""Facts of requests about segments.

`OF_SEGMENTS` maps a request's type to a function of the reply's place, the request and the reply; None if there was no
reply, which leaves open whether the request was applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from segstore.wire import commands as c
from segstore.wire.history.facts import Changed, Fact, Passed, Place, Read, Waiting, positions_key, segment_key
from segstore.wire.schema import Command

Maker = Callable[[Place, Waiting, Command | None], Iterator[Fact]]


def _fact(place: Place, value: Changed | Read) -> Fact:
    return Fact(segment_key(value.segment), place, value)


def _read(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    if isinstance(reply, c.SegmentRead):
        read = Read(reply.segment, reply.offset, bytes(reply.data), reply.end_of_segment, request.place)
        yield _fact(place, read)
        if read.data:
            yield _passed(place, reply.segment, reply.offset, reply.offset + len(read.data))
    elif isinstance(reply, c.SegmentIsTruncated):
        yield _passed(place, reply.segment, 0, reply.start_offset)
    elif isinstance(reply, c.WrongHost):
        yield _passed(place, request.command.segment, 0, -1)


def _passed(place: Place, segment: str, start: int, end: int) -> Fact:
    return Fact(positions_key(segment), place, Passed(segment, start, end))


def _simple(kind: type[Command], what: str) -> Maker:
    """Returns the maker for a request whose success names the segment, and nothing else."""

    def make(place: Place, request: Waiting, reply: Any) -> Iterator[Fact]:
        if isinstance(reply, kind):
            yield _fact(place, Changed(reply.segment, what, request.place))  # type: ignore[attr-defined]

    return make


def _deleted(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    if reply is not None:
        what = "deleted" if isinstance(reply, c.SegmentDeleted) else "not deleted"
        yield _fact(place, Changed(request.command.segment, what, request.place))


def deleting(request: Waiting) -> Iterator[Fact]:
    """Yields the fact of a request to delete a segment: it may be applied from now on."""
    yield _fact(request.place, Changed(request.command.segment, "deleting", request.place))


def _truncated(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    segment, offset = request.command.segment, request.command.truncation_offset
    if reply is None:
        yield _fact(place, Changed(segment, "truncating", request.place, offset))
    elif isinstance(reply, c.SegmentTruncated):
        yield _fact(place, Changed(segment, "truncated", request.place, offset))


def _merged(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    merge: Any = request.command
    is_one = isinstance(merge, c.MergeSegments)
    target = merge.target if is_one else merge.target_segment_id
    sources = (merge.source,) if is_one else merge.source_segment_ids
    lengths: list[int] = []
    if isinstance(reply, c.SegmentsMerged):
        lengths = [reply.new_target_write_offset]
    elif isinstance(reply, c.SegmentsBatchMerged):
        sources, lengths = reply.sources, list(reply.new_target_write_offset)
    for source, length in zip(sources, lengths, strict=False):
        yield _fact(place, Changed(target, "merged", request.place, length, source))
    for source in sources if reply is None else ():
        yield _fact(place, Changed(target, "merging", request.place, source=source))


def _described(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    if isinstance(reply, c.StreamSegmentInfo) and reply.exists:
        facts = reply.write_offset, "", reply.start_offset, reply.is_sealed
        yield _fact(place, Changed(reply.segment_name, "described", request.place, *facts))
        if reply.start_offset > 0:
            yield _passed(place, reply.segment_name, 0, reply.start_offset)


OF_SEGMENTS: Final[dict[type[Command], Maker]] = {
    c.ReadSegment: _read,
    c.CreateSegment: _simple(c.SegmentCreated, "created"),
    c.CreateTransientSegment: _simple(c.SegmentCreated, "created"),
    c.SealSegment: _simple(c.SegmentSealed, "sealed"),
    c.DeleteSegment: _deleted,
    c.TruncateSegment: _truncated,
    c.MergeSegments: _merged,
    c.MergeSegmentsBatch: _merged,
    c.GetStreamSegmentInfo: _described,
}
