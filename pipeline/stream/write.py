"""The write task of the sink: writes its rows to temporary segments, one per target segment.

A segment of a task's is called as a transaction's on its target: the container is the target's then, which a merge asks
for, and it outlives the connection, which a transient segment does not. What it holds becomes visible when the driver
merges it. With a row goes the position of its routing key, so that the driver can place it anew if the target is sealed
by then; so long as there are not too many, or else the batch has to be repeated.

Invariants: what is returned is stored; a task that fails has made nothing visible; the events of a target are in the
order of the rows. Refused: a row without an event.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self
from uuid import UUID, uuid4

from segstore.client.errors import ClientError
from segstore.client.routing import SegmentRange, position_of
from segstore.client.segment import SegmentWriter
from segstore.client.stream import frame_event
from segstore.pipeline.stream.placing import Layout, layout_of, position_of_query
from segstore.pipeline.stream.registry import Registry
from segstore.pipeline.stream.segments import Segments
from segstore.wire.names import transaction_name

MOST_POSITIONS: Final = 4_000_000
"""Of one part: 8 bytes of each row go to the driver, and this many are 32 MB."""
_PIECE_BYTES: Final = 256 << 10

Rows = tuple[list[bytes], list[str | None] | None]
"""Events, and if there is a column of routing keys those."""


class BadRow(ValueError):
    """A row that cannot be an event. Attributes: column, row (its number in the task)."""

    def __init__(self, message: str, column: str, row: int) -> None:
        super().__init__(message)
        self.column = column
        self.row = row

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, str, int]]:
        return type(self), (str(self), self.column, self.row)


class GivenUp(RuntimeError):
    """The write that a task belongs to has failed elsewhere; what the task wrote is deleted."""


class Part(NamedTuple):
    """What a task has for one target.

    target: the id of the segment that it is for. segment: where it is. size, events: how much. positions: of each
    event, as an array of doubles; one for all of them, or None if there were too many to keep.
    """

    target: int
    segment: str
    size: int
    events: int
    positions: bytes | float | None


class TaskResult(NamedTuple):
    """What a task tells the driver."""

    query: UUID
    batch: int
    partition: int
    parts: tuple[Part, ...]


class Out:
    """A segment that is being written."""

    def __init__(self, target: SegmentRange, name: str, writer: SegmentWriter, *, keyed: bool) -> None:
        self.target = target
        self.name = name
        self.size = self.events = 0
        self._writer = writer
        self._pending: list[bytes] = []
        self._pending_bytes = self._pending_events = 0
        self._positions = array("d") if keyed else None
        self._too_many = False
        self._position = 0.0

    @property
    def is_full(self) -> bool:
        """Whether it is time to `send`."""
        return self._pending_bytes >= _PIECE_BYTES

    def add(self, event: bytes, position: float) -> None:
        framed = frame_event(event)
        self._pending.append(framed)
        self._pending_bytes += len(framed)
        self._pending_events += 1
        if self._positions is None:
            self._position = position
        elif len(self._positions) < MOST_POSITIONS:
            self._positions.append(position)
        else:
            self._too_many = True

    async def send(self) -> None:
        """Waits where too much is under way."""
        data, events = b"".join(self._pending), self._pending_events
        self.size += len(data)
        self.events += events
        self._pending, self._pending_bytes, self._pending_events = [], 0, 0
        # One event may be longer than an append: nobody sees it before the merge, so it can go in several.
        for at in range(0, len(data), _PIECE_BYTES * 4):
            await self._writer.room()
            self._writer.append(memoryview(data)[at : at + _PIECE_BYTES * 4], _heard_by_flush, max(1, events))
            events = 0

    async def finish(self) -> Part:
        """Returns when all is stored."""
        if self._pending:
            await self.send()
        await self._writer.aclose()
        positions: bytes | float | None = self._position
        if self._positions is not None:
            positions = None if self._too_many else self._positions.tobytes()
        return Part(self.target.segment_id, self.name, self.size, self.events, positions)

    async def abort(self) -> None:
        await self._writer.abort()


def _heard_by_flush(error: ClientError | None) -> None:
    """What an append fails with, `aclose` raises."""


class Outs:
    """The segments that a task writes, each made with its first event. Use with `async with`.

    Attributes:
        keys: the id of each segment, under which it is noted.
    """

    def __init__(self, segments: Segments, registry: Registry, query: UUID, batch: int) -> None:
        self._segments = segments
        self._registry = registry
        self._query = query
        self._batch = batch
        self._outs: dict[int, Out] = {}
        self.keys: dict[str, UUID] = {}

    def get(self, target: SegmentRange) -> Out | None:
        return self._outs.get(target.segment_id)

    async def make(self, target: SegmentRange, *, keyed: bool) -> Out:
        """The one for this target; there is none yet."""
        part = uuid4()
        name = transaction_name(target.name, part)
        self.keys[name] = part
        await self._registry.note(self._query, part, name, self._batch)
        await self._segments.create(name)
        out = self._outs[target.segment_id] = Out(target, name, self._segments.writer(name), keyed=keyed)
        return out

    async def finish(self) -> list[Part]:
        """In the order of the targets' ids."""
        return [await self._outs[each].finish() for each in sorted(self._outs)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for out in self._outs.values():
            await out.abort()  # of one that is finished nothing is left to end


async def write_rows(
    segments: Segments, query: UUID, batch: int, partition: int, rows: AsyncIterable[Rows]
) -> TaskResult:
    """Stores the rows of a task where nobody sees them yet; those that are in the stream already are left out."""
    registry = Registry(segments)
    layout: Layout | None = None
    of_query = position_of_query(query)
    async with Outs(segments, registry, query, batch) as outs:
        async for events, keys in rows:
            if not events:
                continue
            if layout is None:  # a task without rows asks nobody
                layout = await layout_of(segments, registry, query, batch)
            for event, position in zip(events, _positions(keys, len(events), of_query), strict=True):
                if layout.fresh or not layout.is_done(position):
                    out = outs.get(target := layout.target(position)) or await outs.make(target, keyed=keys is not None)
                    out.add(event, position)
                    if out.is_full:
                        await out.send()
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
