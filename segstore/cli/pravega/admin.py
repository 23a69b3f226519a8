"""`segstore admin`: lists, shows, creates, changes and deletes the scopes, streams and other objects of a cluster.

Exit status as in `segstore.cli.pravega.running`; 1 also if the object to create exists, or the object to delete does
not.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial, wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from segstore.cli.pravega.cluster import ClusterOptions, cluster_options, cut_of, part_name
from segstore.cli.terminal import Listing, cell_text, echo, let_options_follow, print_table, scoped_name

if TYPE_CHECKING:
    from segstore.cli.pravega.running import Interruption
    from segstore.client import Client, StreamConfig

Name = tuple[str, str]

_SCALE_MS: Final = 60_000
_MAX_INT: Final = (1 << 31) - 1
_MAX_LONG: Final = (1 << 63) - 1
_MAX_S: Final = timedelta.max // timedelta(seconds=1)
_MAX_KEY_BYTES: Final = 256
_MAX_SCALE: Final = 200_000
"""Number of segments that fit in a request of 4 MiB, the limit of gRPC servers."""


class Admin:
    """The cluster of a command, and how its answers are printed."""

    def __init__(self, cluster: ClusterOptions, *, as_json: bool) -> None:
        self.cluster = cluster
        self._as_json = as_json

    def changed(self, option: str, value: Any) -> Admin:
        """Returns this with another value of an option of `segstore admin`."""
        if option == "as_json":
            return Admin(self.cluster, as_json=value)
        field = {"controller": "uri", "cluster": "properties"}.get(option, option)
        return Admin(self.cluster._replace(**{field: value}), as_json=self._as_json)

    async def names(self, column: str, names: AsyncIterator[str]) -> None:
        """Prints names."""
        async for name in names:
            echo(json.dumps({column: name}) if self._as_json else name)

    async def list_in(
        self, column: str, client: Client, scope: str | None, listed: Callable[[str], AsyncIterator[str]]
    ) -> None:
        """Prints the names of objects in a scope; without a scope, SCOPE/NAME for objects in all scopes."""
        if scope is not None:
            await self.names(column, listed(scope))
            return
        async for found_scope in client.controller.list_scopes():
            await self.names(column, (f"{found_scope}/{name}" async for name in listed(found_scope)))

    def show(self, values: dict[str, Any]) -> None:
        """Prints one line for each key."""
        if self._as_json:
            echo(json.dumps(values))
        else:
            for name, value in values.items():
                echo(f"{name}: {cell_text(value)}".rstrip())

    def table(self, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
        """Prints rows."""
        if self._as_json:
            echo(json.dumps(rows))
        else:
            print_table(columns, rows)


def _command(
    group: click.Group, name: str, *parameters: Callable[[Any], Any]
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], object]:
    """Adds a command that runs with an open client, until a signal. parameters: its arguments and options."""

    def add(command: Callable[..., Coroutine[Any, Any, None]]) -> click.Command:
        @wraps(command)
        def start(admin: Admin, **arguments: Any) -> int:
            from segstore.cli.pravega.running import run

            async def work(client: Client, interruption: Interruption) -> None:
                async with interruption.ends():
                    await command(admin, client, **arguments)

            return run(admin.cluster, work)

        callback: Any = click.make_pass_decorator(Admin)(start)
        for parameter in reversed(parameters):
            callback = parameter(callback)
        return group.command(name)(callback)

    return add


_scope: Final = click.argument("scope", type=part_name)
_any_scope: Final = click.argument("scope", type=part_name, required=False)
_stream: Final = click.argument("stream", type=scoped_name)
_table: Final = click.argument("table", type=scoped_name)
_group: Final = click.argument("group", type=scoped_name)
_identifier: Final = click.argument("identifier", metavar="ID", type=click.UUID)


def _must(changed: bool, what: str) -> None:
    if not changed:
        raise click.ClickException(what)


@click.group(short_help="Manage scopes, streams, reader groups, tables, transactions.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
@click.pass_context
def admin(context: click.Context, as_json: bool, cluster: ClusterOptions) -> None:
    """Manage the scopes, streams, reader groups, key-value tables and transactions of a Pravega cluster.

    Names of streams, groups and tables are SCOPE/NAME. The options may also follow the sub-command. `segstore ctl`
    steers segstore's own server.
    """
    context.obj = Admin(cluster, as_json=as_json)


# --- scopes -----------------------------------------------------------------------------------------------------------


@admin.group(cls=Listing)
def scopes() -> None:
    """List, create and delete scopes."""


@_command(scopes, "list")
async def list_scopes(admin: Admin, client: Client) -> None:
    """List the scopes."""
    await admin.names("scope", client.controller.list_scopes())


@_command(scopes, "create", _scope)
async def create_scope(admin: Admin, client: Client, scope: str) -> None:
    """Create a scope."""
    _must(await client.controller.create_scope(scope), f"scope {scope} exists")


@_command(scopes, "delete", _scope)
async def delete_scope(admin: Admin, client: Client, scope: str) -> None:
    """Delete an empty scope."""
    _must(await client.controller.delete_scope(scope), f"there is no scope {scope}")


# --- streams ----------------------------------------------------------------------------------------------------------


@admin.group(cls=Listing)
def streams() -> None:
    """List, show, create, update, scale, truncate, seal and delete streams."""


@_command(streams, "list", _any_scope, click.option("--tag", help="Only streams with this tag."))
async def list_streams(admin: Admin, client: Client, scope: str | None, tag: str | None) -> None:
    """List the streams of a scope, or of all."""
    await admin.list_in("stream", client, scope, partial(client.controller.list_streams, tag=tag))


@_command(streams, "show", _stream)
async def show_stream(admin: Admin, client: Client, stream: Name) -> None:
    """Show a stream's configuration, its segments, and its head and tail as cuts."""
    from segstore.client import StreamCut

    config = await client.controller.stream_config(*stream)
    open_ones = await client.controller.current_segments(*stream)
    head = StreamCut(*stream, await client.controller.head(*stream))
    async with client.event_reader(*stream, from_="tail") as reader:
        tail = reader.cut
    admin.show(
        {"stream": "/".join(stream)}
        | _shown(config)
        | {
            "sealed": not open_ones,
            "segments": [f"{one.name.rpartition('/')[2]} {one.low:g}-{one.high:g}" for one in open_ones],
            "head": head.to_text() if head else None,
            "tail": tail.to_text() if tail else None,
        }
    )


def _shown(config: StreamConfig) -> dict[str, Any]:
    from segstore.client import RetentionType, ScaleType

    scaling, retention = config.scaling, config.retention
    unit = {ScaleType.FIXED: "fixed", ScaleType.EVENT_RATE: "events/s", ScaleType.DATA_RATE: "KB/s"}[scaling.kind]
    rate = "fixed" if scaling.kind is ScaleType.FIXED else f"{scaling.target_rate} {unit}, factor {scaling.factor}"
    limits = "unlimited"
    if retention is not None:
        unit = "ms" if retention.kind is RetentionType.TIME else "bytes"
        most = "" if retention.maximum is None else f", at most {retention.maximum}"
        limits = f"at least {retention.minimum} {unit}{most}"
    return {"scaling": rate, "minimum": scaling.minimum, "retention": limits, "tags": list(config.tags)}


def _number(option: str, least: int, most: int, text: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(option, type=click.IntRange(least, most), help=text, **more)


_CONFIG: Final = (
    _number("--segments", 1, _MAX_INT, "Number of segments, or the lowest with a rate."),
    _number("--event-rate", 1, _MAX_INT, "Split segments above N events per second.", metavar="N"),
    _number("--data-rate", 1, _MAX_INT, "Split segments above KB per second.", metavar="KB"),
    _number("--factor", 2, _MAX_INT, "Number of segments that a split makes; default: 2."),
    _number("--keep-s", 1, _MAX_S, "Truncate events older than this.", metavar="SECONDS"),
    _number("--keep-bytes", 1, _MAX_LONG, "Truncate the stream to this size.", metavar="BYTES"),
    click.option("--tag", "tags", multiple=True, help="A tag of the stream; can be repeated."),
)


def _new(options: dict[str, Any]) -> StreamConfig:
    """The configuration of a new stream. Raises UsageError."""
    from segstore.client import StreamConfig

    if options["event_rate"] is not None and options["data_rate"] is not None:
        raise click.UsageError("give --event-rate or --data-rate")
    if options["keep_s"] is not None and options["keep_bytes"] is not None:
        raise click.UsageError("give --keep-s or --keep-bytes")
    if options["factor"] is not None and options["event_rate"] is None and options["data_rate"] is None:
        raise click.UsageError("--factor goes with --event-rate or --data-rate")
    try:
        config = _changed(StreamConfig(), options)
        config.check()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return config


def _changed(config: StreamConfig, options: dict[str, Any]) -> StreamConfig:
    """A configuration with the parts that options give. Raises ValueError."""
    from segstore.client import RetentionPolicy, ScalingPolicy

    scaling, factor = config.scaling, options["factor"] or 2
    minimum = options["segments"] or scaling.minimum
    if options["event_rate"] is not None:
        scaling = ScalingPolicy.by_event_rate(options["event_rate"], factor=factor, minimum=minimum)
    elif options["data_rate"] is not None:
        scaling = ScalingPolicy.by_data_rate(options["data_rate"], factor=factor, minimum=minimum)
    else:
        scaling = replace(scaling, minimum=minimum)
    retention = config.retention
    if options["keep_s"] is not None:
        retention = RetentionPolicy.by_time(timedelta(seconds=options["keep_s"]))
    elif options["keep_bytes"] is not None:
        retention = RetentionPolicy.by_size(options["keep_bytes"])
    return replace(config, scaling=scaling, retention=retention, tags=options["tags"] or config.tags)


@_command(streams, "create", _stream, *_CONFIG)
async def create_stream(admin: Admin, client: Client, stream: Name, **options: Any) -> None:
    """Create a stream."""
    config = _new(options)
    _must(await client.controller.create_stream(*stream, config), f"stream {'/'.join(stream)} exists")


@_command(streams, "update", _stream, *_CONFIG)
async def update_stream(admin: Admin, client: Client, stream: Name, **options: Any) -> None:
    """Change the given parts of a stream's configuration. A fixed number of segments is restored if it was scaled."""
    _new(options)  # finds wrong options
    config = await client.controller.stream_config(*stream)
    await client.controller.update_stream(*stream, _changed(config, options))


@_command(streams, "scale", _stream, click.argument("segments", type=click.IntRange(1, _MAX_SCALE)))
async def scale_stream(admin: Admin, client: Client, stream: Name, segments: int) -> None:
    """Replace a stream's segments by SEGMENTS new segments of equal size."""
    now = [segment.segment_id for segment in await client.controller.current_segments(*stream)]
    bounds = [number / segments for number in range(segments + 1)]
    await client.controller.scale(*stream, now, list(pairwise(bounds)), wait_ms=_SCALE_MS)


@_command(streams, "truncate", _stream, click.argument("cut", metavar="CUT|tail"))
async def truncate_stream(admin: Admin, client: Client, stream: Name, cut: str) -> None:
    """Delete a stream's events before a cut, or all that it has now."""
    if cut == "tail":
        async with client.event_reader(*stream, from_="tail") as reader:
            place = reader.cut
    else:
        place = cut_of(stream, cut, "CUT is tail")
    await client.controller.truncate_stream(*stream, place)


@_command(streams, "seal", _stream)
async def seal_stream(admin: Admin, client: Client, stream: Name) -> None:
    """Seal a stream: it can be read, but not written."""
    await client.controller.seal_stream(*stream)


@_command(
    streams,
    "delete",
    _stream,
    click.option("--seal", is_flag=True, help="Seal it first; only sealed streams can be deleted."),
)
async def delete_stream(admin: Admin, client: Client, stream: Name, seal: bool) -> None:
    """Delete a sealed stream and its events."""
    if seal:
        await client.controller.seal_stream(*stream)
    await client.controller.delete_stream(*stream)


# --- reader groups ----------------------------------------------------------------------------------------------------


@admin.group()
def groups() -> None:
    """Show and delete reader groups, and put their readers offline.

    The groups may belong to this client or to the official clients. Pravega's controllers do not list them.
    """


@_command(groups, "show", _group)
async def show_group(admin: Admin, client: Client, group: Name) -> None:
    """Show a group's streams, its online readers, and its position and its end in each stream as a cut."""
    from segstore.client import StreamCut

    async with client.reader_group(*group) as opened:
        readers, cuts = await opened.readers(), await opened.cuts()
        named = {f"position in {name}": cut.to_text() for name, cut in cuts.items()}
        for name, end in (await opened.config()).ends.items():
            scope, _, stream = name.partition("/")
            named[f"end in {name}"] = StreamCut(scope, stream, end).to_text() if end else "none"
        admin.show({"streams": await opened.streams(), "readers": readers} | named)


@_command(groups, "offline", _group, click.argument("reader"))
async def take_offline(admin: Admin, client: Client, group: Name, reader: str) -> None:
    """Put a failed reader of a group offline; other readers continue at its last recorded position."""
    async with client.reader_group(*group) as opened:
        _must(await opened.reader_offline(reader), f"no reader {reader} of {'/'.join(group)} is online")


@_command(groups, "delete", _group)
async def delete_group(admin: Admin, client: Client, group: Name) -> None:
    """Delete a group, which ends its readers."""
    async with client.reader_group(*group) as opened:
        await opened.delete()


# --- key-value tables -------------------------------------------------------------------------------------------------


@admin.group(cls=Listing)
def tables() -> None:
    """List, show, create and delete key-value tables."""


@_command(tables, "list", _any_scope)
async def list_tables(admin: Admin, client: Client, scope: str | None) -> None:
    """List the key-value tables of a scope, or of all."""
    await admin.list_in("table", client, scope, client.controller.list_tables)


@_command(tables, "show", _table)
async def show_table(admin: Admin, client: Client, table: Name) -> None:
    """Show a table's configuration."""
    config = await client.controller.table_config(*table)
    admin.show({"table": "/".join(table)} | config.model_dump())


@_command(
    tables,
    "create",
    _table,
    _number("--partitions", 1, _MAX_INT, "Number of its segments.", default=1, show_default=True),
    _number("--key-bytes", 1, _MAX_KEY_BYTES, "Length of primary keys.", required=True),
    _number("--secondary-key-bytes", 0, _MAX_KEY_BYTES, "Length of secondary keys.", default=0),
)
async def create_table(
    admin: Admin, client: Client, table: Name, partitions: int, key_bytes: int, secondary_key_bytes: int
) -> None:
    """Create a key-value table."""
    from segstore.client import TableConfig

    if key_bytes + secondary_key_bytes > _MAX_KEY_BYTES:
        raise click.UsageError(f"keys have at most {_MAX_KEY_BYTES} bytes in both parts together")
    config = TableConfig(partitions=partitions, primary_key_bytes=key_bytes, secondary_key_bytes=secondary_key_bytes)

    _must(await client.controller.create_table(*table, config), f"table {'/'.join(table)} exists")


@_command(tables, "delete", _table)
async def delete_table(admin: Admin, client: Client, table: Name) -> None:
    """Delete a table and its entries."""
    _must(await client.controller.delete_table(*table), f"there is no table {'/'.join(table)}")


# --- transactions -----------------------------------------------------------------------------------------------------


@admin.group()
def transactions() -> None:
    """List ended transactions; show, commit and abort one by its id. Pravega does not list open transactions."""


@_command(transactions, "list", _stream)
async def list_transactions(admin: Admin, client: Client, stream: Name) -> None:
    """List the last transactions of a stream that ended."""
    completed = await client.controller.completed_transactions(*stream)
    rows = [{"id": str(identifier), "status": status.value} for identifier, status in completed.items()]
    admin.table(("id", "status"), rows)


@_command(transactions, "show", _stream, _identifier)
async def show_transaction(admin: Admin, client: Client, stream: Name, identifier: UUID) -> None:
    """Show the status of a transaction."""
    from segstore.client import TransactionStatus

    status = await client.controller.transaction_status(*stream, identifier)
    known = status is not TransactionStatus.UNKNOWN
    _must(known, f"transaction {identifier} of {'/'.join(stream)} does not exist, or ended long ago")
    admin.show({"id": str(identifier), "status": status.value})


@_command(transactions, "commit", _stream, _identifier)
async def commit_transaction(admin: Admin, client: Client, stream: Name, identifier: UUID) -> None:
    """Commit an open transaction, whose writer must have flushed it."""
    await client.controller.commit_transaction(*stream, identifier)


@_command(transactions, "abort", _stream, _identifier)
async def abort_transaction(admin: Admin, client: Client, stream: Name, identifier: UUID) -> None:
    """Abort an open transaction."""
    await client.controller.abort_transaction(*stream, identifier)


let_options_follow(admin, Admin.changed)
