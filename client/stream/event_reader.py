"""Reads a stream's events without a reader group: from its head, its tail or a stream cut.

All open segments are read concurrently. A segment is started once all its predecessors are read to their ends, so
events of each routing key arrive in the order in which they were stored.

Events are assembled across reads, in memory that grows with the data received. An event that declares more than
`max_large_event_bytes` ends reading with an error.

Invariants: the read-ahead buffer holds at most `read_ahead_bytes`, plus one read and one incomplete event per segment;
cancelling `read` loses nothing; after `aclose`, which can be called twice, no task is left. Its requests follow
`EventStreamReaderImpl` (Pravega's client).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Final, Literal, Self

from segstore.client.connection import SegmentRequests
from segstore.client.controller import Cluster, Controller, CutError, StreamCut, Successor, checked_cut, name_of
from segstore.client.errors import ClientError, Closed, NoSuchStream, SegmentMissing
from segstore.client.lifecycle import ClosedAfter, OpenedBefore, all_of, not_open
from segstore.client.routing import SegmentRange
from segstore.client.segment import SegmentReader
from segstore.client.stream.events import EventAssembler, StreamEvent
from segstore.client.stream.read_ahead import ReadAhead
from segstore.client.stream.stream_client import StreamClient, successors_of
from segstore.wire.names import split_segment_id

From = Literal["head", "tail"] | Mapping[int, int]
"""Where to start reading; a cut is segment id → offset."""
_LOW: Final = attrgetter("low")


async def tail_of(cluster: Cluster, scope: str, stream: str) -> dict[int, int]:
    """Returns the end of a stream as a cut of its open segments: segment id → offset."""
    segments = await cluster.controller.current_segments(scope, stream)
    async with SegmentRequests(cluster.pool, cluster.locations) as requests:
        infos = await all_of(requests.info(segment.name) for segment in segments)
    return {segment.segment_id: info.write_offset for segment, info in zip(segments, infos, strict=True)}


def checked_place(scope: str, stream: str, place: From) -> From:
    """Returns a place to read from. Raises ValueError for other words, and for a cut of another stream."""
    if isinstance(place, Mapping):
        return checked_cut(scope, stream, place)
    if place not in ("head", "tail"):
        raise ValueError(f"{scope}/{stream} must be read from 'head', 'tail' or a cut, not {place!r}")
    return place


async def offsets_of(cluster: Cluster, scope: str, stream: str, place: From) -> dict[int, int]:
    """Returns the offsets of a checked place; {} for the tail of a sealed stream. Raises CutError."""
    if isinstance(place, Mapping):
        await check_cut(cluster, scope, stream, place)
        return dict(place)
    return await (cluster.controller.head(scope, stream) if place == "head" else tail_of(cluster, scope, stream))


async def check_cut(cluster: Cluster, scope: str, stream: str, cut: Mapping[int, int]) -> None:
    """Raises CutError for a cut at which nothing can begin or end, as `check_cut_with`."""
    async with SegmentRequests(cluster.pool, cluster.locations) as requests:
        await check_cut_with(requests, cluster.controller, scope, stream, cut)


async def check_cut_with(
    requests: SegmentRequests, controller: Controller, scope: str, stream: str, cut: Mapping[int, int]
) -> None:
    """Raises CutError for a cut behind the end of a segment, or whose segments are not of the stream or do not fit.

    A read behind the end waits for data that it then splits at a place which may not be between events. Events with
    keys that no segment has are never read. Segments may share keys only if one of the two is sealed and at its end, as
    when part of its successors have begun. Truncated segments are left to their readers. Raises NoSuchStream.
    """

    async def end_of(name: str) -> tuple[int, bool] | None:
        with suppress(SegmentMissing):
            info = await requests.info(name)
            return info.write_offset, info.is_sealed
        return None

    names = {name_of(scope, stream, number): offset for number, offset in cut.items()}
    ends = dict(zip(names, await all_of(map(end_of, names)), strict=True))
    for name, offset in names.items():
        if (end := ends[name]) is not None and offset > end[0]:
            raise CutError(f"the cut is behind the end of {name}: it has {offset}, the segment ends at {end[0]}", name)
    ranges = await _ranges_of(controller, scope, stream, cut)
    unfinished = [range_ for range_ in ranges if ends[range_.name] not in (None, (names[range_.name], True))]
    if (why := _misfit(ranges, unfinished)) is not None:
        raise CutError(f"{_shown(cut)} is no cut of {scope}/{stream}: {why}", f"{scope}/{stream}")


async def _ranges_of(controller: Controller, scope: str, stream: str, cut: Mapping[int, int]) -> list[SegmentRange]:
    """Returns the key ranges of a cut's segments. Raises CutError, NoSuchStream."""
    known: dict[int, SegmentRange] = {}
    for epoch in sorted({split_segment_id(number)[0] for number in cut}):
        try:
            known |= {segment.segment_id: segment for segment in await controller.epoch_segments(scope, stream, epoch)}
        except NoSuchStream:  # or the epoch does not exist
            await controller.current_segments(scope, stream)
    for number in cut:
        if number not in known:
            name = name_of(scope, stream, number)
            raise CutError(f"{_shown(cut)} is no cut of {scope}/{stream}: {name} was never one of its segments", name)
    return [known[number] for number in cut]


def _misfit(ranges: Sequence[SegmentRange], unfinished: Sequence[SegmentRange]) -> str | None:
    """Returns why ranges do not cover [0, 1), or why unfinished segments overlap; None if they fit."""
    covered = 0.0
    for range_ in [*sorted(ranges, key=_LOW), SegmentRange(0, "", 1.0, 1.0)] if ranges else ():
        if range_.low > covered:
            return f"no segment has the keys from {covered} to {range_.low}"
        covered = max(covered, range_.high)
    for one, other in pairwise(sorted(unfinished, key=_LOW)):
        if other.low < one.high:
            return f"{one.name} and {other.name} share keys, and neither is at its end"
    return None


def _shown(cut: Mapping[int, int]) -> str:
    return str(dict(cut))[:200]


class EventReader(OpenedBefore, ClosedAfter, StreamClient):
    """A reader of one stream. Use with `async with` and `async for`, or `open`, `read` and `aclose`."""

    def __init__(self, cluster: Cluster, scope: str, stream: str, *, from_: From = "head") -> None:
        """from_: "head", "tail", or a cut. Raises ValueError otherwise, also for a cut of another stream."""
        super().__init__(cluster, scope, stream)
        self._cut: dict[int, int] = {}
        self._from = checked_place(scope, stream, from_)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._following: dict[int, set[int]] = {}
        telemetry = cluster.telemetry
        observer = None if telemetry is None else telemetry.receiving(lambda _: self._name)
        self._ahead: ReadAhead[int, StreamEvent] = ReadAhead(self._settings.read_ahead_bytes, observer)
        self._opened = False

    async def open(self) -> None:
        """Finds the start and begins reading.

        Raises NoSuchStream, CutError for a cut that leaves out keys, or is behind the end of a segment, and
        the errors of controller calls and requests.
        """
        if self._opened or self._closed:
            raise Closed(f"the reader of {self._name} was already opened")
        self._opened = True
        try:
            start = await offsets_of(self._cluster, self.scope, self.stream, self._from)
            if self._closed:
                raise not_open(f"the reader of {self._name}", closed=True)
        except BaseException:
            self._opened = False
            raise
        self._cut = start
        for segment_id, offset in start.items():
            self._begin(segment_id, offset, time.monotonic())

    # --- segments ---------------------------------------------------------------------------------------------------

    def _begin(self, segment_id: int, offset: int, idle_since_s: float) -> None:
        name = name_of(self.scope, self.stream, segment_id)
        reader = SegmentReader(self._pool, self._locations, name, offset)
        self._begun.add(segment_id)
        self._tasks[segment_id] = asyncio.get_running_loop().create_task(
            self._follow(segment_id, reader, idle_since_s), name=f"reading {name}"
        )

    async def _follow(self, segment_id: int, reader: SegmentReader, idle_since_s: float) -> None:
        with self._ahead.producing(f"reading {reader.segment}", segment=reader.segment):
            try:
                limit = self._settings.max_large_event_bytes
                decoder = EventAssembler(reader.segment, reader.offset, limit, StreamEvent, segment_id)
                try:
                    await self._ahead.fill(segment_id, reader, decoder)
                except SegmentMissing as error:
                    await self._check_stream(error)
                    raise
                if reader.has_progressed:
                    idle_since_s = time.monotonic()
                following = await successors_of(self._cluster, reader.segment, idle_since_s)
                self._end(segment_id, following, idle_since_s)
            finally:
                reader.close()
                del self._tasks[segment_id]

    async def _check_stream(self, missing: SegmentMissing) -> None:
        """Raises NoSuchStream if the controller reports that the whole stream is gone."""
        try:
            await self._controller.current_segments(self.scope, self.stream)
        except NoSuchStream:
            text = f"stream {self._name} is gone: {missing.message}"
            raise NoSuchStream(text, **missing.facts() | {"stream": self._name}) from missing
        except ClientError:
            return  # the reader reports the missing segment instead

    def _end(self, segment_id: int, following: Sequence[Successor], idle_since_s: float) -> None:
        """Handles the end of a segment: starts the successors whose predecessors have all ended."""
        self._ended.add(segment_id)
        self._following[segment_id] = {successor.segment.segment_id for successor in following}
        begun = tuple(
            successor.segment.segment_id
            for successor in following
            if successor.segment.segment_id not in self._begun and self._ended.issuperset(successor.predecessors)
        )
        for number in begun:
            self._begin(number, 0, idle_since_s)
        over = tuple(ended for ended, after in self._following.items() if after and after <= self._begun)
        for ended in over:
            del self._following[ended]
        self._ahead.mark(segment_id, partial(self._move_on, over, begun))

    def _move_on(self, over: Iterable[int], begun: Iterable[int]) -> None:
        """Called between two events: from here, finished segments are replaced in the cut by their successors."""
        for segment_id in over:
            del self._cut[segment_id]
        self._cut.update(dict.fromkeys(begun, 0))

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def cut(self) -> StreamCut:
        """The position from which to resume: segment id → offset after its last returned event."""
        self._note_place()
        return StreamCut(self.scope, self.stream, self._cut)

    def _note_place(self) -> None:
        if (place := self._ahead.place) is not None:
            segment_id, offset = place
            self._cut[segment_id] = offset

    async def read(self) -> StreamEvent | None:
        """Returns the next event, None at the end of a sealed stream.

        Raises SegmentTruncated, SegmentMissing for a segment that truncation has deleted, NoSuchStream, EventTooLarge,
        TokenRefused, RetriesExhausted, ProtocolViolation, or Closed.
        """
        return self._ahead.current.pop() if await self._some() else None

    async def read_slice(self) -> list[StreamEvent]:
        """Returns all buffered events of the next segment read, in order; [] only at the end of a sealed stream.
        Cheaper than `read` for many events. Raises as `read`.
        """
        return self._ahead.take() if await self._some() else []

    async def slices(self) -> AsyncIterator[list[StreamEvent]]:
        """Iterates over `read_slice` to the end of a sealed stream."""
        while events := await self.read_slice():
            yield events

    async def _some(self) -> bool:
        """Waits until events are buffered; returns False at the end of a sealed stream."""
        ahead = self._ahead
        while not ahead.current:
            self._note_place()
            if ahead.advance():
                break
            if self._closed:
                raise not_open(f"the reader of {self._name}", closed=True)
            if ahead.error is not None:
                raise ahead.error
            if not self._opened:
                raise not_open(f"the reader of {self._name}", closed=False)
            if not self._tasks:
                return False
            await ahead.next_came()
        return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if current := self._ahead.current:
            return current.pop()
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    # --- shutdown ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stops reading; a pending read raises Closed. Can be called twice."""
        self._closed = True
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._note_place()
        self._ahead.clear()
        self._ahead.came.set()
