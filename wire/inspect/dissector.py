"""Generates a Wireshark dissector, in Lua, from the schema.

`dissector.lua` reads each type of field; this module writes the commands as calls of its constructors, so a new command
needs no change here. Display filters are `segstore.`, the command's name and the field's path, in lower case:
`segstore.setup_append.segment`. Elements of a list and of its columns share one name. The events in the data of appends
and reads are shown below it, as `segstore.event.data`.

Invariant: the values equal the results of `decode`; a frame that `decode` refuses is marked as malformed where reading
stops. Missing fields have their defaults, marked with the wire version that introduced them. Unlike other output, a
dissector shows delegation tokens, because Wireshark shows every byte in any case.
"""

from __future__ import annotations

import json
from pkgutil import get_data
from typing import TYPE_CHECKING, Any, Final

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.codec import EVENT, FIELDS_SINCE, HEADER_BYTES, WIRE_VERSION, encode
from segstore.wire.protocol import HELLO
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, FieldType, Nested, Rows, WireStruct, types

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK: Final = "--@commands@"
_MASK: Final = 0xFFFFFFFF


def dissector(*, port: int) -> str:
    """Returns the source of the dissector. port: the stores' port, for connections whose start was not captured."""
    template = (get_data(__package__, "dissector.lua") or b"").decode()
    head, tail = template.replace("@port@", str(port)).split(_MARK)
    greeting = "".join(f"\\{byte}" for byte in encode(HELLO)[:HEADER_BYTES])
    commands = "".join(
        f"[{cls.code}] = {{name = {_text(cls.type_name)}, failure = {_bool(cls.is_failure)}, nodes = "
        f"{_nodes(cls, cls.parts, cls.type_name.lower() + '.', '  ')}}},\n"
        for cls in COMMANDS.values()
    )
    return (
        f"-- Wireshark dissector of Pravega's segment-store protocol, wire version {WIRE_VERSION}; made by `segstore "
        f"dissector`.\n{head}local MOST_FRAME_BYTES = {MAX_FRAME_BYTES}\n"
        f'local EVENT = {EVENT}\nlocal HELLO = "{greeting}"\n\n'
        f"local COMMANDS = {{\n{commands}}}\n{tail}"
    )


def _nodes(record: type[WireStruct], nodes: Iterable[FieldType], prefix: str, indent: str) -> str:
    deeper = indent + "  "
    rows = "".join(f"{deeper}{_node(record, node, prefix + node.name, deeper)},\n" for node in nodes)
    return f"{{\n{rows}{indent}}}" if rows else "{}"


def _node(record: type[WireStruct], node: FieldType, path: str, indent: str) -> str:
    quoted = _text(path)
    match node:
        case types.Fixed(format=code):
            return f"fixed({quoted}, {_text(code)})"
        case types.EnumCode(members=members):
            said = ", ".join(f"[{int(member)}] = {_text(member.name)}" for member in members)
            return f"number({quoted}, {{{said}}})"
        case types.Marker(value=value):
            return f"constant({quoted}, {value})"
        case types.Text():
            return f"text({quoted}, {_bool(node.name in record.secrets)})"
        case types.Blob(name=name, negative_is_empty=negative_is_empty, optional=optional):
            nested = _frames([EVENT] if name == "data" else ())
            return f"data({quoted}, {_bool(negative_is_empty)}, {_bool(optional)}{nested})"
        case types.Rest(frames=frames):
            return f"remainder({quoted}{_frames(frames)})"
        case types.Zeros():
            return f"zero_run({quoted})"
        case types.SizedData(trailer=None):
            return f"sized({quoted})"
        case types.SizedData(trailer=types.Fixed(name=trailer, format=code), missing=missing):
            behind = f"{_text(code)}, {_text(path.rpartition('.')[0] + '.' + trailer)}, {_value(missing, code)}"
            return f"sized({quoted}, {behind})"
        case types.Tail(inner=inner, needs=needs, default=default):
            since = FIELDS_SINCE.get((record, node.name))
            note = "missing: its default" if since is None else f"missing: sent since wire version {since}"
            missing = _value(default, inner.format if isinstance(inner, types.Fixed) else "")
            return f"tail({needs}, {_node(record, inner, path, indent)}, {missing}, {_text(note)})"
        case Nested(record=inside, parts=parts):
            return f"structure({_nodes(inside, parts, path + '.', indent)})"
        case types.Counted(element=element, smallest=smallest, negative_is_empty=negative_is_empty):
            row = f"{{{_node(record, element, path, indent)}}}"
            return f"many({quoted}, {smallest}, {_bool(negative_is_empty)}, {row})"
        case Rows(columns=columns, smallest=smallest):
            row = _nodes(record, columns, path.removesuffix(node.name), indent)
            return f"many({quoted}, {smallest}, false, {row})"
    raise TypeError(f"{path}: no dissector for {type(node).__name__}")


def _frames(codes: Iterable[int]) -> str:
    """Formats the types of the frames in a field as a further argument; "" without types."""
    said = ", ".join(f"[{code}] = true" for code in codes)
    return said and f", {{{said}}}"


def _value(value: Any, code: str) -> str:
    """Formats a default value as Lua. Lists need none: absent means empty."""
    if isinstance(value, tuple) or value is None:
        return "nil"
    if isinstance(value, str):
        return _text(value)
    return f"Int64.new({value & _MASK}, {value >> 32 & _MASK})" if code == "q" else _bool(value)


def _bool(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(int(value))


def _text(value: str) -> str:
    return json.dumps(value)
