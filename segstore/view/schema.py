"""The command schema and the filter language as JSON values, for the page's script.

The script explains bytes from the same fields as the codec, so a new command needs nothing here.
"""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum
from typing import Any

from segstore.view.state import MOST_EXACT
from segstore.wire.commands import AppendBlock
from segstore.wire.schema import COMMANDS, Command, FieldType, Unknown, types
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
    return next(node.frames for node in AppendBlock.parts if isinstance(node, types.Rest))


def _command(cls: type[Command]) -> dict[str, Any]:
    return {
        "name": cls.type_name,
        "request": cls.is_request,
        "failure": cls.is_failure,
        "secrets": sorted(cls.secrets),
        "nodes": [_node(node) for node in cls.parts],
    }


def _node(node: FieldType) -> dict[str, Any]:
    """A field as JSON: the name of its type, and its facts."""
    facts = {fact.name: _plain(getattr(node, fact.name)) for fact in fields(node)}
    return {"is": "Fixed" if isinstance(node, types.Fixed) else type(node).__name__, "name": node.name, **facts}


def _plain(value: Any) -> Any:
    """A fact of a field as JSON; numbers that JavaScript would round are texts."""
    match value:
        case FieldType():
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
