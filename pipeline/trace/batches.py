"""Converts records to Arrow batches.

Invariant: a batch equals the rows that `RowMaker` makes of the same records, value by value, in the same order. If C is
the process's codec, it fills the columns for the records of captures (`segstore.pipeline.trace.filling`); `RowMaker`
makes the rows that C declines, and all others. Memory is bounded by one block and `ROWS_AT_ONCE` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import pyarrow as pa

from segstore.pipeline.trace.columns import Column, select
from segstore.pipeline.trace.files import Chunk, Located, Piece, Skipped
from segstore.pipeline.trace.filling import in_order, make_filler
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.options import TraceOptions
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import Row, RowMaker, storable
from segstore.wire.trace import Columns

ROWS_AT_ONCE: Final = 65_536
_JOINED_BYTES: Final = 1 << 20
"""Passing a batch to Java costs about as much as copying this many bytes."""

_TYPES: Final = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the schema of the batches."""
    return pa.schema([pa.field(column.name, _TYPES[column.type]) for column in columns])


def read_rows(
    pieces: Iterable[Piece], options: TraceOptions, columns: tuple[Column, ...], chosen: Chosen
) -> Iterator[Row] | Iterator[pa.RecordBatch]:
    """Yields the rows of pieces, as batches or, depending on the options, one by one. Raises BadTrace."""
    rows = RowMaker(columns, tokens=options.tokens, fail_fast=options.fail_fast, chosen=chosen)
    takes = None if options.fail_fast else chosen.takes_block
    found = (
        each
        for piece in pieces
        for each in read_piece(piece, takes_block=takes, ports=options.ports, storage=options.storage)
    )
    if not options.vectorised:
        return (row for each in found for row in rows.rows(each))
    maker = BatchMaker(rows)
    return joined(batch for each in found for batch in maker.batches(each))


class BatchMaker:
    """Converts records to batches of the rows that `rows` would make."""

    def __init__(self, rows: RowMaker) -> None:
        self.schema = arrow_schema(rows.columns)
        self._rows = rows
        numbered = dict.fromkeys((*rows.columns, *select(("record",))))  # `_filled` finds packets by it
        self._one = RowMaker(in_order(tuple(numbered)), tokens=rows.tokens, fail_fast=rows.fail_fast)
        self._filler = make_filler(self._one, rows.chosen)

    def batches(self, found: Chunk | Skipped) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a reader's result. Raises BadTrace if skipping is disabled."""
        if self._filler is not None and isinstance(found, Chunk) and found.columns is not None:
            yield from self._filled(found, found.columns)
            return
        rows = self._rows.rows(found)
        while part := list(islice(rows, ROWS_AT_ONCE)):
            columns = zip(zip(*part, strict=True), self.schema.types, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(*column) for column in columns], schema=self.schema)

    def _filled(self, chunk: Chunk, columns: Columns) -> Iterator[pa.RecordBatch]:
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
                type_, arrow = _TYPES[column.type], [pa.py_buffer(each) for each in buffers]
                made[column.name] = pa.Array.from_buffers(type_, count, arrow)
            if chunk.packets is not None and "block" in self.schema.names:
                blocks = pa.Array.from_buffers(pa.int64(), len(columns), [None, pa.py_buffer(chunk.packets)])
                made["block"] = blocks.take(made["record"])
            yield pa.RecordBatch.from_arrays([made[name] for name in self.schema.names], schema=self.schema)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows, with short batches in a row joined: those of many small files."""
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
