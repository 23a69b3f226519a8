"""Texts, numbers and help on the command line, and its output: lines, tables, errors of the system, log format.

Invariant: text from files and peers reaches a terminal only through `printable`, so it can neither move the cursor nor
imitate another line. Log lines have a bounded length. Refused: arguments that are not UTF-8, and numbers that are not
finite.
"""

from __future__ import annotations

import ast
import copy
import inspect
import io
import json
import logging
import math
import os
import select
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from segstore.outputs import never_wait

F = TypeVar("F", bound=Callable[..., Any])

PORT: Final = click.IntRange(0, 65535)
EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
INPUT_FILE: Final = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
"""A file, a pipe, or standard input (-)."""
_LONGEST_LOGGED = 1_000
MAX_WAIT_S = 1e6
"""The longest wait that an option sets: 11 days, which every timer of the system takes."""


def port_option(name: str, text: str, default: int | None = None) -> Callable[[F], F]:
    """Returns an option for a port; text: its help."""
    return click.option(name, metavar="PORT", type=PORT, default=default, show_default=default is not None, help=text)


def file_option(name: str, text: str, **more: Any) -> Callable[[F], F]:
    """Returns an option for an existing file; text: its help."""
    return click.option(name, type=EXISTING_FILE, metavar="FILE", help=text, **more)


def choice_option(name: str, choices: Sequence[str], text: str) -> Callable[[F], F]:
    """Returns an option for one of several words, of which the first is the default; text: its help."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=text)


ca_option: Final = file_option(
    "--ca", "CA certificates to trust for tls:// (PEM); default: the system's.", is_eager=True
)
http_token_file: Final = file_option(
    "--http-token-file", "File with the token that requests to the HTTP port must carry."
)
announce_option: Final = choice_option(
    "--announce", ["text", "json"], "Format of the line that announces the addresses."
)


class Finite(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def is_pipe(name: str) -> bool:
    """Whether this is `-`, or names something that can be read only once, such as a pipe."""
    path = Path(name)
    return name == "-" or (path.exists() and not (path.is_file() or path.is_dir()))


class Rereadable(click.Path):
    """A path that is read more than once. A pipe is copied to a file, which is removed when the command ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        if not is_pipe(str(path)):
            return path
        context = click.get_current_context() if ctx is None else ctx
        name = "stdin" if str(path) == "-" else Path(path).name
        copy = Path(context.with_resource(tempfile.TemporaryDirectory(prefix="segstore-"))) / name
        with click.open_file(path, "rb") as pipe, copy.open("wb") as file:
            shutil.copyfileobj(pipe, file)
        return self.coerce_path_result(str(copy))


def argument_text(text: str) -> str:
    """Returns an argument or a variable of the environment as text. Raises ValueError if its bytes are not UTF-8.

    In a locale whose encoding lacks a byte, Python has read it as a surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        data = os.fsencode(text)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{data!r} is not UTF-8.") from None
    return text


class Text(click.types.StringParamType):
    """Text: an argument that is UTF-8, in any locale."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return argument_text(super().convert(value, param, ctx))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def scoped_name(text: str) -> tuple[str, str]:
    """Parses SCOPE/NAME."""
    scope, _, name = Text()(text).partition("/")
    if not scope or not name or "/" in name:
        raise click.BadParameter(f"{text!r} is not SCOPE/NAME")
    return scope, name


class NewPath(click.Path):
    """A path to write, which need not exist."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # as a path, it would be the working directory
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


def complete_command(command: click.Command) -> None:
    """Completes a command and its sub-commands: arguments and options that are text are read as `Text`, and the help
    that `python -OO` has removed with the docstrings is read from the source.
    """
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = Text()
    if sys.flags.optimize > 1 and command.help is None and command.callback is not None:
        with suppress(OSError):  # the source is not installed
            declared = ast.parse(textwrap.dedent(inspect.getsource(command.callback))).body[0]
            assert isinstance(declared, ast.FunctionDef | ast.AsyncFunctionDef)
            command.help = ast.get_docstring(declared)
    for below in getattr(command, "commands", {}).values():
        complete_command(below)


def let_options_follow(group: click.Group, change: Callable[[Any, str, Any], object]) -> None:
    """Makes the options of a group understood behind its sub-commands, too.

    change: returns the context's object with another value of the option of this name.
    """

    def apply(context: click.Context, option: click.Parameter, value: Any) -> None:
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
            context.obj = change(context.obj, str(option.name), value)

    def add_to(command: click.Command) -> None:
        for option in group.params:
            assert isinstance(option, click.Option)
            behind = copy.copy(option)
            behind.hidden, behind.expose_value, behind.default, behind.callback = True, False, None, apply
            command.params.append(behind)
        for below in getattr(command, "commands", {}).values():
            add_to(below)

    for command in group.commands.values():
        add_to(command)


def echo(line: object, *, err: bool = False, fg: str | None = None) -> None:
    """Prints one line. fg: its colour on a terminal; none if NO_COLOR is set (https://no-color.org)."""
    from segstore.wire.printable import printable

    text = printable(str(line))
    shown = click.style(text, fg=fg) if fg and not os.environ.get("NO_COLOR") else text
    click.echo(shown, err=err)


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


class Listing(click.Group):
    """A group that runs its command `list` by default."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.invoke_without_command, self.no_args_is_help = True, False

    def invoke(self, ctx: click.Context) -> Any:
        result = super().invoke(ctx)
        if ctx.invoked_subcommand is not None:
            return result
        listing = self.commands["list"]
        with listing.make_context("list", [], parent=ctx) as inner:
            return listing.invoke(inner)


class LogFormatter(logging.Formatter):
    """Prints a message on one line, and a traceback line by line; each line has a bounded length."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 — as the base class has it
        from segstore.wire.printable import printable

        record.message = printable(record.message, _LONGEST_LOGGED)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        from segstore.wire.printable import printable

        message, *traceback = super().format(record).split("\n")
        return "\n".join([printable(message), *(printable(line, _LONGEST_LOGGED) for line in traceback)])


def log_to_stderr(level: str = "warning") -> None:
    """Sets up the log of a server, with timestamps, on standard error. level: the lowest that is shown.

    From then on, standard output and error do not wait for their readers.
    """
    never_wait()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=level.upper())
    if level == "debug":  # not of the libraries
        for library in ("asyncio", "grpc"):
            logging.getLogger(library).setLevel(logging.INFO)


def log_plainly() -> None:
    """Formats warnings like other output, for commands that set up no log."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogFormatter("%(message)s"))
