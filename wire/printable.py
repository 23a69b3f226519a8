"""Text of peers and files as a terminal, a log or an error can show it.

What does not print is written out as JSON does (`\\u001b`): control characters, line ends, marks that change the
direction of text, characters of no width, halves of surrogate pairs. So one text stays one line, no text moves the
cursor, and a line of JSON stays the JSON that it was.
"""

from __future__ import annotations

import json

__all__ = ["printable"]


def printable(text: str, longest: int | None = None) -> str:
    """The text on one line; one longer than `longest` loses its middle, and says how long it was."""
    if longest is not None and len(text) > longest:
        tail = longest // 3
        text = f"{text[: longest - tail]}… {text[len(text) - tail :]} ({len(text)} characters)"
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
