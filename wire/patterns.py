"""Globs and regular expressions that match in linear time.

Patterns come from peers and files, and texts from peers, so neither may make a match slow. Regular expressions run on
the engine of pydantic-core, Rust's `regex`, which does not backtrack. A glob is translated to atomic groups, which do
not backtrack either. Texts may be any `str`: a lone surrogate, which a wire name may contain, counts as one character.

Invariant: the time of a match is at most proportional to the text's length times the pattern's `weight`, which is
bounded. Refused with `PatternError`: look-around and back-references, which the engine does not support, named classes
(`\\p{L}`), and nested classes, whose weight is hard to determine. `\\w`, `\\d` and `\\s` are ASCII, because Unicode
tables take long to compile.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from pydantic_core import SchemaError, SchemaValidator, core_schema

MOST_WEIGHT: Final = 1_000

# An escape, a class that contains another, a class, a counted repetition, flags that include x, a parenthesis, or any
# other character.
_TOKEN: Final = re.compile(
    r"\\.|(?P<nested>\[\^?\]?(?:\\.|[^\[\]\\])*\[)|\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|\{(?P<least>\d*)(?:,(?P<most>\d*))?\}|(?P<verbose>\(\?[A-Za-wyz]*x)|[()]|.",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_MEANING: Final = {
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "d": "[0-9]",
    "D": "[^0-9]",
    "s": r"[\t-\r ]",
    "S": r"[^\t-\r ]",
    "Z": r"\z",
}
"""Escape → its form for the engine. Those for classes may also appear within a class."""


class PatternError(ValueError):
    """The pattern was refused; the message gives the reason."""


class Pattern(NamedTuple):
    """A compiled pattern. matches: whether a text matches. weight: its number of characters, repetitions expanded."""

    matches: Callable[[str], bool]
    weight: int


def glob(text: str, *, ignore_case: bool = False) -> Pattern:
    """Compiles a glob (`scope/*`), which matches whole texts. Raises PatternError."""
    weight = _bounded(len(text))
    search = re.compile(r"\A" + fnmatch.translate(text), re.IGNORECASE if ignore_case else 0).search
    return Pattern(lambda found: search(found) is not None, weight)


def regular_expression(text: str, *, ignore_case: bool = False) -> Pattern:
    """Compiles a regular expression, which may match anywhere in a text. Raises PatternError."""
    _bounded(len(text))
    weight = _bounded(_weight(text))
    expression = _ESCAPE.sub(_escape, _whole(text))
    return Pattern(linear(f"(?i){expression}" if ignore_case else expression), weight)


def linear(expression: str) -> Callable[[str], bool]:
    """Compiles an expression in the engine's own syntax, which may match anywhere. Raises PatternError."""
    try:
        matches = SchemaValidator(core_schema.str_schema(pattern=expression)).isinstance_python
    except SchemaError as error:
        raise PatternError(str(error).rstrip().splitlines()[-1].rpartition("error: ")[2]) from error
    return lambda found: matches(found if found.isascii() else _whole(found))


def _bounded(weight: int) -> int:
    if weight > MOST_WEIGHT:
        raise PatternError(f"it has {weight} characters with repetitions expanded; at most {MOST_WEIGHT} are allowed")
    return weight


def _weight(expression: str) -> int:
    """The number of characters of an expression with repetitions expanded."""
    groups, last = [0], 0
    for token in _TOKEN.finditer(expression):
        if token["verbose"]:
            raise PatternError("the flag x is not supported")
        if token["nested"]:
            raise PatternError(r"nested classes are not supported; \[ is the character")
        if token[0] == "(":
            groups.append(0)
        elif token[0] == ")" and len(groups) > 1:
            last = max(1, groups.pop())
            groups[-1] += last
        elif token["least"] is not None:
            times = max(1, int(token["most"] or token["least"] or 0))
            groups[-1] += last * (times - 1)
            last *= times
        else:
            last = 1
            groups[-1] += 1
    return sum(groups)


def _escape(found: re.Match[str]) -> str:
    if found[1] in "pP":
        raise PatternError(f"named classes, {found[0]}, are not supported")
    return _MEANING.get(found[1], found[0])


def _whole(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate, which the engine does not accept."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
