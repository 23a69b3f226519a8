"""Records of a trace for commands that answer clients or drive stores, and the options that these share."""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from segstore.cli.terminal import INPUT_FILE, echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from segstore.server.replay import LeftOut
    from segstore.traces import TraceFile
    from segstore.wire.endpoint import Endpoint
    from segstore.wire.trace import Record

F = TypeVar("F", bound="Callable[..., Any]")

TRACE: Final = click.argument("trace", type=INPUT_FILE)


def address(text: str) -> Endpoint:
    """Parses an address, HOST:PORT; `:PORT` is a port of this machine."""
    from segstore.wire.endpoint import Endpoint

    try:
        return Endpoint.parse(f"127.0.0.1{text}" if text.startswith(":") else text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@contextmanager
def reading(path: Path, *, report_damage: bool = True) -> Iterator[tuple[TraceFile, Iterator[Record]]]:
    """Opens a trace and yields it with its records. Errors name the file.

    report_damage: whether to report damage at the end.
    """
    from segstore.traces import TraceFile
    from segstore.wire.trace import TraceError

    try:
        with TraceFile(path) as opened:
            records = opened.records()
            first = list(islice(records, 1)) if opened.form == "packets" else None
            yield opened, chain(first or (), records)
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    if not report_damage:
        return
    for damage in opened.damages:
        echo(f"{path}: {damage}", err=True, fg="red")
    if first == []:
        echo(f"{path}: no connection in it starts with a Hello, and others are not read", err=True)


def records_of(path: Path) -> list[Record]:
    """All records of a trace. Raises ClickException for a trace without requests."""
    from segstore.wire.trace import RecordKind

    with reading(path) as (_, records):
        held = list(records)
    if not any(record.direction == 0 and record.kind in (RecordKind.FRAME, RecordKind.CALL) for record in held):
        raise click.ClickException(f"{path}: there is no request in it")
    return held


def report_left_out(left_out: Sequence[LeftOut | str], what: str = "clients") -> None:
    """Reports records that can neither be answered nor made."""
    if left_out:
        echo(f"records of {what} left out: {len(left_out)}; {left_out[0]}", err=True)


def _pace(ctx: click.Context, option: click.Parameter, value: str) -> float | None:
    if value in ("max", "recorded"):
        return None if value == "max" else 1.0
    try:
        pace = float(value)
    except ValueError:
        sentence = f"{value!r} is neither max nor recorded nor a factor such as 2.5"
        raise click.BadParameter(sentence, ctx, option) from None
    from segstore.server.replay import check_pace

    try:
        check_pace(pace)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, option) from error
    return pace


PACE: Final = click.option(
    "--pace",
    metavar="PACE",
    default="max",
    show_default=True,
    callback=_pace,
    help="Speed: max, recorded, or a multiple of the recorded speed such as 2.5.",
)


def _fields(ctx: click.Context, option: click.Parameter, names: tuple[str, ...]) -> frozenset[str]:
    from segstore.wire import COMMANDS
    from segstore.wire.trace import names_of_call_fields

    known = {field for command in COMMANDS.values() for field in command.__struct_fields__}
    if not known.issuperset(names):
        known |= names_of_call_fields()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" ({near[0]}?)" if near else ""
            raise click.BadParameter(f"no command or call has a field {name!r}{hint}", ctx, option)
    return frozenset(names)


def ignore_option(help_text: str) -> Callable[[F], F]:
    """`--ignore`: fields of commands and calls that are not compared, as a set of names."""
    return click.option(
        "--ignore",
        metavar="FIELD",
        multiple=True,
        callback=_fields,
        default=("last_modified", "server_stack_trace"),
        show_default=True,
        help=help_text,
    )
