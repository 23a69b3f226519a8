"""Recorders: turn connection bytes or whole records into the blocks of a capture.

`TraceWriter` takes the bytes of connections in any pieces and finds the frames in them. It costs the recorded process
little: bytes are copied once, into reused memory, and runs of frames with one length or two alternating lengths are
found together. `RecordWriter` takes whole records, for filters and converters.

Invariants: records passed to `RecordWriter` are read back unchanged; once a `TraceWriter` is finished, each byte that
it took is in exactly one record, in order. No I/O, no clock; standard library only.
"""

from __future__ import annotations

import json
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.trace.blocks import (
    MAGIC,
    MARK_BYTES,
    Direction,
    Metadata,
    Record,
    RecordKind,
    data_block,
    metadata_block,
)
from segstore.wire.trace.calls import CONTROLLER, redacted_call
from segstore.wire.trace.framing import whole_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from segstore.wire.schema import Buffer
    from segstore.wire.trace.calls import Call
    from segstore.wire.trace.framing import Memory

BLOCK_BYTES: Final = 4 * 1024 * 1024
FLUSH_AFTER_NS: Final = 1_000_000_000
MOST_HELD_BYTES: Final = 128 * 1024 * 1024
SPARE_BYTES: Final = 1024 * 1024
"""Extra memory beyond a block, so that the bytes that fill it, and those that come with them, stay contiguous."""
_SAMPLED_BYTES: Final = 1024 * 1024
"""From this size of a block's data, its checksum covers a sample only; smaller blocks mean that there is no load."""
_LONGEST_FRAME: Final = 0x00FF_FFFF
_HEADER_BYTES: Final = 8
_SMALL_BYTES: Final = 4096
"""Smaller pieces are collected and framed together, so that code and tables stay in the processor's cache."""
_read_length = _read_code = struct.Struct(">i").unpack_from


def make_mark(own: bytes) -> bytes:
    """Returns the mark of a new capture from 8 unique bytes (random ones, or a digest)."""
    if len(own) != MARK_BYTES - len(MAGIC):
        raise ValueError(f"a mark takes {MARK_BYTES - len(MAGIC)} bytes, not {len(own)}")
    return MAGIC + own


def event_data(**facts: Any) -> bytes:
    """Returns the data of an OPEN or CLOSE record: a JSON object in canonical form."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


class RecordWriter:
    """Collects records into blocks. Write `start()` first, then what `add` returns, then `take()`.

    mark: from `make_mark`. compress: whether to use zlib, at its fastest level.
    """

    def __init__(self, mark: bytes, metadata: Metadata, *, compress: bool = False) -> None:
        self.mark = mark
        self.metadata = metadata
        self.compress = compress
        self._clear()

    def _clear(self) -> None:
        self._ts, self._connections, self._ends = array("q"), array("q"), array("q")
        self._directions, self._kinds = bytearray(), bytearray()
        self._data: list[Buffer] = []
        self._size = 0
        self._first_ns = self._last_ns = 0
        self._sample = False

    def start(self) -> bytes:
        """The metadata block."""
        return metadata_block(self.mark, self.metadata)

    def add(self, record: Record) -> bytes:
        """Takes a record; returns a block if one is full, else b""."""
        self._put(record.ts_ns, record.connection, record.direction, record.kind, record.data)
        return self.take() if self._size >= BLOCK_BYTES else b""

    def take(self) -> bytes:
        """Returns a block of the pending records, b"" if there are none."""
        return b"".join(self._take())

    def _put(self, ts_ns: int, connection: int, direction: int, kind: int, data: Buffer) -> None:
        self._data.append(data)
        self._put_columns(ts_ns, connection, direction, kind, len(data))

    def _put_columns(self, ts_ns: int, connection: int, direction: int, kind: int, size: int) -> None:
        """Takes a record without its data."""
        self._time(ts_ns, ts_ns)
        self._ts.append(ts_ns)
        self._connections.append(connection)
        self._directions.append(direction)
        self._kinds.append(kind)
        self._size += size
        self._ends.append(self._size)

    def _time(self, first_ns: int, last_ns: int) -> None:
        """Updates the earliest and latest time; must be called before the records are added."""
        if not self._ts:
            self._first_ns, self._last_ns = first_ns, last_ns
        else:
            self._first_ns, self._last_ns = min(first_ns, self._first_ns), max(last_ns, self._last_ns)

    def _put_frames(self, ts_ns: int, connection: int, direction: int, size: int) -> None:
        """Takes frames whose ends are already in `_ends`, without their data."""
        self._time(ts_ns, ts_ns)
        count = len(self._ends) - len(self._ts)
        self._ts += array("q", (ts_ns,)) * count
        self._connections += array("q", (connection,)) * count
        self._directions += bytes((direction,)) * count
        self._kinds += bytes(count)
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
            sample=self._sample,
        )
        self._clear()
        return block


@dataclass(slots=True)
class _Half:
    """The partial frame of one stream, and the number of bytes needed to continue."""

    data: bytearray
    need: int


class TraceWriter:
    """Collects streams of bytes into blocks. Write `start()` first, then `take()` whenever `add` or `due` returns True,
    and finally `finish()`.

    A frame is recorded with the arrival time of its last byte. At most a block, the latest bytes and incomplete frames
    are held in memory; a crash of the process loses these. If incomplete frames take more than `most_held_bytes` (by
    default `MOST_HELD_BYTES`), the directions with the longest ones are recorded as BYTES from then on.

    redact: `redact(frame, whole)` returns the frame to store instead, of the same length. It is called for frames with
    a type code in `redact_codes` and for bytes that form no frame; `segstore.wire.trace.redaction` provides both for
    delegation tokens. flush_after_ns: a block is due when its first record has this age.
    max_frame_bytes: a header with a longer or negative length ends the framing of its stream; what follows is recorded
    as BYTES. memory: a buffer to use instead of an own one; blocks are about as long. Not thread-safe.

    Attributes: data_start, the offset in `memory` of the data of the last block taken; None if it is elsewhere or in
    pieces. The rest of `memory` after that data is free until the next `add`.
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
        memory: Memory | None = None,
        most_held_bytes: int | None = None,
    ) -> None:
        self.block_bytes = block_bytes
        self.flush_after_ns = flush_after_ns
        self._records = RecordWriter(mark, metadata, compress=compress)
        self._redact = redact
        self._redact_codes = redact_codes
        self._max_body = max_frame_bytes - _HEADER_BYTES
        self._most_held_bytes = MOST_HELD_BYTES if most_held_bytes is None else most_held_bytes
        self._memory: Memory = bytearray(block_bytes + SPARE_BYTES) if memory is None else memory
        self._view = memoryview(self._memory)
        self._used = 0
        self._part: Buffer = b""
        self._part_start = self._part_stop = 0
        self.data_start: int | None = None
        self._size = 0
        self._waiting: list[tuple[int, int, int, Memory, int, int]] = []
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

    def filler(self, offset: int, page: int) -> bytes:
        """Returns a block that repeats the metadata and, written at `offset`, ends at a page boundary.

        Returns b"" if `offset` is the start of a page.
        """
        size, least = -offset % page, len(self.start())
        while 0 < size < least:
            size += page
        return metadata_block(self._records.mark, self.metadata, size) if size else b""

    def add(self, ts_ns: int, connection: int, direction: int, data: Buffer) -> bool:
        """Takes the next bytes of one direction of a connection, in any pieces; returns True if a block is due.

        data: bytes, a bytearray or a memoryview of bytes; copied.
        """
        size = len(data)
        if size >= _SMALL_BYTES:
            self._add_large(ts_ns, connection, direction, data)
            return self._added(ts_ns) or self._size >= self.block_bytes
        start = self._used
        stop = start + size
        source: Memory = self._memory
        if stop <= len(source):
            self._view[start:stop] = data
            self._used = stop
        else:
            source, start, stop = bytes(data), 0, size
        self._size += size
        self._waiting.append((ts_ns, connection, direction, source, start, stop))
        return self._added(ts_ns) or self._size >= self.block_bytes

    def _add_large(self, ts_ns: int, connection: int, direction: int, data: Buffer) -> None:
        """Takes a piece that is framed at once, after prepending a partial frame, which keeps the order."""
        self._drain()
        self._size += len(data)
        start = self._used
        middle = start
        half = self._halves.get(connection << 1 | direction)
        if half is not None and len(half.data) < _SMALL_BYTES:
            middle += len(half.data)
        stop = middle + len(data)
        if stop > len(self._memory):
            self._stream(ts_ns, connection, direction, bytes(data), 0, len(data))
            return
        if half is not None and middle > start:
            self._view[start:middle] = half.data
            del self._halves[connection << 1 | direction]
        self._view[middle:stop] = data
        self._used = stop
        self._stream(ts_ns, connection, direction, self._memory, start, stop)

    def _added(self, ts_ns: int) -> bool:
        """Records that data is pending; returns whether it is due by age."""
        if not self._waits:
            self._waits = True
            self._due_ns = ts_ns + self.flush_after_ns
        return ts_ns >= self._due_ns

    def opened(self, ts_ns: int, connection: int, **facts: Any) -> None:
        """Records that a connection started; facts such as peer="127.0.0.1:4711" are stored as JSON."""
        self._event(ts_ns, connection, Direction.REQUEST, RecordKind.OPEN, event_data(**facts))

    def closed(self, ts_ns: int, connection: int, by: Direction = Direction.REQUEST, **facts: Any) -> bool:
        """Records that a connection ended; returns True if a block is due.

        by: REQUEST for the client's side, REPLY for the store's.
        """
        self._drain()
        self._end(ts_ns, connection)
        self._event(ts_ns, connection, by, RecordKind.CLOSE, event_data(**facts))
        return self._records._size >= self.block_bytes

    def called(self, ts_ns: int, direction: Direction, call: Call) -> bool:
        """Records the request or the answer of a controller call, redacted as frames are; returns True if a block is
        due.
        """
        shown = call if self._redact is None else redacted_call(call)
        self._event(ts_ns, CONTROLLER, direction, RecordKind.CALL, shown.pack())
        return self._records._size >= self.block_bytes

    def _event(self, ts_ns: int, connection: int, side: Direction, kind: RecordKind, data: bytes) -> None:
        self._drain()
        start, stop = self._used, self._used + len(data)
        if stop <= len(self._memory):
            self._view[start:stop] = data
            self._used = stop
            self._records._put_columns(ts_ns, connection, side, kind, len(data))
            self._keep(self._memory, start, stop)
        else:
            self._records._put(ts_ns, connection, side, kind, data)
        self._added(ts_ns)

    def due(self, now_ns: int) -> bool:
        """Whether the pending data is old enough to be written."""
        return self._waits and now_ns >= self._due_ns

    def take(self) -> bytes:
        """Returns a block of all pending whole frames; b"" if there are none."""
        return b"".join(self.take_parts())

    def take_parts(self) -> list[Buffer]:
        """Like `take`, in pieces for `writev`. Some are this writer's memory: write them before the next `add`."""
        self._drain()
        self._bound_halves()
        self._used, self._size, self._waits = 0, 0, False
        data = self._records._data
        in_memory = len(data) == 1 and data[0] is self._part
        self.data_start = self._part_start if in_memory else None
        self._records._sample = in_memory and len(self._part) >= _SAMPLED_BYTES
        self._part = b""
        return self._records._take()

    def finish(self, ts_ns: int) -> bytes:
        """Returns the last block: pending frames, and partial frames of open connections as BYTES."""
        return b"".join(self.finish_parts(ts_ns))

    def finish_parts(self, ts_ns: int) -> list[Buffer]:
        """Like `finish`, in pieces as from `take_parts`."""
        self._drain()
        for connection in {key >> 1: None for key in self._halves}:
            self._end(ts_ns, connection)
        return self.take_parts()

    # --- finding frames ---------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Frames the small pieces that were collected."""
        waiting, self._waiting = self._waiting, []
        secret = self._redact_codes if self._redact is not None else ()
        first = at = 0
        for index, (_, connection, direction, source, start, stop) in enumerate(waiting):
            key = connection << 1 | direction
            if (
                (start == at or first == index)
                and source is self._memory
                and key not in self._halves
                and key not in self._unframed
                and stop - start >= _HEADER_BYTES
                and _read_length(source, start + 4)[0] == stop - start - _HEADER_BYTES <= self._max_body
                and _read_code(source, start)[0] not in secret
            ):
                at = stop
                continue
            self._singles(waiting[first:index])
            self._stream(*waiting[index])
            first = index + 1
        self._singles(waiting[first:])

    def _singles(self, pieces: list[tuple[int, int, int, Memory, int, int]]) -> None:
        """Takes pieces of one frame each that are adjacent in memory: single requests and replies."""
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
            self._keep(self._memory, first, pieces[-1][5])
            records._size += pieces[-1][5] - first

    def _keep(self, source: Memory, start: int, stop: int) -> None:
        """Adds bytes to the data; joins them with the previous piece if adjacent."""
        data = self._records._data
        if source is not self._memory:
            data.append(memoryview(source)[start:stop])
            return
        if data and data[-1] is self._part and self._part_stop == start:
            self._part = data[-1] = self._view[self._part_start : stop]
        else:
            self._part = self._view[start:stop]
            self._part_start = start
            data.append(self._part)
        self._part_stop = stop

    def _stream(self, ts_ns: int, connection: int, direction: int, source: Memory, start: int, stop: int) -> None:
        """Splits bytes of a stream into frames and adds them to the columns."""
        key = connection << 1 | direction
        if (
            stop - start >= _HEADER_BYTES
            and key not in self._halves
            and key not in self._unframed
            and _read_length(source, start + 4)[0] == stop - start - _HEADER_BYTES <= self._max_body
        ):
            # One whole frame, as for most writes of a single reply.
            if self._redact is not None and _read_code(source, start)[0] in self._redact_codes:
                redacted = self._redact(bytes(memoryview(source)[start:stop]), True)
                if source is not self._memory:
                    self._records._put(ts_ns, connection, direction, RecordKind.FRAME, redacted)
                    return
                self._view[start:stop] = redacted
            self._records._put_columns(ts_ns, connection, direction, RecordKind.FRAME, stop - start)
            self._keep(source, start, stop)
            return
        half = self._halves.get(key)
        while half is not None:
            taken = min(stop, start + half.need - len(half.data))
            frame = half.data
            frame += source[start:taken]
            start = taken
            if len(frame) < half.need:
                return
            length = _read_length(frame, 4)[0]
            if half.need == _HEADER_BYTES and 0 < length <= self._max_body:
                half.need = _HEADER_BYTES + length
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
            if self._redact is not None:
                if source is not self._memory:
                    source, start, at, stop = bytearray(source[start:]), 0, at - start, stop - start
                self._redact_frames(memoryview(source)[start:at], ends[already:], self._records._size)
            self._keep(source, start, at)
            self._records._put_frames(ts_ns, connection, direction, at - start)
        if not need:
            self._unframed.add(key)
            self._bytes(ts_ns, connection, direction, bytes(source[at:stop]))
        elif at < stop:
            self._halves[key] = _Half(bytearray(source[at:stop]), need)
            if source is self._memory and stop == self._used:
                self._used = at  # the partial frame was copied: the next bytes follow the whole frames

    def _bound_halves(self) -> None:
        """Records the directions with the longest incomplete frames as BYTES if these take too much memory."""
        held = sum(len(half.data) for half in self._halves.values())
        if held <= self._most_held_bytes:
            return
        now = max(self._due_ns - self.flush_after_ns, self._records._last_ns)
        for key, half in sorted(self._halves.items(), key=lambda item: len(item[1].data), reverse=True):
            if held <= self._most_held_bytes // 2:
                return
            held -= len(half.data)
            del self._halves[key]
            self._unframed.add(key)
            self._bytes(now, key >> 1, key & 1, half.data)

    def _frame(self, ts_ns: int, connection: int, direction: int, frame: Buffer) -> None:
        if self._redact is not None and _read_code(frame)[0] in self._redact_codes:
            frame = self._redact(bytes(frame), True)
        self._records._put(ts_ns, connection, direction, RecordKind.FRAME, frame)

    def _redact_frames(self, data: memoryview, ends: array[int], base: int) -> None:
        """Overwrites the tokens of frames in place."""
        assert self._redact is not None
        start = 0
        for end in ends:
            stop = end - base
            if _read_code(data, start)[0] in self._redact_codes:
                data[start:stop] = self._redact(bytes(data[start:stop]), True)
            start = stop

    def _bytes(self, ts_ns: int, connection: int, direction: int, data: Buffer) -> None:
        if len(data):
            kept = data if self._redact is None else self._redact(bytes(data), False)
            self._records._put(ts_ns, connection, direction, RecordKind.BYTES, kept)

    def _end(self, ts_ns: int, connection: int) -> None:
        """Ends a connection: partial frames become BYTES, and its number may be reused."""
        for direction in Direction:
            key = connection << 1 | direction
            half = self._halves.pop(key, None)
            if half is not None:
                self._bytes(ts_ns, connection, direction, half.data)
            self._unframed.discard(key)
