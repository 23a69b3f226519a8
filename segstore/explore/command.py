"""The client command that the race explorer runs, with placeholders for the store's address.

`{host}`, `{port}` and `{controller}` are filled in; `{{name}}` becomes `{name}`, and `${name}` is left for a shell.
Invariant: unknown placeholders, a line that cannot be split and a missing program are refused with one sentence, before
or instead of a run; words with an address filled in are not split again.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import shlex
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Final

PLACES: Final = ("host", "port", "controller")
"""The placeholders of a command."""

_PLACE: Final = re.compile(r"\{\{(\w+)\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")


class CommandError(ValueError):
    """A command that cannot be run. Attribute: command."""

    def __init__(self, command: str, why: str) -> None:
        super().__init__(why)
        self.command = command


def words_of(command: str) -> list[str]:
    """Splits a command into words, with placeholders. Raises CommandError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CommandError(command, f"the command cannot be split into words: {error}") from error
    if not words:
        raise CommandError(command, "the command is empty")
    for word in words:
        for found in _PLACE.finditer(word):
            name = found[2]
            if name is not None and name not in PLACES:
                near = difflib.get_close_matches(name, PLACES, 1)
                hint = f" ({{{near[0]}}}?)" if near else ""
                there = ", ".join(f"{{{each}}}" for each in PLACES)
                why = f"unknown placeholder {{{name}}}{hint}, only {there}; write {{{{{name}}}}} for the literal text"
                raise CommandError(command, why)
    return words


def names_place(words: list[str], place: str) -> bool:
    """Whether the words contain a placeholder."""
    return any(found[2] == place for word in words for found in _PLACE.finditer(word))


async def start(words: list[str], places: dict[str, str]) -> Process:
    """Starts a command with its placeholders filled in; its standard error is a pipe. Raises CommandError."""
    filled = [_PLACE.sub(lambda found: places[found[2]] if found[2] else f"{{{found[1]}}}", word) for word in words]
    try:
        return await asyncio.create_subprocess_exec(*filled, stdout=DEVNULL, stderr=PIPE)
    except OSError as error:
        raise CommandError(shlex.join(words), f"{filled[0]!r} cannot be started: {error.strerror}") from error
