"""The command schema and the filter language as JSON values, for the page's script.

The script explains bytes from the same intermediate form as the codec, so a new command needs nothing here. A field
type that the script does not know is refused when the page is made.
"""

from __future__ import annotations

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
    return {"name": node.name, **_form(node)}


def _form(node: low.SchemaNode) -> dict[str, Any]:
    match node:
        case low.Fixed():
            return {"is": "fixed", "format": node.format}
        case low.Number():
            members = {int(member): member.name for member in node.members}
            return {"is": "number", "members": members, "unknown": node.unknown.name}
        case low.Constant():
            return {"is": "constant", "value": node.value}
        case low.Text():
            return {"is": "text"}
        case low.Data():
            return {"is": "data", "optional": node.optional, "negativeIsEmpty": node.negative_is_empty}
        case low.Remainder():
            return {"is": "rest"}
        case low.ZeroRun():
            return {"is": "zeros"}
        case low.Sized():
            format_, missing = node.trailer_format, _plain(node.missing)
            return {"is": "sized", "trailer": node.trailer_name, "format": format_, "missing": missing}
        case low.TailNode():
            return {"is": "tail", "inner": _node(node.inner), "needs": node.needs, "default": _plain(node.default)}
        case low.Structure():
            return {"is": "structure", "nodes": [_node(inner) for inner in node.nodes]}
        case low.Many():
            element, negative = _node(node.element), node.negative_is_empty
            return {"is": "many", "element": element, "smallest": node.smallest, "negativeIsEmpty": negative}
        case low.Table():
            columns = [_node(column) for column in node.columns]
            return {"is": "table", "columns": columns, "smallest": node.smallest, "negativeIsEmpty": False}
    raise TypeError(f"{node.name}: the page does not know how to read a {type(node).__name__}")


def _plain(value: Any) -> Any:
    """A default as JSON; numbers that JavaScript would round are texts."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, int) and abs(value) > MOST_EXACT:
        return str(value)
    return value if isinstance(value, bool | int | str | None) else list(value)
