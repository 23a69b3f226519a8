"""Commits a batch on the driver once all of its tasks have written: its rows become visible exactly once.

For each target whose marker shows that it has the batch, nothing is done. Otherwise the tasks' segments are merged into
the first segment, in partition order, their length is checked against the tasks' reports, and one MergeSegments adds it
to the target and sets the marker. This merge is the commit point: data and marker change atomically. It is conditional
on the marker's previous value, so only one driver succeeds with a batch, and a retry after a lost reply is recognised.

If scaling has sealed a target, its rows are rewritten to the segments that now own its key range, by the positions
stored with the rows, except for rows committed meanwhile.

Invariants: a target has all rows of a batch that route to it, each once, or no row; rows of one routing key are in
order of partitions and then rows. Targets are committed in turn: a driver that dies in between leaves the batch
incomplete until it is repeated, and a repetition adds only missing rows. This requires that the query makes the same
rows each time, as Spark does. Refused: a batch whose segments differ from the data that its tasks wrote (`WriteLost`);
a batch with a sealed target and too many rows to keep positions for (`TargetSealed`).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final
from uuid import UUID

from segstore.client.errors import SegmentMissing, SegmentSealed
from segstore.client.stream import FramedEvent
from segstore.pipeline.stream.options import StreamOptions
from segstore.pipeline.stream.plan import ByteRange, DataLost
from segstore.pipeline.stream.registry import Recorded, Registry
from segstore.pipeline.stream.rows import events_of
from segstore.pipeline.stream.segments import Segments, gather_bounded
from segstore.pipeline.stream.write import Layout, Outs, TargetPart, TaskResult, layout_of, marker_of

log = logging.getLogger(__name__)

_MOST_ATTEMPTS: Final = 20
"""Maximum number of sealed targets or marker changes while one batch is committed."""


class WriteLost(RuntimeError):
    """Data written by tasks is missing. Attributes: segment, expected, actual (bytes)."""

    def __init__(self, message: str, segment: str, expected: int, actual: int | None) -> None:
        super().__init__(message)
        self.segment = segment
        self.expected = expected
        self.actual = actual


class TargetSealed(RuntimeError):
    """A target was sealed and its rows cannot be rewritten: the batch must be repeated. Attribute: segment."""

    def __init__(self, message: str, segment: str) -> None:
        super().__init__(message)
        self.segment = segment


class BatchCommitter:
    """Commits one batch of one query.

    Attributes:
        merged: the targets that this committer merged data into.
    """

    def __init__(self, segments: Segments, options: StreamOptions, query: UUID, batch: int) -> None:
        self.merged: list[str] = []
        self._segments = segments
        self._options = options
        self._query = query
        self._batch = batch
        self._marker = marker_of(query)
        self._registry = Registry(segments)

    async def commit(self, results: Iterable[TaskResult]) -> None:
        """Commits the whole batch. Raises WriteLost, TargetSealed, and the client's errors."""
        ordered = sorted(results, key=lambda result: result.partition)
        parts = [part for result in ordered for part in result.parts]
        if not parts:
            return
        layout = await self._place(parts)
        await self._registry.committed(self._query, layout.epoch)
        await self._clean()

    async def _place(self, parts: list[TargetPart]) -> Layout:
        for _ in range(_MOST_ATTEMPTS):
            layout = await layout_of(self._segments, self._registry, self._query, self._batch)
            placed: dict[int, list[TargetPart]] = {}
            for part in parts:
                for piece in [part] if part.target in layout.segments else await self._reroute(part, layout):
                    placed.setdefault(piece.target, []).append(piece)
            parts = []
            for target in sorted(placed):
                parts += await self._into(layout.segments[target].name, placed[target])
            if not parts:
                return layout
        raise TargetSealed(
            f"batch {self._batch}: its targets were sealed {_MOST_ATTEMPTS} times while it was committed",
            parts[0].segment,
        )

    # --- one target -------------------------------------------------------------------------------------------------

    async def _into(self, target: str, parts: list[TargetPart]) -> list[TargetPart]:
        """Merges the parts into the target, unless it has them; returns the remaining parts if it is sealed or gone."""
        try:
            was = await self._has(target)
        except SegmentMissing:
            return parts
        if was >= self._batch:
            return []
        union = _together(parts)
        try:
            await self._fold(target, parts, union)
            for _ in range(_MOST_ATTEMPTS):
                if await self._segments.merge_if(target, union.segment, self._marker, was, self._batch):
                    self.merged.append(target)
                    return []
                if (was := await self._has(target)) >= self._batch:
                    return []
        except SegmentSealed:
            if not (await self._segments.info(target)).is_sealed:
                raise
            return [union]
        except SegmentMissing as cause:
            try:
                if await self._has(target) >= self._batch:
                    return []
            except SegmentMissing:
                return [union]  # the target is gone: sealed, then truncated
            raise WriteLost(
                f"{union.segment}, of batch {self._batch} for {target}, is gone", union.segment, union.size, None
            ) from cause
        raise WriteLost(f"{target} does not accept the marker of batch {self._batch}", union.segment, union.size, None)

    async def _has(self, target: str) -> int:
        return await self._segments.attribute(target, self._marker)

    async def _fold(self, target: str, parts: Sequence[TargetPart], union: TargetPart) -> None:
        """Merges all parts into the first and checks its length: each part must be merged once. Raises WriteLost."""
        for part in parts[1:]:
            await self._segments.merge(union.segment, part.segment)
        length = (await self._segments.info(union.segment)).write_offset
        if length != union.size:
            raise WriteLost(
                f"{union.segment}, of batch {self._batch} for {target}, has {length} bytes where the tasks wrote "
                f"{union.size}",
                union.segment,
                union.size,
                length,
            )

    # --- sealed targets ---------------------------------------------------------------------------------------------

    async def _reroute(self, part: TargetPart, layout: Layout) -> list[TargetPart]:
        """Rewrites a part's rows to segments for their current targets, except rows already in the stream."""
        if part.positions is None:
            raise TargetSealed(
                f"{self._segments.name_of(part.target)} was sealed and {part.events} rows for it are too many to "
                f"rewrite: run batch {self._batch} again",
                part.segment,
            )
        keyed = isinstance(part.positions, bytes)
        positions = array("d", part.positions) if isinstance(part.positions, bytes) else [part.positions] * part.events
        if all(map(layout.is_done, positions)):  # another driver may even have deleted the part
            return []
        at = 0
        async with Outs(self._segments, self._registry, self._query, self._batch) as outs:
            async for events in self._events(part):
                for event in events:
                    position = positions[at]
                    at += 1
                    if not layout.is_done(position):
                        await outs.add(layout.target(position), event.data, position, keyed=keyed)
            return await outs.finish()

    async def _events(self, part: TargetPart) -> AsyncIterator[list[FramedEvent]]:
        range_ = ByteRange(part.target, part.segment, 0, part.size)
        try:
            async for events in events_of(self._segments, self._options._replace(fail_on_data_loss=True), range_):
                yield events
        except DataLost as cause:
            raise WriteLost(
                f"{part.segment}, of batch {self._batch}, no longer exists", part.segment, part.size, None
            ) from cause

    async def _clean(self) -> None:
        """Deletes leftovers of failed tasks and of earlier attempts at this and previous batches."""
        await _delete(
            self._segments,
            self._registry,
            [part for part in await self._registry.parts(self._query) if part.batch <= self._batch],
        )


def _together(parts: Sequence[TargetPart]) -> TargetPart:
    """Returns the part that results from merging the parts of one target."""
    first = parts[0]
    size, events = sum(part.size for part in parts), sum(each.events for each in parts)
    positions = first.positions
    if isinstance(positions, bytes):
        arrays = [part.positions for part in parts]
        positions = b"".join(array_ for array_ in arrays if isinstance(array_, bytes)) if None not in arrays else None
    elif positions is None or any(part.positions is None for part in parts):
        positions = None
    return first._replace(size=size, events=events, positions=positions)


async def _delete(segments: Segments, registry: Registry, recorded: Sequence[Recorded]) -> int:
    """Deletes segments and their registry entries; returns their number."""
    gone = sum(await gather_bounded(segments.delete, [entry.segment for entry in recorded]))
    await registry.forget([entry.key for entry in recorded])
    return gone


async def abandon(segments: Segments, results: Iterable[TaskResult], *, query: UUID | None = None) -> int:
    """Deletes the segments that a batch's tasks, or all tasks of `query`, wrote; returns their number.

    A task still running for an abandoned query deletes its own segments when done. For a streaming query, only these
    tasks' segments are deleted, because another driver may already be working on the same batch.
    """
    registry = Registry(segments)
    if query is not None:
        await registry.give_up(query)
        return await _delete(segments, registry, await registry.parts(query))
    names = {part.segment for result in results for part in result.parts}
    queries = {result.query for result in results if result.parts}
    recorded = [entry for query in queries for entry in await registry.parts(query) if entry.segment in names]
    return await _delete(segments, registry, recorded)


async def sweep(segments: Segments, *, before_s: float, query: UUID | None = None) -> int:
    """Deletes segments created before a time and neither committed nor abandoned; returns their number."""
    registry = Registry(segments)
    await registry.forget_given_up(before_s)
    return await _delete(segments, registry, [part for part in await registry.parts(query) if part.since_s < before_s])


async def end(segments: Segments, query: UUID) -> None:
    """Removes all records of a query that has committed its last batch."""
    registry = Registry(segments)
    await _delete(segments, registry, await registry.parts(query))
    await registry.finish(query)
