"""Commands as JSON lines: ``{"type": "HELLO", "code": -127, "fields": {...}}``, one object per line.

Invariant: `from_line` restores exactly the command that `to_line` wrote. Either `type` or `code` may be omitted.
Unknown commands or keys and invalid fields raise a BadField that names them.
"""

from __future__ import annotations

import json
from typing import Final

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.errors import BadField
from segstore.wire.schema import COMMANDS, Command, Unknown
from segstore.wire.validation import json_object, refuse_others

_KEYS: Final = ("type", "code", "fields")
_BY_NAME: Final = {cls.type_name: cls for cls in COMMANDS.values()}


def command_named(type_name: str) -> type[Command]:
    """Returns the class of a type name such as ``READ_SEGMENT``. Raises BadField."""
    try:
        return _BY_NAME[type_name]
    except (KeyError, TypeError):
        raise BadField(f"no command is called {type_name!r}", field="type", actual=type_name) from None


def to_line(command: Command) -> str:
    """Converts a command to one line of ASCII, without a line end."""
    return json.dumps({"type": command.type_name, "code": command.code, "fields": command.to_dict()})


def from_line(line: str) -> Command:
    """Parses a command from a line. Raises BadField, also if it is not JSON."""
    values = json_object(line)
    refuse_others(values, _KEYS)
    name, code = values.get("type"), values.get("code")
    fields = values.get("fields", {})
    if name is None and code is None:
        raise BadField("type or code is missing")
    if not isinstance(fields, dict):
        raise BadField(f"an object is needed, not {type(fields).__name__}", field="fields", actual=fields)
    if name == Unknown.type_name:
        unknown = Unknown.from_dict(fields)
        if code not in (None, unknown.code):
            raise BadField(f"type_code is {unknown.code}, not {code!r}", field="code", limit=unknown.code, actual=code)
        return unknown
    if name is not None:
        cls = command_named(name)
        if code is not None and code != cls.code:
            raise BadField(f"{name} has the code {cls.code}, not {code!r}", field="code", limit=cls.code, actual=code)
    elif type(code) is int and code in COMMANDS:
        cls = COMMANDS[code]
    else:
        raise BadField(f"no command has the code {code!r}", field="code", actual=code)
    return cls.from_dict(fields)
