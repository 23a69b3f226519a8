"""Operations that change a container's state, as values: journaled, and applied again by recovery.

An operation records an effect, not a request: conditions are checked and results computed when it is created, so
applying it never fails on the state that earlier operations produced. `encode` and `decode` convert an operation to
and from msgpack; tags and field order are the journal's format.

`record_of_rows` encodes an append, the most frequent operation, without creating an object. Its output differs from
`encode` only in the width of numbers, which is fixed.

Ownership of buffers: `data` is the operation's own bytes, or a view of the buffer given to `decode`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, Protocol
from uuid import UUID

import msgspec

from segstore.wire.blocks import Row

Values = tuple[tuple[UUID, int], ...]


class _Operation(msgspec.Struct, frozen=True, array_like=True):
    segment: str


class SegmentCreated(_Operation, frozen=True, array_like=True, tag="created"):
    """A segment was created with these attributes; `kind` as in `segment.Kind`."""

    kind: int
    values: Values
    now_ms: int


class Appended(_Operation, frozen=True, array_like=True, tag="appended"):
    """Bytes were appended; with a writer, its last event number is set and the event count grows."""

    data: bytes
    events: int
    now_ms: int
    writer_id: UUID | None = None
    event_number: int = 0


class AttributesUpdated(_Operation, frozen=True, array_like=True, tag="attributes"):
    values: Values
    now_ms: int


class Sealed(_Operation, frozen=True, array_like=True, tag="sealed"):
    """The segment was sealed; it can still be truncated, deleted, and merged into another."""

    now_ms: int


class Truncated(_Operation, frozen=True, array_like=True, tag="truncated"):
    """The bytes before `offset` were removed."""

    offset: int


class SegmentMerged(_Operation, frozen=True, array_like=True, tag="merged"):
    """The bytes of `source` were moved to the end of the segment, and the source was deleted.

    `data` is set if the source was in another container, whose journal then has its SegmentDeleted.
    """

    source: str
    values: Values
    now_ms: int
    data: bytes | None = None


class SegmentDeleted(_Operation, frozen=True, array_like=True, tag="deleted"):
    """The segment was deleted. `retired`: its name cannot be used again."""

    retired: bool


class TableKeysForgotten(_Operation, frozen=True, array_like=True, tag="forgotten"):
    """Keys were removed from a fixed-key table, which writes nothing to its log."""

    keys: tuple[bytes, ...]
    now_ms: int


class IndexAppended(_Operation, frozen=True, array_like=True, tag="indexed"):
    """An entry was appended to an index segment, which takes over the indexed segment's event count."""

    data: bytes
    event_count: int
    now_ms: int


Operation = (
    SegmentCreated
    | Appended
    | AttributesUpdated
    | Sealed
    | Truncated
    | SegmentMerged
    | SegmentDeleted
    | IndexAppended
    | TableKeysForgotten
)

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPE: Final = "\0"
"""Prefix of names encoded as hex; a name that begins with it is encoded in the same way."""

_ENCODER: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: Final[msgspec.msgpack.Decoder[Operation]] = msgspec.msgpack.Decoder(Operation)


def encode(operation: Operation) -> bytes:
    segment = operation.segment
    if segment[:1] == _ESCAPE or not segment.isascii() or type(operation) is SegmentMerged:
        operation = _with_names(operation, pack_name)
    return _ENCODER.encode(operation)


def decode(data: bytes | bytearray | memoryview) -> Operation:
    """Returns the operation that `encode` wrote. Raises `msgspec.DecodeError` for anything else."""
    operation = _DECODER.decode(data)
    if operation.segment[:1] == _ESCAPE or type(operation) is SegmentMerged:
        return _with_names(operation, unpack_name)
    return operation


class OperationJournal(Protocol):
    """A journal of one container."""

    def __call__(self, operation: Operation) -> None:
        """Records an operation, after it was applied."""

    @property
    def add_record(self) -> Callable[[bytes], None]:
        """Records appends, as `record_of_rows` encodes them with the container's number."""


_ARRAY_OF_7: Final = b"\x97"
_BIN: Final = 0xC6  # with a length of 32 bits
_INT64: Final = 0xD3
_BIN_OF_16: Final = b"\xc4\x10"
_HEAD: Final = Struct(">iI")
_DATA_SIZE: Final = Struct(">BI")
_TAIL: Final = Struct(">BqBq2s16sBq")


@lru_cache(maxsize=4096)
def begin_of_appended(segment: str) -> bytes:
    """Returns the first bytes of every encoded `Appended` of a segment, for `record_of_rows`."""
    return _ARRAY_OF_7 + _ENCODER.encode("appended") + _ENCODER.encode(pack_name(segment))


def record_of_rows(number: int, begin: bytes, rows: Sequence[Row], now_ms: int, writer: bytes) -> bytes:
    """Encodes appends as one `Appended` with a writer, in a record: a number, the size of the rest, bytes for
    `decode`.

    number: of 32 bits. begin: from `begin_of_appended`. writer: the bytes of its id. The rows' data are copied once.
    """
    size, events = sum(len(row[2]) for row in rows), sum(row[1] for row in rows)
    head = _HEAD.pack(number, len(begin) + _DATA_SIZE.size + size + _TAIL.size)
    tail = _TAIL.pack(_INT64, events, _INT64, now_ms, _BIN_OF_16, writer, _INT64, rows[-1][0])
    return b"".join((head, begin, _DATA_SIZE.pack(_BIN, size), *[row[2] for row in rows], tail))


def pack_name(name: str) -> str:
    """Returns a name as valid Unicode: a name with lone surrogates, which the wire allows, is encoded as hex.

    Raises nothing; `unpack_name` is the inverse.
    """
    if name[:1] != _ESCAPE and not _SURROGATE.search(name):
        return name
    return _ESCAPE + name.encode("utf-8", "surrogatepass").hex()


def unpack_name(packed: str) -> str:
    """Returns the name that was given to `pack_name`. Raises `ValueError` for other text."""
    if packed[:1] != _ESCAPE:
        return packed
    return bytes.fromhex(packed[1:]).decode("utf-8", "surrogatepass")


def _with_names(operation: Operation, change: Callable[[str], str]) -> Operation:
    if isinstance(operation, SegmentMerged):
        return msgspec.structs.replace(operation, segment=change(operation.segment), source=change(operation.source))
    return msgspec.structs.replace(operation, segment=change(operation.segment))
