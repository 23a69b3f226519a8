"""`segstore replay`: answers clients from a trace.

Exit status: 0 if all was as expected; 1 if something differs, with details on standard output.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from segstore.cli.terminal import (
    announce_option,
    choice_option,
    echo,
    http_token_file,
    log_to_stderr,
    port_option,
    reader_gone,
)
from segstore.cli.traces.records import PACE, TRACE, address, records_of, report_left_out

if TYPE_CHECKING:
    from segstore.server.replay import Problem, TraceServer
    from segstore.wire.endpoint import Endpoint
    from segstore.wire.trace import Record

_OF_TRACE_SERVERS: Final = ("host", "port", "mode", "missing", "upstream", "upstream_controller", "pace")

_MOST_PRINTED: Final = 100
"""Maximum number of problems that a replay prints; a client that retries has any number of them."""


@click.command(short_help="Answer clients from a trace.")
@TRACE
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address to listen on.")
@port_option("--port", "Port to listen on; 0: a free port.", 12345)
@port_option(
    "--controller-port",
    "Also serve a controller. It answers with the calls of the trace, or else knows the streams that it names.",
)
@port_option("--http-port", "Port of the HTTP API, which lists the problems; 0 picks a free port; disabled by default.")
@http_token_file
@announce_option
@choice_option(
    "--mode",
    ["strict", "match"],
    "strict requires the requests in the order of the trace; match accepts them in any order.",
)
@choice_option(
    "--missing",
    ["error", "close", "pass", "fail"],
    "For requests that the trace cannot answer: reply with ErrorMessage, close the connection, forward them to "
    "--upstream, or reply NoSuchSegment to them and all that follow, so that clients give up.",
)
@click.option("--upstream", type=address, metavar="HOST:PORT", help="Store to which --missing pass forwards requests.")
@click.option(
    "--upstream-controller",
    type=address,
    metavar="HOST:PORT",
    help="With --controller-port: controller to which --missing pass forwards calls.",
)
@PACE
def replay(trace: Path, **options: Any) -> int:
    """Answer clients from a trace, in place of a store. `segstore send` sends its requests to a store.

    It prints a line when it is listening, then lines for the first 100 requests that the trace cannot answer. At the
    end it lists the requests that no client has sent.
    """
    import asyncio

    context = click.get_current_context()
    if options["http_token_file"] is not None and options["http_port"] is None:
        raise click.UsageError("--http-token-file goes with --http-port", context)
    if (options["missing"] == "pass") != (options["upstream"] is not None):
        raise click.UsageError("--missing pass and --upstream HOST:PORT go together", context)
    if options["upstream_controller"] is not None and None in (options["upstream"], options["controller_port"]):
        raise click.UsageError("--upstream-controller goes with --missing pass and --controller-port", context)
    records = records_of(trace)
    try:
        return asyncio.run(_serve(records, options))
    except ValueError as error:
        raise click.UsageError(str(error), context) from error


async def _serve(records: list[Record], options: dict[str, Any]) -> int:
    from segstore.cli.serving import print_announcement, stopped_by_signal
    from segstore.server.replay import TraceServer, of_clients
    from segstore.wire.endpoint import Endpoint

    log_to_stderr()
    stop = stopped_by_signal()
    with_controller, as_json = options["controller_port"] is not None, options["announce"] == "json"

    printed = 0

    def tell(problem: Problem) -> None:
        nonlocal printed
        printed += 1
        if printed > _MOST_PRINTED:
            return
        if not as_json and reader_gone():
            stop.set()
            return
        for line in str(problem).splitlines():
            echo(line, err=as_json)
        if printed == _MOST_PRINTED:
            echo("further problems are only counted, and listed with --http-port", err=as_json)

    server = TraceServer(
        of_clients(records) if with_controller else records,
        tell=tell,
        **{name: options[name] for name in _OF_TRACE_SERVERS},
    )
    report_left_out(server.replay.left_out)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server)
        controller = http = None
        if with_controller:
            controller = await server.start_controller(records, server.host, options["controller_port"])
            report_left_out(server.left_out_calls, "controller calls")
        if options["http_port"] is not None:
            http = await _start_http(stack, server, controller, options)
        store = Endpoint(server.host, server.port)
        print_announcement(options["announce"], sys.stdout, segment_store=store, controller=controller, http=http)
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
