"""Converts records to and from plain JSON values, driven by the schema.

Keys are attribute names, nested like the records; buffers are hex, UUIDs their usual text, enums their names.
`from_plain` is strict: an unknown or missing key or a value of the wrong type raises a BadField that names it. Null
text reads as "" and null data as empty, as the reference writes them.
"""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from segstore.wire.errors import BadField
from segstore.wire.schema import types
from segstore.wire.schema.record import Nested, Rows, WireStruct
from segstore.wire.schema.types import FieldType

R = TypeVar("R", bound=WireStruct)

_RANGES = {"b": 7, "i": 31, "q": 63}


def to_plain(value: WireStruct) -> dict[str, Any]:
    """Converts all attributes to JSON values."""
    return _to_plain(value.parts, value)


def _to_plain(nodes: tuple[FieldType, ...], value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for node in nodes:
        for name, inner in _attributes(node):
            plain[name] = _out(inner, getattr(value, name))
    return {name: plain[name] for name in value.__struct_fields__}


def _attributes(node: FieldType) -> tuple[tuple[str, FieldType], ...]:
    """Returns the attributes that a node fills, each with the node of its type."""
    match node:
        case types.Marker():
            return ()
        case types.SizedData(trailer=types.Fixed() as trailer):
            return ((node.name, node), (trailer.name, trailer))
        case Rows():
            return tuple((column.name, types.Counted(column, smallest=0)) for column in node.columns)
        case types.Tail():
            return _attributes(node.inner)
    return ((node.name, node),)


def _out(node: FieldType, value: Any) -> Any:
    match node:
        case types.Fixed(format="16s"):
            return str(value)
        case types.EnumCode():
            return value.name
        case types.Blob() | types.Rest() | types.SizedData():
            return bytes(value).hex()
        case types.Counted():
            return [_out(node.element, element) for element in value]
        case Nested():
            return _to_plain(node.parts, value)
    return value


def from_plain(cls: type[R], plain: Any) -> R:
    """Builds a value from JSON values. Raises BadField with the path of the offending field."""
    return _from_plain(cls, cls.parts, plain, "")


def _from_plain(cls: type[R], nodes: tuple[FieldType, ...], plain: Any, path: str) -> R:
    if not hasattr(plain, "keys"):
        raise BadField(f"an object is needed, not {types.shown(plain)}", field=path.rstrip("."), actual=plain)
    wanted = dict(attribute for node in nodes for attribute in _attributes(node))
    for name in plain:
        if name not in wanted:
            raise BadField(f"there is no such field; there are {', '.join(wanted) or 'none'}", field=path + str(name))
    values: dict[str, Any] = {}
    for name, node in wanted.items():
        if name in plain:
            values[name] = _in(node, plain[name], path + name)
        elif name not in _defaults(cls):
            raise BadField("the field is missing", field=path + name)
    return cls(**values)


def _defaults(cls: type[WireStruct]) -> tuple[str, ...]:
    count = len(cls.__struct_defaults__)
    return cls.__struct_fields__[len(cls.__struct_fields__) - count :] if count else ()


def _in(node: FieldType, plain: Any, path: str) -> Any:
    match node:
        case types.Fixed(format="16s"):
            return _uuid(plain, path)
        case types.Fixed(format="?"):
            return _expect(bool, plain, path)
        case types.Fixed(format=code):
            bits = _RANGES[code]
            return _integer(plain, -(1 << bits), (1 << bits) - 1, path)
        case types.Zeros():
            return _integer(plain, 0, (1 << 31) - 1, path)
        case types.EnumCode(members=members):
            if not isinstance(plain, str) or plain not in members.__members__:
                raise BadField(
                    f"{types.shown(plain)} is not one of {', '.join(members.__members__)}", field=path, actual=plain
                )
            return members[plain]
        case types.Text():
            return "" if plain is None else _expect(str, plain, path)
        case types.Blob() | types.Rest() | types.SizedData():
            return _hex(plain, path)
        case types.Counted():
            elements = _expect(list, plain, path)
            return tuple(_in(node.element, element, f"{path}[{index}]") for index, element in enumerate(elements))
        case Nested():
            return _from_plain(node.record, node.parts, plain, path + ".")
    raise TypeError(f"no JSON form for {type(node).__name__}")


def _expect(kind: type, plain: Any, path: str) -> Any:
    if type(plain) is not kind:
        wanted = f"{'an' if kind is int else 'a'} {kind.__name__}"
        raise BadField(f"{wanted} is needed, not {type(plain).__name__}", field=path, actual=plain)
    return plain


def _integer(plain: Any, low_limit: int, limit: int, path: str) -> int:
    number: int = _expect(int, plain, path)
    if not low_limit <= number <= limit:
        raise BadField(f"{types.shown(number)} is outside {low_limit}..{limit}", field=path, limit=limit, actual=number)
    return number


def _uuid(plain: Any, path: str) -> uuid.UUID:
    try:
        return uuid.UUID(_expect(str, plain, path))
    except ValueError as cause:
        raise BadField(f"{plain!r} is not a UUID", field=path, actual=plain) from cause


def _hex(plain: Any, path: str) -> bytes:
    if plain is None:
        return b""
    try:
        return bytes.fromhex(_expect(str, plain, path))
    except ValueError as cause:
        raise BadField(f"not hex: {cause}", field=path, actual=plain) from cause
