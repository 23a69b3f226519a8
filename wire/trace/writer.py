"""Recorders: turn connection bytes or whole records into the blocks of a capture.

`TraceWriter` takes the bytes of connections in any pieces and finds the frames in them. It costs the recorded process
little: bytes are copied at most once, into reused memory, and frames are found by their headers. `RecordWriter` takes
whole records, for filters and converters.

Invariants: records passed to `RecordWriter` are read back unchanged; once a `TraceWriter` is finished, each byte that
it took is in exactly one record, in order. No I/O, no clock.
"""

from __future__ import annotations

import struct
from array import array
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.codec import HEADER_BYTES
from segstore.wire.schema import MAX_FRAME_BYTES
from segstore.wire.trace.blocks import (
    MAGIC,
    MARK_BYTES,
    RECORD_BYTES,
    Direction,
    Frames,
    Metadata,
    Pending,
    Record,
    RecordKind,
    TraceRows,
    event_data,
    metadata_block,
)
from segstore.wire.trace.calls import CONTROLLER, redacted_call
from segstore.wire.trace.framing import (
    NUMBERS_BYTES,
    SIZE_BYTES,
    is_request,
    marked,
    numbers,
    size_of_frame,
    whole_frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from segstore.wire.schema import Buffer
    from segstore.wire.trace.calls import Call

BLOCK_BYTES: Final = 4 * 1024 * 1024
FLUSH_AFTER_NS: Final = 1_000_000_000
MOST_HELD_BYTES: Final = 128 * 1024 * 1024
SPARE_BYTES: Final = 1024 * 1024
"""Extra memory beyond a block, so that the bytes that fill it, and the bytes that come with them, stay contiguous."""
_SAMPLED_BYTES: Final = 1024 * 1024
"""From this size of a block's data, its checksum covers a sample only; smaller blocks mean that there is no load."""
LASTING_BYTES: Final = 64 * 1024
"""From this size, data that lasts is not copied: a view of less would keep much memory from being reused."""
_RUN_BYTES: Final = 400
"""Size of the objects for a run of rows or a piece of data."""
_MOST_OVERHEAD: Final = 2
"""A block is due when its rows take this many times its intended size, as with many tiny records."""
_Half = bytearray | list["Buffer"]
"""The bytes of an incomplete frame so far: a copy, or parts, of which the memoryviews are where they were received."""
_FIRST_NS: Final = -(1 << 63)
_LAST_NS: Final = (1 << 63) - 1
_read_header = struct.Struct(">ii").unpack_from
_read_length = struct.Struct(">i").unpack_from


def make_mark(own: bytes) -> bytes:
    """Returns the mark of a new capture from 8 unique bytes (random, or a digest)."""
    if len(own) != MARK_BYTES - len(MAGIC):
        raise ValueError(f"a mark takes {MARK_BYTES - len(MAGIC)} bytes, not {len(own)}")
    return MAGIC + own


class RecordWriter:
    """Collects records into blocks. Write `start()` first, then the results of `add`, then `take()`.

    mark: from `make_mark`. compress: whether to use zlib, at its fastest level.
    """

    def __init__(self, mark: bytes, metadata: Metadata, *, compress: bool = False) -> None:
        self.mark = mark
        self.metadata = metadata
        self.compress = compress
        self.columns: Callable[[int], bytearray | memoryview] = bytearray
        self._runs, self._sizes = bytearray(), bytearray()
        """Runs and sizes of trailing frames not yet in `_rows`; their data starts at `_frames_start`."""
        self._frames_start = 0
        self._clear_columns()
        self._clear()

    def _clear(self) -> None:
        self._rows: list[TraceRows | Frames] = []
        self._data: list[Buffer] = []
        self._size = self._overhead = 0
        self._first_ns, self._last_ns = _LAST_NS, _FIRST_NS
        self._sample = False

    def _clear_columns(self) -> None:
        """Clears the columns of trailing records other than frames."""
        self._ts, self._connections, self._ends = array("q"), array("q"), array("q")
        self._directions, self._kinds = bytearray(), bytearray()

    def _end_rows(self) -> None:
        """Adds the records behind `_rows` to them."""
        if self._runs:
            self._rows.append(Frames(self._frames_start, self._runs, self._sizes))
            self._runs, self._sizes = bytearray(), bytearray()
        elif self._ts:
            numbers = self._ts.tobytes(), self._connections.tobytes(), self._ends.tobytes()
            self._rows.append(TraceRows(*numbers, bytes(self._directions), bytes(self._kinds)))
            self._clear_columns()
        else:
            return
        self._overhead += _RUN_BYTES

    def start(self) -> bytes:
        """The metadata block."""
        return metadata_block(self.mark, self.metadata)

    def add(self, record: Record) -> bytes:
        """Takes a record; returns a block if it is full, else b""."""
        self._put(record.ts_ns, record.connection, record.direction, record.kind, record.data)
        return self.take() if self._size >= BLOCK_BYTES else b""

    def take(self) -> bytes:
        """Returns a block of the pending records, b"" without records."""
        return b"".join(self._block_of(self._pending()))

    def _put(self, ts_ns: int, connection: int, direction: int, kind: int, data: Buffer) -> None:
        self._data.append(data)
        self._put_columns(ts_ns, connection, direction, kind, len(data))

    def _put_columns(self, ts_ns: int, connection: int, direction: int, kind: int, size: int) -> None:
        """Takes a record without its data."""
        if self._runs:
            self._end_rows()
        self._time(ts_ns)
        self._ts.append(ts_ns)
        self._connections.append(connection)
        self._directions.append(direction)
        self._kinds.append(kind)
        self._size += size
        self._overhead += RECORD_BYTES
        self._ends.append(self._size)

    def _time(self, ts_ns: int) -> None:
        """Updates the earliest and latest time."""
        if ts_ns < self._first_ns:
            self._first_ns = ts_ns
        if ts_ns > self._last_ns:
            self._last_ns = ts_ns

    def _put_frames(self, ts_ns: int, stream: int, size: int, sizes: bytes) -> None:
        """Takes frames of a stream without their data, whose size is given."""
        self._time(ts_ns)
        if not self._runs:
            self._end_rows()
            self._frames_start = self._size
        self._runs += numbers(ts_ns, stream, len(sizes) // SIZE_BYTES)
        self._sizes += sizes
        self._size += size
        self._overhead += NUMBERS_BYTES + len(sizes)

    def _pending(self) -> Pending | None:
        """Removes and returns the pending records, or None."""
        self._end_rows()
        if not self._rows:
            return None
        pending = Pending(self._rows, self._data, self._first_ns, self._last_ns, self._sample)
        self._clear()
        return pending

    def _block_of(self, pending: Pending | None) -> list[Buffer]:
        return [] if pending is None else pending.block(self.mark, compress=self.compress, memory=self.columns)


class TraceWriter:
    """Collects streams of bytes into blocks. Write `start()` first, then `take()` whenever `add` or `due` returns True,
    and finally `finish()`.

    A frame is recorded with the arrival time of its last byte. At most a block, the latest bytes and incomplete frames
    are held in memory, however small the pieces; a crash of the process loses these. If incomplete frames take more
    than `most_held_bytes` (by default `MOST_HELD_BYTES`), the directions with the longest frames are recorded as BYTES
    from then on.

    redact: `redact(frame, whole)` returns the frame to store instead, of the same length. It is called for frames with
    a type code in `redact_codes` and for bytes that form no frame; `segstore.wire.trace.redaction` provides both for
    delegation tokens. flush_after_ns: a block is due when its first record has this age.
    max_frame_bytes: a header with a longer or negative length ends the framing of its stream; later bytes are recorded
    as BYTES. memory: the caller's buffer for data; blocks are about as long. more: returns further memory, above 0
    bytes, when `memory` is full; the data of blocks then stays where it is. columns: returns memory of a size for the
    columns of the next block. Not thread-safe.

    Attributes: requests, the number of requests so far: whole frames of clients (`framing.is_request`) and calls; the
    owner may skip numbers. data_start, the offset in `memory` of the data of the last block taken; None if it is
    elsewhere or in pieces. The rest of `memory` after that data is free until the next `add`.
    """

    def __init__(
        self,
        mark: bytes,
        metadata: Metadata,
        *,
        redact: Callable[[bytes, bool], bytes] | None = None,
        redact_codes: Collection[int] = frozenset(),
        compress: bool = False,
        block_bytes: int = BLOCK_BYTES,
        flush_after_ns: int = FLUSH_AFTER_NS,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        memory: Buffer | None = None,
        more: Callable[[], memoryview] | None = None,
        most_held_bytes: int | None = None,
        columns: Callable[[int], bytearray | memoryview] = bytearray,
    ) -> None:
        self.block_bytes = block_bytes
        self.flush_after_ns = flush_after_ns
        self._records = RecordWriter(mark, metadata, compress=compress)
        self._records.columns = columns
        self._start_bytes = len(self._records.start())
        self._redact = redact
        self._redact_codes = redact_codes if redact is not None else frozenset()
        self._looked_at = marked(self._redact_codes)
        self._max_body = max_frame_bytes - HEADER_BYTES
        self._most_held_bytes = MOST_HELD_BYTES if most_held_bytes is None else most_held_bytes
        self._more = more
        self._use(memoryview(bytearray(block_bytes + SPARE_BYTES) if memory is None else memory))
        self._part_start = self._part_stop = 0
        """Bounds of the newest data in the memory, not yet a piece of `_records`: the next data may continue it."""
        self.data_start: int | None = None
        self.requests = 0
        self._size = 0
        self._waits = False
        self._due_ns = 0
        self._held: dict[int, _Half | None] = {}
        """Directions that do not go on with a frame: in the middle of one, or, with None, not framed any more."""
        self._views = 0
        """The number of parts of incomplete frames so far that were not copied."""

    def start(self) -> bytes:
        """The metadata block."""
        return self._records.start()

    def filler(self, offset: int, page: int) -> bytes:
        """Returns a block that repeats the metadata and, written at `offset`, ends at a page boundary.

        Returns b"" if `offset` is the start of a page.
        """
        size = -offset % page
        while 0 < size < self._start_bytes:
            size += page
        return metadata_block(self._records.mark, self._records.metadata, size) if size else b""

    def _use(self, view: memoryview) -> None:
        """Uses other memory for what follows."""
        self._view, self._memory_bytes, self._used = view, len(view), 0

    def add(self, ts_ns: int, connection: int, direction: int, data: Buffer, lasting: bool = False) -> bool:
        """Takes the next bytes of one direction of a connection, in any pieces; returns True if a block is due.

        data: bytes, a bytearray or a memoryview of bytes; copied. lasting: it is a memoryview of memory that does not
        change while a view is held, so long data is not copied.
        """
        stream, at, stop = connection << 1 | direction, 0, len(data)
        self._size += stop
        self._wait(ts_ns)
        while at < stop:
            start, sizes = at, b""
            if stream not in self._held:
                at, sizes, requests = whole_frames(data, at, self._max_body, self._looked_at)
            if sizes:
                self.requests += 0 if direction else requests
                self._records._put_frames(ts_ns, stream, at - start, sizes)
                self._keep(data, start, at, lasting=lasting)
            if at < stop:
                at = self._take_other(ts_ns, stream, data, at, lasting=lasting)
        return ts_ns >= self._due_ns or self._is_full()

    def _is_full(self) -> bool:
        records = self._records
        size = max(self._size, records._size)  # what came since the last block, and what this one holds
        is_long = records._overhead >= _MOST_OVERHEAD * self.block_bytes
        return size >= self.block_bytes or is_long

    @property
    def pieces(self) -> int:
        """A number that grows when `add` keeps data where it is, or memory is full, and falls only with `take`."""
        return len(self._records._data) + self._views

    def room(self, connection: int, direction: int) -> int:
        """Number of further bytes of a direction that fit in the writer's memory, with the frame that they complete."""
        half = self._held.get(connection << 1 | direction)
        return max(0, self._memory_bytes - self._used - (0 if half is None else _size_of(half)))

    def _wait(self, ts_ns: int) -> None:
        """Records since when data is pending, unless older data is pending."""
        if not self._waits:
            self._waits = True
            self._due_ns = ts_ns + self.flush_after_ns

    def opened(self, ts_ns: int, connection: int, /, **facts: Any) -> None:
        """Records that a connection started; facts such as peer="127.0.0.1:4711" are stored as JSON."""
        self._event(ts_ns, connection, Direction.REQUEST, RecordKind.OPEN, event_data(**facts))

    def closed(self, ts_ns: int, connection: int, by: Direction = Direction.REQUEST, /, **facts: Any) -> bool:
        """Records that a connection ended; returns True if a block is due.

        by: REQUEST for the client's side, REPLY for the store's.
        """
        self._end(ts_ns, connection)
        self._event(ts_ns, connection, by, RecordKind.CLOSE, event_data(**facts))
        return self._is_full()

    def called(self, ts_ns: int, direction: Direction, call: Call) -> bool:
        """Records the request or the answer of a controller call, redacted as frames are; returns True if a block is
        due.
        """
        self.requests += direction is Direction.REQUEST
        shown = call if self._redact is None else redacted_call(call)
        self._event(ts_ns, CONTROLLER, direction, RecordKind.CALL, shown.pack())
        return self._is_full()

    def _event(self, ts_ns: int, connection: int, side: Direction, kind: RecordKind, data: bytes) -> None:
        self._put(ts_ns, connection, side, kind, data)
        self._wait(ts_ns)

    def due(self, now_ns: int) -> bool:
        """Whether the pending data is old enough to be written, or newer than now: the clock was set back."""
        return self._waits and not self._due_ns - self.flush_after_ns <= now_ns < self._due_ns

    def take(self) -> bytes:
        """Returns a block of all pending whole frames; b"" without frames."""
        return b"".join(self.take_parts())

    def take_parts(self) -> list[Buffer]:
        """Like `take`, in pieces for `writev`. They may view this writer's memory: write them before the next `add`."""
        return self._records._block_of(self.take_pending())

    def take_pending(self) -> Pending | None:
        """Like `take_parts`, but without the cost of a block; None if there are no records."""
        self._bound_halves()
        self._size, self._waits = 0, False
        in_memory = not self._records._data and self._part_start < self._part_stop
        self.data_start = self._part_start if in_memory else None
        self._records._sample = in_memory and self._part_stop - self._part_start >= _SAMPLED_BYTES
        self._end_part()
        if self._more is None:
            self._used = 0
        return self._records._pending()

    def finish(self, ts_ns: int) -> bytes:
        """Returns the last block: pending frames, and partial frames of open connections as BYTES."""
        return b"".join(self.finish_parts(ts_ns))

    def finish_parts(self, ts_ns: int) -> list[Buffer]:
        """Like `finish`, in pieces as from `take_parts`."""
        for connection in {key >> 1: None for key, half in self._held.items() if half is not None}:
            self._end(ts_ns, connection)
        return self.take_parts()

    # --- finding frames ---------------------------------------------------------------------------------------------

    def _keep(self, source: Buffer, start: int, stop: int, *, lasting: bool = False) -> None:
        """Adds bytes to the data: as a view if they last, else as a copy behind the previous bytes in memory."""
        lasting = lasting and stop - start >= LASTING_BYTES
        if lasting or (self._more is None and stop - start > self._memory_bytes - self._used):
            self._end_part()
            piece = memoryview(source)[start:stop]
            self._records._data.append(piece if lasting else bytes(piece))
            self._records._overhead += _RUN_BYTES
            return
        while start < stop:
            if self._used == self._memory_bytes and self._more is not None:
                self._end_part()
                self._use(self._more())
            if self._part_start == self._part_stop:
                self._part_start = self._used
            size = min(stop - start, self._memory_bytes - self._used)
            self._view[self._used : self._used + size] = source[start : start + size]
            self._used = self._part_stop = self._used + size
            start += size

    def _end_part(self) -> None:
        """Makes a piece of the newest data."""
        if self._part_start < self._part_stop:
            self._records._data.append(self._view[self._part_start : self._part_stop])
            self._records._overhead += _RUN_BYTES
        self._part_start = self._part_stop = 0

    def _put(self, ts_ns: int, connection: int, direction: int, kind: RecordKind, data: Buffer) -> None:
        """Adds a record whose data may be anywhere."""
        self._records._put_columns(ts_ns, connection, direction, kind, len(data))
        self._keep(data, 0, len(data))

    def _take_other(self, ts_ns: int, stream: int, source: Buffer, at: int, *, lasting: bool) -> int:
        """Takes the data at which `whole_frames` has stopped; returns the position behind it.

        There are four cases: 1. the direction is not framed any more; 2. the rest of a frame; 3. a whole frame, which
        may have to be redacted; 4. a frame that is incomplete, or has an impossible length.
        """
        stop = len(source)
        if stream in self._held:
            half = self._held[stream]
            if half is not None:
                return self._continue(half, ts_ns, stream, source, at, lasting=lasting)
            self._bytes(ts_ns, stream, bytes(source[at:stop]))
            return stop
        if stop - at >= HEADER_BYTES:
            length: int = _read_length(source, at + 4)[0]
            if not 0 <= length <= self._max_body:
                self._held[stream] = None
                self._bytes(ts_ns, stream, bytes(source[at:stop]))
                return stop
            if HEADER_BYTES + length <= stop - at:
                self._frame(ts_ns, stream, (bytes(source[at : at + HEADER_BYTES + length]),))
                return at + HEADER_BYTES + length
        self._extend(stream, bytearray(), source, at, stop, lasting=lasting)
        return stop

    def _continue(self, half: _Half, ts_ns: int, stream: int, source: Buffer, at: int, *, lasting: bool) -> int:
        """Adds bytes to an incomplete frame; returns the position behind them."""
        stop = len(source)
        if isinstance(half, bytearray) and (missing := HEADER_BYTES - len(half)) > 0:
            half += source[at : at + missing]
            at += missing
            if at > stop:
                return stop
        length: int = _read_length(half if isinstance(half, bytearray) else half[0], 4)[0]
        if not 0 <= length <= self._max_body:
            self._held[stream] = None
            self._bytes(ts_ns, stream, b"".join((*_parts_of(half), source[at:stop])))
            return stop
        missing = HEADER_BYTES + length - _size_of(half)
        half = self._extend(stream, half, source, at, min(stop, at + missing), lasting=lasting)
        if missing > stop - at:
            return stop
        del self._held[stream]
        self._frame(ts_ns, stream, _parts_of(half))
        return at + missing

    def _extend(self, stream: int, half: _Half, source: Buffer, start: int, stop: int, *, lasting: bool) -> _Half:
        """Adds bytes to an incomplete frame, and remembers and returns it."""
        if lasting and stop - start >= LASTING_BYTES:
            half = [part for part in _parts_of(half) if part]
            half.append(memoryview(source)[start:stop])
            self._views += 1
        elif isinstance(half, bytearray):
            half += source[start:stop]
        elif isinstance(last := half[-1], bytearray):
            last += source[start:stop]
        else:
            half.append(bytearray(source[start:stop]))
        self._held[stream] = half
        return half

    def _bound_halves(self) -> None:
        """Copies the incomplete frames if they keep too much memory in use; if they are too long themselves, records
        the directions with the longest frames as BYTES."""
        in_place = {key: half for key, half in self._held.items() if isinstance(half, list)}
        areas: dict[int, Any] = {
            id(part.obj): part.obj for half in in_place.values() for part in half if isinstance(part, memoryview)
        }
        if sum(map(len, areas.values())) > self._most_held_bytes:
            self._held.update({key: bytearray().join(half) for key, half in in_place.items()})
        halves = [(_size_of(half), key, half) for key, half in self._held.items() if half is not None]
        held = sum(size for size, _, _ in halves)
        if held <= self._most_held_bytes:
            return
        now = max(self._due_ns - self.flush_after_ns, self._records._last_ns)
        for size, key, data in sorted(halves, key=itemgetter(0), reverse=True):
            if held <= self._most_held_bytes // 2:
                return
            held -= size
            self._held[key] = None
            self._bytes(now, key, b"".join(_parts_of(data)))

    def _frame(self, ts_ns: int, stream: int, parts: Sequence[Buffer]) -> None:
        """Adds a whole frame, without its token. The first part has its header; memoryviews are not copied."""
        code = _read_header(parts[0])[0]
        self.requests += not stream & 1 and is_request(code)
        if self._redact is not None and code in self._redact_codes:
            parts = (self._redact(b"".join(parts), True),)
        size = sum(map(len, parts))
        self._records._put_frames(ts_ns, stream, size, size_of_frame(size))
        for part in parts:
            self._keep(part, 0, len(part), lasting=isinstance(part, memoryview))

    def _bytes(self, ts_ns: int, stream: int, data: Buffer) -> None:
        if len(data):
            if self._redact is not None:
                data = self._redact(bytes(data), stream & 1 == Direction.REPLY)
            self._put(ts_ns, stream >> 1, stream & 1, RecordKind.BYTES, data)

    def _end(self, ts_ns: int, connection: int) -> None:
        """Ends a connection: partial frames become BYTES, and its number may be reused."""
        for direction in Direction:
            key = connection << 1 | direction
            half = self._held.pop(key, None)
            if half is not None:
                self._bytes(ts_ns, key, b"".join(_parts_of(half)))


def _size_of(half: _Half) -> int:
    return sum(map(len, _parts_of(half)))


def _parts_of(half: _Half) -> Sequence[Buffer]:
    return (half,) if isinstance(half, bytearray) else half
