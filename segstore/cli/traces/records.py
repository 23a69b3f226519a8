"""Records of a trace for commands that answer clients or drive stores, and the options that these share."""

from __future__ import annotations

import difflib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from segstore.cli.terminal import INPUT_FILE, echo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from segstore.server.replay import LeftOut
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


def records_of(path: Path) -> list[Record]:
    """All records of a trace. Damage is printed; raises ClickException for a trace without requests."""
    from segstore.traces import TraceFile
    from segstore.wire.trace import RecordKind, TraceError

    try:
        with TraceFile(path) as opened:
            records = list(opened.records())
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    for damage in opened.damages:
        echo(f"{path}: {damage}", err=True)
    if not any(record.direction == 0 and record.kind in (RecordKind.FRAME, RecordKind.CALL) for record in records):
        raise click.ClickException(f"{path}: there is no request in it")
    return records


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


def _fields(ctx: click.Context, option: click.Parameter, names: tuple[str, ...], *, calls: bool) -> frozenset[str]:
    from segstore.wire import COMMANDS

    known = {field for command in COMMANDS.values() for field in command.__struct_fields__}
    if calls and not known.issuperset(names):
        from segstore.wire.trace import names_of_call_fields

        known |= names_of_call_fields()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" ({near[0]}?)" if near else ""
            raise click.BadParameter(f"no command {'or call ' * calls}has a field {name!r}{hint}", ctx, option)
    return frozenset(names)


def ignore_option(help_text: str, *, calls: bool = False) -> Callable[[F], F]:
    """`--ignore`: fields that are not compared, as a set of names. calls: whether fields of calls are allowed."""
    return click.option(
        "--ignore",
        metavar="FIELD",
        multiple=True,
        callback=partial(_fields, calls=calls),
        default=("last_modified", "server_stack_trace"),
        show_default=True,
        help=help_text,
    )
