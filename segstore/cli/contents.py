"""The commands of `segstore ctl` that show what a cluster holds: scopes, streams, transactions, groups, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import click

from segstore.cli.api import Api, completed, pass_api, quoted
from segstore.cli.terminal import Listing, echo

_PAGE: Final = 500
_limit = click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="Maximum number.")
after = click.option("--after", metavar="NAME", help="Only what comes after this, as the previous page names it.")


def _two(text: str) -> str:
    """The path of `SCOPE/NAME`. Raises UsageError."""
    scope, slash, name = text.partition("/")
    if not (scope and slash and name) or "/" in name:
        raise click.UsageError(f"{text!r} is not SCOPE/NAME")
    return f"{quoted(scope)}/{quoted(name)}"


def _one_line(text: str) -> str:
    """Joins the lines of indented JSON."""
    return " ".join(each.strip() for each in text.splitlines())


def _name(kind: str, *, required: bool = True) -> Callable[..., Any]:
    """An argument that is completed: `SCOPE`, and for a kind of resource `SCOPE/NAME`."""

    def names(api: Api, incomplete: str) -> list[str]:
        scope, slash, _ = incomplete.partition("/")
        if not slash or not kind:
            return [f"{each}/" if kind else each for each in api.ask("GET", "scopes")["scopes"]]
        listed = api.ask("GET", f"{kind}s/{quoted(scope)}", limit=500)[f"{kind}s"]
        return [f"{scope}/{each[kind]}" for each in listed]

    metavar = f"SCOPE/{kind.upper()}" if kind else "SCOPE" if required else "[SCOPE]"
    return click.argument("name", metavar=metavar, required=required, shell_complete=completed(names))


def _list(api: Api, kind: str, scope: str | None, columns: tuple[str, ...], **page: Any) -> None:
    """Lists the objects of a kind in a scope, or, without one, all in all scopes, up to the limit."""
    if scope is not None:
        api.show(api.ask("GET", f"{kind}/{quoted(scope)}", **page), columns, kind)
        return
    if page["after"] is not None:
        raise click.UsageError("--after goes with a SCOPE")
    rows = (
        {"scope": scope, **row}
        for scope in _every(api, "scopes", "scopes")
        for row in _every(api, f"{kind}/{quoted(scope)}", kind, internal=page.get("internal"))
    )
    shown = list(islice(rows, page["limit"] + 1))
    if len(shown) > page["limit"]:
        echo("segstore: there are more: --limit N lists N, and SCOPE one scope", err=True)
    api.show({kind: shown[: page["limit"]]}, ("scope", *columns), kind)


def _every(api: Api, path: str, rows: str, **query: Any) -> Iterator[Any]:
    """The entries of all pages of a list."""
    after: str | None = None
    while True:
        page = api.ask("GET", path, limit=_PAGE, after=after, **query)
        yield from page[rows]
        if (after := page.get("next")) is None:
            return


@click.group(cls=Listing)
def scopes() -> None:
    """List and show scopes."""


@scopes.command("list")
@_limit
@after
@pass_api
def list_scopes(api: Api, **page: Any) -> None:
    """List the names of scopes."""
    found = api.ask("GET", "scopes", **page)
    api.show(
        found if api.as_json else {**found, "scopes": [{"scope": each} for each in found["scopes"]]},
        ("scope",),
        "scopes",
    )


@scopes.command("show")
@_name("")
@pass_api
def show_scope(api: Api, name: str) -> None:
    """Show a scope."""
    api.show(api.ask("GET", f"scopes/{quoted(name)}"))


@click.group(cls=Listing)
def streams() -> None:
    """List and show streams, their segments and their last events."""


@streams.command("list")
@_name("", required=False)
@_limit
@after
@click.option("--internal", is_flag=True, help="Also internal streams, whose names begin with _.")
@pass_api
def list_streams(api: Api, name: str | None, **page: Any) -> None:
    """List the streams of a scope, or of all."""
    columns = ("stream", "sealed", "epoch", "open_segments", "transactions", "tags")
    _list(api, "streams", name, columns, **page)


@streams.command("show")
@_name("stream")
@pass_api
def show_stream(api: Api, name: str) -> None:
    """Show a stream with its policies and tags."""
    api.show(api.ask("GET", f"streams/{_two(name)}"))


@streams.command("segments")
@_name("stream")
@_limit
@after
@click.option("--open", "open", is_flag=True, help="Only segments that take writes.")
@pass_api
def list_segments(api: Api, name: str, **page: Any) -> None:
    """List the segments of a stream, by epoch."""
    found = api.ask("GET", f"streams/{_two(name)}/segments", **page)
    columns = ("id", "epoch", "until_epoch", "low", "high", "status", "start_offset", "length", "store", "successors")
    api.show(found, columns, "segments")


@streams.command("tail")
@_name("stream")
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Events of each segment.")
@click.option("--segment", type=int, help="The id of a segment.")
@pass_api
def show_tail(api: Api, name: str, **page: Any) -> None:
    """Show the last events of the segments of a stream."""
    found = api.ask("GET", f"streams/{_two(name)}/tail", **page)
    if not api.as_json:
        found["events"] = [
            {**each, "segment": one["id"], "text": _one_line(each["text"])}
            for one in found["segments"]
            for each in one["events"]
        ]
    api.show(found, ("segment", "offset", "size", "kind", "text"), "events")


@click.group()
def transactions() -> None:
    """List and show the transactions of a stream that have not ended."""


@transactions.command("list")
@_name("stream")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Maximum number.")
@after
@pass_api
def list_transactions(api: Api, name: str, **page: Any) -> None:
    """List the transactions of a stream."""
    found = api.ask("GET", f"streams/{_two(name)}/transactions", **page)
    columns = ("id", "status", "age_ms", "lease_left_ms", "epoch", "segment_count", "bytes")
    api.show(found, columns, "transactions")


@transactions.command("show")
@_name("stream")
@click.argument("transaction", metavar="ID", type=click.UUID)
@pass_api
def show_transaction(api: Api, name: str, transaction: object) -> None:
    """Show a transaction and its segments."""
    found = api.ask("GET", f"streams/{_two(name)}/transactions/{transaction}")
    api.show_parts(found, {"segments": ("name", "length")})


@click.group(cls=Listing)
def groups() -> None:
    """List and show reader groups."""


@groups.command("list")
@_name("", required=False)
@_limit
@after
@pass_api
def list_groups(api: Api, name: str | None, **page: Any) -> None:
    """List the reader groups of a scope, or of all."""
    _list(api, "groups", name, ("group", "kind"), **page)


@groups.command("show")
@_name("group")
@pass_api
def show_group(api: Api, name: str) -> None:
    """Show a reader group: its readers, positions and lag."""
    columns = {
        "readers": ("reader", "segments", "lag_bytes"),
        "segments": ("name", "reader", "status", "offset", "length", "lag_bytes"),
    }
    api.show_parts(api.ask("GET", f"groups/{_two(name)}"), columns)


@click.group(cls=Listing)
def tables() -> None:
    """List and show key-value tables and their entries."""


@tables.command("list")
@_name("", required=False)
@_limit
@after
@pass_api
def list_tables(api: Api, name: str | None, **page: Any) -> None:
    """List the key-value tables of a scope, or of all."""
    _list(api, "tables", name, ("table", "partitions", "primary_key_bytes", "secondary_key_bytes"), **page)


@tables.command("show")
@_name("table")
@pass_api
def show_table(api: Api, name: str) -> None:
    """Show a key-value table and its partitions."""
    api.show_parts(api.ask("GET", f"tables/{_two(name)}"), {"segments": ("id", "name", "low", "high", "entries")})


@tables.command("entries")
@_name("table")
@_limit
@after
@pass_api
def list_entries(api: Api, name: str, **page: Any) -> None:
    """List the entries of a key-value table: keys and values as text, or in hex."""
    found = api.ask("GET", f"tables/{_two(name)}/entries", **page, **{"as": "readable"})
    if not api.as_json:
        for each in found["entries"]:
            for part in ("key", "value"):
                each[part] = _one_line(each[part].get("text") or each[part].get("hex") or "")
    api.show(found, ("key", "value", "version"), "entries")


CONTENTS: Final = (scopes, streams, transactions, groups, tables)
