"""Lowers construct schemas to the intermediate form that code generators read.

A body is a tuple of nodes, read in order. Nodes hold only plain facts (names, `struct` formats, numbers, booleans,
other nodes), so their readers (the Python compiler, or a table-driven C reader, a dissector, a test strategy) need
neither construct nor this package's types. `lower` refuses unknown field types, so a new type cannot be forgotten.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from segstore.wire.schema import types
from segstore.wire.schema.record import Nested, Part, Rows, WireStruct


class SchemaNode(msgspec.Struct, frozen=True):
    """Base class of nodes; `name` is the attribute that the node fills."""

    name: str


class Fixed(SchemaNode, frozen=True):
    """A fixed-width field. `format` is its `struct` code; `16s` means a UUID."""

    format: str


class Number(SchemaNode, frozen=True):
    """An int32 that stands for a member of an enum."""

    members: type[enum.IntEnum]
    unknown: enum.IntEnum


class Constant(SchemaNode, frozen=True):
    """An int32 with one legal value and no attribute."""

    value: int


class Text(SchemaNode, frozen=True):
    """uint16 length, modified UTF-8."""


class Data(SchemaNode, frozen=True):
    """int32 length, bytes; the flags are as in `types.Blob`."""

    negative_is_empty: bool
    optional: bool
    written: bool


class Remainder(SchemaNode, frozen=True):
    """All bytes left. `frames`: the type codes of the frames in them; empty for bytes without a structure."""

    frames: tuple[int, ...] = ()


class ZeroRun(SchemaNode, frozen=True):
    """All remaining bytes, of which only the number matters."""


class Sized(SchemaNode, frozen=True):
    """int32 total, int32 length, bytes and, unless they are empty, a trailer of `trailer_format`, if any."""

    trailer_name: str
    trailer_format: str
    missing: Any


class TailNode(SchemaNode, frozen=True):
    """A node that may be missing: read if at least `needs` bytes are left, else `default`."""

    inner: SchemaNode
    needs: int
    default: Any


class Structure(SchemaNode, frozen=True):
    """Nodes that make up one value of `record`."""

    record: type[WireStruct]
    nodes: tuple[SchemaNode, ...]


class Many(SchemaNode, frozen=True):
    """int32 count, then elements of at least `smallest` bytes. `element` has the name ""."""

    element: SchemaNode
    smallest: int
    negative_is_empty: bool


class Table(SchemaNode, frozen=True):
    """int32 count, then rows; each column fills the attribute of its name with a tuple."""

    columns: tuple[SchemaNode, ...]
    smallest: int


def lower(parts: tuple[Part, ...]) -> tuple[SchemaNode, ...]:
    """Returns the intermediate form of a record's parts, in wire order."""
    return tuple(_lower(part.wire, part.names) for part in parts)


def _lower(wire: Any, names: tuple[str, ...]) -> SchemaNode:
    name = names[0]
    if wire in types.FIXED_FORMATS:
        return Fixed(name, types.FIXED_FORMATS[wire])
    match wire:
        case types.EnumCode():
            return Number(name, wire.members, wire.unknown)
        case types.Marker():
            return Constant(name, wire.value)
        case types.Blob():
            return Data(name, wire.negative_is_empty, wire.optional, wire.written)
        case types.Rest():
            return Remainder(name, wire.frames)
        case types.Zeros():
            return ZeroRun(name)
        case types.SizedData() if wire.trailer is None:
            return Sized(name, "", "", None)
        case types.SizedData():
            return Sized(name, names[1], types.FIXED_FORMATS[wire.trailer], wire.missing)
        case types.Tail():
            return TailNode(name, _lower(wire.inner, names), wire.needs, wire.default)
        case types.Counted():
            return Many(name, _lower(wire.element, ("",)), wire.smallest, wire.negative_is_empty)
        case Nested():
            return Structure(name, wire.record, lower(wire.parts))
        case Rows():
            columns = zip(wire.columns, names, strict=True)
            return Table(name, tuple(_lower(column.element, (inner,)) for column, inner in columns), wire.smallest)
    if wire is types.JavaUTF:
        return Text(name)
    raise TypeError(f"{name}: the compiler does not know the field type {type(wire).__name__}")
