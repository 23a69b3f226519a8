"""Trace rows in plain Python over the codec: the reference for every faster implementation.

A row is a tuple with one value per column of `segstore.pipeline.trace.columns`; None means that the record has no such
value. Each record of a trace gives one row, and each unreadable part a row of kind "skipped".

Invariant: a frame that does not decode has the values of its header and record, the reason in `error`, and no fields.
Values are the codec's in JSON form: ids as text, enum members by name. Text is stored as UTF-8, which has no lone
surrogates: they become U+FFFD in columns and stay in `fields`. Delegation tokens are overwritten in `fields` and
`frame` unless requested. No Spark, no Arrow.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from segstore.pipeline.trace.columns import TraceColumn, field_nodes, select, source_of
from segstore.pipeline.trace.files import Located, RecordChunk, Skipped, find_traces, plan
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.reading import read_piece
from segstore.wire.codec import decode
from segstore.wire.commands import AppendBlock, AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd
from segstore.wire.errors import WireError
from segstore.wire.inspect import PayloadPart, payload_parts, readable
from segstore.wire.printable import printable
from segstore.wire.request_id import flow_of, sequence_of
from segstore.wire.schema import COMMANDS, Command, FieldType, Nested, Unknown, types
from segstore.wire.trace import Call, Direction, Record, RecordKind, TraceError, redacted_data, unpack_data

Row = tuple[Any, ...]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS: Final = {kind: kind.name.lower() for kind in RecordKind}
_DIRECTIONS: Final = {direction: direction.name.lower() for direction in Direction}
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_document: Final = msgspec.json.Decoder().decode
_EVENTS: Final = (RecordKind.OPEN, RecordKind.CLOSE)


class BadTrace(TraceError):
    """Part of a trace cannot be read, and skipping is disabled.

    Attributes: path, offset (byte of the file).
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return printable(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.offset, self.reason)


def trace_rows(
    paths: str | Iterable[str], columns: Iterable[str] | None = None, *, tokens: bool = False, fail_fast: bool = False
) -> Iterator[Row]:
    """Yields the rows of traces, in order.

    columns: names, in the order of the values; None for the default columns. tokens: whether `fields` and `frame` keep
    delegation tokens. fail_fast: whether the first unreadable part raises BadTrace.
    Raises ColumnError, FileNotFoundError, and NotATrace if no file is a trace.
    """
    maker = RowMaker(select(columns), tokens=tokens, fail_fast=fail_fast)
    for piece in plan(find_traces([paths] if isinstance(paths, str) else paths), sys.maxsize):
        for found in read_piece(piece):
            yield from maker.rows(found)


class RowMaker:
    """Converts records to rows of the given columns. chosen: selects the records."""

    def __init__(
        self,
        columns: tuple[TraceColumn, ...],
        *,
        tokens: bool = False,
        fail_fast: bool = False,
        chosen: Chosen | None = None,
    ) -> None:
        self.columns = columns
        self.fail_fast = fail_fast
        self.chosen = chosen or Chosen()
        self.tokens = tokens
        self._names = tuple(column.name for column in columns)
        self._at = {name: at for at, name in enumerate(self._names)}
        self._of_record = [(at, _OF_RECORD[name]) for name, at in self._at.items() if name in _OF_RECORD]
        self._plans: dict[type[Command], list[tuple[int, Callable[[Any], Any]]]] = {}

    def rows(self, chunk: RecordChunk | Skipped) -> Iterator[Row]:
        """Yields the rows of a reader's result. Raises BadTrace if skipping is disabled."""
        takes_all = self.chosen.takes_all
        if isinstance(chunk, Skipped):
            row = self.skipped(chunk)
            if takes_all:
                yield row
            return
        for located in chunk:
            if takes_all or self.chosen.takes(located.record):
                yield self.row(chunk.path, located)

    def skipped(self, part: Skipped) -> Row:
        """Returns the row of an unreadable part. Raises BadTrace."""
        if self.fail_fast:
            raise BadTrace(part.path, part.offset, part.reason)
        values = {
            "file": storable(part.path),
            "block": part.offset,
            "kind": "skipped",
            "size": part.size,
            "error": storable(part.reason),
        }
        return tuple(values.get(name) for name in self._names)

    def row(self, path: str, located: Located) -> Row:
        """Returns the row of one record. Raises BadTrace."""
        record = located.record
        row: list[Any] = [None] * len(self._names)
        for at, get in self._of_record:
            row[at] = get(path, located, record)
        if record.kind is RecordKind.FRAME:
            self._put_frame(row, path, located)
        elif record.kind is RecordKind.CALL:
            self._put_call(row, record)
        elif "fields" in self._at and record.kind in _EVENTS:
            facts = unpack_data(record.data)
            row[self._at["fields"]] = None if facts is None else json.dumps(facts)
        if "frame" in self._at:
            row[self._at["frame"]] = self._shown(record)
        return tuple(row)

    def _put_frame(self, row: list[Any], path: str, located: Located) -> None:
        frame = located.record.data
        for name, value in _of_header(located.record).items():
            if name in self._at:
                row[self._at[name]] = value
        try:
            command = decode(frame, unknown="keep")
        except WireError as error:
            if self.fail_fast:
                raise BadTrace(path, located.block, f"record {located.number}: {error}") from error
            if "error" in self._at:
                row[self._at["error"]] = storable(str(error))
            return
        for at, get in self._plans.get(type(command)) or self._plan(type(command)):
            row[at] = get(command)
        if "events" in self._at:
            row[self._at["events"]] = events_json(command)
        if "fields" in self._at:
            shown = command if self.tokens or not command.secrets else decode(self._shown(located.record))
            row[self._at["fields"]] = json.dumps(shown.to_dict())

    def _put_call(self, row: list[Any], record: Record) -> None:
        call = Call.unpack(self._shown(record))
        if call is None:
            return
        fields = call.fields if "fields" in self._at else None
        shown = None if fields is None else json.dumps(fields)
        values = {
            "rpc": storable(call.rpc),
            "status": storable(call.outcome) or None,
            "call_failed": call.failed if call.status else None,
            "fields": shown,
        }
        for name in values.keys() & self._at.keys():
            row[self._at[name]] = values[name]

    def _plan(self, cls: type[Command]) -> list[tuple[int, Callable[[Any], Any]]]:
        origins = [(at, origin_of(cls, name)) for at, name in enumerate(self._names)]
        plan = self._plans[cls] = [(at, _getter(origin)) for at, origin in origins if origin is not None]
        return plan

    def _shown(self, record: Record) -> bytes:
        return record.data if self.tokens else redacted_data(record)


def events_json(command: Command) -> str | None:
    """Returns the events of an append as a JSON list; None for another command.

    An event is in the list of the command in which it starts: a task may read a block without its end. A JSON document
    is itself, other text a string. Other bytes are `{"hex": …, "bytes": size}`, and so is the start of an event whose
    rest is in the APPEND_BLOCK_END; its size is null if the block has not even its whole header.
    """
    parts: Iterable[PayloadPart]
    match command:
        case AppendBlock() | ConditionalBlockEnd():
            parts = payload_parts(command.data)
        case AppendBlockEnd():
            # Without a block, all events are in the end; behind one, its data is the rest of an event.
            parts = payload_parts(command.data) if len(command.data) == command.size_of_whole_events else ()
        case ConditionalAppend():
            parts = [PayloadPart("event", memoryview(command.event.data), len(command.event.data))]
        case _:
            return None
    return f"[{', '.join([_part_json(part) for part in parts if part.kind != 'padding'])}]"


def _part_json(part: PayloadPart) -> str:
    if part.kind != "partial event":
        return _event_json(bytes(part.data), part.size)
    start = next(payload_parts(part.data), part)
    return _event_json(bytes(start.data), start.size if start.kind == "event" else None)


def _event_json(data: bytes, size: int | None) -> str:
    if len(data) == size:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _document(data)
            return storable(data.decode())
        if (text := readable(data, whole=True)) is not None:
            return json.dumps(text)
    return json.dumps({"hex": data.hex(), "bytes": size})


def _of_header(record: Record) -> dict[str, Any]:
    """Returns the values that follow from a frame's header."""
    code = record.code
    if code is None:
        return {}
    cls = COMMANDS.get(code, Unknown)
    return {"code": code, "command": cls.type_name, "failure": cls.is_failure}


_OF_RECORD: Final[dict[str, Callable[[str, Located, Record], Any]]] = {
    "file": lambda path, located, record: storable(path),
    "block": lambda path, located, record: located.block,
    "record": lambda path, located, record: located.number,
    "kind": lambda path, located, record: _KINDS[record.kind],
    "ts_ns": lambda path, located, record: record.ts_ns,
    "time": lambda path, located, record: time_of(record.ts_ns),
    "connection": lambda path, located, record: record.connection,
    "direction": lambda path, located, record: _DIRECTIONS[record.direction],
    "size": lambda path, located, record: len(record.data),
}


def data_path(cls: type[Command]) -> str | None:
    """Returns the path of a command's field `data`: "data", or "event.data" if nested; None without such a field."""
    for node in cls.parts:
        if node.name == "data":
            return "data"
        if isinstance(node, Nested) and any(inner.name == "data" for inner in node.parts):
            return f"{node.name}.data"
    return None


def storable(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    if text.isascii():
        return text
    return _SURROGATES.sub("\ufffd", text)


def time_of(ts_ns: int) -> datetime:
    """Converts ns since 1970 to a datetime with microsecond precision."""
    return _EPOCH + timedelta(microseconds=ts_ns // 1000)


class Origin(NamedTuple):
    """A column's source in a command: the attribute at `path`, as it is ("value") or converted (`_CONVERSIONS`)."""

    conversion: str
    path: str


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "text": storable,
    "id": lru_cache(maxsize=4096)(str),
    "name": lambda member: member.name,
    "bytes": lambda data: memoryview(data).nbytes,
    "upper": flow_of,
    "lower": sequence_of,
}


def origin_of(cls: type[Command], column: str) -> Origin | None:
    """Returns what of a command's body fills a column; None if nothing does."""
    if cls is Unknown:
        return None
    if column == "data_bytes":
        path = data_path(cls)
        return None if path is None else Origin("bytes", path)
    half = {"flow": "upper", "sequence": "lower"}.get(column)
    field = source_of(cls, column if half is None else "request_id")
    return None if field is None else Origin(half or _conversion(field_nodes(cls)[field]), field)


def _conversion(node: FieldType) -> str:
    match node:
        case types.Text():
            return "text"
        case types.Fixed(format="16s"):
            return "id"
        case types.EnumCode():
            return "name"
    return "value"


def _getter(origin: Origin) -> Callable[[Command], Any]:
    get, convert = attrgetter(origin.path), _CONVERSIONS.get(origin.conversion)
    return get if convert is None else lambda command: convert(get(command))
