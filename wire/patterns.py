"""Globs and regular expressions that match in linear time, and paths into payloads.

Patterns come from peers and files, and texts from peers, so neither may make a match slow. Regular expressions run on
the engine of pydantic-core, Rust's `regex`, which does not backtrack. A glob is translated to atomic groups, which do
not backtrack either. Texts may be any `str`: a lone surrogate, which a wire name may contain, counts as one character.

A path leads to an event of a payload and to a value of a JSON document in it. A pattern may match anywhere there,
numbers are compared as doubles, and objects and arrays have no value.

Invariant: a match takes linear time, and a pattern is at most 1,000 characters long. Refused with `PatternError`:
look-around and back-references, which the engine does not support, and what means something else in other engines:
named classes (`\\p{L}`), nested classes and the flag x. `\\w`, `\\d` and `\\s` are ASCII, because Unicode tables take
long to compile.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from pydantic_core import SchemaError, SchemaValidator, core_schema

_LONGEST: Final = 1_000
SIGNS: Final = ("=", "!=", "~", "!~")
"""The operators of payloads."""
SIGNS_OF_VALUES: Final = (*SIGNS, "<", "<=", ">", ">=")
"""The operators of values of JSON documents."""

_SPECIAL: Final = re.compile(
    r"\\(?P<escaped>.)|(?P<nested>\[\^?\]?(?:\\.|[^\[\]\\])*\[)|(?P<verbose>\(\?[A-Za-wyz]*x)", re.DOTALL
)
_MEANING: Final = {
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "d": "[0-9]",
    "D": "[^0-9]",
    "s": r"[\t-\r ]",
    "S": r"[^\t-\r ]",
    "Z": r"\z",
}
"""Escape → its form for the engine. Escapes of classes may also appear within a class."""


class PatternError(ValueError):
    """The pattern was refused; the message gives the reason."""


def glob(text: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Compiles a glob (`scope/*`), which matches whole texts. Raises PatternError."""
    _check_length(text)
    search = re.compile(r"\A" + fnmatch.translate(text), re.IGNORECASE if ignore_case else 0).search
    return lambda text: search(text) is not None


def regular_expression(text: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Compiles a regular expression, which may match anywhere in a text. Raises PatternError."""
    _check_length(text)
    expression = _SPECIAL.sub(_for_engine, _whole(text))
    return linear(f"(?i){expression}" if ignore_case else expression)


def linear(expression: str) -> Callable[[str], bool]:
    """Compiles an expression in the engine's own syntax, which may match anywhere. Raises PatternError."""
    try:
        matches = SchemaValidator(core_schema.str_schema(pattern=expression)).isinstance_python
    except SchemaError as error:
        raise PatternError(str(error).rstrip().splitlines()[-1].rpartition("error: ")[2]) from error
    return lambda text: matches(text if text.isascii() else _whole(text))


def _check_length(text: str) -> None:
    if len(text) > _LONGEST:
        raise PatternError(f"it has {len(text)} characters; at most {_LONGEST} are allowed")


def _for_engine(match: re.Match[str]) -> str:
    if match["nested"]:
        raise PatternError(r"nested classes are not supported; \[ is the character")
    if match["verbose"]:
        raise PatternError("the flag x is not supported")
    if match["escaped"] in "pP":
        raise PatternError(f"named classes, {match[0]}, are not supported")
    return _MEANING.get(match["escaped"], match[0])


def _whole(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate, which the engine does not accept."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- payloads ---------------------------------------------------------------------------------------------------------

_PATH: Final = re.compile(r"data(?:\[(\d{1,9})\])?((?:\.[^.\[\]]+|\[\d{1,9}\])*)", re.IGNORECASE | re.ASCII)
_KEY: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]", re.ASCII)
_LITERAL: Final = re.compile(r"[^*?\[]*")
_HEX: Final = re.compile(r"0x((?:[0-9a-f]{2})+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS: Final = {True: "true", False: "false", None: "null"}


class Path(NamedTuple):
    """Part of a payload. event: its number, None for all. keys: the path in a JSON document; empty for all bytes."""

    event: int | None
    keys: tuple[str | int, ...]

    @property
    def signs(self) -> tuple[str, ...]:
        """The operators that may follow."""
        return SIGNS_OF_VALUES if self.keys else SIGNS


def path_of(word: str) -> Path | None:
    """Parses `data`, `data[0]` or `data.city`; None for another word."""
    match = _PATH.fullmatch(word)
    if match is None:
        return None
    keys = tuple(key[1] if key[2] is None else int(key[2]) for key in _KEY.finditer(match[2]))
    return Path(None if match[1] is None else int(match[1]), keys)


def bytes_of(word: str) -> bytes | None:
    """The bytes of `0x0aff`; None for another word."""
    match = _HEX.fullmatch(word)
    return None if match is None else bytes.fromhex(match[1])


def number_of(text: str) -> float | None:
    """The number of a text in JSON; None for another text."""
    return float(text) if _NUMBER.fullmatch(text) else None


def has_value(path: Path, holds: Callable[[Any], bool], *, negated: bool) -> Callable[[Any], bool]:
    """Tests whether a payload, or a value in it, satisfies `holds`; negated: whether there are values and none does."""

    def test(subject: Any) -> bool:
        payloads: Sequence[bytes] = subject.payloads
        if path.event is not None:
            payloads = payloads[path.event : path.event + 1]
        values = list(_values(payloads, path.keys)) if path.keys else payloads
        return bool(values) and any(map(holds, values)) != negated

    return test


def is_text(text: str) -> Callable[[Any], bool]:
    """Compares a payload, or a value of a JSON document, with a text."""
    data, number = text.encode("utf-8", "surrogatepass"), number_of(text)

    def holds(value: Any) -> bool:
        if isinstance(value, float):
            return value == number
        return bool((_WORDS[value] if value is None or isinstance(value, bool) else value) in (text, data))

    return holds


def contains(text: str, matches: Callable[[str], bool]) -> Callable[[Any], bool]:
    """Searches for a text literally, and as a glob if it has wildcards."""
    data, is_glob, as_glob = text.encode("utf-8", "surrogatepass"), not _LITERAL.fullmatch(text), matching(matches)

    def holds(value: Any) -> bool:
        is_there = data in value if isinstance(value, bytes) else isinstance(value, str) and text in value
        return is_there or (is_glob and as_glob(value))

    return holds


def matching(matches: Callable[[str], bool]) -> Callable[[Any], bool]:
    """Looks for a pattern."""

    def holds(value: Any) -> bool:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return isinstance(text, str) and matches(text)

    return holds


def _refused(constant: str) -> NoReturn:
    """Refuses NaN and infinities, which JSON does not have."""
    raise ValueError(constant)


def _values(payloads: Iterable[bytes], keys: tuple[str | int, ...]) -> Iterator[Any]:
    for payload in payloads:
        try:
            value = json.loads(payload.decode(), parse_int=float, parse_constant=_refused)
        except (ValueError, RecursionError):
            continue
        for key in keys:
            if isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            elif isinstance(value, dict) and key in value:
                value = value[str(key)]
            else:
                break
        else:
            if not isinstance(value, dict | list):
                yield value
