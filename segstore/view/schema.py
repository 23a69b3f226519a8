"""The command schema and the filter language as JSON values, for the page's script.

The script explains bytes from the same intermediate form as the codec, so a new command needs nothing here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from segstore.view.state import MOST_EXACT
from segstore.wire.commands import AppendBlock
from segstore.wire.schema import COMMANDS, Command, Unknown
from segstore.wire.schema import lowering as low
from segstore.wire.trace import language, subjects_of, values_of


def specification() -> dict[str, Any]:
    """Returns what the script knows of the protocol: commands by type code, and the filter language."""
    return {
        "commands": {code: _command(cls) for code, cls in sorted(COMMANDS.items())},
        "unknown": Unknown.type_name,
        "append_block": AppendBlock.code,
        "block_frames": {code: COMMANDS[code].type_name for code in _block_frames()},
        "filter": language() | {"possible": [values_of(subject) for subject in subjects_of(None, "trace")]},
    }


def _block_frames() -> tuple[int, ...]:
    """Type codes of the frames that an append block can hold."""
    return next(node.frames for node in low.lower(AppendBlock.parts) if isinstance(node, low.Remainder))


def _command(cls: type[Command]) -> dict[str, Any]:
    return {
        "name": cls.type_name,
        "request": cls.is_request,
        "failure": cls.is_failure,
        "secrets": sorted(cls.secrets),
        "nodes": [_node(node) for node in low.lower(cls.parts)],
    }


def _node(node: low.SchemaNode) -> dict[str, Any]:
    """A node as JSON: the name of its class, and its fields."""
    return {"is": type(node).__name__, **{name: _plain(getattr(node, name)) for name in node.__struct_fields__}}


def _plain(value: Any) -> Any:
    """A field of a node as JSON; numbers that JavaScript would round are texts."""
    match value:
        case low.SchemaNode():
            return _node(value)
        case tuple():
            return [_plain(part) for part in value]
        case IntEnum():
            return value.name
        case type():  # the members of an enum; the script needs no other class
            return {int(member): member.name for member in value} if issubclass(value, IntEnum) else None
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case int() if abs(value) > MOST_EXACT:
            return str(value)
    return value
