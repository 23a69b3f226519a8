"""Commits a batch on the driver once all of its tasks have written: its rows become visible exactly once.

For each target: if its marker says that it has the batch, nothing; else the tasks' segments are folded into the first,
in the order of the partitions, the length is compared with what the tasks said, and one MergeSegments puts it into the
target together with the marker. That merge is the commit point: data and marker change together or not at all. Its
condition is the marker's former value, so of several drivers with the same batch one comes through, and a merge whose
reply was lost is recognised when it is asked again.

If a target was sealed by scaling, its rows are written anew for the segments that have its part of the range now, by
the positions that came with them, without those that have been committed by then.

Invariants: a target has all rows of a batch that route to it or none, and each once; rows of one routing key are in the
order of the partitions and, in one, of the rows. Several targets are committed one by one: a driver that dies between
two leaves the batch in part until it is repeated, and a repetition adds only what is missing. That asks of the query
that it makes the same rows each time, as Spark does. Refused: a batch whose tasks' segments are not what they wrote
(`WriteLost`); one whose target was sealed when there are too many rows to keep positions of (`TargetSealed`).
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
from segstore.pipeline.stream.placing import Layout, layout_of, marker_of
from segstore.pipeline.stream.plan import ByteRange, DataLost
from segstore.pipeline.stream.registry import Noted, Registry
from segstore.pipeline.stream.rows import events_of
from segstore.pipeline.stream.segments import Segments, in_turns
from segstore.pipeline.stream.write import Outs, Part, TaskResult

log = logging.getLogger(__name__)

_MOST_TURNS: Final = 20
"""How often targets may be sealed, or markers change, while one batch is committed."""


class WriteLost(RuntimeError):
    """What the tasks wrote is not there. Attributes: segment, expected, actual (bytes)."""

    def __init__(self, message: str, segment: str, expected: int, actual: int | None) -> None:
        super().__init__(message)
        self.segment = segment
        self.expected = expected
        self.actual = actual


class TargetSealed(RuntimeError):
    """The batch has to be repeated: its rows cannot be placed anew. Attribute: segment."""

    def __init__(self, message: str, segment: str) -> None:
        super().__init__(message)
        self.segment = segment


class Committer:
    """Commits one batch of one query.

    Attributes:
        merged: the targets that this committer put something into.
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
        """Returns when the batch is whole in the stream. Raises WriteLost, TargetSealed, and what the client raises."""
        ordered = sorted(results, key=lambda each: each.partition)
        parts = [part for each in ordered for part in each.parts]
        if not parts:
            return
        layout = await self._place(parts)
        await self._registry.committed(self._query, layout.epoch)
        await self._clean()

    async def _place(self, parts: list[Part]) -> Layout:
        for _ in range(_MOST_TURNS):
            layout = await layout_of(self._segments, self._registry, self._query, self._batch)
            placed: dict[int, list[Part]] = {}
            for part in parts:
                for each in [part] if part.target in layout.segments else await self._anew(part, layout):
                    placed.setdefault(each.target, []).append(each)
            parts = []
            for target in sorted(placed):
                parts += await self._into(layout.segments[target].name, placed[target])
            if not parts:
                return layout
        raise TargetSealed(
            f"batch {self._batch}: its targets were sealed {_MOST_TURNS} times while it was committed", parts[0].segment
        )

    # --- one target -------------------------------------------------------------------------------------------------

    async def _into(self, target: str, parts: list[Part]) -> list[Part]:
        """Puts the parts into the target, unless it has them; what is left if it was sealed or is gone."""
        try:
            was = await self._has(target)
        except SegmentMissing:
            return parts
        if was >= self._batch:
            return []
        whole = _together(parts)
        try:
            await self._fold(target, parts, whole)
            for _ in range(_MOST_TURNS):
                if await self._segments.merge_if(target, whole.segment, self._marker, was, self._batch):
                    self.merged.append(target)
                    return []
                if (was := await self._has(target)) >= self._batch:
                    return []
        except SegmentSealed:
            if not (await self._segments.info(target)).is_sealed:
                raise
            return [whole]
        except SegmentMissing as cause:
            try:
                if await self._has(target) >= self._batch:
                    return []
            except SegmentMissing:
                return [whole]  # the target is gone: it was sealed, and its data truncated
            raise WriteLost(
                f"{whole.segment}, of batch {self._batch} for {target}, is gone", whole.segment, whole.size, None
            ) from cause
        raise WriteLost(f"{target} does not take the marker of batch {self._batch}", whole.segment, whole.size, None)

    async def _has(self, target: str) -> int:
        return await self._segments.attribute(target, self._marker)

    async def _fold(self, target: str, parts: Sequence[Part], whole: Part) -> None:
        """All parts into the first, whose length then tells whether each came once. Raises WriteLost."""
        for part in parts[1:]:
            await self._segments.merge(whole.segment, part.segment)
        length = (await self._segments.info(whole.segment)).write_offset
        if length != whole.size:
            raise WriteLost(
                f"{whole.segment}, of batch {self._batch} for {target}, has {length} bytes where the tasks wrote "
                f"{whole.size}",
                whole.segment,
                whole.size,
                length,
            )

    # --- targets that are over --------------------------------------------------------------------------------------

    async def _anew(self, part: Part, layout: Layout) -> list[Part]:
        """The part's rows in segments for those that take them now, without what is in the stream."""
        if part.positions is None:
            raise TargetSealed(
                f"{self._segments.name_of(part.target)} was sealed and {part.events} rows for it are too many to be "
                f"placed anew: run batch {self._batch} again",
                part.segment,
            )
        keyed = isinstance(part.positions, bytes)
        positions = array("d", part.positions) if isinstance(part.positions, bytes) else [part.positions] * part.events
        if all(map(layout.is_done, positions)):  # and another driver may have swept the part itself
            return []
        at = 0
        async with Outs(self._segments, self._registry, self._query, self._batch) as outs:
            async for events in self._events(part):
                for event in events:
                    position = positions[at]
                    at += 1
                    if layout.is_done(position):
                        continue
                    target = layout.target(position)
                    out = outs.get(target) or await outs.make(target, keyed=keyed)
                    out.add(event.data, position)
                    if out.is_full:
                        await out.send()
            return await outs.finish()

    async def _events(self, part: Part) -> AsyncIterator[list[FramedEvent]]:
        whole = ByteRange(part.target, part.segment, 0, part.size)
        try:
            async for events in events_of(self._segments, self._options._replace(fail_on_data_loss=True), whole):
                yield events
        except DataLost as cause:
            raise WriteLost(
                f"{part.segment}, of batch {self._batch}, is not there any more", part.segment, part.size, None
            ) from cause

    async def _clean(self) -> None:
        """Deletes what failed tasks and former attempts at this batch and those before have left."""
        await _delete(
            self._segments,
            self._registry,
            [each for each in await self._registry.parts(self._query) if each.batch <= self._batch],
        )


def _together(parts: Sequence[Part]) -> Part:
    """The parts of one target as the one that they are folded into."""
    first = parts[0]
    size, events = sum(each.size for each in parts), sum(each.events for each in parts)
    positions = first.positions
    if isinstance(positions, bytes):
        joined = [each.positions for each in parts]
        positions = b"".join(each for each in joined if isinstance(each, bytes)) if None not in joined else None
    elif positions is None or any(each.positions is None for each in parts):
        positions = None
    return first._replace(size=size, events=events, positions=positions)


async def _delete(segments: Segments, registry: Registry, noted: Sequence[Noted]) -> int:
    """Deletes segments and forgets them; how many there were."""
    gone = sum(await in_turns(segments.delete, [each.segment for each in noted]))
    await registry.forget([each.key for each in noted])
    return gone


async def abandon(segments: Segments, results: Iterable[TaskResult], *, query: UUID | None = None) -> int:
    """Deletes what the tasks of a batch wrote; with a query, all of it. How many segments there were.

    A task that is still at work for a query that is given up deletes its own when it has written.
    Of a streaming query only what these tasks wrote: another driver may be at work on the same batch by now.
    """
    registry = Registry(segments)
    if query is not None:
        await registry.give_up(query)
        return await _delete(segments, registry, await registry.parts(query))
    names = {part.segment for each in results for part in each.parts}
    queries = {each.query for each in results if each.parts}
    noted = [each for query in queries for each in await registry.parts(query) if each.segment in names]
    return await _delete(segments, registry, noted)


async def sweep(segments: Segments, *, before_s: float, query: UUID | None = None) -> int:
    """Deletes what was begun before a time and neither committed nor given up; how many segments there were."""
    registry = Registry(segments)
    await registry.forget_given_up(before_s)
    return await _delete(segments, registry, [each for each in await registry.parts(query) if each.since_s < before_s])


async def end(segments: Segments, query: UUID) -> None:
    """Nothing is left of a query that has committed its last batch."""
    registry = Registry(segments)
    await _delete(segments, registry, await registry.parts(query))
    await registry.over(query)
