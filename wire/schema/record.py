"""Records: immutable values with a schema, and the wire types that hold other records.

Source: `WireCommands.java`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import construct
import msgspec

from segstore.wire.errors import BadField
from segstore.wire.schema import types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.wire.schema.types import BodyStream

_SHOWN_BYTES = 24


class Part(msgspec.Struct, frozen=True):
    """One wire field and its attributes: one attribute, except for rows of columns and table keys."""

    names: tuple[str, ...]
    wire: Any


class WireStruct(msgspec.Struct, frozen=True, gc=False):
    """An immutable value with a schema: a command, or a structure inside a command.

    Payload attributes are buffers. Decoded payloads are views of their frame, valid as long as its owner keeps it.
    """

    schema: ClassVar[Any]
    parts: ClassVar[tuple[Part, ...]]
    secrets: ClassVar[frozenset[str]]

    def __repr__(self) -> str:
        shown = (f"{name}={self._show(name)}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(shown)})"

    def _show(self, name: str) -> str:
        value = getattr(self, name)
        if name in self.secrets:
            shown = f"<{len(value)} characters>" if isinstance(value, str) else f"<{type(value).__name__}>"
            return shown if value else "''"
        if isinstance(value, (bytes, bytearray, memoryview)):
            head = bytes(value[:_SHOWN_BYTES])
            size = value.nbytes if isinstance(value, memoryview) else len(value)
            return repr(head) if size <= _SHOWN_BYTES else f"<{size} bytes {head!r}…>"
        if isinstance(value, (tuple, list)) and len(value) > 4:
            return f"<{len(value)} × {type(value[0]).__name__}>"
        return repr(value)


R = TypeVar("R", bound=WireStruct)


class Nested(construct.Construct):  # type: ignore[misc]  # construct has no stubs
    """A record inside a command. `parts` is for a record whose nested form differs from its own (Event)."""

    def __init__(self, record: type[WireStruct], parts: tuple[Part, ...] | None = None) -> None:
        super().__init__()
        self.record = record
        self.parts = record.parts if parts is None else parts
        self.struct = struct_of(self.parts)
        self.wires = tuple(part.wire for part in self.parts)

    def _parse(self, stream: BodyStream, context: Any, path: str) -> WireStruct:
        return value_of(self.record, self.parts, self.struct._parse(stream, context, path))

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        if not isinstance(obj, self.record):
            raise BadField(f"a {self.record.__name__} is needed, not {type(obj).__name__}", field=types.dotted(path))
        self.struct._build(fields_of(obj, self.parts), stream, context, path)
        return obj


class Rows(construct.Construct):  # type: ignore[misc]
    """Adjacent columns, interleaved row by row after one count. Value: a tuple of columns."""

    def __init__(self, columns: tuple[types.Column, ...]) -> None:
        super().__init__()
        self.columns = columns
        self.smallest = sum(column.smallest for column in columns)
        named = (construct.Renamed(column.element, newname=f"#{index}") for index, column in enumerate(columns))
        row = construct.Sequence(*named)
        row.wires = tuple(column.element for column in columns)
        self.counted = types.Counted(row, smallest=self.smallest)

    def _parse(self, stream: BodyStream, context: Any, path: str) -> tuple[Sequence[Any], ...]:
        rows = self.counted._parse(stream, context, path)
        return tuple(zip(*rows, strict=True)) if rows else tuple(() for _ in self.columns)

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        for index, column in enumerate(obj):
            if not isinstance(column, (tuple, list)):
                field = types.dotted(f"{path} -> #{index}")
                raise BadField(f"a tuple is needed, not {type(column).__name__}", field=field, actual=column)
        if len({len(column) for column in obj}) != 1:
            sizes = " and ".join(str(len(column)) for column in obj)
            raise BadField(f"columns of one table differ in length: {sizes}", field=types.dotted(path))
        self.counted._build(list(zip(*obj, strict=True)), stream, context, path)
        return obj


def struct_of(parts: tuple[Part, ...]) -> Any:
    """Returns the construct of a body with these fields."""
    return construct.Struct(*(construct.Renamed(part.wire, newname="+".join(part.names)) for part in parts))


def value_of(cls: type[R], parts: tuple[Part, ...], parsed: Any) -> R:
    """Returns the record with these parsed fields."""
    values: dict[str, Any] = {}
    for part in parts:
        value = parsed["+".join(part.names)]
        if isinstance(part.wire, types.Marker):
            continue
        if len(part.names) == 1 and not isinstance(part.wire, Rows):
            values[part.names[0]] = value
        else:
            values.update(zip(part.names, value, strict=True))
    return cls(**values)


def fields_of(obj: WireStruct, parts: tuple[Part, ...]) -> dict[str, Any]:
    """Returns a record's values by field, as `struct_of` builds them."""
    values: dict[str, Any] = {}
    for part in parts:
        if isinstance(part.wire, types.Marker):
            values["+".join(part.names)] = None
        elif len(part.names) == 1 and not isinstance(part.wire, Rows):
            values[part.names[0]] = getattr(obj, part.names[0])
        else:
            values["+".join(part.names)] = tuple(getattr(obj, name) for name in part.names)
    return values
