"""Griffe extension for the Python API pages: turns this project's docstrings into Markdown.

Lines such as `limit: the maximum number of bytes` at the start of a paragraph become a list, doctests become code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ITEM = re.compile(r"\s*(?P<names>[a-z_]\w*(?:, [a-z_]\w*)*): (?P<text>.*)")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown, paragraph by paragraph."""
    return "\n\n".join(_paragraph(each.split("\n")) for each in re.split(r"\n\s*\n", docstring))


def _paragraph(lines: list[str]) -> str:
    if lines[0].startswith(">>> "):
        return "\n".join(["```pycon", *lines, "```"])
    if re.match(r"(async )?(with|for|def) .*:$", lines[0]):
        return "\n".join(["```python", *lines, "```"])
    headed = len(lines) > 1 and lines[1].startswith(" ") and not _ITEM.fullmatch(lines[0]) and _ITEM.fullmatch(lines[1])
    header = [lines[0], ""] if headed else []
    rest = lines[1:] if header else lines
    if not _ITEM.fullmatch(rest[0]):
        return "\n".join(lines)
    items: list[str] = []
    for line in rest:
        if found := _ITEM.fullmatch(line):
            names = ", ".join(f"`{name}`" for name in found["names"].split(", "))
            items.append(f"- {names}: {found['text']}")
        else:
            items[-1] += f" {line.strip()}"
    return "\n".join([*header, *items])


class Docstrings(griffe.Extension):
    """Applies `markdown` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of an object in place."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
