"""The columns of a trace table: their names, types and sources.

Columns derive from the codec: a command's field is a column, under its own name for all commands that have it, if it is
a single number, flag, text or id and not secret; `segment` and `event_number` combine fields that mean the same. The
default columns describe the record and the frame, and have the fields of the most frequent commands (`OFTEN`); further
columns are available on request.

Invariant: a name has one type, whatever command it comes from; a schema that breaks this fails on import. No Spark,
no Arrow: the types are names that both sides translate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, Literal, NamedTuple

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    KeepAlive,
    ReadSegment,
    SegmentRead,
    SetupAppend,
)
from segstore.wire.schema import COMMANDS, Command, FieldType, types

ColumnType = Literal["boolean", "tinyint", "int", "bigint", "string", "binary", "timestamp"]

OFTEN: Final[tuple[type[Command], ...]] = (
    AppendBlock,
    AppendBlockEnd,
    DataAppended,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    KeepAlive,
)
"""The commands that make up nearly all traffic; their fields are default columns."""

SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "segment": ("segment", "segment_name", "parent_segment", "target", "source", "target_segment_id"),
    "event_number": ("event_number", "last_event_number"),
}
"""Column → its source fields; the first field that a command has is used."""

_INTEGERS: Final[dict[str, ColumnType]] = {"b": "tinyint", "i": "int", "q": "bigint"}
_WIDTHS: Final[tuple[ColumnType, ...]] = ("tinyint", "int", "bigint")


class TraceColumn(NamedTuple):
    """One column: its name, its type as Spark's SQL names it, and its meaning."""

    name: str
    type: ColumnType
    meaning: str


class ColumnError(ValueError):
    """Traces do not have this column, or not with this type. Attributes: column, actual (the requested type)."""

    def __init__(self, message: str, column: str, actual: str | None = None) -> None:
        super().__init__(message)
        self.column = column
        self.actual = actual


RECORD_COLUMNS: Final = (
    TraceColumn("file", "string", "path of the trace"),
    TraceColumn("block", "bigint", "byte of the file at which the block, line or packet starts"),
    TraceColumn("record", "int", "number of the record in its block, from 0; unique for a packet"),
    TraceColumn("kind", "string", "frame, call (controller), bytes (no frame), open, close, or skipped (not readable)"),
    TraceColumn("ts_ns", "bigint", "time in ns since 1970"),
    TraceColumn("time", "timestamp", "the same, to the microsecond"),
    TraceColumn("connection", "bigint", "number of the connection in the trace; byte of its first packet"),
    TraceColumn("direction", "string", "request (towards the store) or reply"),
    TraceColumn("size", "bigint", "bytes of the record, a frame with its header; of a skipped part, the bytes lost"),
)
"""The columns of every record."""

HEADER_COLUMNS: Final = (
    TraceColumn("code", "int", "type code on the wire"),
    TraceColumn("command", "string", "type name, such as READ_SEGMENT; UNKNOWN for a code that no command has"),
    TraceColumn("failure", "boolean", "whether the command is a failure"),
)
"""The columns from a frame's eight-byte header."""

CALL_COLUMNS: Final = (
    TraceColumn("rpc", "string", "method of a controller call, such as createStream"),
    TraceColumn("status", "string", "outcome of a call, on its answer, such as OK, UNAVAILABLE, STREAM_EXISTS"),
    TraceColumn("call_failed", "boolean", "whether a call failed, on its answer"),
)
"""The columns of controller calls."""

_DERIVED: Final = (
    TraceColumn("error", "string", "why the frame does not decode, or why something was skipped"),
    TraceColumn("flow", "int", "upper half of the request id"),
    TraceColumn("sequence", "int", "lower half of the request id"),
    TraceColumn("data_bytes", "int", "bytes of the field `data`"),
)
_ON_REQUEST: Final = (
    TraceColumn("fields", "string", "all fields of the command as JSON; of open and close, what is known of them"),
    TraceColumn("events", "string", "the events of an append as a JSON list"),
    TraceColumn("frame", "binary", "the bytes of the record"),
)


@cache
def field_nodes(cls: type[Command]) -> Mapping[str, FieldType]:
    """Returns a command's fields that are columns: name → field, tails unwrapped."""
    nodes = {}
    for node in cls.parts:
        inner = node.inner if isinstance(node, types.Tail) else node
        if node.name not in cls.secrets and _type_of(inner) is not None:
            nodes[node.name] = inner
    return nodes


def _type_of(node: FieldType) -> ColumnType | None:
    match node:
        case types.Fixed(format="?"):
            return "boolean"
        case types.Fixed(format="16s") | types.Text() | types.EnumCode():
            return "string"
        case types.Fixed(format=code):
            return _INTEGERS[code]
        case types.Zeros():
            return "int"
    return None


def source_of(cls: type[Command], column: str) -> str | None:
    """Returns the field of a command that fills a column, or None."""
    fields = field_nodes(cls)
    return next((name for name in SOURCES.get(column, (column,)) if name in fields), None)


def _field_types() -> dict[str, ColumnType]:
    types: dict[str, ColumnType] = {}
    for cls in COMMANDS.values():
        for name, node in field_nodes(cls).items():
            type_ = _type_of(node)
            assert type_ is not None
            before = types.setdefault(name, type_)
            if before != type_:
                if before not in _WIDTHS or type_ not in _WIDTHS:
                    raise TypeError(f"{cls.__name__}.{name} is a {type_}, in another command it is a {before}")
                types[name] = max(before, type_, key=_WIDTHS.index)
    return types


def _field_columns() -> tuple[TraceColumn, ...]:
    types = _field_types()
    first = [name for cls in OFTEN for name in field_nodes(cls)]
    order = dict.fromkeys(["request_id", "writer_id", *SOURCES, *first, *sorted(types)])
    columns = []
    for name in order:
        sources = SOURCES.get(name, (name,))
        several = f"; of a command without it, {' or '.join(sources[1:])}" if len(sources) > 1 else ""
        columns.append(TraceColumn(name, types[name], f"the field `{name}`{several}"))
    return tuple(columns)


FIELD_COLUMNS: Final = _field_columns()
"""One column for each plain-valued field of any command."""


def _all_columns() -> dict[str, TraceColumn]:
    columns: dict[str, TraceColumn] = {}
    for column in (*RECORD_COLUMNS, *HEADER_COLUMNS, *CALL_COLUMNS, *_DERIVED, *FIELD_COLUMNS, *_ON_REQUEST):
        if column.name in columns:
            raise TypeError(f"{column.name} is a column already, a field of that name would hide it")
        columns[column.name] = column
    return columns


ALL_COLUMNS: Final = _all_columns()
"""All columns by name."""


PLACE: Final = ("connection", "file", "block", "record")
"""The order in which connections are followed. The number comes first because Spark compares eight bytes before
anything else."""
PACKED_COLUMNS: Final = (
    *(ALL_COLUMNS[name] for name in PLACE),
    TraceColumn(
        "rows", "binary", "rows of one connection of one file, the first at this place; see `trace.batches.packed`"
    ),
)
"""The columns of packed rows: the place of the first row, and the rows."""
FACT_COLUMNS: Final = (
    TraceColumn("kind", "string", "the kind of a key of `segstore.wire.history`"),
    TraceColumn("name", "binary", "the name of the key in UTF-8, which may have surrogates"),
    *(ALL_COLUMNS[name] for name in ("ts_ns", *PLACE[1:])),
    TraceColumn("findings", "binary", "findings of the key, the first at this place; see `trace.facts`"),
)
"""The columns of facts, which a judge takes in place of rows."""


def _default_columns() -> tuple[str, ...]:
    gathered = {name for column, names in SOURCES.items() for name in names if name != column}
    often = {name for cls in OFTEN for name in field_nodes(cls)} | SOURCES.keys()
    fields = [column.name for column in FIELD_COLUMNS if column.name in often - gathered]
    return tuple(column.name for column in (*RECORD_COLUMNS, *HEADER_COLUMNS, *CALL_COLUMNS, *_DERIVED)) + tuple(fields)


DEFAULT_COLUMNS: Final = _default_columns()
"""The default columns."""


def select(
    names: Iterable[str] | None = None, known: Mapping[str, TraceColumn] = ALL_COLUMNS
) -> tuple[TraceColumn, ...]:
    """Returns the columns with these names, in order; the default ones for None.

    Raises ColumnError. Names are case-insensitive, as in Spark SQL.
    """
    chosen = []
    for name in DEFAULT_COLUMNS if names is None else names:
        if name.lower() not in known:
            raise ColumnError(f"traces have no column {name!r}; there are {', '.join(known)}", name)
        chosen.append(known[name.lower()])
    if not chosen:
        raise ColumnError("at least one column is needed", "")
    return tuple(chosen)


def ddl(columns: Iterable[TraceColumn]) -> str:
    """Formats the columns as a Spark DDL schema."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)
