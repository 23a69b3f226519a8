"""Records: immutable values with a schema, and the wire types that hold other records.

Source: `WireCommands.java`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import construct
import msgspec

from segstore.wire.errors import BadField
from segstore.wire.schema import types
from segstore.wire.schema.types import FieldType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.wire.schema.types import BodyStream

_SHOWN_BYTES = 24


class WireStruct(msgspec.Struct, frozen=True, gc=False):
    """An immutable value with a schema: a command, or a structure inside a command.

    Payload attributes are buffers. Decoded payloads are views of their frame, valid as long as its owner keeps it.
    """

    schema: ClassVar[Any]
    parts: ClassVar[tuple[FieldType, ...]]
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


@dataclass(eq=False, init=False)
class Nested(FieldType):
    """A record inside a command. `parts` is for a record whose nested form differs from its own (Event)."""

    record: type[WireStruct]
    parts: tuple[FieldType, ...]

    def __init__(self, record: type[WireStruct], parts: tuple[FieldType, ...] | None = None) -> None:
        super().__post_init__()
        self.record = record
        self.parts = record.parts if parts is None else parts
        self.struct = struct_of(self.parts)

    def extent(self, body: memoryview, at: int) -> int:
        return types.end_of(self.parts, body, at)

    def _parse(self, stream: BodyStream, context: Any, path: str) -> WireStruct:
        return value_of(self.record, self.parts, self.struct._parse(stream, context, path))

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        if not isinstance(obj, self.record):
            raise BadField(f"a {self.record.__name__} is needed, not {type(obj).__name__}", field=types.dotted(path))
        self.struct._build(fields_of(obj, self.parts), stream, context, path)
        return obj


class _Row(construct.Sequence, FieldType):  # type: ignore[misc]
    """A row of columns. Value: a list."""

    def extent(self, body: memoryview, at: int) -> int:
        return types.end_of((column.subcon for column in self.subcons), body, at)


@dataclass(eq=False)
class Rows(FieldType):
    """Adjacent columns, interleaved row by row after one count. Value: a tuple of columns.

    smallest: the size of the smallest row.
    """

    columns: tuple[FieldType, ...]
    smallest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name, self.label = self.columns[0].name, "+".join(self.attributes)
        named = (construct.Renamed(column, newname=f"#{index}") for index, column in enumerate(self.columns))
        self.counted = types.Counted(_Row(*named), smallest=self.smallest)

    @property
    def attributes(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

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


def struct_of(parts: tuple[FieldType, ...]) -> Any:
    """Returns the construct of a body with these fields."""
    return construct.Struct(*(construct.Renamed(part, newname=part.label) for part in parts))


def _has_several(part: FieldType) -> bool:
    """Whether the value of a field is a tuple with a value for each of its attributes."""
    return isinstance(part, Rows) or (isinstance(part, types.SizedData) and part.trailer is not None)


def value_of(cls: type[R], parts: tuple[FieldType, ...], parsed: Any) -> R:
    """Returns the record with these parsed fields."""
    values: dict[str, Any] = {}
    for part in parts:
        value = parsed[part.label]
        if _has_several(part):
            values.update(zip(part.attributes, value, strict=True))
        elif part.attributes:
            values[part.name] = value
    return cls(**values)


def fields_of(obj: WireStruct, parts: tuple[FieldType, ...]) -> dict[str, Any]:
    """Returns a record's values by field, as `struct_of` builds them."""
    values: dict[str, Any] = {}
    for part in parts:
        if _has_several(part):
            values[part.label] = tuple(getattr(obj, name) for name in part.attributes)
        elif part.attributes:
            values[part.name] = getattr(obj, part.name)
    return values
