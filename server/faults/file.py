"""Reads fault files (YAML or JSON) and reports the place of each error.

Errors are raised as `FaultFileError`, whose text names the file, the line and the path within the file. Duplicate keys
are refused because one value would be lost. YAML anchors, aliases and tags are refused because they can make a small
file large.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from pydantic import ValidationError

from segstore.server.config import problem_of, read_text
from segstore.server.faults.rules import FaultSettings
from segstore.wire.printable import printable
from segstore.wire.validation import first_error

_LONGEST: Final = 600
_MOST_BYTES: Final = 256 * 1024
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

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = set()
        for key, _ in node.value:
            name = str(self.construct_object(key, deep=True))
            if name in names:  # 1, 01 and "1" are the same number of a store
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} appears twice", problem_mark=key.start_mark)
            names.add(name)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: Any) -> int:
        return int(node.value)


for _tag, (_form, _first) in _FORMS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_form})$"), list(_first))
_Loader.add_constructor(_INTEGER, _Loader.construct_decimal)  # that of the base follows YAML 1.1: 010 is eight


class FaultFileError(ValueError):
    """A fault file is invalid. Attributes: source, line (from 1, None if unknown), path, reason."""

    def __init__(self, source: str, line: int | None, path: str, reason: str) -> None:
        where = f"{source}: line {line}" if line is not None else source
        super().__init__(printable(f"{where}: {path}: {reason}" if path else f"{where}: {reason}", _LONGEST))
        self.source = source
        self.line = line
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
        raise FaultFileError(source, *document.place(first["loc"]), problem_of(first, FaultSettings)) from error


class Document(NamedTuple):
    """The data of a document. root: its nodes in YAML, for places; None if it is empty."""

    given: Any
    root: Any

    def place(self, location: tuple[int | str, ...]) -> tuple[int | None, str]:
        """Returns line and path, such as `rules[0].do`, of a pydantic error location, or of the part nearest to it."""
        node = self.root
        mark = None if node is None else node.start_mark
        path = ""
        for part in location:
            if isinstance(node, yaml.MappingNode):
                entry = next(((key, value) for key, value in node.value if key.value == str(part)), None)
                if entry is None:
                    if isinstance(part, int) or part.startswith(("<", "[", "dict[")):
                        continue  # parts that pydantic adds: index of a single action, tag, form; not in the file
                    path += f".{part}"
                    break
                mark, node = entry[0].start_mark, entry[1]
                path += f".{part}"
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.start_mark
                path += f"[{part}]"
        return _line(mark), path.lstrip(".")


def parse_document(text: str, source: str, *, form: str = "yaml") -> Document:
    """Parses JSON, or the part of YAML that JSON can express. Raises FaultFileError."""
    try:
        given = json.loads(text) if form == "json" else None
        # Of JSON, too, YAML finds the lines, and keys that appear twice; it refuses tabs as blanks.
        loader = _Loader(text.replace("\t", " ") if form == "json" else text)
        root = loader.get_single_node()
        content = None if root is None else loader.construct_document(root)
    except json.JSONDecodeError as error:
        raise FaultFileError(source, error.lineno, "", f"this is not JSON: {error}") from error
    except yaml.MarkedYAMLError as error:
        why = f"this is not {form.upper()}: {error.problem}"
        raise FaultFileError(source, _line(error.problem_mark), "", why) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise FaultFileError(source, None, "", f"this is not {form.upper()}: {why}") from error
    return Document(given if form == "json" else content, root)


def _line(mark: Any) -> int | None:
    """Returns the line of a mark of YAML, from 1."""
    return None if mark is None else mark.line + 1
