"""Recording: bytes of connections, or whole records → the blocks of a capture, to be written with one call each.

`TraceWriter` takes the bytes of connections as they come, in any pieces; the frames in them are found when a block is
made, so that recording costs the recorded process little. `RecordWriter` takes whole records: for a filter or a
converter.

Invariants: whatever records `RecordWriter` takes are read back the same; each byte of a stream that `TraceWriter`
takes is in exactly one record, in order, once the writer is finished. No I/O, no clock; standard library only.
"""

from __future__ import annotations

import json
import struct
from array import array
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.trace_blocks import (
    MAGIC,
    MARK_BYTES,
    Direction,
    Metadata,
    Record,
    RecordKind,
    data_block,
    metadata_block,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire.schema import Buffer

__all__ = ["BLOCK_BYTES", "FLUSH_AFTER_NS", "RecordWriter", "TraceWriter", "event_data", "make_mark"]

BLOCK_BYTES: Final = 4 * 1024 * 1024
FLUSH_AFTER_NS: Final = 1_000_000_000
_LONGEST_FRAME: Final = 0x00FF_FFFF
_FRAME_HEADER_BYTES: Final = 8

_read_length = struct.Struct(">i").unpack_from


def make_mark(own: bytes) -> bytes:
    """The mark of a new capture, out of 8 bytes that no other capture shares (random ones, or a digest)."""
    if len(own) != MARK_BYTES - len(MAGIC):
        raise ValueError(f"a mark takes {MARK_BYTES - len(MAGIC)} bytes, not {len(own)}")
    return MAGIC + own


def event_data(**facts: Any) -> bytes:
    """The data of an OPEN or CLOSE record: a JSON object, always written in the same way."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


class RecordWriter:
    """Records → blocks. Write `start()` first, then whatever `add` gives, then `take()`.

    mark: as `make_mark` gives it. compress: with zlib, at its quickest. block_bytes: a block is full at this size.
    """

    def __init__(
        self, mark: bytes, metadata: Metadata, *, compress: bool = False, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.mark = mark
        self.metadata = metadata
        self.compress = compress
        self.block_bytes = block_bytes
        self._clear()

    def _clear(self) -> None:
        self._ts, self._connections, self._ends = array("q"), array("q"), array("q")
        self._directions, self._kinds = bytearray(), bytearray()
        self._data: list[Buffer] = []
        self._size = 0

    def start(self) -> bytes:
        """The metadata block."""
        return metadata_block(self.mark, self.metadata)

    def add(self, record: Record) -> bytes:
        """Takes a record; gives a block when one is full, else b""."""
        self._put(record.ts_ns, record.connection, record.direction, record.kind, record.data)
        return self.take() if self._size >= self.block_bytes else b""

    def _put(self, ts_ns: int, connection: int, direction: int, kind: int, data: Buffer) -> None:
        self._ts.append(ts_ns)
        self._connections.append(connection)
        self._directions.append(direction)
        self._kinds.append(kind)
        self._data.append(data)
        self._size += len(data)
        self._ends.append(self._size)

    def take(self) -> bytes:
        """A block of the records that wait, b"" if there are none."""
        if not self._ts:
            return b""
        block = data_block(
            self.mark,
            self._ts,
            self._connections,
            self._ends,
            self._directions,
            self._kinds,
            self._data,
            compress=self.compress,
        )
        self._clear()
        return block


class _Half:
    """The first bytes of a frame of one stream, and how many are needed to go on."""

    __slots__ = ("have", "need", "parts")

    def __init__(self, part: bytes, need: int) -> None:
        self.parts = [part]
        self.have = len(part)
        self.need = need


class TraceWriter:
    """Streams of bytes → blocks. Write `start()` first; then, whenever `add` or `due` says so, what `take()` gives; at
    last `finish()`.

    A frame is recorded with the time at which its last byte came. What waits in memory is at most a block, what came
    last, and the half frame of every stream; a crash of the process loses that.

    redact: `redact(frame, whole)` gives the frame to be stored instead, of the same length; `segstore.wire.redaction`
    has one for delegation tokens. flush_after_ns: a block is due when its first record is so old.
    max_frame_bytes: a header that announces more, or a negative length, ends the framing of its stream; what follows
    is recorded as BYTES. Not for several threads.
    """

    def __init__(
        self,
        mark: bytes,
        metadata: Metadata,
        *,
        redact: Callable[[bytes, bool], bytes] | None = None,
        compress: bool = False,
        block_bytes: int = BLOCK_BYTES,
        flush_after_ns: int = FLUSH_AFTER_NS,
        max_frame_bytes: int = _LONGEST_FRAME,
    ) -> None:
        self.block_bytes = block_bytes
        self.flush_after_ns = flush_after_ns
        self._records = RecordWriter(mark, metadata, compress=compress)
        self._redact = redact
        self._max_body = max_frame_bytes - _FRAME_HEADER_BYTES
        self._waiting: list[tuple[int, int, int, bytes]] = []
        self._size = 0
        self._due_ns = 0
        self._halves: dict[int, _Half] = {}
        self._unframed: set[int] = set()

    @property
    def metadata(self) -> Metadata:
        return self._records.metadata

    def start(self) -> bytes:
        """The metadata block."""
        return self._records.start()

    def add(self, ts_ns: int, connection: int, direction: int, data: bytes) -> bool:
        """Takes the next bytes of one direction of a connection, in any pieces; True if a block is due.

        data: bytes, kept as they are until the next `take`.
        """
        waiting = self._waiting
        if not waiting:
            self._due_ns = ts_ns + self.flush_after_ns
        waiting.append((ts_ns, connection, direction, data))
        self._size = size = self._size + len(data)
        return size >= self.block_bytes or ts_ns >= self._due_ns

    def opened(self, ts_ns: int, connection: int, **facts: Any) -> None:
        """Takes that a connection began; facts such as peer="127.0.0.1:4711" are kept as JSON."""
        self._event(ts_ns, connection, RecordKind.OPEN, Direction.REQUEST, facts)

    def closed(self, ts_ns: int, connection: int, by: Direction = Direction.REQUEST, **facts: Any) -> None:
        """Takes that a connection ended. by: REQUEST for the client's side, REPLY for the store's."""
        self._event(ts_ns, connection, RecordKind.CLOSE, by, facts)

    def _event(self, ts_ns: int, connection: int, kind: RecordKind, direction: int, facts: dict[str, Any]) -> None:
        # The kind travels above the direction, which keeps what `add` puts aside, the common case, as it comes.
        self.add(ts_ns, connection, direction | kind << 1, event_data(**facts))

    def due(self, now_ns: int) -> bool:
        """Whether what waits is old enough to be written."""
        return bool(self._waiting) and now_ns >= self._due_ns

    def take(self) -> bytes:
        """A block of all whole frames that wait; b"" if there are none."""
        self._drain()
        return self._records.take()

    def finish(self, ts_ns: int) -> bytes:
        """The last block: what waits, and the half frames of connections that are still open, as BYTES."""
        self._drain()
        for connection in {key >> 1: None for key in self._halves}:
            self._end(ts_ns, connection)
        return self._records.take()

    def _drain(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        records, halves, unframed, redact = self._records, self._halves, self._unframed, self._redact
        for ts_ns, connection, code, data in waiting:
            if code > 1:
                kind = RecordKind(code >> 1)
                if kind is RecordKind.CLOSE:
                    self._end(ts_ns, connection)
                records._put(ts_ns, connection, code & 1, kind, data)
                continue
            key = connection << 1 | code
            size = len(data)
            if (
                key not in halves
                and key not in unframed
                and size >= _FRAME_HEADER_BYTES
                and _read_length(data, 4)[0] == size - _FRAME_HEADER_BYTES <= self._max_body
            ):
                # One whole frame, as most writes of one reply are.
                records._put(ts_ns, connection, code, 0, data if redact is None else redact(data, True))
            else:
                self._stream(key, ts_ns, connection, code, data)

    def _stream(self, key: int, ts_ns: int, connection: int, direction: int, data: bytes) -> None:
        """Cuts bytes of a stream into frames and puts them into the columns."""
        half = self._halves.get(key)
        if half is not None:
            half.parts.append(data)
            half.have += len(data)
            if half.have < half.need:
                return
            data = b"".join(half.parts)
            del self._halves[key]
        elif key in self._unframed:
            self._bytes(ts_ns, connection, direction, data)
            return
        records, at, end, need = self._records, 0, len(data), _FRAME_HEADER_BYTES
        ends, base, max_body = records._ends, records._size, self._max_body
        already = len(ends)
        while end - at >= _FRAME_HEADER_BYTES:
            length = _read_length(data, at + 4)[0]
            if not 0 <= length <= max_body:
                self._unframed.add(key)
                break
            stop = at + _FRAME_HEADER_BYTES + length
            if stop > end:
                need = stop - at
                break
            ends.append(base + stop)
            at = stop
        found = len(ends) - already
        if found:
            records._ts.extend([ts_ns] * found)
            records._connections.extend([connection] * found)
            records._directions += bytes((direction,)) * found
            records._kinds += bytes(found)
            records._data.append(self._frames(data, ends[already:], base) if self._redact else memoryview(data)[:at])
            records._size = base + at
        if key in self._unframed:
            self._bytes(ts_ns, connection, direction, data[at:])
        elif at < end:
            self._halves[key] = _Half(data[at:], need)

    def _frames(self, data: bytes, ends: array[int], base: int) -> bytes:
        redact, start, out = self._redact, 0, []
        assert redact is not None
        for end in ends:
            out.append(redact(data[start : end - base], True))
            start = end - base
        return b"".join(out)

    def _bytes(self, ts_ns: int, connection: int, direction: int, data: bytes) -> None:
        if data:
            kept = self._redact(data, False) if self._redact else data
            self._records._put(ts_ns, connection, direction, RecordKind.BYTES, kept)

    def _end(self, ts_ns: int, connection: int) -> None:
        """A connection is over: half frames become BYTES, and its number may come again."""
        for direction in Direction:
            key = connection << 1 | direction
            half = self._halves.pop(key, None)
            if half is not None:
                self._bytes(ts_ns, connection, direction, b"".join(half.parts))
            self._unframed.discard(key)
