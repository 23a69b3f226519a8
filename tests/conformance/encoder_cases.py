"""Recorded encoder failures: commands that cannot be constructed or written.

Such a line has no bytes. The command is given by `type` and `fields`, by a constructor call in `case` (`new
Padding(-1)`), or by the error, which contains the length of an overlong string. A case in no such form disagrees
rather than being skipped.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from segstore.wire import COMMANDS, Command, SegmentCreated, WireError, encode, encode_parts
from segstore.wire.codec import CODECS
from segstore.wire.inspect import command_named
from tests.conformance.recorded import snake

_CLASSES: Final = {cls.__name__: cls for cls in COMMANDS.values()}

_NEW: Final = re.compile(r"new\s+(\w+)\s*\((.*)\)\s*;?", re.DOTALL)
_ARGUMENT: Final = re.compile(
    r"""\s*(?:(?P<number>[-+]?\d+)[lL]?|(?P<word>true|false|null)|"(?P<text>(?:[^"\\]|\\.)*)"
        (?:\s*\.repeat\(\s*(?P<times>\d+)\s*\))?)\s*(?:,|$)""",
    re.VERBOSE,
)
_TOO_LONG: Final = re.compile(r"too long: (\d+) bytes")
_LONG_STRING: Final = re.compile(r"(?<!\d)(\d+)(?: |-)?(?:bytes?|chars?|characters?)")
_MOST_CHARACTERS: Final = 1 << 17
"""Maximum length of a generated text, whatever length a file asks for: twice what any field can hold."""


def refused_command(what: dict[str, Any]) -> Iterator[str]:
    """Yields disagreements: the command could be constructed and written, or the case is not understood."""
    make = _maker(what)
    if make is None:
        yield f"the case {what['case']!r} has no form that this runner knows"
        return
    ways: dict[str, Callable[[Command], object]] = {"encode_parts": encode_parts}
    ways |= {f"encode ({codec})": lambda value, codec=codec: encode(value, codec=codec) for codec in CODECS}  # type: ignore[misc]
    for way, write in ways.items():
        try:
            write(make())
        except WireError:
            continue
        yield f"{way}: expected a refusal, found none"


def _maker(what: dict[str, Any]) -> Callable[[], Command] | None:
    case = what["case"]
    if "fields" in what:
        named, fields = command_named(what["type"]), snake(what["fields"])
        return lambda: named.from_dict(fields)
    called = _NEW.fullmatch(case.strip())
    if called is not None and called[1] in _CLASSES:
        cls, arguments = _CLASSES[called[1]], _arguments(called[2])
        return lambda: cls(*arguments)
    length = _TOO_LONG.search(what.get("message") or "") or _LONG_STRING.search(case)
    if length is None or "UTFDataFormat" not in (what.get("exception") or ""):
        return None
    text = "a" * min(int(length[1]), _MOST_CHARACTERS)
    return lambda: SegmentCreated(0, text)  # all texts have one type on the wire


def _arguments(text: str) -> list[Any]:
    values: list[Any] = []
    at = 0
    while at < len(text.rstrip()):
        found = _ARGUMENT.match(text, at)
        if found is None:
            raise ValueError(f"{text[at:]!r} is not an argument that this runner can read")
        if found["number"] is not None:
            values.append(int(found["number"]))
        elif found["word"] is not None:
            values.append({"true": True, "false": False, "null": ""}[found["word"]])
        else:
            times = min(int(found["times"] or 1), _MOST_CHARACTERS // (len(found["text"]) or 1) + 1)
            values.append(found["text"] * times)
        at = found.end()
    return values
