"""`segstore ctl`: steers a running server through its HTTP API.

Exit status: 0; 1 if the server refuses, or what was to be verified does not hold; 2 for wrong options. Requests go to
the given URL only, without proxies of the environment and without redirects.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

from segstore.cli.api import URL, Api, pass_api, quoted, read_token
from segstore.cli.contents import CONTENTS


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
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with the token of the server (serve --http-token-file).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answers of the API as JSON.")
@click.pass_context
def ctl(context: click.Context, url: str, token_file: Path | None, as_json: bool) -> None:
    """Steer a running server, and show what it holds.

    The server is started with --http-port.
    """
    context.obj = Api(url, read_token(token_file), as_json=as_json)


@ctl.group()
def faults() -> None:
    """List, add, remove and release fault rules."""


@faults.command("list")
@pass_api
def list_faults(api: Api) -> None:
    """List the rules and their counts."""
    api.show(api.ask("GET", "faults"), ("name", "matched", "fired", "held", "enabled"), "rules")


@faults.command("add")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@pass_api
def add_fault(api: Api, file: Path) -> None:
    """Add the rules of a fault file (YAML or JSON)."""
    from segstore.server.faults import FaultFileError, read_faults

    try:
        settings = read_faults(file)
    except FaultFileError as error:
        raise click.ClickException(str(error)) from error
    for each in settings.rules:
        api.show(api.ask("POST", "faults", each.model_dump(mode="json")))


@faults.command("remove")
@click.argument("name", required=False)
@pass_api
def remove_fault(api: Api, name: str | None) -> None:
    """Remove a rule, or all, and release what they hold."""
    api.show(api.ask("DELETE", "faults" if name is None else f"faults/{quoted(name)}"))


@faults.command("release")
@click.argument("name")
@pass_api
def release_fault(api: Api, name: str) -> None:
    """Release what a rule holds now."""
    api.show(api.ask("POST", f"faults/{quoted(name)}/release"))


_match = click.argument("match", default="", metavar="[FILTER]")


@ctl.command()
@_match
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Maximum number.")
@pass_api
def requests(api: Api, match: str, limit: int) -> None:
    """List the latest requests that match a filter, newest first."""
    found = api.ask("GET", "requests", match=match, limit=limit)
    api.show(found, ("number", "connection", "type", "segments", "stage", "reply", "faults"), "requests")


@ctl.command()
@click.argument("prefix", default="", metavar="[PREFIX]")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")
@pass_api
def segments(api: Api, prefix: str, limit: int) -> None:
    """List segments whose names begin with PREFIX."""
    found = api.ask("GET", "segments", prefix=prefix, limit=limit)
    api.show(found, ("name", "store", "container", "start_offset", "length", "sealed"), "segments")


@ctl.command()
@pass_api
def containers(api: Api) -> None:
    """List containers and their owners."""
    api.show(api.ask("GET", "containers"), ("container", "store", "address", "open", "segments"), "containers")


@ctl.group()
def snapshot() -> None:
    """List, take, restore and delete snapshots of all data."""


@snapshot.command("list")
@pass_api
def list_snapshots(api: Api) -> None:
    """List the snapshots."""
    api.show(api.ask("GET", "snapshots"), ("name", "segments", "size"), "snapshots")


def _snapshot_command(name: str, method: str, suffix: str, text: str) -> None:
    @snapshot.command(name, help=text)
    @click.argument("name")
    @pass_api
    def command(api: Api, name: str) -> None:
        api.show(api.ask(method, f"snapshots/{quoted(name)}{suffix}"))


_snapshot_command("take", "PUT", "", "Take a snapshot, and replace one of this name.")
_snapshot_command("restore", "POST", "/restore", "Restore a snapshot; cuts all connections, removes fault rules.")
_snapshot_command("delete", "DELETE", "", "Delete a snapshot.")


@ctl.command()
@pass_api
def reset(api: Api) -> None:
    """Remove all data and fault rules; cuts all connections."""
    api.show(api.ask("POST", "reset"))


@ctl.command()
@pass_api
def keep(api: Api) -> None:
    """Keep requests from now on, for wait and verify."""
    api.show(api.ask("POST", "requests/keep"))


_STAGES: Final = click.Choice(["received", "applied", "refused", "replied"])


@ctl.command()
@_match
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Number of requests.")
@click.option("--stage", type=_STAGES, default="applied", show_default=True, help="Stage to reach.")
@click.option("--timeout-s", type=click.FloatRange(0, 50), default=5.0, show_default=True, help="Deadline.")
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
    api.show(api.ask("GET", "requests/verify", match=match, **given))


for _each in CONTENTS:
    ctl.add_command(_each)
