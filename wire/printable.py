"""Text from peers and files, made safe for terminals, logs and errors.

Non-printable characters are escaped as in JSON (`\\u001b`): control characters, line ends, direction marks, zero-width
characters, lone surrogates. So a text stays on one line and cannot move the cursor, and a line of JSON stays valid and
keeps its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

SHOWN: Final = 100
"""Characters that an error shows of a name or a value."""


def printable(text: str, longest: int | None = None) -> str:
    """Returns the text on one line. If longer than `longest`, its middle is elided and its length appended."""
    if longest is not None and len(text) > longest:
        tail = longest // 3
        text = f"{text[: longest - tail]}… {text[len(text) - tail :]} ({len(text)} characters)"
    return text if text.isprintable() else "".join(map(_shown, text))


def first_of(texts: Iterable[str], total: int, most: int, what: str) -> Iterator[str]:
    """The first `most` of `total` texts, then the number of further texts: `and 985 more fault rules`."""
    yield from islice(texts, most)
    if total > most:
        yield f"and {total - most:,} more {what}"


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
