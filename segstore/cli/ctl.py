"""`segstore ctl`: steers a running server through its HTTP API.

Exit status: 0; 1 if the server refuses, or what was to be verified does not hold; 2 for wrong options. Requests go to
the given URL only, without proxies of the environment and without redirects.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from segstore.cli.api import URL, Api, completed, pass_api, quoted, read_token
from segstore.cli.contents import CONTENTS, after
from segstore.cli.terminal import EXISTING_FILE, INPUT_FILE, Finite, Listing, NewPath, let_options_follow

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.server.faults import FaultSettings


_READ_BYTES: Final = 4 * 1024 * 1024


@click.group()
@click.option(
    "--url",
    metavar="URL",
    default=lambda: os.environ.get("SEGSTORE_URL", URL),
    show_default=URL,
    help="Address of the HTTP API; the environment variable SEGSTORE_URL gives it, too.",
)
@click.option(
    "--token-file",
    type=EXISTING_FILE,
    metavar="FILE",
    help="File with the token of the server (serve --http-token-file).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answers of the API as JSON.")
@click.pass_context
def ctl(context: click.Context, url: str, token_file: Path | None, as_json: bool) -> None:
    """Steer a running server, and show what it holds.

    The server, or a tap, is started with --http-port. The options may also follow the sub-command.
    """
    context.obj = Api(url, read_token(token_file), as_json=as_json)


def _name(listed: str, *, required: bool = True) -> Callable[..., Any]:
    """The argument NAME, which is completed with the names in a list of the API."""

    def names(api: Api, _: str) -> list[str]:
        return [each["name"] for each in api.ask("GET", listed)["rules" if listed == "faults" else listed]]

    return click.argument("name", required=required, shell_complete=completed(names))


@ctl.group(cls=Listing)
def faults() -> None:
    """List, add, replace, remove and release fault rules, and show what they have done."""


@faults.command("list")
@pass_api
def list_faults(api: Api) -> None:
    """List the rules and their counts."""
    _show_rules(api, api.ask("GET", "faults"))


def _show_rules(api: Api, found: Any) -> None:
    api.show(found, ("name", "matched", "fired", "held", "enabled"), "rules")


_fault_file = click.option(
    "-f", "--file", "file", required=True, metavar="FILE|-", type=INPUT_FILE, help="Fault file (YAML or JSON)."
)


@faults.command("add")
@_fault_file
@pass_api
def add_faults(api: Api, file: Path) -> None:
    """Add the rules and toxics of a fault file to those that there are."""
    settings = _read_faults(file)
    for each in ("seed", "round_trip_ms"):
        if each in settings.model_fields_set:
            raise click.ClickException(f"{file}: {each} replaces that of the server; use faults replace")
    for rule in settings.rules:
        api.show(api.ask("POST", "faults", rule.model_dump(mode="json")))
    for toxic in settings.toxics:
        api.show(api.ask("POST", "toxics", toxic.model_dump(mode="json")))


@faults.command("replace")
@_fault_file
@pass_api
def replace_faults(api: Api, file: Path) -> None:
    """Replace all rules and toxics, the seed and the round-trip time by a fault file."""
    _show_rules(api, api.ask("PUT", "faults", _read_faults(file).model_dump(mode="json")))


def _read_faults(file: Path) -> FaultSettings:
    from segstore.server.faults import FaultFileError, read_faults

    try:
        return read_faults(file)
    except FaultFileError as error:
        raise click.ClickException(str(error)) from error


@faults.command("remove")
@_name("faults", required=False)
@pass_api
def remove_fault(api: Api, name: str | None) -> None:
    """Remove a rule, or all, and release what they hold."""
    api.show(api.ask("DELETE", "faults" if name is None else f"faults/{quoted(name)}"))


@faults.command("release")
@_name("faults")
@pass_api
def release_fault(api: Api, name: str) -> None:
    """Release what a rule holds now."""
    api.show(api.ask("POST", f"faults/{quoted(name)}/release"))


@faults.command()
@click.option("--rule", metavar="NAME", help="Only decisions of this rule.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only decisions with a greater number.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Maximum number.")
@pass_api
def decisions(api: Api, **given: Any) -> None:
    """List what the rules have done, oldest first."""
    columns = ("number", "rule", "action", "nth", "connection", "direction", "type", "segments", "event_number")
    api.show(api.ask("GET", "decisions", **given), columns, "decisions")


@faults.command()
@pass_api
def unmatched(api: Api) -> None:
    """Show the rules that never matched or never fired; the exit status is 1 if there are any."""
    found = api.ask("GET", "unmatched")
    api.show_texts(found, "unmatched", str)
    if found["unmatched"]:
        raise SystemExit(1)


@faults.command("round-trip")
@click.argument("milliseconds", type=Finite(0), metavar="MS")
@pass_api
def round_trip(api: Api, milliseconds: float) -> None:
    """Set the minimum delay of every reply."""
    api.show(api.ask("PUT", "round-trip", {"round_trip_ms": milliseconds}))


@ctl.group(cls=Listing)
def toxics() -> None:
    """List and remove toxics; `faults add` adds those of a file."""


@toxics.command("list")
@pass_api
def list_toxics(api: Api) -> None:
    """List the toxics, and how many connections have each."""
    api.show(api.ask("GET", "toxics"), ("name", "connections", "toxic"), "toxics")


@toxics.command("remove")
@_name("toxics", required=False)
@pass_api
def remove_toxic(api: Api, name: str | None) -> None:
    """Remove a toxic, or all."""
    api.show(api.ask("DELETE", "toxics" if name is None else f"toxics/{quoted(name)}"))


@ctl.group(cls=Listing)
def connections() -> None:
    """List the connections of clients, and close them."""


@connections.command("list")
@pass_api
def list_connections(api: Api) -> None:
    """List the open connections."""
    columns = ("number", "store", "peer", "writers", "bytes_in", "bytes_out", "held_bytes")
    api.show(api.ask("GET", "connections"), columns, "connections")


@connections.command("cut")
@click.argument("number", type=int, required=False)
@pass_api
def cut_connections(api: Api, number: int | None) -> None:
    """Close a connection, or all, at once, as a failing network does."""
    api.show(api.ask("DELETE", "connections" if number is None else f"connections/{number}"))


@ctl.group(cls=Listing)
def record() -> None:
    """Start, stop, download and delete recordings of the traffic."""


@record.command("start")
@click.argument("name", default="")
@click.option("--max-bytes", type=click.IntRange(1), metavar="BYTES", help="Where it ends; 64 MiB by default.")
@pass_api
def start_recording(api: Api, name: str, max_bytes: int | None) -> None:
    """Start a recording; its name is printed."""
    given = {"name": name, **({} if max_bytes is None else {"max_bytes": max_bytes})}
    api.show(api.ask("POST", "recordings", given))


@record.command("list")
@pass_api
def list_recordings(api: Api) -> None:
    """List the recordings."""
    api.show(api.ask("GET", "recordings"), ("name", "running", "records", "size", "problem"), "recordings")


@record.command("stop")
@_name("recordings")
@pass_api
def stop_recording(api: Api, name: str) -> None:
    """Stop a recording; the exit status is 1 if it ended at its limit before."""
    api.show(api.ask("POST", f"recordings/{quoted(name)}/stop"))


@record.command("download")
@_name("recordings")
@click.argument("file", type=NewPath(dir_okay=False, path_type=Path))
@pass_api
def download_recording(api: Api, name: str, file: Path) -> None:
    """Write what a recording has so far to a new FILE, .wtrace, .jsonl or .pcapng, or to standard output (-)."""
    from segstore.traces import STANDARD_OUTPUT, UnknownSuffix, capture_for, finish, replacing

    path = f"recordings/{quoted(name)}/trace"
    if file == STANDARD_OUTPUT:
        api.download(path, sys.stdout.buffer, form="jsonl")
        return
    try:
        capture = capture_for(file)
        with replacing(capture) as part:
            api.download(path, part)
        finish(capture, file)
    except UnknownSuffix as error:
        raise click.UsageError(str(error)) from error


@record.command("delete")
@_name("recordings")
@pass_api
def delete_recording(api: Api, name: str) -> None:
    """Delete a recording."""
    api.show(api.ask("DELETE", f"recordings/{quoted(name)}"))


_match = click.argument("match", default="", metavar="[FILTER]")


@ctl.command()
@_match
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Maximum number.")
@pass_api
def requests(api: Api, match: str, limit: int) -> None:
    """List the latest requests that match a filter, newest first."""
    found = api.ask("GET", "requests", match=match, limit=limit)
    api.show(found, ("number", "connection", "type", "segments", "streams", "stage", "reply", "faults"), "requests")


@ctl.command()
@click.argument("prefix", default="", metavar="[PREFIX]")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")
@after
@pass_api
def segments(api: Api, prefix: str, **page: Any) -> None:
    """List segments whose names begin with PREFIX."""
    found = api.ask("GET", "segments", prefix=prefix, **page)
    api.show(found, ("name", "store", "container", "start_offset", "length", "sealed"), "segments")


@ctl.command()
@pass_api
def containers(api: Api) -> None:
    """List containers and their owners."""
    api.show(api.ask("GET", "containers"), ("container", "store", "address", "open", "segments"), "containers")


@ctl.command()
@click.argument("segment")
@pass_api
def read(api: Api, segment: str) -> None:
    """Write the bytes of a segment to standard output, from its start offset."""
    about = api.ask("GET", f"segments/{quoted(segment)}")
    at = about["start_offset"]
    while at < about["length"]:
        limit = min(about["length"] - at, _READ_BYTES)
        api.download(f"bytes/{quoted(segment)}", sys.stdout.buffer, limit=limit, **{"from": at})
        at += limit


@ctl.group(cls=Listing)
def stores() -> None:
    """List the stores; stop and start one of several in one process."""


@stores.command("list")
@pass_api
def list_stores(api: Api) -> None:
    """List the stores and their addresses."""
    columns = ("store", "address", "admin_address", "upstream", "serving")
    api.show(api.ask("GET", "server"), columns, "stores")


@stores.command("stop")
@click.argument("number", type=int)
@click.option("--drain-s", type=Finite(0, 10), default=0.0, show_default=True, help="Time to send replies; 0 cuts.")
@pass_api
def stop_store(api: Api, number: int, drain_s: float) -> None:
    """Stop a store; the others take its containers."""
    api.show(api.ask("POST", f"stores/{number}/stop", drain_s=drain_s))


def _store_command(name: str, text: str) -> None:
    @stores.command(name, help=text)
    @click.argument("number", type=int)
    @pass_api
    def command(api: Api, number: int) -> None:
        api.show(api.ask("POST", f"stores/{number}/{name}"))


_store_command("start", "Restart a store on its port; it takes its share of the containers.")
_store_command("expire-session", "Expire a store's session with the coordination service.")
_store_command("cut-session", "Disconnect a store from the coordination service.")
_store_command("heal-session", "Reconnect a store to the coordination service.")


@ctl.group(cls=Listing)
def snapshot() -> None:
    """List, take, restore and delete snapshots of all data."""


@snapshot.command("list")
@pass_api
def list_snapshots(api: Api) -> None:
    """List the snapshots."""
    api.show(api.ask("GET", "snapshots"), ("name", "segments", "size"), "snapshots")


def _snapshot_command(name: str, method: str, suffix: str, text: str) -> None:
    @snapshot.command(name, help=text)
    @_name("snapshots")
    @pass_api
    def command(api: Api, name: str) -> None:
        api.show(api.ask(method, f"snapshots/{quoted(name)}{suffix}"))


_snapshot_command("take", "PUT", "", "Take a snapshot, and replace one of this name.")
_snapshot_command("delete", "DELETE", "", "Delete a snapshot.")


@snapshot.command()
@_name("snapshots")
@pass_api
def restore(api: Api, name: str) -> None:
    """Restore a snapshot; cuts all connections, removes fault rules."""
    _show_replaced(api, f"snapshots/{quoted(name)}/restore", f"snapshot {name} is restored")


def _show_replaced(api: Api, path: str, said: str) -> None:
    """Prints that a request has replaced all data, and how many connections it has cut."""
    found = api.ask("POST", path)
    api.show(found if api.as_json else {said: f"{found['connections']} connections were cut"})


@ctl.command()
@pass_api
def reset(api: Api) -> None:
    """Remove all data and fault rules; cuts all connections."""
    _show_replaced(api, "reset", "all data and fault rules are removed")


@ctl.command()
@click.option("--end", is_flag=True, help="Keep requests no longer, and forget them.")
@pass_api
def keep(api: Api, end: bool) -> None:
    """Keep requests on a tap, or again on a server; a server with an HTTP port does so from its start."""
    api.show(api.ask("DELETE" if end else "POST", "requests/keep"))


_STAGES: Final = click.Choice(["received", "applied", "refused", "replied"])


@ctl.command()
@_match
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Number of requests.")
@click.option("--stage", type=_STAGES, default="applied", show_default=True, help="Stage to reach.")
@click.option("--timeout-s", type=Finite(0, 50), default=5.0, show_default=True, help="Deadline.")
@click.option("--since", type=click.IntRange(0), default=0, help="Only requests with a greater number.")
@pass_api
def wait(api: Api, match: str, **given: Any) -> None:
    """Wait until requests that match a filter have reached a stage."""
    api.show(api.ask("GET", "requests/wait", match=match, **given))


@ctl.command()
@_match
@click.option("--exactly", type=click.IntRange(0), help="The number of requests.")
@click.option("--at-least", type=click.IntRange(0), help="The lowest number.")
@click.option("--at-most", type=click.IntRange(0), help="The highest number.")
@click.option("--stage", type=_STAGES, default="received", show_default=True, help="Stage to have reached.")
@click.option("--since", type=click.IntRange(0), default=0, help="Only requests with a greater number.")
@pass_api
def verify(api: Api, match: str, **given: Any) -> None:
    """Verify the number of requests that match a filter."""
    if all(given[bound] is None for bound in ("exactly", "at_least", "at_most")):
        raise click.UsageError("one of --exactly, --at-least and --at-most is needed")
    api.show(api.ask("GET", "requests/verify", match=match, **given))


@ctl.command()
@click.option("--after", type=click.IntRange(0), default=0, help="Only problems with a greater number.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Maximum number.")
@pass_api
def problems(api: Api, **given: Any) -> None:
    """List the requests that the trace of a replay does not answer, oldest first."""
    api.show_texts(api.ask("GET", "problems", **given), "problems", lambda each: f"{each['number']}: {each['detail']}")


for _each in CONTENTS:
    ctl.add_command(_each)
let_options_follow(ctl, Api.changed)
