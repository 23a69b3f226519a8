"""Revisioned streams: a single segment as a log with optimistic concurrency control.

A revision is an offset between two entries. `write_conditionally` stores an entry only where the segment ends at the
revision that was read last, so writers agree on an order without a lock; a mark, which is compared and set, says from
where to read, and what lies before a revision can be truncated.

Invariants: an entry is stored at most once whatever happens to connections: the store knows the writer's numbers, and a
writer that is set up again hears whether its last one was stored. The three roles (raw requests, reader, writer) take
their flows from the client's pool. Entries are framed as events. Refused: a revision of another segment, entries above
the limit. Follows `RevisionedStreamClientImpl`, `ConditionalOutputStreamImpl` and `SegmentAttribute` (Pravega's
client); a stream has one segment, number 0, as there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from segstore.client.attempts import Attempts
from segstore.client.connection import ConnectionPool, Locations, SegmentRequests
from segstore.client.errors import (
    Closed,
    EventTooLarge,
    NoSuchStream,
    ProtocolViolation,
    SegmentMissing,
    SegmentTruncated,
)
from segstore.client.lifecycle import ClosedAfter
from segstore.client.segment import ConditionalWriter, SegmentReader, SegmentWriter
from segstore.client.stream.events import EVENT_HEADER_BYTES, EventDecoder, frame_event
from segstore.wire import (
    GetSegmentAttribute,
    SegmentAttribute,
    SegmentAttributeUpdated,
    StreamSegmentInfo,
    TruncateSegment,
    UpdateSegmentAttribute,
)
from segstore.wire import SegmentTruncated as TruncatedReply

MARK_ATTRIBUTE: Final = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5")
"""murmur3_128 of "RevisionStreamClientMark", seeded with the hash of "SegmentAttribute"."""
_NO_MARK: Final = -(1 << 63)


class Revision(NamedTuple):
    """A place between two entries of a segment."""

    segment: str
    offset: int


class Entry(NamedTuple):
    """An entry and the revision behind it."""

    revision: Revision
    data: bytes


class RevisionedStream(ClosedAfter):
    """A revisioned stream. Use with `async with`, or `aclose` it; nothing is connected before it is needed.

    Attributes:
        segment: the segment's name.
    """

    def __init__(
        self, pool: ConnectionPool, locations: Locations, segment: str, *, random: Random | None = None
    ) -> None:
        self.segment: Final = segment
        self._pool = pool
        self._locations = locations
        self._random = random or Random()
        self._requests = SegmentRequests(pool, locations, random=self._random)
        self._writer: SegmentWriter | None = None
        self._conditional: ConditionalWriter | None = None
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise Closed(f"the revisioned stream {self.segment} was closed", segment=self.segment)

    def _offset(self, revision: Revision) -> int:
        if revision.segment != self.segment:
            raise ValueError(f"{revision} is no revision of {self.segment}")
        return revision.offset

    def attempts(self, what: str) -> Attempts:
        """The attempts at an operation of several calls; `what` describes it in the error's sentence."""
        return Attempts(self._pool.settings, what, segment=self.segment, random=self._random)

    # --- revisions --------------------------------------------------------------------------------------------------

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Its segment has no successors: without it there is no stream."""
        try:
            yield
        except SegmentMissing as error:
            raise NoSuchStream(
                f"the revisioned stream {self.segment} does not exist: {error.message}",
                endpoint=error.endpoint,
                segment=self.segment,
                request_id=error.request_id,
            ) from error

    async def _info(self) -> StreamSegmentInfo:
        self._check()
        with self._there():
            return await self._requests.info(self.segment)

    async def latest(self) -> Revision:
        """Behind the last entry."""
        return Revision(self.segment, (await self._info()).write_offset)

    async def oldest(self) -> Revision:
        """Before the first entry that was not truncated."""
        return Revision(self.segment, (await self._info()).start_offset)

    # --- entries ----------------------------------------------------------------------------------------------------

    async def read(self, revision: Revision, to: Revision | None = None) -> AsyncIterator[Entry]:
        """The entries behind a revision, up to another or to where the segment ends now.

        Raises SegmentTruncated, whose `details["start_offset"]` is where it begins now, and what a segment reader
        raises; ValueError for a range that ends before it begins.
        """
        info = await self._info()
        start = self._offset(revision)
        end = info.write_offset if to is None else self._offset(to)
        if start > end:
            raise ValueError(f"{self.segment} cannot be read from {start} to {end}")
        if start < info.start_offset:
            raise SegmentTruncated(
                f"{self.segment} starts at {info.start_offset}, asked was {start}",
                segment=self.segment,
                start_offset=info.start_offset,
                offset=start,
            )
        if start == end:
            return
        decoder = EventDecoder(self.segment, start)
        async with SegmentReader(
            self._pool, self._locations, self.segment, start, known_to=min(end, info.write_offset), random=self._random
        ) as reader:
            while reader.offset < end:
                chunk = await reader.read()
                for event in decoder.feed(chunk.data):
                    if event.offset >= end:
                        return
                    behind = event.offset + EVENT_HEADER_BYTES + len(event.data)
                    yield Entry(Revision(self.segment, behind), event.data)
                if chunk.end_of_segment and reader.offset < end:
                    raise ProtocolViolation(
                        f"{self.segment} ends at {reader.offset} where {end} was its length", segment=self.segment
                    )
        if decoder.partial and decoder.offset < end:
            raise ProtocolViolation(
                f"{self.segment} has no end of an entry at {end}", segment=self.segment, offset=decoder.offset
            )

    async def write_conditionally(self, revision: Revision, data: bytes) -> Revision | None:
        """Stores an entry if the segment ends at `revision`; returns the revision behind it, None if it does not.

        One at a time: further calls wait. Raises EventTooLarge, SegmentSealed, NoSuchStream, TokenRefused,
        RetriesExhausted, Closed.
        """
        self._check()
        offset = self._offset(revision)
        self._fits(data)
        if self._conditional is None:
            self._conditional = ConditionalWriter(self._pool, self._locations, self.segment, self._random)
        with self._there():
            if not await self._conditional.write_event(data, offset):
                return None
        return Revision(self.segment, offset + len(frame_event(data)))

    async def write(self, data: bytes) -> None:
        """Stores an entry behind whatever is there. Raises as `write_conditionally`."""
        self._check()
        self._fits(data)
        if self._writer is None:
            self._writer = SegmentWriter(self._pool, self._locations, self.segment, random=self._random)
        with self._there():
            await self._writer.write(frame_event(data))

    def _fits(self, data: bytes) -> None:
        limit = self._pool.settings.max_event_bytes
        if len(data) > limit:
            raise EventTooLarge(
                f"{len(data)} bytes for {self.segment}, {limit} are allowed",
                segment=self.segment,
                limit=limit,
                actual=len(data),
            )

    # --- the mark and the start -------------------------------------------------------------------------------------

    async def mark(self) -> Revision | None:
        """The mark, None if there is none."""
        self._check()
        with self._there():
            reply = await self._requests.ask(
                self.segment,
                SegmentAttribute,
                lambda id_, token: GetSegmentAttribute(id_, self.segment, MARK_ATTRIBUTE, token),
            )
        return None if reply.value == _NO_MARK else Revision(self.segment, reply.value)

    async def compare_and_set_mark(self, expected: Revision | None, new: Revision | None) -> bool:
        """Sets the mark if it is `expected`; returns whether it was.

        When a reply was lost on the way the mark itself tells: True if it is `new` then, whoever has set it. Only if
        somebody has set it again since is it False though this call has set it.
        """
        self._check()
        old_value = _NO_MARK if expected is None else self._offset(expected)
        new_value = _NO_MARK if new is None else self._offset(new)
        asked = 0

        def ask(request_id: int, token: str) -> UpdateSegmentAttribute:
            nonlocal asked
            asked += 1
            return UpdateSegmentAttribute(request_id, self.segment, MARK_ATTRIBUTE, new_value, old_value, token)

        with self._there():
            reply = await self._requests.ask(self.segment, SegmentAttributeUpdated, ask)
        return bool(reply.success) or (asked > 1 and await self.mark() == new)

    async def truncate(self, revision: Revision) -> None:
        """Drops the entries before a revision; nothing if they are gone already."""
        self._check()
        offset = self._offset(revision)
        try:
            with self._there():
                await self._requests.ask(
                    self.segment, TruncatedReply, lambda id_, token: TruncateSegment(id_, self.segment, offset, token)
                )
        except SegmentTruncated as gone:
            if gone.details.get("start_offset", -1) < offset:
                raise

    # --- end --------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Waits for what is being written and closes. Can be called twice."""
        self._closed = True
        conditional, self._conditional = self._conditional, None
        writer, self._writer = self._writer, None
        if conditional is not None:
            conditional.close()
        self._requests.close()
        if writer is not None:
            with self._there():
                await writer.aclose()
