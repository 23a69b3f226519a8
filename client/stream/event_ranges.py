"""Batch reads: the events between two positions of a stream, as ranges of segments that can be read in parallel.

Ranges can be read in any order and in other processes: they are plain values. Events of one routing key are in order
within a range; a successor's range continues its predecessors' ranges.

Invariants of a reader: events come in order, each once; reading ends at the range's end, however much is written
meanwhile; at most one read and one incomplete event are held in memory.

Refused: an end before the start. Follows `BatchClientFactoryImpl` and `SegmentIteratorImpl` (Pravega's client).
Deliberate differences: all offsets are checked against the segments; empty ranges are left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Self

from segstore.client.connection import SegmentRequests
from segstore.client.controller import Cluster, CutError, name_of
from segstore.client.errors import ProtocolViolation
from segstore.client.lifecycle import ClosedAfter, all_of
from segstore.client.segment import SegmentReader
from segstore.client.stream.event_reader import From, checked_place, offsets_of
from segstore.client.stream.events import EventAssembler, StreamEvent


class EventRange(NamedTuple):
    """The bytes of one segment from `start` (inclusive) to `end` (exclusive), which are boundaries of events."""

    scope: str
    stream: str
    segment_id: int
    start: int
    end: int

    @property
    def segment(self) -> str:
        """The qualified name of the segment."""
        return name_of(self.scope, self.stream, self.segment_id)

    @property
    def size(self) -> int:
        """Number of bytes, with the events' headers."""
        return self.end - self.start


async def event_ranges(cluster: Cluster, scope: str, stream: str, from_: From, to: From) -> list[EventRange]:
    """Returns the ranges between two positions, predecessors before their successors; [] if nothing lies between.

    Raises CutError for an end that is not behind the start or not in the stream, ValueError for other words than "head"
    and "tail", NoSuchStream, SegmentMissing, and the errors of controller calls and requests.
    """
    controller = cluster.controller
    places = [checked_place(scope, stream, place) for place in (from_, to)]
    start, end = await all_of(offsets_of(cluster, scope, stream, place) for place in places)
    if not start:  # the stream is sealed and read from its tail
        return []
    between = sorted(await controller.segments_between(scope, stream, start, end))
    names = [name_of(scope, stream, number) for number in between]
    async with SegmentRequests(cluster.pool, cluster.locations) as requests:
        infos = await all_of(requests.info(name) for name in names)
    ranges = []
    for segment_id, name, info in zip(between, names, infos, strict=True):
        first = start.get(segment_id, info.start_offset)
        last = end.get(segment_id, info.write_offset)
        if first > last:
            raise CutError(f"{name} has no range from {first} to {last}", name)
        if first < last:
            ranges.append(EventRange(scope, stream, segment_id, first, last))
    return ranges


class EventRangeReader(ClosedAfter):
    """A reader of one range. Use with `async with` and `async for`, or call `aclose`.

    Attributes:
        range: the range that it reads.
    """

    range: Final[EventRange]

    def __init__(self, cluster: Cluster, wanted: EventRange) -> None:
        self.range = wanted
        segment, limit = wanted.segment, cluster.pool.settings.max_large_event_bytes
        self._reader = SegmentReader(cluster.pool, cluster.locations, segment, wanted.start, known_to=wanted.end)
        self._decoder = EventAssembler(segment, wanted.start, limit, StreamEvent, wanted.segment_id)
        self._ahead: list[StreamEvent] = []
        """Events of the last read that were not returned, in reverse order."""

    async def read_slice(self) -> list[StreamEvent]:
        """Returns the next events, in order; [] at the end of the range. Cheaper than `async for` for many events.

        Raises SegmentTruncated, SegmentMissing, EventTooLarge, TokenRefused, RetriesExhausted, ProtocolViolation, and
        Closed.
        """
        if self._ahead:
            events, self._ahead = self._ahead[::-1], []
            return events
        decoder, end = self._decoder, self.range.end
        while decoder.offset < end:
            chunk = await self._reader.read()
            room = end - chunk.offset
            events = decoder.feed(chunk.view if len(chunk.view) <= room else memoryview(chunk.view)[:room])
            ended = chunk.end_of_segment or chunk.offset + len(chunk.view) >= end
            if ended and decoder.offset < end:
                raise ProtocolViolation(
                    f"{self.range.segment} has no whole event at {decoder.offset}: the range ends at {end}",
                    segment=self.range.segment,
                    offset=decoder.offset,
                )
            if events:
                return events
        return []

    async def slices(self) -> AsyncIterator[list[StreamEvent]]:
        """Iterates over `read_slice` to the end of the range."""
        while events := await self.read_slice():
            yield events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if not self._ahead:
            self._ahead = (await self.read_slice())[::-1]
        if not self._ahead:
            raise StopAsyncIteration
        return self._ahead.pop()

    async def aclose(self) -> None:
        """Releases the flow. Can be called twice."""
        self._reader.close()
