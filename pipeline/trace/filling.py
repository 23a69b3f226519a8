"""Describes to C how records fill columns: the source of each column, and the attributes that commands have for them.

C gets the same `Origin`s and `Condition`s as `RowMaker`, so both ways agree. It fills the columns of the record and of
the frame's header by itself. Python makes the rows of commands that have a column with a conversion unknown to C, such
as the name of an enum member, and of records that can hold a token if the column `frame` must not show it.

Invariant: no value is missing because C does not know it. Python makes all rows if only `RowMaker` can fill a column.
"""

from __future__ import annotations

from typing import Any, Final

from segstore.pipeline.trace.columns import CALL_COLUMNS, TraceColumn
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.rows import RowMaker, origin_of
from segstore.wire.codec import ACCELERATOR, EVENT
from segstore.wire.schema import COMMANDS, Command
from segstore.wire.trace import SECRET_CODES, Direction, RecordKind

_TYPES: Final = {
    "boolean": "flag",
    "byte": "int8",
    "int": "int32",
    "long": "int64",
    "string": "text",
    "binary": "binary",
    "timestamp": "int64",
}
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
        tuple((_TYPES[column.type], _source(column.name), _LABELS.get(column.name, ())) for column in one.columns),
        programs,
        tuple(condition.in_numbers() for condition in chosen.conditions),
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
