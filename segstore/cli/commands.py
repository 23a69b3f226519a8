"""The command line: the group `segstore`, and its commands for frames and `serve`. The other commands are in the
modules beside this one.

Invariant: what a command needs is imported when it runs, so that looking at a frame does not wait for a server.
Exit status: 0; 1 when the input is at fault, with a line on standard error that says where; 2 for wrong options, in one
sentence. Delegation tokens are printed by `--json`, whose lines are for `encode`, and else only on request.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from segstore import __version__
from segstore.cli.errors import said
from segstore.cli.pipeline import pipeline
from segstore.cli.replay import diff_stores, explore, replay
from segstore.cli.tap import tap
from segstore.cli.terminal import echo, log_plainly
from segstore.cli.trace import trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segstore.wire.inspect import Form, Piece


class _OneSentence(click.Group):
    """Says what is wrong with the options in one sentence, without the usage around it."""

    def main(self, *args: Any, **extra: Any) -> Any:
        run: Any = super().main
        if not extra.pop("standalone_mode", True):
            return run(*args, standalone_mode=False, **extra)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character shows its number
                stream.reconfigure(errors="backslashreplace")
        log_plainly()
        codec = os.environ.get("SEGSTORE_CODEC", "generated")
        if codec not in ("generated", "construct"):
            # `echo` needs the codec, which cannot be imported under a wrong name.
            click.echo(f"segstore: SEGSTORE_CODEC is {codec!r}; it can be 'generated' or 'construct'", err=True)
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
        except click.ClickException as error:
            _fail(f"segstore: {error.format_message()}", error.exit_code)
        except click.Abort:
            sys.exit(130)
        except BrokenPipeError:
            # Whoever read the output has seen enough; what is still buffered has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        sys.exit(status if isinstance(status, int) else 0)


def _fail(sentence: str, status: int) -> NoReturn:
    echo(" ".join(sentence.splitlines()), err=True)
    sys.exit(status)


@click.group(cls=_OneSentence, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="segstore")
def main() -> None:
    """Pravega's segment-store wire protocol: look at frames, run a mock segment store."""


for _each in (trace, replay, diff_stores, explore, tap, pipeline):
    main.add_command(_each)


_HEX = re.compile("(0[xX])?(?:[0-9a-fA-F]{2}){8,}")


class _Frames(click.File):
    """A file of frames; who gives the frame itself is told where it goes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if not isinstance(value, str) or _HEX.fullmatch(value) is None:
                raise
            command = "segstore decode" if ctx is None else ctx.command_path
            hint = f"{error.message}; a frame goes in on standard input: echo {value[:16]}… | {command} -"
            raise click.BadParameter(hint, ctx, param) from error


_source = click.argument("source", metavar="FILE|-", default="-", type=_Frames("rb"))


def _name(source: Any) -> str:
    name = getattr(source, "name", "-")
    return name if isinstance(name, str) else "-"


def _pieces(source: Any) -> Iterable[Piece]:
    from segstore.wire.inspect import Unreadable, pieces, recognise
    from segstore.wire.trace import MAGIC, is_fixture

    given = source.read()
    if given.startswith(MAGIC) or is_fixture(given[:64]):
        raise click.ClickException(f"{_name(source)}: this is a trace, for `segstore trace show --hex`")
    try:
        _, data = recognise(given)
    except Unreadable as error:
        raise click.ClickException(f"{_name(source)}: {error}") from error
    return pieces(data)


@main.command()
@_source
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as `encode` reads it.")
@click.option("--keep-unknown", is_flag=True, help="A type code that no command has is no error.")
def decode(source: Any, as_json: bool, keep_unknown: bool) -> int:
    """Print the commands of frames: raw bytes, hex or base64, one frame or several.

    A frame that cannot be decoded is reported on standard error, the others are printed, and the exit status is 1.
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
            echo(to_line(command) if as_json else summary(command))
    return status


@main.command()
@_source
@click.option("--show-tokens", is_flag=True, help="Print delegation tokens too.")
@click.option("--all-bytes", is_flag=True, help="Print long fields in full.")
def explain(source: Any, show_tokens: bool, all_bytes: bool) -> int:
    """Print every byte of frames with the field that it belongs to, also of malformed ones up to the error."""
    from segstore.wire.inspect import describe, lines

    status = 0
    for number, piece in enumerate(_pieces(source), 1):
        found = describe(piece.data)
        name = found.command.type_name if found.command is not None else "malformed"
        echo(f"frame {number} at byte {piece.offset}: {name}, {len(piece.data)} bytes")
        for line in lines(found, show_tokens=show_tokens, all_bytes=all_bytes):
            echo(line)
        if found.error is not None:
            status = 1
    return status


@main.command()
@click.argument("source", metavar="FILE|-", default="-", type=click.File("r", encoding="utf-8"))
@click.option("--format", "form", type=click.Choice(["hex", "raw", "base64"]), default="hex", show_default=True)
def encode(source: Any, form: Form) -> int:
    """Write the frames of commands: JSON lines as `decode --json` prints them."""
    from segstore.wire import WireError
    from segstore.wire import encode as encode_command
    from segstore.wire.inspect import from_line, to_text

    written = 0
    try:
        for number, line in enumerate(source, 1):
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


_PORT = click.IntRange(0, 65535)
_MS = click.FloatRange(0)


def _containers(ctx: click.Context, option: click.Parameter, given: str | None) -> frozenset[int] | None:
    try:
        return None if given is None else frozenset(int(each) for each in given.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is no list of containers such as 0,2", ctx, option) from error


def _secret(ctx: click.Context, option: click.Parameter, path: Path | None) -> str | None:
    """The content of a file, without its line ending."""
    if path is None:
        return None
    from segstore.server.secret_file import read_secret

    try:
        return read_secret(path)
    except OSError as error:
        raise click.BadParameter(said(error), ctx, option) from error
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, option) from None


def _auth_key(ctx: click.Context, of_file: str | None, literal: str | None) -> str | None:
    """The token key; the file takes precedence over the environment."""
    if ctx.get_parameter_source("auth_key") is ParameterSource.COMMANDLINE:
        if of_file is not None:
            raise click.UsageError("give either --auth-key or --auth-key-file, not both", ctx)
        shown = "the process list shows --auth-key to every user of this machine"
        echo(f"{ctx.command_path}: {shown}; prefer --auth-key-file FILE, or SEGSTORE_AUTH_KEY", err=True)
    return of_file or literal


def _pem(help_text: str) -> dict[str, Any]:
    return {"type": click.Path(exists=True, dir_okay=False, path_type=Path), "metavar": "FILE", "help": help_text}


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that all ports listen on.")
@click.option("--port", type=_PORT, default=12345, show_default=True, help="Segment store; 0 picks a free port.")
@click.option("--controller-port", type=_PORT, default=9090, show_default=True, help="Controller (gRPC).")
@click.option("--admin-port", type=_PORT, help="Admin commands of the segment store.")
@click.option("--http-port", type=_PORT, help="Live page, control API and metrics (HTTP).")
@click.option(
    "--http-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Token that requests to the control API must carry; required off loopback.",
)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep everything here.")
@click.option(
    "--memory-bytes", type=int, metavar="N", help="With --data: segment bytes to hold in memory; 512 MiB if not given."
)
@click.option(
    "--max-memory",
    type=click.IntRange(1),
    metavar="BYTES",
    help="Bound on what is stored in memory; more is refused. Half of the machine's memory if not given.",
)
@click.option("--containers", type=click.IntRange(1), default=4, show_default=True, help="Containers of the cluster.")
@click.option("--own", metavar="N,N,…", callback=_containers, help="Containers that this store owns; all if not given.")
@click.option("--auth-key-file", callback=_secret, **_pem("Check delegation tokens signed with the key in this file."))
@click.option(
    "--auth-key",
    metavar="KEY",
    envvar="SEGSTORE_AUTH_KEY",
    show_envvar=True,
    help="The key itself; the process list shows it.",
)
@click.option(
    "--token-ttl-s", type=click.IntRange(-1), default=600, show_default=True, help="Lifetime of tokens; -1: no expiry."
)
@click.option("--open-controller", is_flag=True, help="Allow a key without --password-file: every caller gets tokens.")
@click.option("--open-stores", is_flag=True, help="Allow --password-file without a key: stores require no tokens.")
@click.option("--strict-auth", is_flag=True, help="Ask for a token also where the reference does not.")
@click.option("--stack-traces", is_flag=True, help="Put stack traces into failure replies.")
@click.option("--tls-cert", **_pem("Certificate, with its chain (PEM)."))
@click.option("--tls-key", **_pem("Key of the certificate (PEM)."))
@click.option("--reuse-names", is_flag=True, help="A deleted segment's name can be used again.")
@click.option("--long-poll-s", type=float, default=20.0, show_default=True, help="Answer a waiting tail read by then.")
@click.option(
    "--transient-idle-s", type=float, default=600.0, show_default=True, help="Delete idle transient segments."
)
@click.option("--wire-version", type=int, default=17, show_default=True, help="Speak as this version did (5 to 17).")
@click.option("--stores", type=click.IntRange(1), default=1, show_default=True, help="Stores sharing the containers.")
@click.option("--published-host", metavar="NAME", help="Host name that clients are sent to, if not --host.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Users of the controller, user:password:entries a line.",
)
@click.option(
    "--controller-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings of the controller (TOML); the next three options override them.",
)
@click.option("--commit-delay-ms", type=click.IntRange(0), help="How long commits and aborts take; 0 if not given.")
@click.option("--scale-delay-ms", type=click.IntRange(0), help="How long scaling takes; 0 if not given.")
@click.option("--lease-cap-ms", type=click.IntRange(0), help="No transaction's lease is longer than this.")
@click.option("--strict-request-ids", is_flag=True, help="A refused read carries its request id, not its offset.")
@click.option("--strict-transient-attributes", is_flag=True, help="A transient segment has its writer's number only.")
@click.option("--strict-wire-version", is_flag=True, help="Refuse what an older --wire-version did not know at all.")
@click.option(
    "--max-connections", type=click.IntRange(1), help="Maximum; as many as file descriptors allow if not given."
)
@click.option(
    "--faults",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="What is to go wrong (YAML or JSON).",
)
@click.option(
    "--trace",
    "--record",
    "trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Record all traffic to a new capture (.wtrace), without delegation tokens.",
)
@click.option("--record-tokens", is_flag=True, help="Keep delegation tokens in the recording.")
@click.option(
    "--announce",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the line is written that says where it listens.",
)
@click.option("--zookeeper", metavar="HOST:PORT", help="One cluster of all processes that name this and share --data.")
@click.option(
    "--zookeeper-auth-file",
    "zookeeper_auth",
    callback=_secret,
    **_pem("user:password that protects the nodes in ZooKeeper; anyone may change them if not given."),
)
@click.option("--trust-network", is_flag=True, help="With --zookeeper: allow passwords and tokens without TLS.")
@click.option("--configuration-zookeeper", metavar="HOST:PORT", help="For scopes and stream policies, if another.")
@click.option("--session-timeout-ms", type=_MS, default=10_000.0, show_default=True, help="Of the ZooKeeper session.")
@click.option(
    "--session-expired-policy",
    type=click.Choice(["shutdown", "reconnect"]),
    default="shutdown",
    show_default=True,
    help="When the ZooKeeper session has expired.",
)
@click.option("--session-reconnect-retries", type=click.IntRange(0), default=10, show_default=True, help="0: shutdown.")
@click.option("--takeover-delay-ms", type=_MS, default=500.0, show_default=True, help="Before another's is taken.")
@click.option("--preload", is_flag=True, help="Open what is owned again at once, not on first use.")
@click.option(
    "--stale-node",
    type=click.Choice(["wait", "replace"]),
    default="wait",
    show_default=True,
    help="A node of this store's name that an earlier session has left.",
)
@click.option("--load-report-interval-ms", type=_MS, default=5_000.0, show_default=True, help="Between load reports.")
@click.option("--rebalance/--no-rebalance", default=True, show_default=True, help="Share containers evenly.")
@click.option(
    "--zookeeper-patience-ms", type=_MS, default=60_000.0, show_default=True, help="Of silence, then this ends."
)
def serve(**options: Any) -> int:
    """Run a mock segment store. Once all its ports listen it prints one line; SIGTERM or Ctrl-C ends it."""
    from pydantic import ValidationError

    from segstore.cli import serving
    from segstore.server import LimitSettings
    from segstore.server.coordination import CoordinationError
    from segstore.server.durable import DataError
    from segstore.server.faults import FaultFileError

    context = click.get_current_context()
    options["auth_key"] = _auth_key(context, options.pop("auth_key_file"), options["auth_key"])
    try:
        limits = LimitSettings(
            max_connections=options.pop("max_connections"), max_memory_bytes=options.pop("max_memory")
        )
        settings = serving.ServeOptions(**options, limits=limits)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "".join(f"--{str(name).replace('_', '-')}: " for name in first["loc"][-1:])
        raise click.UsageError(option + first["msg"].removeprefix("Value error, "), context) from error
    try:
        serving.serve(settings)
    except serving.OptionsError as error:
        raise click.UsageError(str(error), context) from error
    except OSError as error:
        raise click.ClickException(said(error)) from error
    except (FaultFileError, CoordinationError, DataError, serving.StoreFailed) as error:
        raise click.ClickException(str(error)) from error
    return 0


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
def verify(folder: Path) -> int:
    """Read every byte of a data directory and say what is not as it was written. The directory is not changed.

    Of the folder of a cluster of processes, every epoch of every container is read.
    """
    from segstore.server.durable import CLUSTER_FILE, DataError

    try:
        if (folder / CLUSTER_FILE).exists():
            from segstore.server.shared_folder import verify_cluster

            faults, notes = verify_cluster(folder)
        else:
            from segstore.server.durable import verify as read_all

            found = read_all(folder)
            faults = found.faults
            notes = [f"{folder}: {found.files} files are as they were written, up to batch {found.batches}"]
            notes = [] if faults else notes
    except (DataError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for note in notes:
        echo(note)
    for fault in faults:
        echo(fault, err=True)
    return 1 if faults else 0
