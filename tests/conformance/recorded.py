"""Finds recorded files and classifies each line by the kind of fact that it holds.

64-bit integers are text in the files, which every JSON parser reads exactly, or numbers.

Invariant: every line of a file has a kind, or reading the file raises `Unreadable` with the line's number.
"""

from __future__ import annotations

import enum
import json
import re
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any, Final

import msgspec

from segstore.wire import COMMANDS
from segstore.wire.schema import FieldType, Nested, Rows, types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Kind(enum.Enum):
    """The kind of fact that a line records."""

    COMMAND = "a command, its fields and its bytes"
    FRAME = "bytes, and the command or the refusal that they decode to"
    REFUSED_COMMAND = "a command that cannot be made"
    SCHEMA = "the fields of a command's class"
    MUTF8 = "a string in modified UTF-8"
    FRAMING = "a stream of bytes in pieces"
    APPEND_STREAM = "appends, and the bytes that a client makes of them"
    APPEND_DECODE = "append commands, and the appends that a server makes of them"
    CONTAINER = "the container of a segment"
    CONVERSATION = "a dialogue with a segment store"


class Unreadable(Exception):
    """A file or line is not a record of a known kind. Attributes: path, line (from 1)."""

    def __init__(self, message: str, *, path: Path, line: int | None = None) -> None:
        super().__init__(f"{path}: {message}" if line is None else f"{path}: line {line}: {message}")
        self.path = path
        self.line = line


class Line(msgspec.Struct, frozen=True):
    """One recorded fact. what: the JSON object. number: the line number, from 1."""

    number: int
    kind: Kind
    what: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the case, for reports."""
        words = [self.what.get(key) for key in ("name", "category", "kind", "op", "type", "case", "segment")]
        said = " ".join(word for word in words if isinstance(word, str))
        return f"line {self.number} {said}".rstrip()


def kind_of(what: dict[str, Any]) -> Kind | None:
    """Returns the kind of a line, determined by its keys; None if unknown."""
    keys = what.keys()
    steps = what.get("steps")
    if isinstance(steps, list):
        inner = {key for step in steps if isinstance(step, dict) for key in step}
        if keys >= {"name", "server"}:
            return Kind.CONVERSATION
        if keys >= {"name", "blockSize"}:
            return Kind.APPEND_STREAM
        if "case" in keys and "in" in inner:
            return Kind.FRAMING
        if "name" in keys and "hex" in inner:
            return Kind.APPEND_DECODE
        return None
    if "fields_in_class_order" in keys:
        return Kind.SCHEMA
    if keys >= {"segment", "container"}:
        return Kind.CONTAINER
    if what.get("op") in {"encode", "decode"} and keys & {"utf16", "string", "hex"}:
        return Kind.MUTF8
    if keys >= {"type", "fields", "hex"}:
        return Kind.COMMAND
    if "hex" in keys and keys & {"ok", "decoded"}:
        return Kind.FRAME
    if "case" in keys and what.get("ok") is False:
        return Kind.REFUSED_COMMAND
    return None


def read_lines(path: Path) -> list[Line]:
    """Reads the lines of a file. Raises Unreadable, also for an empty file."""
    found = []
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as cause:
        raise Unreadable(f"cannot be read: {cause}", path=path) from cause
    # Not splitlines: recorded strings may contain other Unicode line separators.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            what = json.loads(line, object_hook=_with_numbers)
        except (ValueError, RecursionError) as cause:
            raise Unreadable(f"not JSON: {cause}", path=path, line=number) from cause
        kind = kind_of(what) if isinstance(what, dict) else None
        if kind is None:
            keys = ", ".join(what) if isinstance(what, dict) else type(what).__name__
            raise Unreadable(f"a record of no known kind ({keys})", path=path, line=number)
        found.append(Line(number, kind, what))
    if not found:
        raise Unreadable("holds no record", path=path)
    return found


def _int64_fields(nodes: Iterable[FieldType], name: str = "") -> Iterator[str]:
    for node in nodes:
        match node:
            case types.Fixed(format="q"):
                yield node.name or name
            case types.SizedData(trailer=types.Fixed(format="q", name=trailer)):
                yield trailer
            case types.Tail():
                yield from _int64_fields([node.inner], name)
            case types.Counted():
                yield from _int64_fields([node.element], node.name)
            case Nested():
                yield from _int64_fields(node.parts)
            case Rows():
                yield from _int64_fields(node.columns)


_INT64_KEYS: Final = {
    re.sub("_(.)", lambda letter: letter[1].upper(), name)
    for cls in COMMANDS.values()
    for name in _int64_fields(cls.parts)
}


def _with_numbers(what: dict[str, Any]) -> dict[str, Any]:
    """Converts the 64-bit integers of an object from text to numbers."""
    for key in what.keys() & _INT64_KEYS:
        value = what[key]
        what[key] = [_number(element) for element in value] if isinstance(value, list) else _number(value)
    return what


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]+", value) else value


def recorded_files(folder: Path) -> list[Path]:
    """Returns all .json and .jsonl files in a folder tree, except traces."""
    if folder.is_file():
        return [folder]
    inside = sorted(path for path in folder.rglob("*.json*") if path.suffix in {".json", ".jsonl"} and path.is_file())
    return [
        path
        for path in inside
        if not any(part.startswith(".") for part in path.relative_to(folder).parts) and not _is_trace(path)
    ]


def _is_trace(path: Path) -> bool:
    with path.open("rb") as opened:
        return opened.read(64).removeprefix(BOM_UTF8).startswith(b'{"segstore_trace"')


def snake(value: Any) -> Any:
    """Converts keys of recorded fields to this project's names: `requestId` to `request_id`."""
    if isinstance(value, dict):
        return {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower(): snake(inner) for key, inner in value.items()}
    return [snake(inner) for inner in value] if isinstance(value, list) else value
