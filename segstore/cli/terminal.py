"""Texts and numbers on the command line, and its output: lines, tables, errors of the operating system, log format.

Invariant: text from files and peers reaches a terminal only through `printable`, so it can neither move the cursor nor
imitate another line. Log lines have a bounded length. Refused: arguments that are not UTF-8, and numbers that are not
finite.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import select
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from segstore.outputs import BoundedLog, never_wait

PORT: Final = click.IntRange(0, 65535)
EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
http_token_file: Final = click.option(
    "--http-token-file",
    type=EXISTING_FILE,
    metavar="FILE",
    help="File with the token that requests to the HTTP port must carry.",
)
_LONGEST_LOGGED = 1_000
MAX_WAIT_S = 1e6
"""The longest wait that an option sets: 11 days, which every timer of the system takes."""


class Finite(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        made = super().convert(value, param, ctx)
        if not math.isfinite(made):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return made


class Text(click.types.StringParamType):
    """Text: an argument that is UTF-8."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        made = super().convert(value, param, ctx)
        try:
            made.encode()
        except UnicodeEncodeError:
            self.fail(f"{os.fsencode(made)!r} is not UTF-8.", param, ctx)
        return made


class NewPath(click.Path):
    """A path to write, which need not exist."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # as a path, it would be the working directory
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


def check_texts(command: click.Command) -> None:
    """Makes all arguments and options of a command and its subcommands that are text refuse other bytes than UTF-8."""
    for each in command.params:
        if each.type is click.STRING:
            each.type = Text()
    for below in getattr(command, "commands", {}).values():
        check_texts(below)


def echo(line: object, *, err: bool = False, fg: str | None = None) -> None:
    """Prints one line. fg: its colour on a terminal; none if NO_COLOR is set (https://no-color.org)."""
    from segstore.wire.printable import printable

    text = printable(str(line))
    shown = click.style(text, fg=fg) if fg and not os.environ.get("NO_COLOR") else text
    click.echo(shown, err=err)


def echo_raw(text: str | bytes) -> None:
    """Prints text that this program made, as it is."""
    click.echo(text, nl=False)


def reader_gone() -> bool:
    """Whether standard output is a pipe whose reader has gone; False on Windows."""
    if not hasattr(select, "poll"):
        return False
    output = select.poll()
    with suppress(io.UnsupportedOperation):  # it has no file
        output.register(sys.stdout.fileno(), 0)  # an end is reported in any case
    return bool(output.poll(0))


def error_text(error: OSError) -> str:
    """One line without the number: "name: No such file or directory", or the message alone if there is no name.

    An error without a message, such as a timeout, is its class's name.
    """
    if error.strerror is None:
        return str(error) or type(error).__name__
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def cell_text(value: object) -> str:
    """A value in a table: printable text, a list with spaces between, other values as JSON; nothing for None."""
    from segstore.wire.printable import printable

    if isinstance(value, list):
        return " ".join(map(cell_text, value))
    return "" if value is None else printable(value) if isinstance(value, str) else json.dumps(value)


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints rows under their columns' names, in columns as wide as needed."""
    cells = [list(columns), *([cell_text(row[name]) for name in columns] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    for row in cells:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class Refusal(click.ClickException):
    """A server's refusal: a sentence, and below it lines of details, such as near misses."""


class Renamed(click.Option):
    """An option whose names after the first are earlier ones, which work and are not shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


class Listing(click.Group):
    """A group that runs its command `list` if none is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ([] if ctx.resilient_parsing else ["list"]))


class LogFormatter(logging.Formatter):
    """Prints a message on one line, and a traceback line by line; each line has a bounded length."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — as the base class has it
        from segstore.wire.printable import printable

        record.message = printable(record.message, _LONGEST_LOGGED)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        from segstore.wire.printable import printable

        message, *traceback = super().format(record).split("\n")
        return "\n".join([printable(message), *(printable(each, _LONGEST_LOGGED) for each in traceback)])


def log_to_stderr(level: str = "warning") -> None:
    """Sets up the log of a server, with timestamps, on standard error. level: the lowest that is shown.

    From then on, standard output and error do not wait for their readers.
    """
    never_wait()
    handler = BoundedLog(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=level.upper())
    if level == "debug":  # not of the libraries
        for library in ("asyncio", "grpc"):
            logging.getLogger(library).setLevel(logging.INFO)


def log_plainly() -> None:
    """Formats warnings like other output, for commands that set up no log."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogFormatter("%(message)s"))
