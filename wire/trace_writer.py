"""Recording: bytes of connections, or whole records → the blocks of a capture, to be written with one call each.

`TraceWriter` takes the bytes of connections as they come, in any pieces, and finds the frames in them. It costs the
recorded process little: bytes are copied once, into memory that is used again, and runs of frames of one length, or of
two in turn, are found together. `RecordWriter` takes whole records: for a filter
or a converter.

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
from segstore.wire.trace_framing import whole_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from segstore.wire.schema import Buffer

__all__ = ["BLOCK_BYTES", "FLUSH_AFTER_NS", "RecordWriter", "TraceWriter", "event_data", "make_mark"]

BLOCK_BYTES: Final = 4 * 1024 * 1024
FLUSH_AFTER_NS: Final = 1_000_000_000
_SPARE_BYTES: Final = 256 * 1024
_LONGEST_FRAME: Final = 0x00FF_FFFF
_HEADER_BYTES: Final = 8
_SMALL_BYTES: Final = 4096
"""Pieces below this are put aside and cut together, so that code and tables are in the processor's cache."""
_read_length = _read_code = struct.Struct(">i").unpack_from


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
        self._first_ns = self._last_ns = 0

    def start(self) -> bytes:
        """The metadata block."""
        return metadata_block(self.mark, self.metadata)

    def add(self, record: Record) -> bytes:
        """Takes a record; gives a block when one is full, else b""."""
        self._put(record.ts_ns, record.connection, record.direction, record.kind, record.data)
        return self.take() if self._size >= self.block_bytes else b""

    def take(self) -> bytes:
        """A block of the records that wait, b"" if there are none."""
        return b"".join(self._take())

    def _put(self, ts_ns: int, connection: int, direction: int, kind: int, data: Buffer) -> None:
        self._time(ts_ns, ts_ns)
        self._ts.append(ts_ns)
        self._connections.append(connection)
        self._directions.append(direction)
        self._kinds.append(kind)
        self._data.append(data)
        self._size += len(data)
        self._ends.append(self._size)

    def _time(self, first_ns: int, last_ns: int) -> None:
        """Keeps the earliest and the latest time; to be called before the records are put."""
        if not self._ts:
            self._first_ns, self._last_ns = first_ns, last_ns
        else:
            self._first_ns, self._last_ns = min(first_ns, self._first_ns), max(last_ns, self._last_ns)

    def _put_frames(self, ts_ns: int, connection: int, direction: int, data: list[Buffer], size: int) -> None:
        """Takes frames whose ends are in `_ends` already."""
        self._time(ts_ns, ts_ns)
        count = len(self._ends) - len(self._ts)
        self._ts += array("q", (ts_ns,)) * count
        self._connections += array("q", (connection,)) * count
        self._directions += bytes((direction,)) * count
        self._kinds += bytes(count)
        self._data += data
        self._size += size

    def _take(self) -> list[Buffer]:
        if not self._ts:
            return []
        block = data_block(
            self.mark,
            self._ts,
            self._connections,
            self._ends,
            self._directions,
            self._kinds,
            self._data,
            first_ts_ns=self._first_ns,
            last_ts_ns=self._last_ns,
            compress=self.compress,
        )
        self._clear()
        return block


class _Half:
    """The first bytes of a frame of one stream, and how many there must be to go on."""

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

    redact: `redact(frame, whole)` gives the frame to be stored instead, of the same length. It is asked for frames with
    a type code in `redact_codes`, and for bytes that make no frame; `segstore.wire.redaction` has both for delegation
    tokens. flush_after_ns: a block is due when its first record is so old.
    max_frame_bytes: a header that announces more, or a negative length, ends the framing of its stream; what follows
    is recorded as BYTES. Not for several threads.
    """

    def __init__(
        self,
        mark: bytes,
        metadata: Metadata,
        *,
        redact: Callable[[bytes, bool], bytes] | None = None,
        redact_codes: Container[int] = frozenset(),
        compress: bool = False,
        block_bytes: int = BLOCK_BYTES,
        flush_after_ns: int = FLUSH_AFTER_NS,
        max_frame_bytes: int = _LONGEST_FRAME,
    ) -> None:
        self.block_bytes = block_bytes
        self.flush_after_ns = flush_after_ns
        self._records = RecordWriter(mark, metadata, compress=compress)
        self._redact = redact
        self._redact_codes = redact_codes
        self._max_body = max_frame_bytes - _HEADER_BYTES
        self._memory = bytearray(block_bytes + _SPARE_BYTES)
        self._view = memoryview(self._memory)
        self._used = 0
        self._size = 0
        self._waiting: list[tuple[int, int, int, bytes | bytearray, int, int]] = []
        self._waits = False
        self._due_ns = 0
        self._halves: dict[int, _Half] = {}
        self._unframed: set[int] = set()

    @property
    def metadata(self) -> Metadata:
        return self._records.metadata

    def start(self) -> bytes:
        """The metadata block."""
        return self._records.start()

    def add(self, ts_ns: int, connection: int, direction: int, data: Buffer) -> bool:
        """Takes the next bytes of one direction of a connection, in any pieces; True if a block is due.

        data: bytes, a bytearray or a memoryview of bytes; copied.
        """
        size = len(data)
        start = self._used
        stop = start + size
        source: bytes | bytearray = self._memory
        if stop <= len(source):
            self._view[start:stop] = data
            self._used = stop
        else:
            source, start, stop = bytes(data), 0, size
        self._size += size
        if size < _SMALL_BYTES:
            self._waiting.append((ts_ns, connection, direction, source, start, stop))
        else:
            self._drain()
            self._stream(ts_ns, connection, direction, source, start, stop)
        return self._added(ts_ns) or self._size >= self.block_bytes

    def _added(self, ts_ns: int) -> bool:
        """Notes that something waits; whether that is due by its age."""
        if not self._waits:
            self._waits = True
            self._due_ns = ts_ns + self.flush_after_ns
        return ts_ns >= self._due_ns

    def opened(self, ts_ns: int, connection: int, **facts: Any) -> None:
        """Takes that a connection began; facts such as peer="127.0.0.1:4711" are kept as JSON."""
        self._drain()
        self._records._put(ts_ns, connection, Direction.REQUEST, RecordKind.OPEN, event_data(**facts))
        self._added(ts_ns)

    def closed(self, ts_ns: int, connection: int, by: Direction = Direction.REQUEST, **facts: Any) -> None:
        """Takes that a connection ended. by: REQUEST for the client's side, REPLY for the store's."""
        self._drain()
        self._end(ts_ns, connection)
        self._records._put(ts_ns, connection, by, RecordKind.CLOSE, event_data(**facts))
        self._added(ts_ns)

    def due(self, now_ns: int) -> bool:
        """Whether what waits is old enough to be written."""
        return self._waits and now_ns >= self._due_ns

    def take(self) -> bytes:
        """A block of all whole frames that wait; b"" if there are none."""
        return b"".join(self.take_parts())

    def take_parts(self) -> list[Buffer]:
        """The same in pieces, for `writev`. Some are this writer's memory: write them before the next `add`."""
        self._drain()
        self._used, self._size, self._waits = 0, 0, False
        return self._records._take()

    def finish(self, ts_ns: int) -> bytes:
        """The last block: what waits, and the half frames of connections that are still open, as BYTES."""
        return b"".join(self.finish_parts(ts_ns))

    def finish_parts(self, ts_ns: int) -> list[Buffer]:
        """The same in pieces, as `take_parts` gives them."""
        self._drain()
        for connection in {key >> 1: None for key in self._halves}:
            self._end(ts_ns, connection)
        return self.take_parts()

    # --- finding frames ---------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Sees to the small pieces that were put aside."""
        waiting, self._waiting = self._waiting, []
        single = self._redact is None
        first = at = 0
        for index, (_, connection, direction, source, start, stop) in enumerate(waiting):
            key = connection << 1 | direction
            if (
                single
                and (start == at or first == index)
                and source is self._memory
                and key not in self._halves
                and key not in self._unframed
                and stop - start >= _HEADER_BYTES
                and _read_length(source, start + 4)[0] == stop - start - _HEADER_BYTES <= self._max_body
            ):
                at = stop
                continue
            self._singles(waiting[first:index])
            self._stream(*waiting[index])
            first = index + 1
        self._singles(waiting[first:])

    def _singles(self, pieces: list[tuple[int, int, int, bytes | bytearray, int, int]]) -> None:
        """Takes pieces of one frame each that lie one behind another in memory: single requests and replies."""
        if pieces:
            records, first = self._records, pieces[0][4]
            shift = records._size - first
            times = [piece[0] for piece in pieces]
            records._time(min(times), max(times))
            records._ts.extend(times)
            records._connections.extend([piece[1] for piece in pieces])
            records._directions.extend([piece[2] for piece in pieces])
            records._kinds.extend(bytes(len(pieces)))
            records._ends.extend([piece[5] + shift for piece in pieces])
            records._data.append(self._view[first : pieces[-1][5]])
            records._size += pieces[-1][5] - first

    def _stream(
        self, ts_ns: int, connection: int, direction: int, source: bytes | bytearray, start: int, stop: int
    ) -> None:
        """Cuts bytes of a stream into frames and puts them into the columns."""
        key = connection << 1 | direction
        if (
            stop - start >= _HEADER_BYTES
            and key not in self._halves
            and key not in self._unframed
            and _read_length(source, start + 4)[0] == stop - start - _HEADER_BYTES <= self._max_body
        ):
            # One whole frame, as most writes of one reply are.
            self._frame(ts_ns, connection, direction, memoryview(source)[start:stop])
            return
        half = self._halves.get(key)
        while half is not None:
            taken = min(stop, start + half.need - half.have)
            half.parts.append(bytes(source[start:taken]))
            half.have += taken - start
            start = taken
            if half.have < half.need:
                return
            frame = b"".join(half.parts)
            length = _read_length(frame, 4)[0]
            if half.need == _HEADER_BYTES and 0 < length <= self._max_body:
                half.parts, half.need = [frame], _HEADER_BYTES + length
                continue
            del self._halves[key]
            half = None
            if 0 <= length <= self._max_body:
                self._frame(ts_ns, connection, direction, frame)
            else:
                self._unframed.add(key)
                self._bytes(ts_ns, connection, direction, frame + bytes(source[start:stop]))
                return
        if key in self._unframed:
            self._bytes(ts_ns, connection, direction, bytes(source[start:stop]))
            return
        ends = self._records._ends
        already = len(ends)
        at, need = whole_frames(source, start, stop, ends, self._records._size - start, self._max_body)
        if at > start:
            whole: Buffer = memoryview(source)[start:at]
            if self._redact is not None:
                whole = self._redacted(bytes(whole), ends[already:], self._records._size)
            self._records._put_frames(ts_ns, connection, direction, [whole], at - start)
        if not need:
            self._unframed.add(key)
            self._bytes(ts_ns, connection, direction, bytes(source[at:stop]))
        elif at < stop:
            self._halves[key] = _Half(bytes(source[at:stop]), need)

    def _frame(self, ts_ns: int, connection: int, direction: int, frame: Buffer) -> None:
        if self._redact is not None and _read_code(frame)[0] in self._redact_codes:
            frame = self._redact(bytes(frame), True)
        self._records._put(ts_ns, connection, direction, RecordKind.FRAME, frame)

    def _redacted(self, data: bytes, ends: array[int], base: int) -> Buffer:
        assert self._redact is not None
        out, start = None, 0
        for end in ends:
            stop = end - base
            if _read_code(data, start)[0] in self._redact_codes:
                out = out or bytearray(data)
                out[start:stop] = self._redact(data[start:stop], True)
            start = stop
        return data if out is None else out

    def _bytes(self, ts_ns: int, connection: int, direction: int, data: Buffer) -> None:
        if len(data):
            kept = data if self._redact is None else self._redact(bytes(data), False)
            self._records._put(ts_ns, connection, direction, RecordKind.BYTES, kept)

    def _end(self, ts_ns: int, connection: int) -> None:
        """A connection is over: half frames become BYTES, and its number may come again."""
        for direction in Direction:
            key = connection << 1 | direction
            half = self._halves.pop(key, None)
            if half is not None:
                self._bytes(ts_ns, connection, direction, b"".join(half.parts))
            self._unframed.discard(key)
