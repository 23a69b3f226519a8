"""Converts records to Arrow batches.

If C is the process's codec, it fills the columns for the records of captures, from the same `Origin`s as
`RowMaker`. `RowMaker` makes all other rows: of commands that have a column with a conversion unknown to C, such as
the name of an enum member, and of records that can hold a token if the column `frame` must not show it; all rows if
only it can fill a column.

Invariant: a batch equals the rows that `RowMaker` makes of the same records, value by value, in the same order. Memory
is bounded by one block and `ROWS_AT_ONCE` rows; packed, by `_PACKED_ROWS` rows or `_PACKED_BYTES`, and one more batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from segstore.pipeline.trace.columns import CALL_COLUMNS, PACKED_COLUMNS, PLACE, TraceColumn, select
from segstore.pipeline.trace.files import FileRange, Located, RecordChunk, Skipped
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.options import TraceReaderOptions
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import Row, RowMaker, origin_of, storable
from segstore.wire.codec import ACCELERATOR, EVENT
from segstore.wire.schema import COMMANDS, Command
from segstore.wire.trace import SECRET_CODES, Columns, Direction, RecordKind

ROWS_AT_ONCE: Final = 65_536
_JOINED_BYTES: Final = 1 << 20
"""Passing a batch to Java costs about as much as copying this many bytes."""

_PACKED_ROWS: Final = ROWS_AT_ONCE
_PACKED_BYTES: Final = 32 << 20
_VALUE_ROWS: Final = 8192
"""Maximum number of rows in a value of packed rows, for the memory of the task that unpacks it."""
_VALUES_AT_ONCE: Final = 512
_CODEC: Final = "lz4_raw"
_SIZE: Final = struct.Struct("<I")

_TYPES: Final = {
    "boolean": (pa.bool_(), "flag"),
    "tinyint": (pa.int8(), "int8"),
    "int": (pa.int32(), "int32"),
    "bigint": (pa.int64(), "int64"),
    "string": (pa.string(), "text"),
    "binary": (pa.binary(), "binary"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "int64"),
}
"""Type of a column → its type in Arrow, and in C."""


def arrow_schema(columns: tuple[TraceColumn, ...]) -> pa.Schema:
    """Returns the schema of the batches."""
    return pa.schema([pa.field(column.name, _TYPES[column.type][0]) for column in columns])


def read_rows(
    pieces: Iterable[FileRange], options: TraceReaderOptions, columns: tuple[TraceColumn, ...]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of pieces, packed or not, by the options. Raises BadTrace.

    columns: of the result, a part of `options.given` or all.
    """
    of_records = options.columns if options.packed else columns
    maker = BatchMaker(RowMaker(of_records, tokens=options.tokens, fail_fast=options.fail_fast, chosen=options.chosen))
    takes = None if options.fail_fast else options.chosen.takes_block

    def batches(piece: FileRange) -> Iterator[pa.RecordBatch]:
        chunks = read_piece(piece, takes_block=takes, ports=options.ports, storage=options.storage)
        return chain.from_iterable(map(maker.batches, chunks))

    if not options.packed:
        return joined(chain.from_iterable(map(batches, pieces)))
    names = [column.name for column in columns]
    return joined(batch.select(names) for piece in pieces for batch in by_connection(joined(batches(piece))))


class BatchMaker:
    """Converts records to batches of the rows that `rows` would make."""

    def __init__(self, rows: RowMaker) -> None:
        self.schema = arrow_schema(rows.columns)
        self._rows = rows
        numbered = dict.fromkeys((*rows.columns, *select(("record",))))  # `_filled` finds packets by it
        self._one = RowMaker(in_order(tuple(numbered)), tokens=rows.tokens, fail_fast=rows.fail_fast)
        self._filler = make_filler(self._one, rows.chosen)

    def batches(self, chunk: RecordChunk | Skipped) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a reader's result. Raises BadTrace if skipping is disabled."""
        if self._filler is not None and isinstance(chunk, RecordChunk) and chunk.columns is not None:
            yield from self._filled(chunk, chunk.columns)
            return
        rows = self._rows.rows(chunk)
        while part := list(islice(rows, ROWS_AT_ONCE)):
            columns = zip(zip(*part, strict=True), self.schema.types, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(*column) for column in columns], schema=self.schema)

    def _filled(self, chunk: RecordChunk, columns: Columns) -> Iterator[pa.RecordBatch]:
        def row(number: int) -> Row:
            return self._one.row(chunk.path, Located(chunk.block_of(number), number, columns[number]))

        for first in range(0, len(columns), ROWS_AT_ONCE):
            stop = min(first + ROWS_AT_ONCE, len(columns))
            count, filled = self._filler.fill(*columns.buffers, first, stop, row)
            if not count:
                continue
            arrays = {
                "file": pa.repeat(pa.scalar(storable(chunk.path)), count),
                "block": pa.repeat(pa.scalar(chunk.block, pa.int64()), count),
            }
            for column, buffers in zip(self._one.columns, filled, strict=True):
                arrow = [pa.py_buffer(buffer) for buffer in buffers]
                arrays[column.name] = pa.Array.from_buffers(_TYPES[column.type][0], count, arrow)
            if chunk.packets is not None and "block" in self.schema.names:
                blocks = pa.Array.from_buffers(pa.int64(), len(columns), [None, pa.py_buffer(chunk.packets)])
                arrays["block"] = blocks.take(arrays["record"])
            yield pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows, with consecutive short batches joined, as many small files have them."""
    short: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if short and (rows + batch.num_rows > ROWS_AT_ONCE or size + batch.nbytes > _JOINED_BYTES):
            yield _one(short)
            short, rows, size = [], 0, 0
        short.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if short:
        yield _one(short)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


# --- packed rows ------------------------------------------------------------------------------------------------------


def by_connection(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packs rows of one piece: the result has `PACKED_COLUMNS`, and a row of it holds rows of one connection.

    So engines copy, shuffle and sort a few long values; sorted by `PLACE`, all rows are in order, because no row of
    another piece lies between the rows of a value. Rows of kind `skipped`, which have no connection, are left out.
    """
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= _PACKED_ROWS or size >= _PACKED_BYTES:
            yield from _by_connection(held)
            held, count, size = [], 0, 0
    if held:
        yield from _by_connection(held)


def _by_connection(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(batches)
    known = table.filter(pc.is_valid(table["connection"]))
    for rows in known.sort_by([(name, "ascending") for name in PLACE]).combine_chunks().to_batches():
        ends = {end for name in PLACE[:2] for end in pc.run_end_encode(rows[name]).run_ends.to_pylist()}
        cuts = sorted(ends.union(range(0, rows.num_rows, _VALUE_ROWS)))
        for first in range(0, len(cuts) - 1, _VALUES_AT_ONCE):
            some = list(pairwise(cuts[first : first + _VALUES_AT_ONCE + 1]))
            values = [packed(rows.slice(start, end - start)) for start, end in some]
            places = rows.select(PLACE).take(pa.array([start for start, _ in some]))
            columns = [*places.columns, pa.array(values, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(PACKED_COLUMNS))


def packed(batch: pa.RecordBatch) -> bytes:
    """Returns a batch as one value: its size (4 bytes, little-endian), and the batch without its schema, in LZ4.

    An Arrow stream, with a schema and separately compressed columns, takes seven times as long for few rows.
    """
    data = batch.serialize()
    compressed: bytes = pa.compress(data, _CODEC, asbytes=True)
    return _SIZE.pack(data.size) + compressed


def unpacked(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches that the last column of `batches` holds. schema: of the yielded batches."""
    for batch in batches:
        for value in batch.columns[-1]:
            data = value.as_buffer()
            (size,) = _SIZE.unpack_from(data)
            yield pa.ipc.read_record_batch(pa.decompress(data.slice(_SIZE.size), size, _CODEC), schema)


# --- columns in C -----------------------------------------------------------------------------------------------------

_OF_CALLS: Final = frozenset(column.name for column in CALL_COLUMNS)
_LABELS: Final = {
    "kind": tuple(kind.name.lower() for kind in RecordKind),
    "direction": tuple(direction.name.lower() for direction in Direction),
}
_NUMBERS: Final = {"record", "kind", "ts_ns", "time", "connection", "direction", "size", "code"}
_UNDECODED: Final = _NUMBERS | {"command", "failure", "frame"}
_CONVERSIONS: Final = {name: name for name in ("value", "bytes", "upper", "lower")} | {"text": "value", "id": "value"}
"""The conversions that C has, and their names there; it knows the types of values."""
_PLAIN, _FRAME, _LEFT_TO_PYTHON = range(3)


def in_order(columns: tuple[TraceColumn, ...]) -> tuple[TraceColumn, ...]:
    """Returns the columns that C fills, in its order: the record's first. A whole chunk has the other columns."""
    chosen = (column for column in columns if column.name not in ("file", "block"))
    return tuple(sorted(chosen, key=lambda column: column.name not in _NUMBERS))


def make_filler(one: RowMaker, chosen: Chosen) -> Any:
    """Returns the filler of the columns of `one`, which are `in_order`, with the rows of chosen records.

    None if C is not the process's codec, or if it cannot fill a column.
    """
    names = {column.name for column in one.columns}
    if ACCELERATOR is None or not all(map(_is_filled, names)):
        return None
    hides = "frame" in names and not one.tokens
    kinds = {RecordKind.FRAME: _FRAME, RecordKind.BYTES: _LEFT_TO_PYTHON if hides else _PLAIN}
    kinds[RecordKind.CALL] = _LEFT_TO_PYTHON
    programs = {
        cls: steps
        for code, cls in COMMANDS.items()
        if code != EVENT and not (hides and code in SECRET_CODES) and (steps := _steps(cls, one.columns)) is not None
    }
    return ACCELERATOR.rows(
        tuple((_TYPES[column.type][1], _source(column.name), _LABELS.get(column.name, ())) for column in one.columns),
        programs,
        chosen.in_numbers(),
        kinds=bytes(kinds.get(kind, _PLAIN) for kind in RecordKind),
        decodes=one.fail_fast or not names <= _UNDECODED,
    )


def _is_filled(name: str) -> bool:
    """Whether C fills a column: from the record, its header or its bytes, or from a field of a command."""
    if name in _UNDECODED or name == "error" or name in _OF_CALLS:  # calls and such frames are left to Python
        return True
    return any(origin_of(cls, name) is not None for cls in COMMANDS.values())


def _source(name: str) -> str:
    return "data" if name == "frame" else name if name in _NUMBERS else "body"


def _steps(cls: type[Command], columns: tuple[TraceColumn, ...]) -> tuple[tuple[int, str, Any], ...] | None:
    """Returns how frames of a command fill columns: index of the column, how, path or constant; None if C cannot."""
    constants = {"command": cls.type_name, "failure": cls.is_failure}
    steps: list[tuple[int, str, Any]] = []
    for at, column in enumerate(columns):
        if column.name in constants:
            steps.append((at, "constant", constants[column.name]))
        elif (origin := origin_of(cls, column.name)) is not None:
            if origin.conversion not in _CONVERSIONS:
                return None
            steps.append((at, _CONVERSIONS[origin.conversion], origin.path))
    return tuple(steps)
