"""A command as the client of an exploration: placeholders, environment, processes that it leaves behind.

`{host}`, `{port}`, `{controller}` and `{http}` in it are filled in; `{{name}}` becomes `{name}`, and `${name}` is left
for a shell. The environment has SEGSTORE_HOST, SEGSTORE_PORT, SEGSTORE_CONTROLLER (tcp://HOST:PORT) and, if the command
names `{http}`, SEGSTORE_URL.

Invariants: unknown placeholders, a line that cannot be split and a missing program are refused with one sentence; words
with an address filled in are not split again; a command reads no standard input, and its process group ends with it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, BinaryIO, Final

from segstore.wire.printable import printable

PLACES: Final = ("host", "port", "controller", "http")
"""The placeholders of a command."""
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")
_PANIC: Final = re.compile(r".*(?:panicked at|fatal error|Segmentation fault|core dumped).*(?:\n.+)?")
_MOST_BYTES: Final = 1 << 20
_MOST_SHOWN: Final = 300


class ClientFailed(RuntimeError):
    """The client's command failed. Attributes: status (its exit status), stderr (its standard error)."""

    def __init__(self, status: int, stderr: str) -> None:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        last = "; ".join(printable(line.strip())[:_MOST_SHOWN] for line in stderr.strip().splitlines()[-3:])
        why = panic_of(stderr) or last
        super().__init__(f"the client ended {how}" + (f": {why}" if why else ""))
        self.status = status
        self.stderr = stderr


def panic_of(stderr: str) -> str:
    """Returns the last panic in a command's standard error, in one line, or ""."""
    panics = _PANIC.findall(stderr)
    return printable(" ".join(panics[-1].split()))[:_MOST_SHOWN] if panics else ""


class CommandError(ValueError):
    """A command that cannot be run."""


def words_of(command: str | Sequence[str]) -> list[str]:
    """Splits a command into words, with placeholders. Raises CommandError."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise CommandError(f"the command cannot be split into words: {error}") from error
    if not words:
        raise CommandError("the command is empty")
    for placeholder in chain.from_iterable(map(_PLACE.finditer, words)):
        name = placeholder[2]
        if name is not None and name not in PLACES:
            there = ", ".join(f"{{{place}}}" for place in PLACES)
            why = f"unknown placeholder {{{name}}}, only {there}; write {{{{{name}}}}} for the literal text"
            raise CommandError(why)
    return words


def names_place(words: list[str], *places: str) -> bool:
    """Whether the words contain a placeholder."""
    return any(placeholder[2] in places for word in words for placeholder in _PLACE.finditer(word))


class CommandClient:
    """Runs a command as a client. Attributes: words, left_behind (whether a run has left processes)."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.left_behind = False

    async def __call__(self, mock: Any) -> bytes:
        """Returns what the command prints. Raises ClientFailed, CommandError."""
        places = {"host": mock.host, "port": str(mock.port), "controller": mock.controller_uri}
        names = {"SEGSTORE_HOST": mock.host, "SEGSTORE_PORT": str(mock.port)}
        names["SEGSTORE_CONTROLLER"] = f"tcp://{mock.controller_uri}"
        if names_place(self.words, "http"):
            places["http"] = names["SEGSTORE_URL"] = mock.http_url
        filled = [
            _PLACE.sub(lambda name: places[name[2]] if name[2] else f"{{{name[1]}}}", word) for word in self.words
        ]
        # Files, because the end of a pipe comes only when all processes that were left behind have ended.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                status = await self._status(filled, os.environ | names, output, errors)
            finally:  # also of a client that hangs
                mock.stderr = _start_of(errors).decode(errors="replace")
            if status:
                raise ClientFailed(status, mock.stderr)
            return _start_of(output)

    async def _status(self, filled: list[str], names: dict[str, str], output: BinaryIO, errors: BinaryIO) -> int:
        try:
            process = await asyncio.create_subprocess_exec(
                *filled, stdin=DEVNULL, stdout=output, stderr=errors, env=names, start_new_session=True
            )
        except OSError as error:
            raise CommandError(f"{filled[0]!r} cannot be started: {error.strerror}") from error
        ended = False
        try:
            status = await process.wait()
            ended = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
                self.left_behind |= ended
            if not ended:
                await process.wait()
        return status


def _start_of(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read(_MOST_BYTES)
