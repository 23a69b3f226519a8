"""Converts records to Arrow batches column by column, without a Python object per row.

`segstore.pipeline.trace.vectorised` decodes the frames of one command together; frames that it does not mark good,
commands that it does not support, and the column `fields` go through the codec one by one.

Invariant: a batch equals the rows that `RowMaker` makes of the same records, value by value, in the same order. Memory
is bounded by one block and `ROWS_AT_ONCE` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore.pipeline.trace.columns import HEADER_COLUMNS, RECORD_COLUMNS, Column, select, source_of
from segstore.pipeline.trace.files import Chunk, Located, Skipped
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.rows import RowMaker, data_path, storable
from segstore.pipeline.trace.vectorised import (
    Found,
    Texts,
    View,
    plan_of,
    read_ids,
    read_names,
    read_numbers,
    read_texts,
)
from segstore.wire.codec import HEADER_BYTES
from segstore.wire.schema import COMMANDS, Command, Unknown
from segstore.wire.trace import SECRET_CODES, Direction, Record, RecordKind, redact

ROWS_AT_ONCE: Final = 65_536

_TYPES: Final = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DTYPES: Final = {"boolean": np.bool_, "byte": np.int8, "int": np.int32, "long": np.int64, "timestamp": np.int64}
_OUTSIDE: Final = frozenset(column.name for column in (*RECORD_COLUMNS, *HEADER_COLUMNS)) | {"fields", "frame"}
_SHIFT: Final = 128
_NAMES: Final = {
    "kind": [kind.name.lower() for kind in RecordKind],
    "direction": [direction.name.lower() for direction in Direction],
}
_MOST_KNOWN: Final = 100_000


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the schema of the batches."""
    return pa.schema([pa.field(column.name, _TYPES[column.type]) for column in columns])


class _Records(NamedTuple):
    """Records by column; `start` and `end` are bytes of `data`."""

    path: str
    ts_ns: npt.NDArray[np.int64]
    connection: npt.NDArray[np.int64]
    direction: npt.NDArray[np.uint8]
    kind: npt.NDArray[np.uint8]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    block: npt.NDArray[np.int64]
    number: npt.NDArray[np.int32]
    data: bytes
    view: View

    def at(self, row: int) -> Located:
        """Returns a single record."""
        data = self.data[self.start[row] : self.end[row]]
        record = Record(
            int(self.ts_ns[row]),
            int(self.connection[row]),
            Direction(self.direction[row]),
            RecordKind(self.kind[row]),
            data,
        )
        return Located(int(self.block[row]), int(self.number[row]), record)

    def chosen(self, rows: Any) -> _Records:
        """Returns the records at these rows."""
        ts_ns, connection, direction, kind, start, end, block, number = (column[rows] for column in self[1:-2])
        return _Records(self.path, ts_ns, connection, direction, kind, start, end, block, number, self.data, self.view)

    def header(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Returns code and length of each frame, and whether it is long enough to have them."""
        there = (self.kind == RecordKind.FRAME) & (self.end - self.start >= HEADER_BYTES)
        return self.view.numbers("i", self.start), self.view.numbers("i", self.start + 4), there


def _records(chunk: Chunk) -> _Records:
    columns = chunk.columns
    if columns is not None:
        data = bytes(columns.data)
        end = np.frombuffer(columns.end, np.int64)
        count = len(end)
        return _Records(
            chunk.path,
            np.frombuffer(columns.ts_ns, np.int64),
            np.frombuffer(columns.connection, np.int64),
            np.frombuffer(columns.direction, np.uint8),
            np.frombuffer(columns.kind, np.uint8),
            np.concatenate((np.zeros(min(count, 1), np.int64), end[:-1])),
            end,
            np.full(count, chunk.block, np.int64),
            np.arange(count, dtype=np.int32),
            data,
            View(data),
        )
    located = list(chunk)
    data = b"".join(each.record.data for each in located)
    sizes = np.array([len(each.record.data) for each in located], np.int64)
    end = np.cumsum(sizes)
    return _Records(
        chunk.path,
        np.array([each.record.ts_ns for each in located], np.int64),
        np.array([each.record.connection for each in located], np.int64),
        np.array([each.record.direction for each in located], np.uint8),
        np.array([each.record.kind for each in located], np.uint8),
        end - sizes,
        end,
        np.array([each.block for each in located], np.int64),
        np.array([each.number for each in located], np.int32),
        data,
        View(data),
    )


# --- column builders ----------------------------------------------------------------------------------------------


class _Numbers:
    """A column of numbers, flags or times, with a mask of the values present."""

    def __init__(self, column: Column, count: int) -> None:
        self.type = _TYPES[column.type]
        self.values: Any = np.zeros(count, _DTYPES[column.type])
        self.there = np.zeros(count, np.bool_)

    def put(self, rows: Any, values: Any) -> None:
        self.values[rows] = values
        self.there[rows] = True

    def array(self) -> pa.Array:
        values = np.packbits(self.values, bitorder="little") if self.values.dtype == np.bool_ else self.values
        missing = len(self.there) - int(np.count_nonzero(self.there))
        known = pa.py_buffer(np.packbits(self.there, bitorder="little")) if missing else None
        return pa.Array.from_buffers(self.type, len(self.values), [known, pa.py_buffer(values)], missing)


class _Strings:
    """A column of texts, each distinct one stored once."""

    def __init__(self, count: int) -> None:
        self.codes = np.full(count, -1, np.int32)
        self.numbers: dict[str, int] = {}

    def put(self, rows: Any, texts: Texts) -> None:
        numbers = self.numbers
        moved = np.array([numbers.setdefault(each, len(numbers)) for each in map(storable, texts.values)], np.int32)
        self.codes[rows] = moved[texts.codes] if len(moved) else -1

    def put_one(self, row: int, text: str) -> None:
        self.codes[row] = self.numbers.setdefault(text, len(self.numbers))

    def array(self) -> pa.Array:
        if not self.numbers:
            return pa.nulls(len(self.codes), pa.string())
        return pa.array(list(self.numbers), pa.string()).take(pa.array(self.codes, mask=self.codes < 0))


class BatchMaker:
    """Converts records to batches; the arguments are those of `RowMaker`. chosen: selects the records."""

    def __init__(
        self,
        columns: tuple[Column, ...],
        *,
        tokens: bool = False,
        fail_fast: bool = False,
        chosen: Chosen | None = None,
    ) -> None:
        self.columns = columns
        self.schema = arrow_schema(columns)
        self._chosen = chosen or Chosen()
        self._tokens = tokens
        self._rows = RowMaker(columns, tokens=tokens, fail_fast=fail_fast)
        names = [column.name for column in columns]
        body = [name for name in names if name not in _OUTSIDE]
        self._body = select(body or ["error"])
        self._decodes = bool(body) or fail_fast
        self._codec = RowMaker(self._body, fail_fast=fail_fast)
        self._fields = RowMaker(select(["fields"]), tokens=tokens) if "fields" in names else None
        self._known: dict[bytes, str | None] = {}

    def batches(self, found: Chunk | Skipped) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a reader's result. Raises BadTrace if skipping is disabled."""
        if isinstance(found, Skipped):
            row = self._rows.skipped(found)
            if self._chosen.takes_skipped(found):
                yield pa.RecordBatch.from_pylist([dict(zip(self.schema.names, row, strict=True))], self.schema)
            return
        records = _records(found)
        for first in range(0, len(records.end), ROWS_AT_ONCE):
            part = records.chosen(slice(first, first + ROWS_AT_ONCE))
            code, length, there = part.header()
            mask = self._chosen.mask(part, code, there)
            if mask is not None:
                rows = np.flatnonzero(mask)
                part, code, length, there = part.chosen(rows), code[rows], length[rows], there[rows]
            if len(part.end):
                yield self._batch(part, code, length, there)

    def _batch(self, records: _Records, code: Any, length: Any, there: Any) -> pa.RecordBatch:
        made: dict[str, Any] = {}
        if self._decodes:
            made = self._decoded(records, code, length, there)
        arrays = []
        for column in self.columns:
            builder = made.get(column.name)
            arrays.append(self._outside(column, records, code, there) if builder is None else builder.array())
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # --- columns from the body ------------------------------------------------------------------------------------

    def _decoded(self, records: _Records, code: Any, length: Any, there: Any) -> dict[str, Any]:
        count = len(records.end)
        made: dict[str, Any] = {
            column.name: _Strings(count) if column.type == "string" else _Numbers(column, count)
            for column in self._body
        }
        whole = there & (length == records.end - records.start - HEADER_BYTES)
        slow = [np.flatnonzero((records.kind == RecordKind.FRAME) & ~whole)]
        for value, rows in _groups(code, whole):
            cls = COMMANDS.get(value, Unknown)
            if cls is Unknown:
                continue
            slow.append(rows if value == 0 else self._together(cls, records, rows, made))
        for row in np.concatenate(slow).tolist():
            values = self._codec.row(records.path, records.at(row))
            for column, one in zip(self._body, values, strict=True):
                if one is None:
                    continue
                if column.type == "string":
                    made[column.name].put_one(row, one)
                else:
                    made[column.name].put(row, one)
        return made

    def _together(self, cls: type[Command], records: _Records, rows: Any, made: dict[str, Any]) -> Any:
        """Adds the fields of all good frames of a command to the columns; returns the rows of the others."""
        plan = plan_of(cls)
        if plan is None:
            return rows
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        view = records.view
        found = plan.find(view, records.start[rows] + HEADER_BYTES, records.end[rows])
        texts, good = {}, found.good
        for name in plan.texts:
            field = found.fields[name]
            if field.size is not None and not good.all():
                field = field._replace(size=np.where(good, field.size, 0))
            texts[name] = read_texts(view, field, self._known)
            good = good & (texts[name].codes >= 0)
        chosen = None if good.all() else np.flatnonzero(good)
        inside = rows if chosen is None else rows[chosen]
        for column in self._body:
            self._put(cls, column, made[column.name], view, found, texts, inside, chosen)
        return rows[:0] if chosen is None else rows[~good]

    def _put(
        self,
        cls: type[Command],
        column: Column,
        builder: Any,
        view: View,
        found: Found,
        texts: dict[str, Texts],
        rows: Any,
        chosen: Any,
    ) -> None:
        name = {"data_bytes": data_path(cls), "flow": "request_id", "sequence": "request_id"}.get(column.name)
        if name is None:
            name = source_of(cls, column.name)
        field = None if name is None else found.fields.get(name)
        if name is None or field is None:
            return
        if field.kind == "text":
            text = texts[name]
            builder.put(rows, text if chosen is None else text._replace(codes=text.codes[chosen]))
            return
        if field.kind == "name" or field.format == "16s":
            read = read_names if field.kind == "name" else read_ids
            builder.put(rows, read(view, field, np.arange(len(rows)) if chosen is None else chosen))
            return
        numbers = read_numbers(view, field, chosen)
        if column.name == "flow":
            numbers = numbers >> 32
        elif column.name == "sequence":
            numbers = numbers.astype(np.int32)  # keeps the lower half
        builder.put(rows, numbers)

    # --- columns from the record and the header -------------------------------------------------------------------

    def _outside(self, column: Column, records: _Records, code: Any, there: Any) -> pa.Array:
        count = len(records.end)
        match column.name:
            case "file":
                return pa.array([storable(records.path)], pa.string()).take(pa.array(np.zeros(count, np.int32)))
            case "block" | "ts_ns" | "connection":
                return pa.array(getattr(records, column.name))
            case "record":
                return pa.array(records.number)
            case "time":
                return pa.array(records.ts_ns // 1000).cast(_TYPES["timestamp"])
            case "size":
                return pa.array(records.end - records.start)
            case "kind" | "direction":
                names = pa.array(_NAMES[column.name], pa.string())
                return names.take(pa.array(getattr(records, column.name)))
            case "code":
                return pa.array(code, mask=~there)
            case "command" | "failure":
                return self._of_command(column, code, there)
            case "fields":
                assert self._fields is not None
                rows = (self._fields.row(records.path, records.at(row))[0] for row in range(count))
                return pa.array(list(rows), pa.string())
            case "frame":
                return self._frames(records, code, there)
        raise TypeError(f"nothing fills the column {column.name}")

    def _of_command(self, column: Column, code: Any, there: Any) -> pa.Array:
        builder: Any = _Strings(len(code)) if column.type == "string" else _Numbers(column, len(code))
        for value, rows in _groups(code, there):
            cls = COMMANDS.get(value, Unknown)
            if column.name == "command":
                builder.put(rows, Texts(np.zeros(len(rows), np.int32), [cls.type_name]))
            else:
                builder.put(rows, cls.is_failure)
        return builder.array()

    def _frames(self, records: _Records, code: Any, there: Any) -> pa.Array:
        if not len(records.end):
            return pa.nulls(0, pa.binary())
        low, high = int(records.start[0]), int(records.end[-1])
        data: bytes | bytearray = records.data[low:high]
        if not self._tokens:
            data = bytearray(data)
            frame = there & np.isin(code, list(SECRET_CODES))
            for row in np.flatnonzero(frame | (records.kind == RecordKind.BYTES)).tolist():
                one = slice(int(records.start[row]) - low, int(records.end[row]) - low)
                data[one] = redact(bytes(data[one]), whole=bool(there[row]))
        if np.array_equal(records.start[1:], records.end[:-1]):
            offsets = np.append(records.start, records.end[-1:]).astype(np.int64) - low
            buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
            return pa.Array.from_buffers(pa.binary(), len(records.end), buffers)
        pairs = zip((records.start - low).tolist(), (records.end - low).tolist(), strict=True)
        return pa.array([bytes(data[start:end]) for start, end in pairs], pa.binary())


def _groups(code: Any, there: Any) -> Iterator[tuple[int, Any]]:
    """Yields each type code with its rows; all unknown codes together as 127, which no command has."""
    key = np.where((code >= -_SHIFT) & (code < _SHIFT), code, _SHIFT - 1) + _SHIFT
    key = np.where(there, key, 2 * _SHIFT)
    counts = np.bincount(key, minlength=2 * _SHIFT + 1)[: 2 * _SHIFT]
    for value in np.flatnonzero(counts).tolist():
        rows = slice(None) if counts[value] == len(key) else np.flatnonzero(key == value)
        yield value - _SHIFT, np.arange(len(key)) if isinstance(rows, slice) else rows
