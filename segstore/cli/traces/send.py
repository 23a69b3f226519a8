"""`segstore send`: sends the requests of traces to a store, and compares its replies with the trace or another store's.

Exit status: 0 if no reply differs; 1 otherwise, with the differences on standard output; 2 for wrong options.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from segstore.cli.terminal import EXISTING_FILE, MAX_WAIT_S, Finite, Rereadable, ca_option, echo, file_option
from segstore.cli.traces.records import PACE, address, ignore_option, records_of, report_left_out
from segstore.cli.traces.report import MASTER, errors_reported, spark_session

if TYPE_CHECKING:
    from segstore.pipeline.replay_plan import PartOutcome
    from segstore.traces import Access, Drive
    from segstore.wire.endpoint import Endpoint
    from segstore.wire.trace import Record

_MOST_SHOWN: Final = 20
_UPSTREAM: Final = "[tls://]HOST:PORT"
_ONE_STORE: Final = ("to_controller", "ca", "token_file", "all_differences", "pace")
_ALONE: Final = {"parts": (*_ONE_STORE, "against"), "against": (*_ONE_STORE, "master")}
"""Options that an option excludes."""


def upstream(text: str) -> tuple[Endpoint, bool]:
    """Parses an address, [tls://]HOST:PORT; returns it, and whether to use TLS."""
    scheme, separator, where = text.rpartition("://")
    if separator and scheme not in ("tcp", "tls"):
        raise click.BadParameter(f"{scheme}:// is neither tls:// nor tcp://")
    return address(where), scheme == "tls"


@click.command(short_help="Send the requests of a trace to a store.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=Rereadable())
@click.option(
    "--to", "target", type=upstream, metavar=_UPSTREAM, required=True, help="The store to send the requests to."
)
@click.option(
    "--against",
    type=address,
    metavar="HOST:PORT",
    help="Send them to this store, too, and compare the replies of the two stores.",
)
@click.option(
    "--to-controller",
    type=upstream,
    metavar=_UPSTREAM,
    help="Make the controller calls of the trace to this controller, and compare its answers. Credentials are read "
    "from SEGSTORE_CLIENT_USERNAME and SEGSTORE_CLIENT_PASSWORD, or SEGSTORE_CLIENT_BEARER_TOKEN.",
)
@ca_option
@file_option(
    "--token-file",
    "File with the delegation token of all requests; default: the controller's tokens, or else the trace's.",
)
@click.option("--all", "all_differences", is_flag=True, help="Continue after the first difference.")
@PACE
@click.option(
    "--timeout-s",
    type=Finite(0, MAX_WAIT_S, min_open=True),
    default=5.0,
    show_default=True,
    help="Time to wait for a reply.",
)
@ignore_option("Field that may differ; can be repeated, and then replaces the defaults.")
@click.option(
    "--parts",
    type=click.IntRange(1),
    metavar="N",
    help="Send at most N independent parts of the traces at once, on Spark; TRACE may be a folder, a glob or a URL.",
)
@MASTER
def send(traces: tuple[str, ...], target: tuple[tuple[str, int], bool], **options: Any) -> int:
    """Send the requests of a trace to a store, and compare its replies with the replies in the trace.

    The store should be empty at the start. With --against, the replies of two stores are compared, both empty at the
    start. With --to-controller, the controller calls of the trace are made, too.

    With --parts, connections that name the same segment or writer are in one part, and each part is a Spark task.
    Machines that run tasks need local traces at the same paths.
    """
    import asyncio

    context = click.get_current_context()

    def given(option: str) -> bool:
        return context.get_parameter_source(option) is ParameterSource.COMMANDLINE

    for first, others in _ALONE.items():
        for other in filter(given, others if given(first) else ()):
            raise click.UsageError(f"--{first} does not go with {_name(other)}", context)
    if given("master") and not given("parts"):
        raise click.UsageError("--master goes with --parts", context)
    if target[1] and (given("parts") or given("against")):
        raise click.UsageError("tls:// goes neither with --parts nor with --against", context)
    if options["parts"] is not None:
        return _send_parts(traces, target[0], options)
    if len(traces) > 1:
        raise click.UsageError("several traces go with --parts", context)
    records = records_of(EXISTING_FILE.convert(traces[0], None, context))
    try:
        return asyncio.run(_send(records, target, options))
    except ValueError as error:
        raise click.UsageError(str(error), context) from error


def _name(option: str) -> str:
    return "--all" if option == "all_differences" else f"--{option.replace('_', '-')}"


async def _authorization() -> str:
    """Returns the metadata `authorization` for the credentials in the environment, or "". Raises UsageError."""
    from segstore.cli.pravega import ClusterOptions
    from segstore.client import Basic

    settings = ClusterOptions("", None).settings()
    if settings.username is not None and settings.password is not None:
        return await Basic(settings.username, settings.password.get_secret_value()).authorization()
    return "" if settings.bearer_token is None else f"Bearer {settings.bearer_token.get_secret_value().strip()}"


async def _access(tls: bool, options: dict[str, Any]) -> Access:
    """Returns the access to store and controller of --to. Raises UsageError, ValueError, and OSError for a file."""
    from segstore.server.auth import read_secret
    from segstore.traces import Access

    if options["to_controller"] is not None and options["to_controller"][1] != tls:
        raise ValueError("--to and --to-controller: either both speak TLS or none")
    if options["ca"] is not None and not tls:
        raise ValueError("--ca goes with --to tls://HOST:PORT")
    token = None if options["token_file"] is None else read_secret(options["token_file"])
    authorization = "" if options["to_controller"] is None else await _authorization()
    if tls:
        return Access.over_tls(options["ca"], authorization=authorization, token=token)
    return Access(authorization=authorization, token=token)


async def _send(records: list[Record], target: tuple[tuple[str, int], bool], options: dict[str, Any]) -> int:
    from segstore.traces import diff_stores, drive
    from segstore.wire.trace import Direction, RecordKind

    (host, port), tls = target
    timeout_s, ignore, other = options["timeout_s"], options["ignore"], options["against"]
    if other == (host, port):
        raise ValueError(f"both stores are {host}:{port}; give two different stores")
    if other is not None:
        drove = await diff_stores(records, (host, port), other, timeout_s=timeout_s, ignore=ignore)
        return _compared(drove, f"{host}:{port}", f"{other[0]}:{other[1]}")
    drove = await drive(
        records,
        host,
        port,
        controller=None if options["to_controller"] is None else options["to_controller"][0],
        access=await _access(tls, options),
        timeout_s=timeout_s,
        pace=options["pace"],
        ignore=ignore,
        all_differences=options["all_differences"],
    )
    report_left_out(drove.left_out, "controller calls")
    calls = sum(record.kind is RecordKind.CALL and record.direction is Direction.REQUEST for record in records)
    if calls and options["to_controller"] is None:
        echo(f"controller calls left out: {calls}; --to-controller HOST:PORT makes them", err=True)
    return _compared(drove, "in the trace", "the server's")


def _compared(drove: Drive, left: str, right: str) -> int:
    """Prints the differences of a run; left, right: whose replies they are. Returns the exit status."""
    from segstore.traces import report

    for cut in drove.cuts:
        echo(cut, err=True)
    for difference in drove.differences:
        for line in report(difference, left=left, right=right):
            echo(line)
    calls = f" {drove.calls} controller calls," if drove.calls else ""
    echo(f"{drove.requests} requests, {drove.replies} replies,{calls} {len(drove.differences)} differ", err=True)
    return 1 if drove.differences else 0


def _send_parts(traces: tuple[str, ...], target: tuple[str, int], options: dict[str, Any]) -> int:
    from segstore.pipeline.replay_plan import LINK_COLUMNS, REPLAY_COLUMNS, links, plan
    from segstore.pipeline.trace.files import find_traces

    with errors_reported():  # those that need no Spark are reported before it is started
        files = find_traces(traces)
    with errors_reported(), spark_session(options["master"], files) as spark:
        from segstore.pipeline.replay_plan import replay as run

        reader = spark.read.format("segstore.trace").option("paths", json.dumps(files)).option("tokens", "true")
        columns = ",".join((*LINK_COLUMNS, "kind", "fields"))
        parts = plan(links(reader.option("columns", columns).load()), options["parts"])
        for part in parts.parts:
            echo(f"part {part.number}: {len(part.connections)} connections, {part.records} records", err=True)
        rows = reader.option("columns", ",".join(REPLAY_COLUMNS)).load().where("kind <> 'skipped'")
        outcomes = run(rows, parts, partial(send_part, *target, options["timeout_s"], options["ignore"]))
    return _summed(outcomes)


def send_part(
    host: str, port: int, timeout_s: float, ignore: frozenset[str], part: int, records: list[Record]
) -> PartOutcome:
    """Sends one part, as one task. Raises OSError if the store cannot be reached."""
    import asyncio

    from segstore.pipeline.replay_plan import PartOutcome
    from segstore.traces import drive

    drove = asyncio.run(drive(records, host, port, timeout_s=timeout_s, ignore=ignore, all_differences=True))
    shown = [str(difference) for difference in drove.differences[:_MOST_SHOWN]]
    return PartOutcome(part, drove.requests, drove.replies, len(drove.differences), shown)


def _summed(outcomes: list[PartOutcome]) -> int:
    """Prints the differences of all parts. Returns the exit status."""
    status = 0
    for outcome in outcomes:
        for line in outcome.differences:
            echo(f"part {outcome.part}: {line}")
        if outcome.error is not None:
            echo(f"part {outcome.part}: {outcome.error}", err=True)
        status |= outcome.different > 0 or outcome.error is not None
    requests, replies = sum(outcome.requests for outcome in outcomes), sum(outcome.replies for outcome in outcomes)
    differ = sum(outcome.different for outcome in outcomes)
    echo(f"{len(outcomes)} parts, {requests} requests, {replies} replies, {differ} differ", err=True)
    return status
