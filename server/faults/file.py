"""Reads fault files (YAML or JSON) and reports the place of each error.

Errors are raised as `FaultFileError`, whose text names the file, the line and the path within the file. Duplicate keys
are refused because one value would be lost. YAML anchors, aliases, merge keys and tags are refused because they can
make a small file large.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from pydantic import ValidationError

from segstore.server.config import keys_at, read_text, unknown_name
from segstore.server.faults.rules import FaultSettings
from segstore.wire.printable import printable
from segstore.wire.validation import first_error, message_of

_LONGEST: Final = 600
_MOST_BYTES: Final = 256 * 1024
_MOST_DIGITS: Final = sys.int_info.default_max_str_digits
_INTEGER: Final = "tag:yaml.org,2002:int"
_FORMS: Final = {
    "tag:yaml.org,2002:bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    _INTEGER: ("[-+]?[0-9]+", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)",
        "-+.0123456789",
    ),
    "tag:yaml.org,2002:null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
}
"""Patterns of plain scalars that are not strings, as in the core schema of YAML 1.2, but without octal and hexadecimal
integers, infinity and NaN. So `on`, which is a key of rules, is a string, and `010` is ten.
"""


class _Loader(yaml.SafeLoader):
    """Reads the part of YAML that JSON can express, so that a document is no larger than its text."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 — as the base class has it

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_decimal(self, node: Any) -> int:
        return int(node.value)


for _tag, (_form, _first) in _FORMS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_form})$"), list(_first))
_Loader.add_constructor(_INTEGER, _Loader.construct_decimal)  # that of the base follows YAML 1.1: 010 is eight


class FaultFileError(ValueError):
    """A fault file is invalid. Attributes: source, line and column (from 1, None if unknown), path, reason."""

    def __init__(self, source: str, line: int | None, path: str, reason: str, column: int | None = None) -> None:
        where = f"{source}: line {line}" if line is not None else source
        super().__init__(printable(f"{where}: {path}: {reason}" if path else f"{where}: {reason}", _LONGEST))
        self.source = source
        self.line = line
        self.column = column
        self.path = path
        self.reason = reason


def read_faults(path: Path) -> FaultSettings:
    """Reads a fault file: JSON if its suffix is `.json`, else YAML. Raises FaultFileError, OSError."""
    try:
        text = read_text(path, _MOST_BYTES)
    except ValueError as error:
        raise FaultFileError(str(path), None, "", str(error).removeprefix(f"{path} ")) from error
    return parse_faults(text, str(path), form="json" if path.suffix.lower() == ".json" else "yaml")


def faults_of(source: FaultSettings | Path | str) -> FaultSettings:
    """Returns settings unchanged, or reads them from a fault file.

    Raises FaultFileError, OSError, and ValueError for other types.
    """
    if isinstance(source, FaultSettings):
        return source
    if not isinstance(source, str | Path):
        raise ValueError(f"faults is a fault file or FaultSettings, not {printable(repr(source), _LONGEST)}")
    return read_faults(Path(source))


def parse_faults(text: str, source: str = "faults", *, form: str = "yaml") -> FaultSettings:
    """Parses the text of a fault file. Raises FaultFileError."""
    document = parse_document(text, source, form=form)
    given = {} if document.given is None else document.given
    if not isinstance(given, dict):
        raise FaultFileError(
            source, 1, "", f"an object is needed with the keys {', '.join(FaultSettings.model_fields)}"
        )
    try:
        return FaultSettings.model_validate(given)
    except ValidationError as error:
        first = first_error(error)
        place = document.place(first["loc"])
        raise FaultFileError(source, place.line, place.path, _reason(first), place.column) from error


class DocumentPlace(NamedTuple):
    """A place in a document. line, column: from 1; None if unknown. path: such as `rules[0].do`."""

    line: int | None
    column: int | None
    path: str


class Document(NamedTuple):
    """The data of a document. root: its nodes in YAML, for places; None if it is empty."""

    given: Any
    root: Any

    def place(self, location: tuple[int | str, ...]) -> DocumentPlace:
        """Returns the place of a pydantic error location, or of the part nearest to it."""
        node = self.root
        mark = None if node is None else node.start_mark
        path = ""
        for part in location:
            if isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
                if found is None:
                    if isinstance(part, int) or part.startswith(("<", "[", "dict[")):
                        continue  # parts that pydantic adds: index of a single action, tag, form; not in the file
                    path += f".{part}"
                    break
                mark, node = found[0].start_mark, found[1]
                path += f".{part}"
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.start_mark
                path += f"[{part}]"
        return DocumentPlace(*_from_one(mark), path.lstrip("."))


def parse_document(text: str, source: str, *, form: str = "yaml") -> Document:
    """Parses JSON, or the part of YAML that JSON can express. Raises FaultFileError."""
    given = None
    if form == "json":
        try:
            given = json.loads(text, parse_int=_integer)
        except (ValueError, RecursionError) as error:
            line, column = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (None, None)
            raise FaultFileError(source, line, "", f"this is not JSON: {_what(error)}", column) from error
        text = text.replace("\t", " ")  # YAML is parsed below for line numbers only, and refuses tabs as blanks
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        _check(root, source)
        if form != "json":
            given = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line, column = _from_one(error.problem_mark)
        raise FaultFileError(source, line, "", f"this is not YAML: {error.problem}", column) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, FaultFileError):
            raise
        raise FaultFileError(source, None, "", f"this is not YAML: {_what(error)}") from error
    return Document(given, root)


def _integer(text: str) -> int:
    """Returns an integer; 0 for one with too many digits, which `_check` refuses."""
    return int(text) if len(text.lstrip("-")) <= _MOST_DIGITS else 0


def _from_one(mark: Any) -> tuple[int | None, int | None]:
    """Returns line and column of a mark of YAML, from 1."""
    return (None, None) if mark is None else (mark.line + 1, mark.column + 1)


def _what(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def rule_problem(error: ValidationError) -> str:
    """Returns the error in a rule made in Python: the path in it, and a sentence."""
    first = first_error(error)
    parts = [part for part in first["loc"] if not str(part).startswith("<")]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    reason = _reason({**first, "loc": ("rules", 0, *first["loc"])})
    return f"{path}: {reason}" if path else reason


def _reason(found: Any) -> str:
    """Describes an error in one sentence; for an unknown key, names the known keys."""
    if found["type"] != "extra_forbidden":
        return message_of(found)
    return unknown_name("key", str(found["loc"][-1]), keys_at(FaultSettings, found["loc"][:-1]))


_Path = tuple["_Path", str] | None
"""The path of a node: the parent's path, and its own part."""


def _check(root: Any, source: str) -> None:
    """Refuses duplicate keys, and integers with more digits than Python reads."""
    ahead: list[tuple[Any, _Path]] = [(root, None)]
    while ahead:
        node, path = ahead.pop()
        if isinstance(node, yaml.SequenceNode):
            ahead.extend((each, (path, f"[{index}]")) for index, each in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                here = (path, f".{key.value}")
                if key.value == "<<" and key.style is None:
                    raise _at_node(key, source, here, "merge keys are not allowed")
                is_integer = key.tag == _INTEGER and len(key.value) <= _MOST_DIGITS  # 1 and 01 are the same key
                name = str(int(key.value) if is_integer else key.value)
                if name in keys:
                    raise _at_node(key, source, here, "the key appears twice")
                keys.add(name)
                ahead += (key, here), (value, here)
        elif node is not None and node.tag == _INTEGER and len(node.value.lstrip("+-")) > _MOST_DIGITS:
            raise _at_node(node, source, path, f"an integer has at most {_MOST_DIGITS} digits")


def _at_node(node: Any, source: str, path: _Path, reason: str) -> FaultFileError:
    parts = []
    while path is not None:
        path, part = path
        parts.append(part)
    line, column = _from_one(node.start_mark)
    return FaultFileError(source, line, "".join(reversed(parts)).lstrip("."), reason, column)
