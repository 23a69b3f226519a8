"""Revisioned streams: a single segment as a log with optimistic concurrency control.

A revision is an offset between two entries. `write_conditionally` stores an entry only if the segment ends at the given
revision, so writers agree on an order without locks. A compare-and-set mark shows readers where to start, and entries
before a revision can be truncated.

Invariants: an entry is stored at most once across reconnects, because a writer that is set up again learns from the
store whether its last event number was stored. Raw requests, reader and writer take their flows from the client's pool.
Entries are framed as events. Refused: revisions of other segments, entries above the limit. Follows
`RevisionedStreamClientImpl`, `ConditionalOutputStreamImpl` and `SegmentAttribute` (Pravega's client); as there, a
stream has one segment, number 0.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
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
from segstore.client.stream.events import EventDecoder, whole_event
from segstore.wire import (
    GetSegmentAttribute,
    SegmentAttribute,
    SegmentAttributeUpdated,
    StreamSegmentInfo,
    UpdateSegmentAttribute,
)
from segstore.wire.blocks import EVENT_HEADER_BYTES

MARK_ATTRIBUTE: Final = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5")
"""murmur3_128 of "RevisionStreamClientMark", seeded with the hash of "SegmentAttribute"."""
_NO_MARK: Final = -(1 << 63)


class Revision(NamedTuple):
    """A position between two entries of a segment."""

    segment: str
    offset: int


class Entry(NamedTuple):
    """An entry and the revision after it."""

    revision: Revision
    data: bytes


class RevisionedStream(ClosedAfter):
    """A revisioned stream. Use with `async with`, or call `aclose`; it connects on first use.

    Attributes:
        segment: the segment's name.
    """

    segment: Final[str]

    def __init__(self, pool: ConnectionPool, locations: Locations, segment: str, *, recovers: bool = False) -> None:
        """recovers: used by a reader, which retries for longer than a user's call."""
        self.segment = segment
        self._pool = pool
        self._locations = locations
        self._requests = SegmentRequests(pool, locations, recovers=recovers)
        self._writer: SegmentWriter | None = None
        self._conditional: Final = ConditionalWriter(pool, locations, segment)
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise Closed(f"the revisioned stream {self.segment} was closed", segment=self.segment)

    def _offset(self, revision: Revision) -> int:
        if revision.segment != self.segment:
            raise ValueError(f"{revision} is not a revision of {self.segment}")
        return revision.offset

    def attempts(self, what: str) -> Attempts:
        """Returns the retry budget of an operation with several calls; `what` describes it in errors."""
        return Attempts(self._pool.settings, what, segment=self.segment, random=self._pool.random)

    # --- revisions --------------------------------------------------------------------------------------------------

    @contextmanager
    def _missing_as_no_stream(self) -> Iterator[None]:
        """Converts a missing segment to NoSuchStream: the segment has no successors."""
        try:
            yield
        except SegmentMissing as error:
            text = f"the revisioned stream {self.segment} does not exist: {error.message}"
            raise NoSuchStream(text, **error.facts() | {"segment": self.segment}) from error

    async def _info(self) -> StreamSegmentInfo:
        self._check()
        with self._missing_as_no_stream():
            return await self._requests.info(self.segment)

    async def latest(self) -> Revision:
        """Returns the revision after the last entry."""
        return Revision(self.segment, (await self._info()).write_offset)

    async def oldest(self) -> Revision:
        """Returns the revision before the first entry that is not truncated."""
        return Revision(self.segment, (await self._info()).start_offset)

    # --- entries ----------------------------------------------------------------------------------------------------

    async def read(self, revision: Revision, to: Revision | None = None) -> AsyncGenerator[Entry]:
        """Iterates over the entries after a revision, up to `to` or the segment's current end.

        Raises SegmentTruncated, whose `details["start_offset"]` is the segment's start, the errors of a segment reader,
        and ValueError for a range that ends before it starts.
        """
        info = await self._info()
        start = self._offset(revision)
        end = info.write_offset if to is None else self._offset(to)
        if start > end:
            raise ValueError(f"{self.segment} cannot be read from {start} to {end}")
        if start < info.start_offset:
            raise SegmentTruncated(
                f"{self.segment} starts at {info.start_offset}, requested was {start}",
                segment=self.segment,
                start_offset=info.start_offset,
                offset=start,
            )
        if start == end:
            return
        decoder = EventDecoder(self.segment, start)
        async with SegmentReader(
            self._pool, self._locations, self.segment, start, known_to=min(end, info.write_offset)
        ) as reader:
            while reader.offset < end:
                chunk = await reader.read()
                for event in decoder.feed(chunk.view):
                    if event.offset >= end:
                        return
                    behind = event.offset + EVENT_HEADER_BYTES + len(event.data)
                    yield Entry(Revision(self.segment, behind), event.data)
                if chunk.end_of_segment and reader.offset < end:
                    raise ProtocolViolation(
                        f"{self.segment} ends at {reader.offset}, but its length was {end}", segment=self.segment
                    )
        if decoder.partial and decoder.offset < end:
            raise ProtocolViolation(
                f"no entry of {self.segment} ends at {end}", segment=self.segment, offset=decoder.offset
            )

    async def write_conditionally(self, revision: Revision, data: bytes) -> Revision | None:
        """Stores an entry if the segment ends at `revision`; returns the revision after it, or None if it does not.

        Concurrent calls run one at a time. Raises EventTooLarge, SegmentSealed, NoSuchStream, TokenRefused,
        RetriesExhausted, Closed.
        """
        self._check()
        offset = self._offset(revision)
        EventTooLarge.check(data, self._pool.settings.max_event_bytes, segment=self.segment)
        with self._missing_as_no_stream():
            if not await self._conditional.write_event(data, offset):
                return None
        return Revision(self.segment, offset + EVENT_HEADER_BYTES + len(data))

    async def write(self, data: bytes) -> None:
        """Appends an entry unconditionally. Raises as `write_conditionally`."""
        self._check()
        EventTooLarge.check(data, self._pool.settings.max_event_bytes, segment=self.segment)
        if self._writer is None:
            self._writer = SegmentWriter(self._pool, self._locations, self.segment, frame_events=True)
        with self._missing_as_no_stream():
            await self._writer.write(whole_event(data))

    # --- the mark and the start -------------------------------------------------------------------------------------

    async def mark(self) -> Revision | None:
        """Returns the mark, or None."""
        self._check()
        with self._missing_as_no_stream():
            reply = await self._requests.ask(
                self.segment,
                SegmentAttribute,
                lambda id_, token: GetSegmentAttribute(id_, self.segment, MARK_ATTRIBUTE, token),
            )
        return None if reply.value == _NO_MARK else Revision(self.segment, reply.value)

    async def compare_and_set_mark(self, expected: Revision | None, new: Revision | None) -> bool:
        """Sets the mark if it is `expected`; returns whether it was.

        If a reply was lost, the current mark decides: True if it equals `new`, no matter which writer set it.
        The result is wrongly False only if this call set the mark and another client has changed it since.
        """
        self._check()
        old_value = _NO_MARK if expected is None else self._offset(expected)
        new_value = _NO_MARK if new is None else self._offset(new)
        asked = 0

        def ask(request_id: int, token: str) -> UpdateSegmentAttribute:
            nonlocal asked
            asked += 1
            return UpdateSegmentAttribute(request_id, self.segment, MARK_ATTRIBUTE, new_value, old_value, token)

        with self._missing_as_no_stream():
            reply = await self._requests.ask(self.segment, SegmentAttributeUpdated, ask)
        return bool(reply.success) or (asked > 1 and await self.mark() == new)

    async def truncate(self, revision: Revision) -> None:
        """Truncates the entries before a revision; a no-op if they are already gone."""
        self._check()
        offset = self._offset(revision)
        with self._missing_as_no_stream():
            await self._requests.truncate(self.segment, offset)

    # --- shutdown ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Waits for a pending write, then closes. Can be called twice."""
        self._closed = True
        writer, self._writer = self._writer, None
        self._conditional.close()
        self._requests.close()
        if writer is not None:
            with self._missing_as_no_stream():
                await writer.aclose()
