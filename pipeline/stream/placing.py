"""Places rows: which segment a row goes to, and which rows of a batch the stream already has.

A batch is committed segment by segment. A query's marker on a segment, an attribute, is the last batch that the segment
has completely. A batch repeated after a failure finds some markers set. If the stream was scaled meanwhile, the marked
segments are sealed and rows route to their successors, which have no marker. So the key range decides: a row is in the
stream if any segment that its position ever routed to has the marker. A repeated batch can have been routed to the
segments of all epochs since the query's last commit.

Invariant: a layout fetches the current segments first and the markers afterwards; any other segment is sealed by then,
so its marker is final.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID, uuid5

from segstore.client.errors import SegmentMissing, StreamSealed
from segstore.client.routing import RangeRouter, SegmentRange
from segstore.pipeline.stream.registry import Registry
from segstore.pipeline.stream.segments import NO_VALUE, Segments, gather_bounded
from segstore.wire.hashing import position_of
from segstore.wire.names import split_segment_id


def marker_of(query: UUID) -> UUID:
    """Returns the id of the segment attribute that holds a query's last batch."""
    return uuid5(query, "segstore:batch")


def position_of_query(query: UUID) -> float:
    """Returns the position of rows without a routing key: one per query, so that they are committed together."""
    return position_of(str(query))


class Layout:
    """The segments that rows are written to, and the key ranges whose rows are already in the stream.

    Attributes:
        epoch: the stream's current epoch.
        segments: id → segment.
        fresh: whether no row of the batch is in the stream, which is so except for repeated batches.
    """

    def __init__(self, current: Iterable[SegmentRange], done: Iterable[SegmentRange], epoch: int) -> None:
        self._router = RangeRouter(current)
        self._done = [(each.low, each.high) for each in done]
        self.fresh = not self._done
        self.epoch = epoch
        self.segments = {segment.segment_id: segment for segment in self._router.segments}

    def is_done(self, position: float) -> bool:
        return any(low <= position < high for low, high in self._done)

    def target(self, position: float) -> SegmentRange:
        return self._router.route(position)


async def layout_of(segments: Segments, registry: Registry, query: UUID, batch: int) -> Layout:
    """Determines the layout for a batch. Raises NoSuchStream, StreamSealed."""
    current = await segments.current()
    if not current:
        name = f"{segments.scope}/{segments.stream}"
        raise StreamSealed(f"stream {name} is sealed and takes no events", stream=name)
    epoch = max(split_segment_id(each.segment_id)[0] for each in current)
    since = await registry.epoch(query, epoch)
    known = {each.segment_id: each for each in current}
    # A stream that was deleted and created again restarts its epochs.
    for number in range(since if since <= epoch else 0, epoch):
        for each in await segments.epoch(number):
            known.setdefault(each.segment_id, each)
    marker = marker_of(query)

    async def batch_on(segment: SegmentRange) -> int:
        try:
            return await segments.attribute(segment.name, marker)
        except SegmentMissing:
            return NO_VALUE

    batches = await gather_bounded(batch_on, known.values())
    done = [each for each, has in zip(known.values(), batches, strict=True) if has >= batch]
    return Layout(current, done, epoch)
