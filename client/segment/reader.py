"""Reads one segment from an offset onwards, across reconnects.

The store holds a read at the tail until there is data. While the user processes a chunk, the next read is already in
flight. The reader keeps one request id; only a repeated read gets a new id.

A store may refuse a token with the read's offset in place of the request id (seed 36.30); the connection still routes
the refusal here. If a read is not answered within `read_timeout_ms`, the reader asks for the segment's end: if there is
nothing to read, it keeps waiting; else the reply was lost and the read is repeated. So neither a lost reply nor a
misrouted refusal hangs the reader, and a store that never replies in time is not polled continuously. After an empty
reply at the tail the read is repeated with a growing delay. An empty reply where there is data is a failure, and is
retried as such.

Invariants: chunks come in order without gaps or overlaps; cancelling a read loses nothing. Follows
`AsyncSegmentInputStreamImpl` and `SegmentInputStreamImpl` (Pravega's client).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from segstore.client.attempts import HELD_S, Attempts
from segstore.client.connection import RECEIVE_BYTES, ConnectionPool, Endpoint, Flow, Locations, learn
from segstore.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    PeerRefused,
    ProtocolViolation,
    Retriable,
    SegmentSealed,
    TokenExpired,
    failure,
)
from segstore.client.lifecycle import FreedAfter, within
from segstore.client.retry import Backoff
from segstore.wire import Buffer, Command, GetStreamSegmentInfo, ReadSegment, SegmentRead, StreamSegmentInfo

_MIN_READ_BYTES: Final = 8
_PAUSES: Final = Backoff(initial_ms=5, multiplier=2, max_ms=500, jitter=0.2)
"""Minimum interval between two reads at the tail."""


class Chunk(NamedTuple):
    """The result of a read.

    view: the segment's bytes from `offset`, unchanged as long as it is held; empty at the tail or the end. at_tail:
    whether no more data was available. end_of_segment: whether the segment is sealed and ends here.
    """

    offset: int
    view: Buffer
    at_tail: bool
    end_of_segment: bool

    @property
    def data(self) -> bytes:
        """The bytes as `bytes`, which copies a long `view`."""
        return bytes(self.view)


class SegmentReader(FreedAfter):
    """A reader of one segment.

    Attributes:
        segment: the segment's name.
        offset: the offset of the next chunk.
        stale_replies: number of replies that did not match the pending read.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        locations: Locations,
        segment: str,
        offset: int = 0,
        *,
        read_ahead: bool = True,
        known_to: int = 0,
    ) -> None:
        """Connects on the first read.

        read_ahead: whether to request the next chunk before it is needed. known_to: the store has reported data up to
        this offset.
        """
        self.segment: Final = segment
        self.offset = offset
        self.stale_replies = 0
        self._begun, self._begun_s = offset, time.monotonic()
        self._pool = pool
        self._settings = pool.settings
        self._locations = locations
        self._read_ahead = read_ahead
        self._known_to = known_to
        self._empty = 0
        """Number of consecutive empty replies at the tail."""
        self._asked_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._flow: Flow | None = None
        self._endpoint: Endpoint | None = None
        self._token = ""
        self._request_id = 0
        self._asked: int | None = None
        """The offset of the pending read."""
        self._ready: deque[Chunk] = deque()
        self._error: ClientError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._probe: asyncio.Future[StreamSegmentInfo] | None = None
        self._attempts = Attempts(self._settings, f"reading {segment}", segment=segment, random=pool.random)
        self._closed = False

    @property
    def has_progressed(self) -> bool:
        """Whether it has read data, or was open for a while, as at the tail of a segment without new data."""
        return self.offset > self._begun or time.monotonic() - self._begun_s >= HELD_S

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self) -> Chunk:
        """Returns the next chunk; it is empty if the store's wait at the tail timed out, or at the segment's end.

        Only one call may be pending. Raises SegmentTruncated, SegmentMissing, TokenRefused, RetriesExhausted, Closed.
        """
        attempts = self._attempts
        while True:
            try:
                chunk = await self._next()
                self._check_progress(chunk)
            except (Retriable, TokenExpired, ProtocolViolation) as error:
                self._drop_flow()
                in_doubt = attempts.failures > 0
                learn(self._locations, self.segment, error, self._endpoint, self._token, in_doubt=in_doubt)
                pause_s = attempts.failed(error)
            except ClientError:
                self._drop_flow()
                raise
            else:
                if attempts.failures:
                    attempts.progress()
                self.offset = chunk.offset + len(chunk.view)
                self._empty = 0 if chunk.view else self._empty + 1
                return chunk
            await asyncio.sleep(pause_s)

    def _check_progress(self, chunk: Chunk) -> None:
        """Raises PeerRefused for an empty chunk where there is data."""
        if chunk.view or chunk.end_of_segment or (chunk.at_tail and chunk.offset >= self._known_to):
            return
        raise PeerRefused(
            f"{self._endpoint} returned nothing for a read of {self.segment} at {chunk.offset}, where there is data",
            endpoint=str(self._endpoint),
            segment=self.segment,
            request_id=self._request_id,
        )

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Iterates over non-empty chunks, to the end of the segment."""
        while True:
            chunk = await self.read()
            if chunk.view:
                yield chunk
            if chunk.end_of_segment:
                return

    async def _next(self) -> Chunk:
        limit_s = self._settings.read_timeout_ms / 1000
        while not self._ready:
            self._check()
            if self._flow is None or self._flow.closed:
                await self._connect()
            if self._asked is None:
                await self._pause()
                self._ask(self.offset)
            self._wake = self._loop.create_future()
            try:
                async with asyncio.timeout(limit_s):
                    await self._wake
            except TimeoutError:
                await self._look_where_it_ends()
            finally:
                self._wake = None
        chunk = self._ready.popleft()
        if not self._ready:
            self._ask_ahead(chunk)
        return chunk

    async def _pause(self) -> None:
        """Delays the next read at the tail. Stores normally hold such reads; the delay grows with each empty reply."""
        if self._empty:
            pause_s = _PAUSES.delay_ms(self._empty, self._pool.random) / 1000 - (self._loop.time() - self._asked_s)
            if pause_s > 0:
                await asyncio.sleep(pause_s)

    def _ask_ahead(self, chunk: Chunk) -> None:
        """Requests the data after the last chunk, unless that was empty."""
        flow = self._flow
        if (
            not self._read_ahead
            or not chunk.view
            or chunk.end_of_segment
            or self._error is not None
            or self._asked is not None
        ):
            return
        if flow is not None and not flow.closed:
            self._ask(chunk.offset + len(chunk.view))

    def _check(self) -> None:
        if self._closed:
            raise Closed(f"the reader of {self.segment} was closed", segment=self.segment)
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _connect(self) -> None:
        self._endpoint = endpoint = await self._locations.endpoint_of(self.segment)
        self._token = await self._locations.token_for(self.segment)
        flow = await self._pool.flow(endpoint, self)
        if self._closed:
            flow.close()
            self._check()
        self._flow = flow
        self._request_id = flow.next_request_id()

    def _ask(self, offset: int) -> None:
        flow = self._flow
        assert flow is not None
        size = max(self._settings.read_size_bytes, _MIN_READ_BYTES)
        flow.send(ReadSegment(self.segment, offset, size, self._token, self._request_id))
        flow.reading_at = self._asked = offset
        self._asked_s = self._loop.time()

    async def _look_where_it_ends(self) -> None:
        """Finds out whether an overdue read is waiting at the tail or its reply was lost."""
        flow = self._flow
        if flow is None or flow.closed or self._asked is None:
            return
        offset = self._asked
        self._probe = self._loop.create_future()
        limit_ms = self._settings.request_timeout_ms
        late = f"{flow.endpoint} did not answer a request about {self.segment}"
        facts = {"endpoint": flow.endpoint, "segment": self.segment, "request_id": self._request_id}
        try:
            flow.send(GetStreamSegmentInfo(flow.next_request_id(), self.segment, self._token))
            async with within(limit_ms, late, **facts):
                info = await self._probe
        finally:
            self._probe = None
        if self._asked == offset and (info.write_offset > offset or info.is_sealed or info.start_offset > offset):
            raise ConnectionLost(f"{flow.endpoint} lost a read of {self.segment}", endpoint=flow.endpoint)
        self._attempts.progress()  # the read waits at the tail, and the store responds

    # --- replies ----------------------------------------------------------------------------------------------------

    def on_reply(self, reply: Command) -> None:
        if type(reply) is SegmentRead:
            if reply.offset != self._asked or reply.segment != self.segment:
                self.stale_replies += 1
                return
            data = reply.data if len(reply.data) > RECEIVE_BYTES else bytes(reply.data)
            self._take(Chunk(reply.offset, data, reply.at_tail, reply.end_of_segment))
        elif type(reply) is StreamSegmentInfo:
            if self._probe is not None and not self._probe.done():
                self._probe.set_result(reply)
        else:
            error = failure(reply, endpoint=str(self._endpoint), segment=self.segment)
            if isinstance(error, SegmentSealed) and self._asked is not None:
                self._take(Chunk(self._asked, b"", False, True))  # this is how a read at the tail learns of the seal
            else:
                self.on_lost(error)

    def _take(self, chunk: Chunk) -> None:
        self._answered()
        if self._wake is not None and not self._wake.done() and not self._ready:
            self._ask_ahead(chunk)
        self._ready.append(chunk)
        # The next request leaves when this loop iteration ends; the chunk, which may take long, is processed later.
        self._loop.call_soon(self._wake_up)

    def on_lost(self, error: ClientError) -> None:
        self._answered()
        self._error = error
        if self._probe is not None and not self._probe.done():
            self._probe.set_exception(error)
            self._error = None
        self._wake_up()

    def _answered(self) -> None:
        self._asked = None
        if self._flow is not None:
            self._flow.reading_at = None

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- end --------------------------------------------------------------------------------------------------------

    def _drop_flow(self) -> None:
        flow, self._flow = self._flow, None
        self._error = None
        if flow is not None:
            flow.close()
        self._asked = None

    def close(self) -> None:
        """Releases the flow; a pending read raises Closed. Can be called twice."""
        if not self._closed:
            self._closed = True
            self._drop_flow()
            self._ready.clear()
            self._wake_up()
            if self._probe is not None and not self._probe.done():
                self._probe.set_exception(Closed(f"the reader of {self.segment} was closed", segment=self.segment))
