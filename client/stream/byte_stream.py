"""Byte streams: a stream with a single segment, written and read as bytes without framing.

    async with pravega.byte_writer("scope", "stream") as writer:
        await writer.append(b"…")
        await writer.flush()
    async with pravega.byte_reader("scope", "stream") as reader:
        await reader.seek(-100, os.SEEK_END)
        data = await reader.read(100)

Invariants: bytes are stored exactly once and in order, across reconnects; a part of up to `max_event_bytes` is stored
whole or not at all, and writers' parts interleave only whole; cancelling a read loses nothing. Refused: streams with
more than one segment.

Follows `ByteStreamWriterImpl` and `ByteStreamReaderImpl` (Pravega's client): appends are unconditional, sealing and
truncation apply to the segment. The official Rust and Python clients append conditionally, at the offset where they
believe the segment ends, starting at 0. Each client can read the other's bytes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, Literal, Self

from segstore.client.connection import SegmentRequests
from segstore.client.controller import Cluster, name_of
from segstore.client.errors import (
    EventTooLarge,
    ProtocolViolation,
    RequestRejected,
    SegmentSealed,
    SegmentTruncated,
    StreamSealed,
)
from segstore.client.lifecycle import ClosedAfter, FlushedAfter, OpenedBefore, not_open
from segstore.client.segment import ConditionalWriter, SegmentReader, SegmentWriter
from segstore.client.stream.stream_client import StreamClient
from segstore.wire import Buffer, SealSegment, StreamSegmentInfo
from segstore.wire import SegmentSealed as SealedReply

_MAX_READ_BYTES: Final = 2 * 1024 * 1024
"""Stores return at most this much per read (36.28)."""


class _ByteStream(StreamClient):
    def __init__(self, cluster: Cluster, scope: str, stream: str) -> None:
        super().__init__(cluster, scope, stream)
        self._requests = SegmentRequests(cluster.pool, cluster.locations)
        self._segment: str | None = None

    @property
    def segment(self) -> str:
        """The name of the stream's segment. Raises Closed unless open."""
        if self._closed or self._segment is None:
            raise not_open(f"the byte stream {self._name}", closed=self._closed, stream=self._name)
        return self._segment

    def _only(self, segment_ids: list[int]) -> str:
        if len(segment_ids) != 1:
            raise RequestRejected(
                f"{self._name} has {len(segment_ids)} segments, but a byte stream has one",
                stream=self._name,
                limit=1,
                actual=len(segment_ids),
            )
        return name_of(self.scope, self.stream, segment_ids[0])

    async def _info(self) -> StreamSegmentInfo:
        return await self._requests.info(self.segment)

    async def head(self) -> int:
        """Returns the offset of the first byte that is not truncated. Raises as `SegmentRequests.ask`."""
        return (await self._info()).start_offset

    async def tail(self) -> int:
        """Returns the offset at which the next byte will be stored. Raises as `head`."""
        return (await self._info()).write_offset


class ByteWriter(OpenedBefore, FlushedAfter, _ByteStream):
    """Appends bytes to a byte stream. Use with `async with`, or `open` and `aclose`."""

    _writer: SegmentWriter | None = None
    _conditional: ConditionalWriter | None = None
    _sealed = False

    async def open(self) -> None:
        """Opens the writer. Raises NoSuchStream, StreamSealed, and RequestRejected for a stream of several segments."""
        segments = await self._controller.current_segments(self.scope, self.stream)
        if not segments:
            raise StreamSealed(f"stream {self._name} is sealed", stream=self._name)
        self._segment = self._only([segment.segment_id for segment in segments])
        self._writer = SegmentWriter(self._pool, self._locations, self._segment)
        self._conditional = ConditionalWriter(self._pool, self._locations, self._segment)

    async def append(self, data: Buffer) -> None:
        """Queues bytes; waits for room. They are stored once `flush` returns. The buffer is copied and may be reused.

        Raises SegmentSealed, and the error of an earlier failed append.
        """
        writer = self._open_writer()
        if self._sealed:
            raise SegmentSealed(f"{self.segment} was sealed by this writer", segment=self.segment)
        view = memoryview(data if isinstance(data, bytes) else bytes(data))
        part_bytes = self._settings.max_event_bytes
        for start in range(0, len(view), part_bytes):
            await writer.room()
            writer.write(view[start : start + part_bytes])

    async def append_at(self, offset: int, data: Buffer) -> bool:
        """Stores bytes if the segment ends at `offset` once earlier appends are stored; returns whether it did.

        This lets independent writers append without interleaving. If False, nothing is stored, and `tail` returns where
        the segment ends. Concurrent calls run one at a time. Raises EventTooLarge, and what `flush` raises.
        """
        await self.flush()
        EventTooLarge.check(data, self._settings.max_event_bytes, segment=self.segment)
        assert self._conditional is not None
        return await self._conditional.write_bytes(bytes(data), offset)

    async def flush(self) -> None:
        """Waits until all earlier appends are stored. Raises the error of a failed append."""
        await self._open_writer().flush()

    async def seal(self) -> None:
        """Flushes, then seals the segment for all writers; readers end there. Can be called twice."""
        await self.flush()
        segment = self.segment
        self._sealed = True
        try:
            await self._requests.ask(segment, SealedReply, lambda id_, token: SealSegment(id_, segment, token))
        except SegmentSealed:
            return  # by an earlier try whose reply was lost, or by another writer

    async def truncate(self, offset: int) -> None:
        """Deletes all bytes before the offset; a no-op for an offset before the head.

        Raises RequestRejected for an offset that is negative or beyond the tail.
        """
        segment = self.segment
        if offset >= 0:
            with suppress(SegmentTruncated):
                await self._requests.truncate(segment, offset)
                return
        raise RequestRejected(
            f"{segment} cannot be truncated at {offset}", segment=segment, limit=await self.tail(), actual=offset
        )

    def _open_writer(self) -> SegmentWriter:
        self.segment  # noqa: B018 — raises unless open
        assert self._writer is not None
        return self._writer

    async def aclose(self) -> None:
        """Flushes for up to `close_timeout_ms`, then closes. Can be called twice. Raises what `flush` raises."""
        if self._closed:
            return
        try:
            if self._writer is not None:
                await self._writer.aclose()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Closes immediately; unacknowledged bytes may or may not be stored."""
        self._closed = True
        self._requests.close()
        if self._conditional is not None:
            self._conditional.close()
        if self._writer is not None:
            await self._writer.abort()


class ByteReader(OpenedBefore, ClosedAfter, _ByteStream):
    """Reads bytes from a byte stream. Use with `async with` and `async for`, or `open`, `read` and `aclose`.

    Attributes:
        position: offset of the next byte to read.
    """

    position: int

    def __init__(
        self, cluster: Cluster, scope: str, stream: str, *, from_: Literal["head", "tail"] | int = "head"
    ) -> None:
        """from_: where to start; a number is an offset. Raises ValueError for other words or a negative offset."""
        if from_ not in ("head", "tail") and not (isinstance(from_, int) and from_ >= 0):
            raise ValueError(f"{scope}/{stream} must be read from 'head', 'tail' or an offset, not {from_!r}")
        super().__init__(cluster, scope, stream)
        self.position = 0
        self._from = from_
        self._reader: SegmentReader | None = None
        self._held = memoryview(b"")
        self._ended = False

    async def open(self) -> None:
        """Opens the reader. Raises NoSuchStream, and RequestRejected for a stream of several segments."""
        try:
            self._segment = self._only(list(await self._controller.head(self.scope, self.stream)))
            if isinstance(self._from, int):
                await self.seek(self._from)
            else:
                self._move(await self.head() if self._from == "head" else await self.tail())
        except BaseException:
            self._requests.close()
            raise

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self, most_bytes: int = _MAX_READ_BYTES) -> bytes:
        """Returns 1 to `most_bytes` bytes, b"" at the end of a sealed segment. Waits at the tail.

        Only one read or seek may be pending. Raises SegmentTruncated if the position is before the head, and what
        `SegmentReader.read` raises.
        """
        segment = self.segment
        if most_bytes < 1:
            raise ValueError(f"a read of {most_bytes} bytes of {segment}")
        while not self._held and not self._ended:
            reader = self._reader
            if reader is None:
                reader = SegmentReader(self._pool, self._locations, segment, self.position)
                self._reader = reader
            chunk = await reader.read()
            self._held = memoryview(chunk.view)
            self._ended = chunk.end_of_segment
        data = bytes(self._held[:most_bytes])
        self._held = self._held[len(data) :]
        self.position += len(data)
        return data

    async def read_exactly(self, count: int) -> bytes:
        """Returns `count` bytes, fewer only at the end of a sealed segment. Cancelling restores the position."""
        start = self.position
        parts: list[bytes] = []
        missing = count
        try:
            while missing and (part := await self.read(missing)):
                parts.append(part)
                missing -= len(part)
        except BaseException:
            if not self._closed:
                self._move(start)
            raise
        return b"".join(parts)

    async def read_at(self, offset: int, count: int) -> bytes:
        """Returns up to `count` bytes from an offset, without waiting for more. The position does not change.

        Raises SegmentTruncated, and what `tail` and `SegmentReader.read` raise.
        """
        segment = self.segment
        if offset < 0 or count < 0:
            raise ValueError(f"a read of {count} bytes at {offset} of {segment}")
        end = min(offset + count, await self.tail())
        data = bytearray()
        async with SegmentReader(
            self._pool, self._locations, segment, offset, read_ahead=False, known_to=end
        ) as reader:
            while reader.offset < end:
                chunk = await reader.read()
                data += chunk.view
                if chunk.end_of_segment and reader.offset < end:
                    raise ProtocolViolation(
                        f"{segment} ends at {reader.offset}, but its length was {end}", segment=segment
                    )
        return bytes(data[: end - offset]) if data else b""

    # --- moving -----------------------------------------------------------------------------------------------------

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position like a file's, relative to offset 0, the position or the tail; returns it.

        A position before the head or beyond the tail shows at the next read. Raises ValueError for a negative position.
        """
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position}.get(whence)
        if base is None:
            if whence != os.SEEK_END:
                raise ValueError(f"whence is 0, 1 or 2, not {whence}")
            base = await self.tail()
        if base + offset < 0:
            raise ValueError(f"position {base + offset} of {self.segment}")
        self._move(base + offset)
        return self.position

    def _move(self, position: int) -> None:
        moved = position - self.position
        if 0 <= moved <= len(self._held) and self._reader is not None:
            self._held = self._held[moved:]
        else:
            reader, self._reader = self._reader, None
            self._held, self._ended = memoryview(b""), False
            if reader is not None:
                reader.close()
        self.position = position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    # --- shutdown ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Closes the reader; a pending read raises Closed. Can be called twice."""
        self._closed = True
        self._requests.close()
        self._held = memoryview(b"")
        if self._reader is not None:
            self._reader.close()
