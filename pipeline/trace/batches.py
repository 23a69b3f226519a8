"""Converts records to Arrow batches.

Invariant: a batch equals the rows that `RowMaker` makes of the same records, value by value, in the same order. If C is
the process's codec, it fills the columns for the records of captures (`segstore.pipeline.trace.filling`); `RowMaker`
makes the rows that C declines, and all other rows. Memory is bounded by one block and `ROWS_AT_ONCE` rows; packed, by
`_PACKED_ROWS` rows or `_PACKED_BYTES`, and one more batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from segstore.pipeline.trace.columns import PACKED_COLUMNS, PLACE, TraceColumn, select
from segstore.pipeline.trace.files import FileRange, Located, RecordChunk, Skipped
from segstore.pipeline.trace.filling import in_order, make_filler
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.options import TraceReaderOptions
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import Row, RowMaker, storable
from segstore.wire.trace import Columns

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
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(columns: tuple[TraceColumn, ...]) -> pa.Schema:
    """Returns the schema of the batches."""
    return pa.schema([pa.field(column.name, _TYPES[column.type]) for column in columns])


def read_rows(
    pieces: Iterable[FileRange], options: TraceReaderOptions, columns: tuple[TraceColumn, ...], chosen: Chosen
) -> Iterator[Row] | Iterator[pa.RecordBatch]:
    """Yields the rows of pieces: as batches, as packed batches or as single rows, by the options. Raises BadTrace.

    columns: of the result, a part of `options.given` or all.
    """
    made = options.columns if options.packed else columns
    rows = RowMaker(made, tokens=options.tokens, fail_fast=options.fail_fast, chosen=chosen)
    takes = None if options.fail_fast else chosen.takes_block

    def found(piece: FileRange) -> Iterator[RecordChunk | Skipped]:
        return read_piece(piece, takes_block=takes, ports=options.ports, storage=options.storage)

    if not options.vectorised:
        return (row for piece in pieces for each in found(piece) for row in rows.rows(each))
    maker = BatchMaker(rows)
    batches = ((batch for each in found(piece) for batch in maker.batches(each)) for piece in pieces)
    if not options.packed:
        return joined(chain.from_iterable(batches))
    names = [column.name for column in columns]
    return joined(batch.select(names) for of_piece in batches for batch in by_connection(joined(of_piece)))


class BatchMaker:
    """Converts records to batches of the rows that `rows` would make."""

    def __init__(self, rows: RowMaker) -> None:
        self.schema = arrow_schema(rows.columns)
        self._rows = rows
        numbered = dict.fromkeys((*rows.columns, *select(("record",))))  # `_filled` finds packets by it
        self._one = RowMaker(in_order(tuple(numbered)), tokens=rows.tokens, fail_fast=rows.fail_fast)
        self._filler = make_filler(self._one, rows.chosen)

    def batches(self, found: RecordChunk | Skipped) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a reader's result. Raises BadTrace if skipping is disabled."""
        if self._filler is not None and isinstance(found, RecordChunk) and found.columns is not None:
            yield from self._filled(found, found.columns)
            return
        rows = self._rows.rows(found)
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
            made = {
                "file": pa.repeat(pa.scalar(storable(chunk.path)), count),
                "block": pa.repeat(pa.scalar(chunk.block, pa.int64()), count),
            }
            for column, buffers in zip(self._one.columns, filled, strict=True):
                type_, arrow = _TYPES[column.type], [pa.py_buffer(buffer) for buffer in buffers]
                made[column.name] = pa.Array.from_buffers(type_, count, arrow)
            if chunk.packets is not None and "block" in self.schema.names:
                blocks = pa.Array.from_buffers(pa.int64(), len(columns), [None, pa.py_buffer(chunk.packets)])
                made["block"] = blocks.take(made["record"])
            yield pa.RecordBatch.from_arrays([made[name] for name in self.schema.names], schema=self.schema)


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
