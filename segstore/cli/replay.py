"""`segstore replay | diff-stores | explore`: commands that answer clients, drive stores and test cuts with a trace.

Exit status: 0 if all was as expected; 1 if something differs or breaks, with details on standard output.
"""

from __future__ import annotations

import difflib
import logging
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from segstore.cli.terminal import EXISTING_FILE, MAX_WAIT_S, PORT, Finite, NewPath, echo, http_token_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segstore.explore import Exploration, Finding
    from segstore.server.replay import LeftOut, Problem, TraceServer
    from segstore.traces import Access, Drive
    from segstore.wire.endpoint import Endpoint
    from segstore.wire.trace import Record

F = TypeVar("F", bound="Callable[..., Any]")

_OF_TRACE_SERVERS: Final = ("host", "port", "mode", "missing", "upstream", "upstream_controller", "pace")
_OF_SERVERS: Final = (*_OF_TRACE_SERVERS[:-1], "controller_port", "http_port", "http_token_file", "announce")
_OF_DRIVING: Final = ("to_controller", "ca", "token_file", "all_differences", "timeout_s", "ignore")

_MOST_PRINTED: Final = 100
"""Problems that a replay prints, with the nearest requests; a client that retries has any number of them."""

_TRACE = click.argument("trace", type=EXISTING_FILE)


class Address(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """An address as `HOST:PORT`; `:PORT` is one of this machine."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        from segstore.wire.endpoint import Endpoint

        try:
            return Endpoint.parse(f"127.0.0.1{value}" if str(value).startswith(":") else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Upstream(click.ParamType):  # type: ignore[type-arg]  # not generic in older versions of click
    """An address as `Address`, or with `tls://` before it; and whether that is there."""

    name = "[tls://]HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, int], bool]:
        scheme, found, address = str(value).rpartition("://")
        if found and scheme not in ("tcp", "tls"):
            self.fail(f"{scheme}:// is neither tls:// nor tcp://", param, ctx)
        return Address().convert(address, param, ctx), scheme == "tls"


def _records(path: Path) -> list[Record]:
    """All records of a trace. Damage is printed; raises ClickException for a trace without requests."""
    from segstore.traces import TraceFile
    from segstore.wire.trace import RecordKind, TraceError

    try:
        with TraceFile(path) as opened:
            found = list(opened.records())
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    for damage in opened.damages:
        echo(f"{path}: {damage}", err=True)
    if not any(record.direction == 0 and record.kind in (RecordKind.FRAME, RecordKind.CALL) for record in found):
        raise click.ClickException(f"{path}: there is no request in it")
    return found


def _report_left_out(left_out: Sequence[LeftOut | str], what: str = "clients") -> None:
    """Reports records that can neither be answered nor made."""
    if left_out:
        echo(f"records of {what} left out: {len(left_out)}; {left_out[0]}", err=True)


def _pace(ctx: click.Context, option: click.Parameter, given: str) -> float | None:
    if given in ("max", "recorded"):
        return None if given == "max" else 1.0
    try:
        pace = float(given)
    except ValueError:
        sentence = f"{given!r} is neither max nor recorded nor a factor such as 2.5"
        raise click.BadParameter(sentence, ctx, option) from None
    from segstore.server.replay import check_pace

    try:
        check_pace(pace)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, option) from error
    return pace


def timeout_option(help_text: str) -> Callable[[F], F]:
    """`--timeout-s`: how long a command waits for a reply."""
    positive = Finite(0, MAX_WAIT_S, min_open=True)
    return click.option("--timeout-s", type=positive, default=5.0, show_default=True, help=help_text)


def _fields(ctx: click.Context, option: click.Parameter, given: tuple[str, ...], *, calls: bool) -> frozenset[str]:
    from segstore.wire import COMMANDS

    known = {field for command in COMMANDS.values() for field in command.__struct_fields__}
    if calls and not known.issuperset(given):
        from segstore.wire.trace import names_of_call_fields

        known |= names_of_call_fields()
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" ({near[0]}?)" if near else ""
            raise click.BadParameter(f"no command {'or call ' * calls}has a field {name!r}{hint}", ctx, option)
    return frozenset(given)


def ignore_option(help_text: str, *, calls: bool = False) -> Callable[[F], F]:
    """`--ignore`: fields that are not compared, as a set of names. calls: whether it may be one of a call."""
    return click.option(
        "--ignore",
        metavar="FIELD",
        multiple=True,
        callback=partial(_fields, calls=calls),
        default=("last_modified", "server_stack_trace"),
        show_default=True,
        help=help_text,
    )


@click.command(short_help="Answer clients from a trace, or send it to a store.")
@_TRACE
@click.option(
    "--to",
    "target",
    type=Upstream(),
    metavar=Upstream.name,
    help="Send the requests to this store, and compare its replies.",
)
@click.option(
    "--to-controller",
    type=Upstream(),
    metavar=Upstream.name,
    help="With --to: make the controller calls of the trace to this controller, and compare its answers. Credentials "
    "are read from SEGSTORE_CLIENT_USERNAME and SEGSTORE_CLIENT_PASSWORD, or SEGSTORE_CLIENT_BEARER_TOKEN.",
)
@click.option(
    "--ca",
    type=EXISTING_FILE,
    metavar="FILE",
    help="With --to: CA certificates to trust for tls:// (PEM); default: the system's.",
)
@click.option(
    "--token-file",
    type=EXISTING_FILE,
    metavar="FILE",
    help="With --to: file with the delegation token of all requests; default: those that the controller gives, or else "
    "those of the trace.",
)
@click.option(
    "--host", metavar="HOST", default="127.0.0.1", show_default=True, help="As a server: address to listen on."
)
@click.option(
    "--port",
    metavar="PORT",
    type=PORT,
    default=12345,
    show_default=True,
    help="As a server: port to listen on; 0 picks a free one.",
)
@click.option(
    "--controller-port",
    metavar="PORT",
    type=PORT,
    help="As a server: also serve a controller, which answers with the calls of the trace; if it has none, with the "
    "streams that it names.",
)
@click.option(
    "--http-port",
    metavar="PORT",
    type=PORT,
    help="As a server: port of the HTTP API, which lists the problems; 0 picks a free one; disabled by default.",
)
@http_token_file
@click.option(
    "--announce",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="As a server: format of the line that announces the addresses.",
)
@click.option(
    "--mode",
    type=click.Choice(["strict", "match"]),
    default="strict",
    show_default=True,
    help="As a server: strict requires the requests in the order of the trace; match accepts them in any order.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "close", "pass", "fail"]),
    default="error",
    show_default=True,
    help="As a server, for requests that the trace cannot answer: reply with ErrorMessage, close the connection, "
    "forward them to --upstream, or reply NoSuchSegment to them and all that follow, so that clients give up.",
)
@click.option("--upstream", type=Address(), help="Store to which --missing pass forwards requests.")
@click.option(
    "--upstream-controller",
    type=Address(),
    help="With --controller-port: controller to which --missing pass forwards calls.",
)
@click.option("--all", "all_differences", is_flag=True, help="With --to: continue after the first difference.")
@click.option(
    "--pace",
    metavar="PACE",
    default="max",
    show_default=True,
    callback=_pace,
    help="Speed: max, recorded, or a multiple of the recorded speed such as 2.5.",
)
@timeout_option("With --to: time to wait for a reply.")
@ignore_option("With --to: field that may differ; can be repeated, and then replaces the defaults.", calls=True)
def replay(trace: Path, target: tuple[tuple[str, int], bool] | None, **options: Any) -> int:
    """Answer clients from a trace or, with --to, send its requests to a store and compare the replies. With
    --to-controller, its controller calls are made, too.

    As a server, it prints a line when it is listening and one for each of the first 100 requests that the trace cannot
    answer. At the end it lists the requests that no client has sent.
    """
    import asyncio

    context = click.get_current_context()
    for option in _OF_SERVERS if target is not None else _OF_DRIVING:
        if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            name = "--all" if option == "all_differences" else f"--{option.replace('_', '-')}"
            goes = "goes with answering clients, not with --to" if target is not None else "goes with --to"
            raise click.UsageError(f"{name} {goes}", context)
    if options["http_token_file"] is not None and options["http_port"] is None:
        raise click.UsageError("--http-token-file goes with --http-port", context)
    if (options["missing"] == "pass") != (options["upstream"] is not None):
        raise click.UsageError("--missing pass and --upstream HOST:PORT go together", context)
    if options["upstream_controller"] is not None and None in (options["upstream"], options["controller_port"]):
        raise click.UsageError("--upstream-controller goes with --missing pass and --controller-port", context)
    records = _records(trace)
    try:
        return asyncio.run(_serve(records, options) if target is None else _drive(records, target, options))
    except ValueError as error:
        raise click.UsageError(str(error), context) from error


async def _authorization() -> str:
    """The value of that metadata for the credentials in the environment; "" if there are none. Raises UsageError."""
    from segstore.cli.pravega import Cluster
    from segstore.client import Basic

    settings = Cluster("", None).settings()
    if settings.username is not None and settings.password is not None:
        return await Basic(settings.username, settings.password.get_secret_value()).authorization()
    return "" if settings.bearer_token is None else f"Bearer {settings.bearer_token.get_secret_value().strip()}"


async def _access(tls: bool, options: dict[str, Any]) -> Access:
    """What the store and the controller of --to need. Raises UsageError, ValueError, and OSError for a file."""
    from segstore.server.secret_file import read_secret
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


async def _drive(records: list[Record], target: tuple[tuple[str, int], bool], options: dict[str, Any]) -> int:
    from segstore.traces import drive
    from segstore.wire.trace import Direction, RecordKind

    address, tls = target
    found = await drive(
        records,
        *address,
        controller=None if options["to_controller"] is None else options["to_controller"][0],
        access=await _access(tls, options),
        timeout_s=options["timeout_s"],
        pace=options["pace"],
        ignore=options["ignore"],
        all_differences=options["all_differences"],
    )
    _report_left_out(found.left_out, "controller calls")
    calls = sum(each.kind is RecordKind.CALL and each.direction is Direction.REQUEST for each in records)
    if calls and options["to_controller"] is None:
        echo(f"controller calls left out: {calls}; --to-controller HOST:PORT makes them", err=True)
    return _compared(found, "in the trace", "the server's")


def _compared(found: Drive, left: str, right: str) -> int:
    """Prints the differences of a run; left, right: whose replies they are. Returns the exit status."""
    from segstore.traces import report

    for difference in found.differences:
        for line in report(difference, left=left, right=right):
            echo(line)
    calls = f" {found.calls} controller calls," if found.calls else ""
    echo(f"{found.requests} requests, {found.replies} replies,{calls} {len(found.differences)} differ", err=True)
    return 1 if found.differences else 0


async def _serve(records: list[Record], options: dict[str, Any]) -> int:
    from segstore.cli.serving import print_announcement, stopped_by_signal
    from segstore.server.replay import TraceServer, of_clients
    from segstore.wire.endpoint import Endpoint

    stop = stopped_by_signal()
    with_controller, as_json = options["controller_port"] is not None, options["announce"] == "json"

    printed = 0

    def tell(problem: Problem) -> None:
        nonlocal printed
        printed += 1
        if printed > _MOST_PRINTED:
            return
        try:
            for line in str(problem).splitlines():
                echo(line, err=as_json)  # which flushes
            if printed == _MOST_PRINTED:
                echo("further problems are only counted, and listed with --http-port", err=as_json)
        except BrokenPipeError:  # the reader of the output has gone
            stop.set()

    server = TraceServer(
        of_clients(records) if with_controller else records,
        tell=tell,
        **{name: options[name] for name in _OF_TRACE_SERVERS},
    )
    _report_left_out(server.replay.left_out)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server)
        controller = http = None
        if with_controller:
            controller = await server.start_controller(records, server.host, options["controller_port"])
            _report_left_out(server.left_out_calls, "controller calls")
        if options["http_port"] is not None:
            http = await _start_http(stack, server, controller, options)
        print_announcement(options["announce"], Endpoint(server.host, server.port), controller, http=http)
        await stop.wait()
    if printed > _MOST_PRINTED:
        echo(f"and {printed - _MOST_PRINTED:,} more problems", err=True)
    for name, count in server.unused().items():
        echo(f"{count} × {name} of the trace was not requested", err=True)
    for line in server.missed():
        echo(f"  {line}", err=True)
    return 1 if server.problems else 0


async def _start_http(
    stack: AsyncExitStack, server: TraceServer, controller: Endpoint | None, options: dict[str, Any]
) -> Endpoint | None:
    """Serves the HTTP API of a replay until the stack is closed; returns its address."""
    from segstore.server.control_api import ControlApi, Controlled

    controlled = Controlled(replay=server, controller_address=lambda: controller)
    api = ControlApi(controlled, server.host, options["http_port"], token_file=options["http_token_file"])
    await api.start()
    stack.push_async_callback(api.stop)
    return api.address


@click.command("diff-stores", short_help="Send a trace to two stores and compare the replies.")
@_TRACE
@click.argument("left", type=Address())
@click.argument("right", type=Address())
@timeout_option("Time to wait for a reply.")
@ignore_option("Field that may differ; can be repeated, and then replaces the defaults.")
def diff_stores(
    trace: Path, left: tuple[str, int], right: tuple[str, int], timeout_s: float, ignore: frozenset[str]
) -> int:
    """Send the requests of a trace to two stores, and print the differences of their replies by field.

    Both must be empty at the start.
    """
    import asyncio

    from segstore.traces import replay as replaying

    if left == right:
        twice = f"both stores are {left[0]}:{left[1]}; give two different stores"
        raise click.UsageError(twice, click.get_current_context())
    found = asyncio.run(replaying.diff_stores(_records(trace), left, right, timeout_s=timeout_s, ignore=ignore))
    return _compared(found, f"{left[0]}:{left[1]}", f"{right[0]}:{right[1]}")


@click.command(short_help="Cut connections at every point and report the failures.")
@_TRACE
@click.option(
    "--client", metavar="COMMAND", help="Run this command, with {host} and {port}, or {controller}, filled in."
)
@click.option("-f", "--filter", "match", default="", metavar="EXPR", help="Cut only at matching requests.")
@click.option("--timeout-s", type=Finite(0, MAX_WAIT_S, min_open=True), default=10.0, show_default=True)
@click.option("--any-order", is_flag=True, help="Events of a segment may come in another order.")
@click.option("--out", type=NewPath(file_okay=False, path_type=Path), metavar="DIR", help="Write fixtures here.")
def explore(trace: Path, client: str | None, match: str, timeout_s: float, any_order: bool, out: Path | None) -> int:
    """Replay a trace once for each point at which its connection can be cut, and report the failures.

    Without --client, a client that reconnects and queries what was stored makes the requests of the trace. With it,
    that command runs once for each cut point of its own requests, and the result is compared with the trace: the
    events of its segments must be stored at the end.
    """
    import asyncio

    from segstore.explore import ClientFailed, CommandError, explore_command, explore_trace, words_of
    from segstore.server.replay import read_script
    from segstore.traces import make_folder
    from segstore.wire.trace import FilterError

    try:
        if client is not None:
            words_of(client)
    except CommandError as error:
        raise click.BadParameter(str(error), param_hint="--client") from error
    records = _records(trace)
    left_out: list[str] = []
    read_script(records, left_out)
    _report_left_out(left_out)
    if out is not None:
        make_folder(out)  # before the runs, which may take long
        if any(each.samefile(trace) for each in out.glob("finding-*.jsonl") if each.is_file()):
            raise click.BadParameter(f"{out} contains {trace}, which is being read", param_hint="--out")
    # A store warns of each cut and of errors in a shortened trace. Here these are intended.
    listener = logging.getLogger("segstore.server.connection.connection")
    listener.addFilter(_is_not_a_cut if client else _is_error)
    try:
        if client is None:
            found = asyncio.run(
                explore_trace(records, match=match, timeout_s=timeout_s, keep_order=not any_order, tell=_tell)
            )
        else:
            found = asyncio.run(
                explore_command(client, records, match=match, timeout_s=timeout_s, keep_order=not any_order, tell=_tell)
            )
    except FilterError as error:
        raise click.BadParameter(str(error), param_hint="--filter") from error
    except CommandError as error:
        raise click.ClickException(f"the client {error}") from error
    except (ClientFailed, OSError, ValueError) as error:
        raise click.ClickException(f"the run without faults: {error}") from error
    finally:
        listener.removeFilter(_is_not_a_cut if client else _is_error)
    return _explored(found, out)


def _tell(done: int, of: int, finding: Finding | None) -> None:
    """Shows progress on a terminal, and each finding at once; the report at the end has the details."""
    line = "\r\x1b[K" if sys.stderr.isatty() else ""
    if finding is not None:
        click.echo(line, err=True, nl=False)
        echo(f"broke: {finding.cut}", err=True)
    if line:
        click.echo(f"{line}{done} of {of} runs{line if done == of else ''}", err=True, nl=False)


def _is_not_a_cut(record: logging.LogRecord) -> bool:
    return "fault 'cut'" not in record.getMessage()


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _explored(found: Exploration, out: Path | None) -> int:
    from segstore.traces import write_trace
    from segstore.wire.trace import Metadata

    for number, finding in enumerate(found.findings, 1):
        for line in str(finding).splitlines():
            echo(line, fg="red")
        if out is not None:
            path = out / f"finding-{number}.jsonl"
            values = {"cut": str(finding.cut), "broken": "; ".join(finding.broken)}
            write_trace(path, finding.records, partial(Metadata, 17, "segstore explore", values))
            echo(f"  written to {path}")
    for line in found.unreached_lines:
        echo(line, err=True)
    echo(f"{found.runs} run{'s' if found.runs != 1 else ''}, {len(found.findings)} broke", err=True)
    if found.runs == 1:
        echo("nothing was cut: there was no request, or none that matches the filter", err=True)
    return 1 if found.findings else 0
