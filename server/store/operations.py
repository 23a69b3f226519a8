"""The changes that a container's state can undergo, as values: what a journal stores and recovery applies again.

An operation says what happens, not what was asked: conditions were checked and sums were done when it was made, so
that applying it never fails on a state that the operations before it made. ``encode`` and ``decode`` give one operation
as msgpack bytes; the tags and the order of the fields are the format of the journal.

``AppendedCoder`` writes the same bytes for an append that never was an object: what a container does all day. They
differ from those of ``encode`` in the width of numbers only, which is fixed.

Ownership of buffers: ``data`` is the operation's own bytes, or whatever a caller of ``decode`` lends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from segstore.server.store.chunks import Buffer

Values = tuple[tuple[UUID, int], ...]

AppendItem = tuple[int, int, Buffer, int]
"""An append: the number of its last event, how many events, their bytes, the request id."""


class _Operation(msgspec.Struct, frozen=True, array_like=True):
    segment: str


class SegmentCreated(_Operation, frozen=True, array_like=True, tag="created"):
    """A segment with these attributes came into being; ``kind`` as in ``segment.Kind``."""

    kind: int
    values: Values
    now_ms: int


class Appended(_Operation, frozen=True, array_like=True, tag="appended"):
    """Bytes were written at the end; with a writer, its last event number is set and the event count grows."""

    data: bytes
    events: int
    now_ms: int
    writer_id: UUID | None = None
    event_number: int = 0


class AttributesUpdated(_Operation, frozen=True, array_like=True, tag="attributes"):
    """These attributes have these values now."""

    values: Values
    now_ms: int


class Sealed(_Operation, frozen=True, array_like=True, tag="sealed"):
    """No more changes but truncation, deletion, and being merged away."""

    now_ms: int


class Truncated(_Operation, frozen=True, array_like=True, tag="truncated"):
    """What lay before ``offset`` is gone."""

    offset: int


class SegmentMerged(_Operation, frozen=True, array_like=True, tag="merged"):
    """The bytes of ``source`` were moved to the end of the segment and the source is gone.

    ``data`` is set where the source lived in another container, whose own SegmentDeleted follows there.
    """

    source: str
    values: Values
    now_ms: int
    data: bytes | None = None


class SegmentDeleted(_Operation, frozen=True, array_like=True, tag="deleted"):
    """The segment is gone. ``retired``: its name is used up."""

    retired: bool


class TableKeysForgotten(_Operation, frozen=True, array_like=True, tag="forgotten"):
    """Keys were removed from a fixed-key table, which leaves no bytes behind."""

    keys: tuple[bytes, ...]
    now_ms: int


class IndexAppended(_Operation, frozen=True, array_like=True, tag="indexed"):
    """An entry was written to an index segment, whose event count is that of the segment it belongs to."""

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
"""Before a name that is written as the hex of its bytes; a name that begins with it is written so, too."""

_ENCODER: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: Final[msgspec.msgpack.Decoder[Operation]] = msgspec.msgpack.Decoder(Operation)


def encode(operation: Operation) -> bytes:
    """One operation as bytes."""
    segment = operation.segment
    if segment[:1] == _ESCAPE or not segment.isascii() or type(operation) is SegmentMerged:
        operation = _with_names(operation, pack_name)
    return _ENCODER.encode(operation)


def decode(data: bytes | bytearray | memoryview) -> Operation:
    """The operation that ``encode`` wrote; ``msgspec.DecodeError`` for anything else."""
    operation = _DECODER.decode(data)
    if operation.segment[:1] == _ESCAPE or type(operation) is SegmentMerged:
        return _with_names(operation, unpack_name)
    return operation


@runtime_checkable
class AppendJournal(Protocol):
    """A journal that is told of appends without an operation being made of each."""

    def __call__(self, operation: Operation) -> None:
        """An operation was carried out."""
        ...

    def appended(self, segment: str, rows: Sequence[AppendItem], now_ms: int, writer: bytes) -> None:
        """As for one ``Appended`` of all rows, by the writer with these bytes as its id; they are free at return."""
        ...


_ARRAY_OF_7: Final = b"\x97"
_BIN: Final = 0xC6  # with a length of 32 bits
_INT64: Final = 0xD3
_BIN_OF_16: Final = b"\xc4\x10"
_TAIL: Final = Struct(">BqBq2s16sBq")
_MAX_HEADS: Final = 4096


class AppendedCoder:
    """Writes ``Appended`` with a writer as a record: a number, the size of what follows, then what ``decode`` reads.

    number: what all its records begin with, as 32 bits.
    """

    __slots__ = ("_heads", "_number")

    def __init__(self, number: int) -> None:
        self._number = number
        # By segment: packs the head, what stands in it before the data, the size of all but the data.
        self._heads: dict[str, tuple[Callable[..., bytes], bytes, int]] = {}

    def encode(self, segment: str, rows: Sequence[AppendItem], now_ms: int, writer: bytes) -> bytes:
        """One record of all rows, as ``AppendJournal.appended``; their data are copied once."""
        pack, begin, around = self._heads.get(segment) or self._head(segment)
        parts = [row[2] for row in rows]
        size, events = sum(map(len, parts)), sum([row[1] for row in rows])
        head = pack(self._number, around + size, begin, _BIN, size)
        tail = _TAIL.pack(_INT64, events, _INT64, now_ms, _BIN_OF_16, writer, _INT64, rows[-1][0])
        return b"".join((head, *parts, tail))

    def _head(self, segment: str) -> tuple[Callable[..., bytes], bytes, int]:
        begin = _ARRAY_OF_7 + _ENCODER.encode("appended") + _ENCODER.encode(pack_name(segment))
        layout = Struct(f">iI{len(begin)}sBI")
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        made = self._heads[segment] = layout.pack, begin, layout.size - 8 + _TAIL.size
        return made


def pack_name(name: str) -> str:
    """A name as text that every encoding takes: one with lone surrogates, which the wire allows, as its bytes in hex.

    Raises nothing; ``unpack_name`` gives the name back.
    """
    if name[:1] != _ESCAPE and not _SURROGATE.search(name):
        return name
    return _ESCAPE + name.encode("utf-8", "surrogatepass").hex()


def unpack_name(packed: str) -> str:
    """The name that ``pack_name`` was given; ``ValueError`` for what it does not make."""
    if packed[:1] != _ESCAPE:
        return packed
    return bytes.fromhex(packed[1:]).decode("utf-8", "surrogatepass")


def _with_names(operation: Operation, change: Callable[[str], str]) -> Operation:
    if isinstance(operation, SegmentMerged):
        return msgspec.structs.replace(operation, segment=change(operation.segment), source=change(operation.source))
    return msgspec.structs.replace(operation, segment=change(operation.segment))
