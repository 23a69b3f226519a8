"""The write task of the sink: finds each row's target segment, and writes rows to temporary segments, one a target.

A task's segment is named like a transaction's on its target, so that it is in the target's container, as merging
requires, and outlives the connection, unlike a transient segment. Its data becomes visible when the driver merges it.
The position of each row's routing key is reported, so that the driver can rewrite the row if the target has been
sealed; if there are too many positions, the batch must be repeated instead.

A batch is committed segment by segment. A query's marker on a segment, an attribute, is the last batch that the segment
has completely. A batch repeated after a failure finds some markers set. If the stream was scaled meanwhile, the marked
segments are sealed and rows route to their successors, which have no marker. So the key range decides: a row is in the
stream if any segment that its position ever routed to has the marker. A repeated batch can have been routed to the
segments of all epochs since the query's last commit.

Invariants: returned parts are stored; a failed task has made nothing visible; a target's events are in row order; a
layout fetches the current segments first and the markers afterwards, so the marker of any other segment, which is
sealed by then, is final. Refused: a row without an event.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterable, Iterable
from typing import Final, NamedTuple, Self
from uuid import UUID, uuid4, uuid5

from segstore.client.errors import ClientError, SegmentMissing, StreamSealed
from segstore.client.routing import RangeRouter, SegmentRange
from segstore.client.segment import SegmentWriter
from segstore.client.stream import frame_event
from segstore.pipeline.stream.registry import Registry
from segstore.pipeline.stream.segments import NO_VALUE, Segments, gather_bounded
from segstore.wire.hashing import position_of
from segstore.wire.names import split_segment_id, transaction_name

MOST_POSITIONS: Final = 4_000_000
"""Limit per part: 8 bytes per row go to the driver, 32 MB for this many."""
_PIECE_BYTES: Final = 256 << 10

Rows = tuple[list[bytes], list[str | None] | None]
"""Events, and routing keys if there is a column of them."""


class BadRow(ValueError):
    """A row that cannot be an event. Attributes: column, row (its number in the task)."""

    def __init__(self, message: str, column: str, row: int) -> None:
        super().__init__(message)
        self.column = column
        self.row = row


class GivenUp(RuntimeError):
    """The task's write was abandoned because it failed elsewhere; the task's data is deleted."""


class TargetPart(NamedTuple):
    """A task's data for one target.

    target: the id of the target segment. segment: the segment that holds the data. size, events: its bytes and events.
    positions: of each event, as an array of doubles; one if all are equal, None if there were too many.
    """

    target: int
    segment: str
    size: int
    events: int
    positions: bytes | float | None


class TaskResult(NamedTuple):
    """A task's report to the driver."""

    query: UUID
    batch: int
    partition: int
    parts: tuple[TargetPart, ...]


def marker_of(query: UUID) -> UUID:
    """Returns the id of the segment attribute that holds a query's last batch."""
    return uuid5(query, "segstore:batch")


class Layout:
    """The segments that rows are written to, and the key ranges whose rows are already in the stream.

    Attributes:
        epoch: the stream's current epoch.
        segments: id → segment.
        fresh: whether no row of the batch is in the stream, which is so except for repeated batches.
    """

    def __init__(self, current: Iterable[SegmentRange], done: Iterable[SegmentRange], epoch: int) -> None:
        self._router = RangeRouter(current)
        self._done = [(range_.low, range_.high) for range_ in done]
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


class Out:
    """A segment being written."""

    def __init__(self, target: SegmentRange, name: str, writer: SegmentWriter, *, keyed: bool) -> None:
        self.target = target
        self.name = name
        self.size = self.events = 0
        self._writer = writer
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._positions = array("d") if keyed else None
        self._too_many = False
        self._position = 0.0

    async def add(self, event: bytes, position: float) -> None:
        """Buffers an event; sends buffered events if they are many."""
        framed = frame_event(event)
        self._pending.append(framed)
        self._pending_bytes += len(framed)
        if self._positions is None:
            self._position = position
        elif len(self._positions) < MOST_POSITIONS:
            self._positions.append(position)
        else:
            self._too_many = True
        if self._pending_bytes >= _PIECE_BYTES:
            await self._send()

    async def _send(self) -> None:
        """Sends buffered events; waits if too much is in flight."""
        data, events = b"".join(self._pending), len(self._pending)
        self.size += len(data)
        self.events += events
        self._pending, self._pending_bytes = [], 0
        # An event may be split into several appends, because it is not visible before the merge.
        for at in range(0, len(data), _PIECE_BYTES * 4):
            await self._writer.room()
            self._writer.append(memoryview(data)[at : at + _PIECE_BYTES * 4], _reported_by_close, max(1, events))
            events = 0

    async def finish(self) -> TargetPart:
        """Waits until everything is stored; returns the part."""
        if self._pending:
            await self._send()
        await self._writer.aclose()
        positions: bytes | float | None = self._position
        if self._positions is not None:
            positions = None if self._too_many else self._positions.tobytes()
        return TargetPart(self.target.segment_id, self.name, self.size, self.events, positions)

    async def abort(self) -> None:
        await self._writer.abort()


def _reported_by_close(error: ClientError | None) -> None:
    """Ignores an append's error, which `aclose` raises."""


class Outs:
    """The segments that a task writes, each created for its first event. Use with `async with`.

    Attributes:
        keys: the registry key of each segment.
    """

    def __init__(self, segments: Segments, registry: Registry, query: UUID, batch: int) -> None:
        self._segments = segments
        self._registry = registry
        self._query = query
        self._batch = batch
        self._outs: dict[int, Out] = {}
        self.keys: dict[str, UUID] = {}

    async def add(self, target: SegmentRange, event: bytes, position: float, *, keyed: bool) -> None:
        """Adds an event to a target's segment."""
        out = self._outs.get(target.segment_id) or await self._make(target, keyed=keyed)
        await out.add(event, position)

    async def _make(self, target: SegmentRange, *, keyed: bool) -> Out:
        part = uuid4()
        name = transaction_name(target.name, part)
        self.keys[name] = part
        await self._registry.record(self._query, part, name, self._batch)
        await self._segments.create(name)
        out = self._outs[target.segment_id] = Out(target, name, self._segments.writer(name), keyed=keyed)
        return out

    async def finish(self) -> list[TargetPart]:
        """Finishes all segments; returns the parts in order of the targets' ids."""
        return [await self._outs[out].finish() for out in sorted(self._outs)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for out in self._outs.values():
            await out.abort()  # a no-op for a finished one


async def write_rows(
    segments: Segments, query: UUID, batch: int, partition: int, rows: AsyncIterable[Rows]
) -> TaskResult:
    """Stores a task's rows invisibly, except rows already in the stream."""
    registry = Registry(segments)
    layout: Layout | None = None
    of_query = position_of(str(query))  # one for all rows without a routing key: they are committed together
    async with Outs(segments, registry, query, batch) as outs:
        async for events, keys in rows:
            if not events:
                continue
            if layout is None:  # a task without rows makes no requests
                layout = await layout_of(segments, registry, query, batch)
            for event, position in zip(events, _positions(keys, len(events), of_query), strict=True):
                if layout.fresh or not layout.is_done(position):
                    await outs.add(layout.target(position), event, position, keyed=keys is not None)
        parts = await outs.finish()
    if parts and await registry.is_given_up(query):
        for part in parts:
            await segments.delete(part.segment)
        await registry.forget([query.bytes + outs.keys[part.segment].bytes for part in parts])
        raise GivenUp(f"batch {batch} of query {query} was given up while partition {partition} was written")
    return TaskResult(query, batch, partition, tuple(parts))


def _positions(keys: list[str | None] | None, count: int, of_query: float) -> Iterable[float]:
    if keys is None:
        return (of_query for _ in range(count))
    return (of_query if key is None else position_of(key) for key in keys)
