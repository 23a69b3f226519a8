"""`segstore explore`: injects each failure at each point of a client's run.

Exit status: 0 if nothing broke but findings of the baseline; 1 if something broke, with details on standard output.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from segstore import loops
from segstore.cli.terminal import MAX_WAIT_S, Finite, NewPath, echo, error_text
from segstore.cli.traces.records import records_of, report_left_out

if TYPE_CHECKING:
    from segstore.explore import CommandClient, Exploration, Finding, Plan
    from segstore.wire.trace import Record

_COMMAND: Final = "segstore.explore command"


class _WithCommand(click.Command):
    """Takes the words after `--` as the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


def _match(ctx: click.Context, option: click.Parameter, text: str) -> str:
    from segstore.wire.trace import FilterError, check_possible, parse_filter

    try:
        if text.strip():
            check_possible(parse_filter(text), "log")
    except (FilterError, ValueError) as error:
        raise click.BadParameter(str(error), ctx, option) from error
    return text


def _baseline(ctx: click.Context, option: click.Parameter, path: Path | None) -> Mapping[str, object]:
    if path is None:
        return {}
    try:
        known = json.loads(path.read_bytes())
    except ValueError as error:
        raise click.BadParameter(f"{path} is no baseline: {error}", ctx, option) from error
    if not isinstance(known, dict):
        raise click.BadParameter(f"{path} is no baseline: it is no JSON object", ctx, option)
    return known


class _NewFile(NewPath):
    """A file in a folder that exists, which is checked before the runs: they may take long."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Path = super().convert(value, param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path.parent} is no folder", param, ctx)
        return path


_FILE: Final = _NewFile(dir_okay=False, path_type=Path)
_SECONDS: Final = Finite(0, MAX_WAIT_S, min_open=True)


@click.command(
    cls=_WithCommand,
    short_help="Inject every failure at every point and report what breaks.",
    options_metavar="[OPTIONS]",
)
@click.argument("trace", metavar="[TRACE] [-- COMMAND…]", type=click.Path(path_type=Path), required=False)
@click.option("--prepare", type=click.UNPROCESSED, metavar="COMMAND", help="Run once; each run starts with its state.")
@click.option(
    "-f", "--filter", "match", default="", metavar="EXPR", callback=_match, help="Fail only at matching requests."
)
@click.option(
    "--failures", multiple=True, default=["*"], metavar="GLOB", help="Only these failures, such as 'cut *'; repeatable."
)
@click.option("--only", default="", metavar="NAME", help="Repeat one run: 'cut after at APPEND_BLOCK_END 1'.")
@click.option("--all", "complete", is_flag=True, help="Try all points, not only three of each class.")
@click.option("--pairs", is_flag=True, help="Then combine two failures.")
@click.option("--budget", "budget_s", type=_SECONDS, metavar="SECONDS", help="Start no run after this time.")
@click.option("--seed", type=int, default=0, help="Shuffle runs of the same rank.")
@click.option("-j", "--jobs", type=click.IntRange(1, 64), help="Runs side by side. Default: two for each core.")
@click.option("--stores", type=click.IntRange(1, 16), help="Default: 2; 1 if the command names {host} or {port}.")
@click.option("--timeout-s", type=_SECONDS, default=10.0, show_default=True, help="After this time a client has hung.")
@click.option("--tokens", is_flag=True, help="Stores check delegation tokens, which can expire.")
@click.option("--any-order", is_flag=True, help="Events of a segment may come in another order.")
@click.option("--out", type=NewPath(file_okay=False, path_type=Path), metavar="DIR", help="Write fixtures here.")
@click.option("--page", type=_FILE, metavar="FILE", help="Write the matrix of requests and failures as HTML.")
@click.option("--junit", type=_FILE, metavar="FILE", help="Write JUnit XML.")
@click.option(
    "--baseline",
    "known",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_baseline,
    metavar="FILE",
    help="Findings that do not fail.",
)
@click.option("--write-baseline", type=_FILE, metavar="FILE", help="Write the findings as a baseline.")
def explore(trace: Path | None, prepare: str | None, **options: Any) -> int:
    """Run a client once without faults, then once for each failure at each of its requests, and report what breaks.

    The client is the command after `--`, with {host}, {port}, {controller} or {http} filled in, or SEGSTORE_CONTROLLER
    and SEGSTORE_HOST in its environment. Without a command, a client that reconnects and queries the stored data makes
    the requests of TRACE. With trace and command, the events of the trace must be stored at the end.
    """
    from segstore.explore import CommandError, NotPrepared
    from segstore.server.replay import read_script
    from segstore.traces import make_folder

    words = click.get_current_context().meta.get(_COMMAND)
    command = _client(words, "--")
    preparing = _client(prepare, "--prepare")
    if command is None and trace is None:
        raise click.UsageError("give a command after --, or a TRACE")
    if command is None and (options["tokens"] or (options["stores"] or 1) > 1):
        raise click.UsageError("--tokens and --stores need a command: a TRACE has its own tokens and goes to one store")
    _check_outputs(options)
    records: list[Record] | None = None
    if trace is not None:
        records = records_of(trace)
        left_out: list[str] = []
        read_script(records, left_out)
        report_left_out(left_out)
    if (out := options["out"]) is not None:
        make_folder(out)  # before the runs, which may take long
        if trace is not None and any(file.samefile(trace) for file in out.glob("finding-*.jsonl") if file.is_file()):
            raise click.BadParameter(f"{out} contains {trace}, which is being read", param_hint="--out")
    where = "the run without faults: "

    def started(plan: Plan) -> None:
        nonlocal where
        where = ""
        _print_plan(plan)

    try:
        names = ("match", "failures", "only", "timeout_s", "complete", "pairs", "budget_s", "seed", "jobs", "stores")
        how = {name: options[name] for name in (*names, "tokens")}
        how |= {"keep_order": not options["any_order"], "started": started, "tell": _tell}
        exploration = asyncio.run(_explored(command, preparing, records, how))
    except CommandError as error:
        raise click.ClickException(f"the client {error}") from error
    except NotPrepared as error:
        raise click.ClickException(str(error)) from error
    except (OSError, ValueError, RuntimeError, TimeoutError) as error:
        what = error_text(error) if isinstance(error, OSError) and error.errno else str(error)
        raise click.ClickException(f"{where}{what}") from error
    if command is not None and command.left_behind:
        echo("the command leaves processes behind, which were killed after each run", err=True)
    return _report(exploration, options, _again(trace, prepare, options))


def _client(command: str | list[str] | None, option: str) -> CommandClient | None:
    from segstore.explore import CommandClient, CommandError, words_of

    try:
        return None if command is None else CommandClient(words_of(command))
    except CommandError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _check_outputs(options: dict[str, Any]) -> None:
    """Refuses outputs that cannot be written, or that replace one another, before the runs."""
    outputs = [
        (option, path) for option in ("page", "junit", "write_baseline") if (path := options[option]) is not None
    ]
    if options["page"] is not None:
        folder = options["page"].with_suffix(".runs")
        outputs.insert(0, ("page", folder))
        if folder.exists() and not folder.is_dir():
            raise click.BadParameter(f"{folder}, for its runs, is no folder", param_hint="--page")
    for number, (option, path) in enumerate(outputs):
        if any(path.resolve() == earlier.resolve() for _, earlier in outputs[:number]):
            raise click.BadParameter(f"{path} is another output, too", param_hint=f"--{option.replace('_', '-')}")


async def _explored(
    command: CommandClient | None, prepare: CommandClient | None, records: list[Record] | None, how: dict[str, Any]
) -> Exploration:
    """Explores a command or a trace; SIGTERM, and the SIGHUP of a closed terminal, end the client's processes, too."""
    exploring = asyncio.create_task(_explore(command, prepare, records, how))
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        exploring.cancel()  # servers and processes are stopped in order

    loops.on_signal(signal.SIGTERM, stop, signal.SIGTERM)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has it ignored
        loops.on_signal(signal.SIGHUP, stop, signal.SIGHUP)
    try:
        return await exploring
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None


async def _explore(
    command: CommandClient | None, prepare: CommandClient | None, records: list[Record] | None, how: dict[str, Any]
) -> Exploration:
    from segstore import explore as explorer

    how["prepare"] = prepare
    if command is None:
        return await explorer.explore_trace(records or [], **how | {"stores": how["stores"] or 1})
    with_address = explorer.names_place(command.words, "host", "port")
    how["stores"] = how["stores"] or (1 if with_address or records is not None else 2)
    if records is not None:
        how["wanted"] = await explorer.wanted_of(records, how["timeout_s"])
    return await explorer.explore(command, **how)


def _print_plan(plan: Plan) -> None:
    """Prints the classes before the first run with a failure."""
    for alike in plan.classes:
        echo(alike, err=True)
    classes, runs = len(plan.classes), len(plan.injections)
    number = f", {runs:,} run{'s' if runs != 1 else ''}" if runs else ""  # none with --only
    echo(f"{classes} class{'es' if classes != 1 else ''} of requests and calls{number}", err=True)


def _tell(done: int, of: int, finding: Finding | None) -> None:
    """Shows progress on a terminal, and each finding at once; the report at the end has the details."""
    line = "\r\x1b[K" if sys.stderr.isatty() else ""
    if finding is not None:
        click.echo(line, err=True, nl=False)
        echo(f"broke: {finding.name}", err=True)
    if line:
        click.echo(f"{line}{done} of {of} runs{line if done == of else ''}", err=True, nl=False)


def _again(trace: Path | None, prepare: str | None, options: dict[str, Any]) -> list[str]:
    """Returns the command line that repeats runs, without their names; nothing for a trace, which is shortened."""
    words = click.get_current_context().meta.get(_COMMAND)
    if words is None:
        return []
    values = {"--prepare": prepare, "--stores": options["stores"]}
    if click.get_current_context().get_parameter_source("timeout_s") is ParameterSource.COMMANDLINE:
        values["--timeout-s"] = f"{options['timeout_s']:g}"
    again = ["segstore", "explore"]
    again += [word for name, value in values.items() if value is not None for word in (name, str(value))]
    again += [f"--{name.replace('_', '-')}" for name in ("any_order", "tokens") if options[name]]
    return [*again, *([] if trace is None else [str(trace)]), "--", *words]


def _report(exploration: Exploration, options: dict[str, Any], again: list[str]) -> int:
    from segstore.explore import baseline, grouped, junit, shown, write_fixture, write_matrix

    known, out = options["known"], options["out"]
    new = exploration.new(known)
    if out is not None:
        for number, finding in enumerate(new, 1):
            write_fixture(finding, out / f"finding-{number}.jsonl")
    for group in grouped(new):
        head, *lines = shown(group, again)
        echo(head, fg="red")
        for line in lines:
            echo(line)
        if out is not None:
            echo(f"  trace: {out / f'finding-{new.index(group[0]) + 1}.jsonl'}")
    for finding in exploration.findings:
        if finding not in new:
            echo(f"in the baseline: {finding.name}")
    for line in exploration.lines:
        echo(line, err=True)
    if (path := options["page"]) is not None:
        write_matrix(exploration, path)
    if (path := options["junit"]) is not None:
        path.write_text(junit(exploration, known), encoding="utf-8")
    if (path := options["write_baseline"]) is not None:
        path.write_text(baseline(exploration), encoding="utf-8")
    echo(exploration.summary, err=True)
    return 1 if new else 0
