"""Text of `segstore produce` and `segstore consume`: escapes in delimiters, and formats of events.

Formats follow kcat's `-f`. Refused are its fields that Pravega does not store: keys, headers and times.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_FIELD: Final = re.compile(r"%(.|$)", re.DOTALL)
_NOT_STORED: Final = {"k": "keys", "K": "keys", "h": "headers", "T": "times"}


class EventPlace(NamedTuple):
    """An event and where it is stored. stream: "scope/stream". segment: its number and epoch."""

    data: bytes
    stream: str
    segment: int
    epoch: int
    offset: int


def unescaped(text: str) -> bytes:
    r"""Returns text with `\n`, `\r`, `\t`, `\0`, `\\` and `\xHH` replaced, as UTF-8. Raises ValueError for others."""
    parts: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        name = match[1]
        if len(name) == 3:
            character = bytes.fromhex(name[1:])
        elif name in _ESCAPES:
            character = _ESCAPES[name].encode()
        else:
            raise ValueError(rf"\{name} in {text!r} is none of \n \r \t \0 \\ \xHH")
        parts += [text[at : match.start()].encode(), character]
        at = match.end()
    return b"".join([*parts, text[at:].encode()])


_FIELDS: Final[dict[str, Callable[[EventPlace], bytes]]] = {
    "s": lambda event: event.data,
    "S": lambda event: b"%d" % len(event.data),
    "R": lambda event: len(event.data).to_bytes(4, "big"),
    "t": lambda event: event.stream.encode(),
    "p": lambda event: b"%d" % event.segment,
    "e": lambda event: b"%d" % event.epoch,
    "o": lambda event: b"%d" % event.offset,
    "%": lambda event: b"%",
}


def formatter(text: str) -> Callable[[EventPlace], bytes]:
    """Returns a function that formats events. Raises ValueError for an unknown field."""
    parts: list[bytes | Callable[[EventPlace], bytes]] = []
    at = 0
    for found in _FIELD.finditer(text):
        name = found[1]
        if name in _NOT_STORED:
            raise ValueError(f"%{name} in {text!r}: Pravega stores no {_NOT_STORED[name]} with events")
        if name not in _FIELDS:
            raise ValueError(f"%{name} in {text!r} is none of %{', %'.join(_FIELDS)}")
        parts += [unescaped(text[at : found.start()]), _FIELDS[name]]
        at = found.end()
    parts.append(unescaped(text[at:]))

    def formatted(event: EventPlace) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(event) for part in parts)

    return formatted


def as_json(event: EventPlace) -> bytes:
    """Returns an event as a line of JSON. The payload is text if it is UTF-8, and otherwise base64."""
    shown: dict[str, str | int] = {
        "stream": event.stream,
        "segment": event.segment,
        "epoch": event.epoch,
        "offset": event.offset,
    }
    try:
        shown["payload"] = event.data.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = base64.b64encode(event.data).decode()
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"
