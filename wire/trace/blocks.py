"""The blocks of a capture (`.wtrace`): their byte layout, encoding and decoding.

A capture is a sequence of blocks. Each starts with a header of 64 bytes, numbers little-endian:

    mark 16s     8 bytes common to all captures, 8 unique to this one
    version u16, type u8 (1 metadata, 2 records)
    flags u8     1: the body is compressed with zlib; 2: the body checksum covers a sample only
    count u32    number of records
    stored u64   size of the body in the file
    raw u64      size of the decompressed body
    first i64, last i64   earliest and latest time of the records, ns since 1970
    body crc u32, header crc u32   CRC-32 of the stored body or its sample, and of the preceding 60 bytes

The body of a records block is columns of `count` values, int64 or bytes, followed by the records' data:

    ts_ns i64[], connection i64[], end i64[], direction u8[], kind u8[], zero padding to a multiple of 8, data

A sample is the columns with their padding and every 512th byte of the data, starting with the first. A recorder under
load uses it: it detects pages that never reached the disk, or are shifted, at a fraction of the cost.

`end` is the offset in `data` where a record's bytes end; they start where the previous record's end. The body of a
metadata block is a JSON object. Zero padding after a body aligns the next header to 8, so that columns can be mapped.
There may be several metadata blocks, equal except for spaces after the object: a recorder fills pages with them.

Invariants: the header is the same in all versions, so any reader finds the blocks of any capture and their version;
only bodies of the present version are read. Lengths are checked before anything is allocated. Standard library only,
no I/O.
"""

from __future__ import annotations

import enum
import json
import struct
import sys
import zlib
from array import array
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.wire.codec import HEADER_BYTES as FRAME_HEADER_BYTES
from segstore.wire.errors import WireError
from segstore.wire.trace.framing import SIZE_BYTES, frames_into

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from segstore.wire.schema import Buffer

FORMAT_VERSION: Final = 3
MAGIC: Final = b"\x93wtrace\n"
MARK_BYTES: Final = 16
HEADER_BYTES: Final = 64
MAX_BLOCK_BYTES: Final = 1 << 28
"""Longest body, stored or raw, that a reader allocates for one block."""
MAX_IN_VAIN: Final = 16
"""Reading stops when damaged bodies of more than this many times the size of the capture have been read.

Valid headers can announce overlapping bodies; without a limit, reading them takes quadratic time.
"""

_HEADER: Final = struct.Struct("<16sHBBIQQqqII")
_CHECKED: Final = HEADER_BYTES - 4
_CRC: Final = struct.Struct("<I")
_COMPRESSED: Final = 1
_SAMPLED: Final = 2
_SAMPLE_STEP: Final = 512
_ALIGN: Final = 8
_WINDOW: Final = 1 << 20
RECORD_BYTES: Final = 3 * 8 + 2
"""Size of a record's columns."""
_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Direction(enum.IntEnum):
    """The direction of bytes; for records about a connection, the side that they concern."""

    REQUEST = 0
    REPLY = 1


class RecordKind(enum.IntEnum):
    """The kind of a record.

    FRAME: one whole frame, header included, whether or not it decodes. BYTES: bytes that form no frame: a partial frame
    at the end of a connection, or everything after a header with an impossible length. OPEN, CLOSE: a connection
    started or ended; the data is a JSON object with its facts. CALL: the request or the answer of a controller call;
    the data is a JSON object, see `segstore.wire.trace.calls`.
    """

    FRAME = 0
    OPEN = 1
    CLOSE = 2
    BYTES = 3
    CALL = 4


_DIRECTIONS: Final = tuple(Direction)
_KINDS: Final = tuple(RecordKind)


class BlockType(enum.IntEnum):
    METADATA = 1
    RECORDS = 2


class Record(NamedTuple):
    """One recorded event: time (ns since 1970), connection, direction, kind, and data."""

    ts_ns: int
    connection: int
    direction: Direction
    kind: RecordKind
    data: bytes

    @property
    def code(self) -> int | None:
        """The type code of a frame; None for other records, and for bytes too short for a header."""
        if self.kind is not RecordKind.FRAME or len(self.data) < FRAME_HEADER_BYTES:
            return None
        return int.from_bytes(self.data[:4], signed=True)


class Metadata(NamedTuple):
    """Metadata of a trace: its recorder's wire version, the recorder, and free-form values."""

    wire_version: int = 0
    recorder: str = ""
    values: dict[str, str] = {}  # noqa: RUF012 — never changed; NamedTuple takes plain defaults only


class TraceError(WireError):
    """Root of the errors about a trace as a whole."""


class TraceVersionError(TraceError):
    """The trace's version (`actual`) is not supported; `limit` is the newest supported version."""


class DamagedBlock(TraceError):
    """The bytes at `offset` of a capture are not a block, or not a whole block."""


class BlockHeader(NamedTuple):
    """The header of one block, as stored in the file."""

    mark: bytes
    version: int
    type: int
    flags: int
    records: int
    stored: int
    raw: int
    first_ts_ns: int
    last_ts_ns: int
    body_crc: int
    header_crc: int

    @property
    def size(self) -> int:
        """Number of bytes from this header to the next."""
        return HEADER_BYTES + padded(self.stored)

    @property
    def sampled(self) -> bool:
        return bool(self.flags & _SAMPLED)


def padded(size: int) -> int:
    """Returns the size rounded up to a multiple of 8."""
    return -(-size // _ALIGN) * _ALIGN


# --- columns ----------------------------------------------------------------------------------------------------


class Columns:
    """The records of one block, by column.

    Attributes: `ts_ns`, `connection`, `end` (memoryviews of int64, in this machine's byte order), `direction`, `kind`
    (memoryviews of bytes), `data` (a memoryview). They view immutable memory owned by this object. Iterating yields
    `Record`s with copies of the bytes.
    """

    def __init__(self, body: bytes, count: int) -> None:
        """Takes the raw body of a records block of the current version. Raises DamagedBlock."""
        view = memoryview(body)
        numbers = 8 * count
        start = padded(RECORD_BYTES * count)
        if start > len(view):
            raise DamagedBlock(f"{count} records need {start} bytes of columns but the body has {len(view)}")
        self.ts_ns = _converted(view[:numbers]).cast("q")
        self.connection = _converted(view[numbers : 2 * numbers]).cast("q")
        self.end = _converted(view[2 * numbers : 3 * numbers]).cast("q")
        self.direction = view[3 * numbers : 3 * numbers + count]
        self.kind = view[3 * numbers + count : 3 * numbers + 2 * count]
        self.data = view[start:]
        ends = self.end.tolist()
        if (ends and (ends[0] < 0 or ends != sorted(ends))) or (ends[-1] if ends else 0) != len(self.data):
            raise DamagedBlock("the ends of its records do not ascend to the end of its data")
        if count and (max(self.direction) > max(Direction) or max(self.kind) > max(RecordKind)):
            raise DamagedBlock("a record has a direction or a kind that does not exist")

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """The columns and the data, in the order of a block's body."""
        return self.ts_ns, self.connection, self.end, self.direction, self.kind, self.data

    def __getitem__(self, at: int) -> Record:
        data = bytes(self.data[self.end[at - 1] if at else 0 : self.end[at]])
        direction, kind = _DIRECTIONS[self.direction[at]], _KINDS[self.kind[at]]
        return Record(self.ts_ns[at], self.connection[at], direction, kind, data)

    def __iter__(self) -> Iterator[Record]:
        ends = self.end.tolist()
        data = map(bytes(self.data).__getitem__, map(slice, (0, *ends), ends))
        directions = map(_DIRECTIONS.__getitem__, self.direction)
        kinds = map(_KINDS.__getitem__, self.kind)
        values = zip(self.ts_ns.tolist(), self.connection.tolist(), directions, kinds, data, strict=True)
        return map(partial(tuple.__new__, Record), values)  # a third of the time of calls of `Record`


def _converted(column: Buffer) -> memoryview:
    """Converts int64 between little-endian and this machine's byte order."""
    if sys.byteorder == "little":
        return memoryview(column)
    swapped = array("q", bytes(column))
    swapped.byteswap()
    return memoryview(swapped).cast("B")


class TraceRows(NamedTuple):
    """Consecutive records without their data: int64 of this machine for times, connections, and ends of the data; a
    byte each for directions and kinds.
    """

    ts_ns: bytes
    connections: bytes
    ends: bytes
    directions: bytes
    kinds: bytes

    @property
    def records(self) -> int:
        """Their number."""
        return len(self.kinds)

    @property
    def size(self) -> int:
        """Bytes that they take."""
        return RECORD_BYTES * len(self.kinds)

    def write(self, columns: bytearray | memoryview, records: int, row: int) -> None:
        """Writes them into the columns of a block with this number of records, from `row` on."""
        for index, numbers in enumerate((self.ts_ns, self.connections, self.ends)):
            at = 8 * (index * records + row)
            columns[at : at + len(numbers)] = _converted(numbers)
        for index, values in enumerate((self.directions, self.kinds)):
            at = (24 + index) * records + row
            columns[at : at + len(values)] = values


class Frames(NamedTuple):
    """Consecutive records that are frames, without their columns and data.

    start: where their data begins in the block's data. runs, sizes: see `segstore.wire.trace.framing.frames_into`.
    """

    start: int
    runs: bytearray
    sizes: bytearray

    @property
    def records(self) -> int:
        """Their number."""
        return len(self.sizes) // SIZE_BYTES

    @property
    def size(self) -> int:
        """Bytes that they take."""
        return len(self.runs) + len(self.sizes)

    def write(self, columns: bytearray | memoryview, records: int, row: int) -> None:
        """Writes them into the columns of a block with this number of records, from `row` on."""
        frames_into(columns, records, row, self.start, bytes(self.runs), bytes(self.sizes))


class Pending(NamedTuple):
    """The records of a block that is not built yet.

    rows: in order. data: the records' bytes in any number of pieces. sample: the checksum covers a sample only; this
    requires data in one piece, and no compression.
    """

    rows: list[TraceRows | Frames]
    data: list[Buffer]
    first_ts_ns: int
    last_ts_ns: int
    sample: bool = False

    @property
    def records(self) -> int:
        """Their number."""
        return sum([row.records for row in self.rows])

    def _columns(self, memory: Callable[[int], bytearray | memoryview] = bytearray) -> bytearray | memoryview:
        """The columns as they are in a block, in memory of this size."""
        records, row = self.records, 0
        size = RECORD_BYTES * records
        columns = memory(padded(size))
        for rows in self.rows:
            rows.write(columns, records, row)
            row += rows.records
        columns[size:] = bytes(len(columns) - size)
        return columns

    def columns(self) -> Columns:
        """Returns the records, with a copy of their bytes."""
        return Columns(b"".join([self._columns(), *self.data]), self.records)

    def block(
        self, mark: bytes, *, compress: bool = False, memory: Callable[[int], bytearray | memoryview] = bytearray
    ) -> list[Buffer]:
        """Builds the block, as pieces to be written in order; the data is not copied.

        memory: returns memory of a size, for the columns. Raises TraceError above MAX_BLOCK_BYTES.
        """
        columns = self._columns(memory)
        checked = [columns, *map(_sample, self.data)] if self.sample and len(self.data) == 1 and not compress else None
        times = self.first_ts_ns, self.last_ts_ns
        return _block(mark, BlockType.RECORDS, self.records, [columns, *self.data], *times, compress, checked)


def _sample(data: Buffer) -> bytes:
    return bytes(memoryview(data)[::_SAMPLE_STEP])


def _block(
    mark: bytes,
    kind: BlockType,
    count: int,
    pieces: list[Buffer],
    first: int,
    last: int,
    compress: bool,
    sample: list[Buffer] | None = None,
) -> list[Buffer]:
    if len(mark) != MARK_BYTES or not mark.startswith(MAGIC):
        raise ValueError(f"a mark is {MAGIC!r} and 8 bytes more, not {mark!r}")
    raw = sum(map(len, pieces))
    if raw > MAX_BLOCK_BYTES:
        raise TraceError(f"a block of {raw} bytes exceeds {MAX_BLOCK_BYTES}", limit=MAX_BLOCK_BYTES, actual=raw)
    flags, stored, crc = 0, raw, 0
    if compress:
        packed = zlib.compress(b"".join(pieces), 1)
        flags, stored, pieces = _COMPRESSED, len(packed), [packed]
    elif sample is not None:
        flags = _SAMPLED
    for piece in pieces if sample is None else sample:
        crc = zlib.crc32(piece, crc)
    header = _HEADER.pack(mark, FORMAT_VERSION, kind, flags, count, stored, raw, first, last, crc, 0)[:_CHECKED]
    return [header + _CRC.pack(zlib.crc32(header)), *pieces, bytes(padded(stored) - stored)]


# --- metadata ---------------------------------------------------------------------------------------------------


def metadata_block(mark: bytes, metadata: Metadata, size: int = 0) -> bytes:
    """Builds the block that a capture starts with. mark: MAGIC and 8 bytes unique to this capture.

    size: minimum size of the block, a multiple of 8; padded with spaces.
    """
    body = _metadata_body(metadata.wire_version, metadata.recorder, tuple(metadata.values.items()))
    return b"".join(_block(mark, BlockType.METADATA, 0, [body.ljust(size - HEADER_BYTES)], 0, 0, False))


@lru_cache(maxsize=8)  # a recorder repeats its own, to fill pages
def _metadata_body(wire_version: int, recorder: str, values: tuple[tuple[str, str], ...]) -> bytes:
    return json.dumps(Metadata(wire_version, recorder, dict(values))._asdict(), sort_keys=True).encode()


def read_metadata(body: bytes) -> Metadata:
    """Parses the raw body of a metadata block. Raises DamagedBlock."""
    try:
        metadata = Metadata(**json.loads(body))
    except (ValueError, TypeError, RecursionError) as cause:
        raise DamagedBlock(f"its metadata cannot be read: {cause}") from cause
    values: Any = metadata.values
    if (
        type(metadata.wire_version) is not int
        or type(metadata.recorder) is not str
        or not isinstance(values, dict)
        or not all(type(value) is str for value in values.values())
    ):
        raise DamagedBlock("its metadata has values of the wrong type")
    return metadata


def event_data(**facts: Any) -> bytes:
    """Returns the data of an OPEN, CLOSE or CALL record: a JSON object in canonical form."""
    return _json(facts).encode()


def unpack_data(data: bytes) -> dict[str, Any] | None:
    """Parses the data of an OPEN, CLOSE or CALL record; None if it is not a JSON object."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None


# --- reading ----------------------------------------------------------------------------------------------------

Read = Callable[[int, int], bytes]
"""`read(offset, size)` returns bytes of a capture, fewer at its end."""


def read_header(buffer: Buffer, offset: int, mark: bytes | None = None) -> BlockHeader:
    """Reads the header at `offset`. mark: the capture's mark, if known. Raises DamagedBlock."""
    left = len(buffer) - offset
    start = bytes(buffer[offset : offset + MARK_BYTES])
    wanted = MAGIC if mark is None else mark
    if not (start.startswith(wanted) or (left < len(wanted) and wanted.startswith(start))):
        raise DamagedBlock("no block starts here", offset=offset)
    if left < HEADER_BYTES:
        raise DamagedBlock(
            f"a header has {HEADER_BYTES} bytes but {left} are left", offset=offset, limit=left, actual=HEADER_BYTES
        )
    header = BlockHeader(*_HEADER.unpack_from(buffer, offset))
    if zlib.crc32(bytes(buffer[offset : offset + _CHECKED])) != header.header_crc:
        raise DamagedBlock("the checksum of its header is wrong", offset=offset)
    return header


def find_header(read: Read, mark: bytes, at: int, end: int) -> int:
    """Returns the offset of the next valid header from `at` whose mark starts with `mark`; `end` if none is before it.

    Each byte is read once.
    """
    while at < end:
        starts = min(_WINDOW, end - at)
        window = read(at, starts + HEADER_BYTES - 1)
        start = window.find(mark)
        while 0 <= start < starts:
            try:
                read_header(window, start, mark if len(mark) == MARK_BYTES else None)
            except DamagedBlock:
                start = window.find(mark, start + 1)
            else:
                return at + start
        at += starts
    return end


def find_mark(read: Read, end: int) -> bytes | None:
    """Returns the mark of a capture from its first whole header before `end`; None without a header."""
    try:
        return read_header(read(0, HEADER_BYTES), 0).mark
    except DamagedBlock:
        at = find_header(read, MAGIC, 1, end)
    return None if at == end else read(at, MARK_BYTES)


def read_body(buffer: Buffer, offset: int, header: BlockHeader) -> bytes:
    """Returns a decompressed copy of the body of the block at `offset`.

    Raises DamagedBlock, TraceVersionError.
    """
    if header.version != FORMAT_VERSION:
        raise TraceVersionError(
            f"the trace has version {header.version}; this release reads version {FORMAT_VERSION}",
            limit=FORMAT_VERSION,
            actual=header.version,
        )
    if max(header.stored, header.raw) > MAX_BLOCK_BYTES:
        size = max(header.stored, header.raw)
        raise DamagedBlock(f"a block of {size} bytes exceeds {MAX_BLOCK_BYTES}", offset=offset, actual=size)
    start = offset + HEADER_BYTES
    left = len(buffer) - start
    if header.stored > left:
        raise DamagedBlock(
            f"its body has {header.stored} bytes but {left} are left", offset=offset, limit=left, actual=header.stored
        )
    body = bytes(buffer[start : start + header.stored])
    if _body_crc(body, header) != header.body_crc:
        raise DamagedBlock("the checksum of its body is wrong", offset=offset)
    if header.flags & _COMPRESSED:
        body = _decompressed(body, header.raw, offset)
    if len(body) != header.raw:
        raise DamagedBlock(f"its body has {len(body)} bytes, not {header.raw}", offset=offset)
    return body


def _body_crc(body: bytes, header: BlockHeader) -> int:
    if not header.sampled:
        return zlib.crc32(body)
    data = padded(RECORD_BYTES * header.records)
    return zlib.crc32(body[data::_SAMPLE_STEP], zlib.crc32(memoryview(body)[:data]))


def _decompressed(body: bytes, raw: int, offset: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        out = unpacker.decompress(body, raw + 1)
    except zlib.error as cause:
        raise DamagedBlock(f"its body does not decompress: {cause}", offset=offset) from cause
    return out
