"""Reads the events of one range of a segment.

Invariants: events come in order, each once; reading ends at the range's end, however much is written meanwhile; at most
one read and one incomplete event are held in memory. Follows `SegmentIteratorImpl` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Self

from segstore.client.batch.ranges import EventRange
from segstore.client.cluster import Cluster
from segstore.client.errors import ProtocolViolation
from segstore.client.lifecycle import ClosedAfter
from segstore.client.segment import SegmentReader
from segstore.client.stream import EventAssembler, StreamEvent


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
