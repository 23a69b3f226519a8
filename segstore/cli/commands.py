"""The command line: the group `segstore`, its commands for frames, and `verify`. The other commands are in neighbouring
modules.

Invariant: a command's module is imported when it is named, and its dependencies when it runs, so decoding a frame does
not load a server.

Exit status: 0; 1 for bad input, with a line on standard error that gives the position; 2 for wrong options, with one
sentence.

Delegation tokens are printed by `--json`, whose lines are input for `encode`, and otherwise only on request.
"""

from __future__ import annotations

import io
import os
import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from segstore import __version__
from segstore.cli.terminal import PORT, Refusal, complete_command, echo, error_text, log_plainly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from segstore.wire.inspect import Form, Piece

_MODULES: Final = {
    "serve": "serve",
    "ctl": "ctl",
    "produce": "pravega",
    "consume": "pravega",
    "admin": "pravega",
    "trace": "traces",
    "replay": "traces",
    "check": "traces",
    "send": "traces",
    "explore": "traces",
    "tap": "tap",
}
"""The modules of the commands that are not declared here."""
_MOST_INPUT: Final = 256 << 20
_MOST_LINE: Final = 64 << 20
"""A line of `encode` has a frame, whose bytes are hexadecimal."""


class _OneSentence(click.Group):
    """A group that reports wrong options and errors of the system in one sentence, without the usage."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MODULES:
            self._load(cmd_name)
        elif cmd_name not in self.commands:
            self.load_all()  # for the suggestion of a similar name
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            complete_command(command)
        return command

    def load_all(self) -> None:
        """Imports the modules of all commands, which are then in `commands`."""
        for name in _MODULES:
            self._load(name)

    def _load(self, name: str) -> None:
        if name not in self.commands:
            module = import_module(f"segstore.cli.{_MODULES[name]}")
            self.add_command(getattr(module, name))

    def main(self, *args: Any, **extra: Any) -> Any:
        run: Any = super().main
        if not extra.pop("standalone_mode", True):
            return run(*args, standalone_mode=False, **extra)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # escapes characters that the terminal cannot show
                stream.reconfigure(errors="backslashreplace")
        log_plainly()
        complete_command(self)
        if "SEGSTORE_CODEC" in os.environ:
            try:
                _codec_backend()
            except ValueError as error:
                click.echo(f"segstore: {error}", err=True)  # `echo` needs the codec
                sys.exit(2)
        try:
            status = run(*args, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.UsageError as error:
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                click.echo(error.format_message())
                sys.exit(2)
            name = error.ctx.command_path if error.ctx else "segstore"
            _fail(f"{name}: {' '.join(error.format_message().split())}", 2)
        except Refusal as error:
            sentence, *details = error.format_message().splitlines()
            _fail(f"segstore: {sentence}", error.exit_code, details)
        except click.ClickException as error:
            _fail(f"segstore: {error.format_message()}", error.exit_code)
        except click.Abort:
            sys.exit(130)
        except OSError as error:
            _flush_or_drop()
            if isinstance(error, BrokenPipeError):  # the reader of the output has gone
                sys.exit(1)
            _fail(f"segstore: {error_text(error)}", 1)
        sys.exit(status if isinstance(status, int) else 0)


def _flush_or_drop() -> None:
    """Writes buffered output, or drops it if that fails."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, status: int, details: Sequence[str] = ()) -> NoReturn:
    echo(" ".join(sentence.splitlines()), err=True, fg="red")
    for line in details:
        echo(f"  {line.strip()}", err=True)
    sys.exit(status)


def _codec_backend() -> str:
    from segstore.wire import codec_backend

    return codec_backend


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"segstore, version {__version__}, codec {_codec_backend()}")
        context.exit()


@click.group(cls=_OneSentence, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    *("--version", "_"), is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and the codec in use: c, python or construct.",
)  # fmt: skip
def main() -> None:
    """A mock segment store for Pravega, and tools for its wire protocol, traces and clusters."""


_HEX = re.compile("(0[xX])?(?:[0-9a-fA-F]{2}){8,}")


class _Input(click.File):
    """A file, or standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and sys.stdin is None:
            raise click.ClickException("standard input is closed: there is no input")
        return super().convert(value, param, ctx)


class _Frames(_Input):
    """A file of frames, or frames in hex. A file with such a name takes precedence."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and _HEX.fullmatch(value) and not os.path.exists(value):  # noqa: PTH110 — Path refuses long names
            return io.BytesIO(value.encode())
        return super().convert(value, param, ctx)


_source = click.argument("source", metavar="FILE|HEX|-", default="-", type=_Frames("rb"))


def _name(source: Any) -> str:
    name = getattr(source, "name", "-")
    return name if isinstance(name, str) else "-"


def _pieces(source: Any) -> Iterable[Piece]:
    from segstore.wire.inspect import Unreadable, pieces, recognise
    from segstore.wire.trace import MAGIC, is_fixture

    read = source.read(_MOST_INPUT + 1)
    if read.startswith(MAGIC) or is_fixture(read[:64]):
        raise click.ClickException(f"{_name(source)}: this is a trace, for `segstore trace show --hex`")
    if len(read) > _MOST_INPUT:
        raise click.ClickException(f"{_name(source)}: it has more than {_MOST_INPUT} bytes")
    try:
        _, data = recognise(read)
    except Unreadable as error:
        raise click.ClickException(f"{_name(source)}: {error}") from error
    return pieces(data)


@main.command(short_help="Print the commands of frames.")
@_source
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as `encode` reads it.")
@click.option("--full", is_flag=True, help="Print long texts, payloads and lists whole.")
@click.option("--keep-unknown", is_flag=True, help="Keep frames with unknown type codes instead of failing.")
def decode(source: Any, as_json: bool, full: bool, keep_unknown: bool) -> int:
    """Print the commands of one or more frames: raw bytes, hex or base64 of a file, or hex as the argument.

    A frame that cannot be decoded is reported on standard error, the other frames are printed; the exit status is 1.
    """
    from segstore.wire import WireError
    from segstore.wire import decode as decode_frame
    from segstore.wire.inspect import summary, to_line

    status = 0
    for number, piece in enumerate(_pieces(source), 1):
        try:
            command = decode_frame(piece.data, unknown="keep" if keep_unknown else "refuse")
        except WireError as error:
            echo(f"frame {number} at byte {piece.offset}: {error}", err=True)
            status = 1
        else:
            echo(to_line(command) if as_json else summary(command, full=full))
    return status


@main.command(short_help="Print every byte of frames with its field.")
@_source
@click.option("--show-tokens", is_flag=True, help="Print delegation tokens too.")
@click.option("--full", is_flag=True, help="Print long fields and payloads whole.")
def explain(source: Any, show_tokens: bool, full: bool) -> int:
    """Print every byte of frames with the field that it belongs to; malformed frames up to the error."""
    from segstore.wire.inspect import describe, lines

    status = 0
    for number, piece in enumerate(_pieces(source), 1):
        description = describe(piece.data)
        name = description.command.type_name if description.command is not None else "malformed"
        echo(f"frame {number} at byte {piece.offset}: {name}, {len(piece.data)} bytes")
        for line in lines(description, show_tokens=show_tokens, full=full):
            echo(line)
        if description.error is not None:
            status = 1
    return status


@main.command(short_help="Write the frames of commands in JSON.")
@click.argument("source", metavar="FILE|-", default="-", type=_Input("r", encoding="utf-8-sig"))
@click.option("--format", "form", type=click.Choice(["hex", "raw", "base64"]), default="hex", show_default=True)
def encode(source: Any, form: Form) -> int:
    """Write the frames of commands: JSON lines as `decode --json` prints them."""
    from segstore.wire import WireError
    from segstore.wire import encode as encode_command
    from segstore.wire.inspect import from_line, to_text

    written = 0
    try:
        for number, line in enumerate(iter(partial(source.readline, _MOST_LINE + 1), ""), 1):
            if len(line) > _MOST_LINE:
                raise click.ClickException(f"{_name(source)}: line {number} has more than {_MOST_LINE} characters")
            if line.strip():
                try:
                    frame = encode_command(from_line(line))
                except WireError as error:
                    raise click.ClickException(f"{_name(source)}: line {number}: {error}") from error
                click.echo(to_text(frame, form), nl=False)
                written += 1
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{_name(source)}: not UTF-8 at byte {error.start}") from error
    if not written:
        raise click.ClickException(f"{_name(source)}: there is no input")
    return 0


@main.command(short_help="Write a Wireshark dissector.")
@click.option("--port", type=PORT, default=12345, show_default=True, help="Port of the store.")
def dissector(port: int) -> None:
    """Write a Wireshark dissector of the protocol, in Lua, to standard output.

    Connections that start with a Hello are recognised on every port; others on --port, which is also a preference.
    """
    from segstore.wire.inspect import dissector as source

    click.echo(source(port=port), nl=False)


@main.command(short_help="Check every byte of a data directory.")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
def verify(folder: Path) -> int:
    """Read every byte of a data directory and report damage. The directory is not changed.

    For the folder of a cluster of processes, every epoch of every container is read.
    """
    from segstore.server.durable import CLUSTER_FILE, DataError

    try:
        if (folder / CLUSTER_FILE).exists():
            from segstore.server.shared_folder import verify_cluster

            faults, notes = verify_cluster(folder)
        else:
            from segstore.server.durable import verify as read_all

            check = read_all(folder)
            faults = check.faults
            notes = list(check.notes)
            if not faults:
                notes.append(f"{folder}: {check.files} files are as they were written, up to batch {check.batches}")
    except DataError as error:
        raise click.ClickException(str(error)) from error
    for note in notes:
        echo(note)
    for fault in faults:
        echo(fault, err=True)
    return 1 if faults else 0
