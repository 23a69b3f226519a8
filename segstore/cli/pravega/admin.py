"""`segstore admin`: lists, shows, creates, changes and deletes the scopes, streams and other objects of a cluster.

Exit status as in `segstore.cli.pravega.running`; 1 also if the object to create exists, or the object to delete does
not.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import click

from segstore.cli.pravega.cluster import NAME, STREAM, ClusterOptions, cluster_options, cut_of
from segstore.cli.terminal import Listing, cell_text, echo, let_options_follow, print_table

if TYPE_CHECKING:
    from segstore.cli.pravega.running import Interruption
    from segstore.client import Client, StreamConfig

F = TypeVar("F", bound=Callable[..., Any])

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
        self._cluster = cluster
        self._as_json = as_json

    def changed(self, option: str, value: Any) -> Admin:
        """Returns this with another value of an option of `segstore admin`."""
        if option == "as_json":
            return Admin(self._cluster, as_json=value)
        field = {"controller": "uri", "cluster": "properties"}.get(option, option)
        return Admin(self._cluster._replace(**{field: value}), as_json=self._as_json)

    def do(self, work: Callable[[Client], Coroutine[Any, Any, None]]) -> int:
        """Runs the work of a command; returns the exit status."""
        from segstore.cli.pravega.running import run

        async def until_done(client: Client, interruption: Interruption) -> None:
            async with interruption.ends():
                await work(client)

        return run(self._cluster, until_done)

    async def names(self, column: str, names: AsyncIterator[str]) -> None:
        """Prints names."""
        async for name in names:
            echo(json.dumps({column: name}) if self._as_json else name)

    def list_in(self, column: str, scope: str | None, listed: Callable[[Client, str], AsyncIterator[str]]) -> int:
        """Prints the names of objects in a scope; without a scope, SCOPE/NAME for objects in all scopes."""

        async def everywhere(client: Client) -> AsyncIterator[str]:
            async for each in client.controller.list_scopes():
                async for name in listed(client, each):
                    yield f"{each}/{name}"

        return self.do(
            lambda client: self.names(column, everywhere(client) if scope is None else listed(client, scope))
        )

    def show(self, found: dict[str, Any]) -> None:
        """Prints one line for each key."""
        if self._as_json:
            echo(json.dumps(found))
        else:
            for name, value in found.items():
                echo(f"{name}: {cell_text(value)}".rstrip())

    def table(self, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
        """Prints rows."""
        if self._as_json:
            echo(json.dumps(rows))
        else:
            print_table(columns, rows)


_admin: Final[Callable[..., Any]] = click.make_pass_decorator(Admin)
_scope: Final = click.argument("scope", type=NAME)
_any_scope: Final = click.argument("scope", type=NAME, required=False)
_stream: Final = click.argument("stream", type=STREAM)
_table: Final = click.argument("table", type=STREAM)
_group: Final = click.argument("group", type=STREAM)
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


@scopes.command("list")
@_admin
def list_scopes(admin: Admin) -> int:
    """List the scopes."""
    return admin.do(lambda client: admin.names("scope", client.controller.list_scopes()))


@scopes.command("create")
@_scope
@_admin
def create_scope(admin: Admin, scope: str) -> int:
    """Create a scope."""

    async def work(client: Client) -> None:
        _must(await client.controller.create_scope(scope), f"scope {scope} exists")

    return admin.do(work)


@scopes.command("delete")
@_scope
@_admin
def delete_scope(admin: Admin, scope: str) -> int:
    """Delete an empty scope."""

    async def work(client: Client) -> None:
        _must(await client.controller.delete_scope(scope), f"there is no scope {scope}")

    return admin.do(work)


# --- streams ----------------------------------------------------------------------------------------------------------


@admin.group(cls=Listing)
def streams() -> None:
    """List, show, create, update, scale, truncate, seal and delete streams."""


@streams.command("list")
@_any_scope
@click.option("--tag", help="Only streams with this tag.")
@_admin
def list_streams(admin: Admin, scope: str | None, tag: str | None) -> int:
    """List the streams of a scope, or of all."""
    return admin.list_in("stream", scope, lambda client, each: client.controller.list_streams(each, tag=tag))


@streams.command("show")
@_stream
@_admin
def show_stream(admin: Admin, stream: Name) -> int:
    """Show a stream's configuration, its segments, and its head and tail as cuts."""

    async def work(client: Client) -> None:
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
                "segments": [f"{each.name.rpartition('/')[2]} {each.low:g}-{each.high:g}" for each in open_ones],
                "head": head.to_text() if head else None,
                "tail": tail.to_text() if tail else None,
            }
        )

    return admin.do(work)


def _shown(config: StreamConfig) -> dict[str, Any]:
    from segstore.client import RetentionType, ScaleType

    scaling, retention = config.scaling, config.retention
    unit = {ScaleType.FIXED: "fixed", ScaleType.EVENT_RATE: "events/s", ScaleType.DATA_RATE: "KB/s"}[scaling.kind]
    rate = "fixed" if scaling.kind is ScaleType.FIXED else f"{scaling.target_rate} {unit}, factor {scaling.factor}"
    kept = "unlimited"
    if retention is not None:
        unit = "ms" if retention.kind is RetentionType.TIME else "bytes"
        most = "" if retention.maximum is None else f", at most {retention.maximum}"
        kept = f"at least {retention.minimum} {unit}{most}"
    return {"scaling": rate, "minimum": scaling.minimum, "retention": kept, "tags": list(config.tags)}


_CONFIG: Final = (
    click.option("--segments", type=click.IntRange(1, _MAX_INT), help="Number of segments, or the lowest with a rate."),
    click.option(
        "--event-rate", type=click.IntRange(1, _MAX_INT), metavar="N", help="Split segments above N events per second."
    ),
    click.option(
        "--data-rate", type=click.IntRange(1, _MAX_INT), metavar="KB", help="Split segments above KB per second."
    ),
    click.option(
        "--factor", type=click.IntRange(2, _MAX_INT), help="Number of segments that a split makes; default: 2."
    ),
    click.option(
        "--keep-s", type=click.IntRange(1, _MAX_S), metavar="SECONDS", help="Truncate events older than this."
    ),
    click.option(
        "--keep-bytes", type=click.IntRange(1, _MAX_LONG), metavar="BYTES", help="Truncate the stream to this size."
    ),
    click.option("--tag", "tags", multiple=True, help="A tag of the stream; can be repeated."),
)


def _configured(command: F) -> F:
    for option in reversed(_CONFIG):
        command = option(command)
    return command


def _new(given: dict[str, Any]) -> StreamConfig:
    """The configuration of a new stream. Raises UsageError."""
    from segstore.client import StreamConfig

    if given["event_rate"] is not None and given["data_rate"] is not None:
        raise click.UsageError("give --event-rate or --data-rate")
    if given["keep_s"] is not None and given["keep_bytes"] is not None:
        raise click.UsageError("give --keep-s or --keep-bytes")
    if given["factor"] is not None and given["event_rate"] is None and given["data_rate"] is None:
        raise click.UsageError("--factor goes with --event-rate or --data-rate")
    try:
        made = _changed(StreamConfig(), given)
        made.check()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return made


def _changed(config: StreamConfig, given: dict[str, Any]) -> StreamConfig:
    """A configuration with the parts that options give. Raises ValueError."""
    from segstore.client import RetentionPolicy, ScalingPolicy

    scaling, factor = config.scaling, given["factor"] or 2
    minimum = given["segments"] or scaling.minimum
    if given["event_rate"] is not None:
        scaling = ScalingPolicy.by_event_rate(given["event_rate"], factor=factor, minimum=minimum)
    elif given["data_rate"] is not None:
        scaling = ScalingPolicy.by_data_rate(given["data_rate"], factor=factor, minimum=minimum)
    else:
        scaling = replace(scaling, minimum=minimum)
    retention = config.retention
    if given["keep_s"] is not None:
        retention = RetentionPolicy.by_time(timedelta(seconds=given["keep_s"]))
    elif given["keep_bytes"] is not None:
        retention = RetentionPolicy.by_size(given["keep_bytes"])
    return replace(config, scaling=scaling, retention=retention, tags=given["tags"] or config.tags)


@streams.command("create")
@_stream
@_configured
@_admin
def create_stream(admin: Admin, stream: Name, **given: Any) -> int:
    """Create a stream."""
    config = _new(given)

    async def work(client: Client) -> None:
        _must(await client.controller.create_stream(*stream, config), f"stream {'/'.join(stream)} exists")

    return admin.do(work)


@streams.command("update")
@_stream
@_configured
@_admin
def update_stream(admin: Admin, stream: Name, **given: Any) -> int:
    """Change the given parts of a stream's configuration. A fixed number of segments is restored if it was scaled."""
    _new(given)  # finds wrong options

    async def work(client: Client) -> None:
        config = await client.controller.stream_config(*stream)
        await client.controller.update_stream(*stream, _changed(config, given))

    return admin.do(work)


@streams.command("scale")
@_stream
@click.argument("segments", type=click.IntRange(1, _MAX_SCALE))
@_admin
def scale_stream(admin: Admin, stream: Name, segments: int) -> int:
    """Replace a stream's segments by SEGMENTS new segments of equal size."""

    async def work(client: Client) -> None:
        now = [each.segment_id for each in await client.controller.current_segments(*stream)]
        bounds = [number / segments for number in range(segments + 1)]
        await client.controller.scale(*stream, now, list(pairwise(bounds)), wait_ms=_SCALE_MS)

    return admin.do(work)


@streams.command("truncate")
@_stream
@click.argument("cut", metavar="CUT|tail")
@_admin
def truncate_stream(admin: Admin, stream: Name, cut: str) -> int:
    """Delete a stream's events before a cut, or all that it has now."""

    given = None if cut == "tail" else cut_of(stream, cut, "CUT is tail")

    async def work(client: Client) -> None:
        place = given
        if place is None:
            async with client.event_reader(*stream, from_="tail") as reader:
                place = reader.cut
        await client.controller.truncate_stream(*stream, place)

    return admin.do(work)


@streams.command("seal")
@_stream
@_admin
def seal_stream(admin: Admin, stream: Name) -> int:
    """Seal a stream: it can be read, but not written."""
    return admin.do(lambda client: client.controller.seal_stream(*stream))


@streams.command("delete")
@_stream
@click.option("--seal", is_flag=True, help="Seal it first; only sealed streams can be deleted.")
@_admin
def delete_stream(admin: Admin, stream: Name, seal: bool) -> int:
    """Delete a sealed stream and its events."""

    async def work(client: Client) -> None:
        if seal:
            await client.controller.seal_stream(*stream)
        await client.controller.delete_stream(*stream)

    return admin.do(work)


# --- reader groups ----------------------------------------------------------------------------------------------------


@admin.group()
def groups() -> None:
    """Show and delete reader groups, and put their readers offline.

    The groups may belong to this client or to the official clients. Pravega's controllers do not list them.
    """


@groups.command("show")
@_group
@_admin
def show_group(admin: Admin, group: Name) -> int:
    """Show a group's streams, its online readers, and its position and its end in each stream as a cut."""
    from segstore.client import StreamCut

    async def work(client: Client) -> None:
        async with client.reader_group(*group) as opened:
            readers, cuts = await opened.readers(), await opened.cuts()
            named = {f"position in {name}": cut.to_text() for name, cut in cuts.items()}
            for name, end in (await opened.config()).ends.items():
                scope, _, stream = name.partition("/")
                named[f"end in {name}"] = StreamCut(scope, stream, end).to_text() if end else "none"
            admin.show({"streams": await opened.streams(), "readers": readers} | named)

    return admin.do(work)


@groups.command("offline")
@_group
@click.argument("reader")
@_admin
def take_offline(admin: Admin, group: Name, reader: str) -> int:
    """Put a failed reader of a group offline; other readers continue at its last recorded position."""

    async def work(client: Client) -> None:
        async with client.reader_group(*group) as opened:
            _must(await opened.reader_offline(reader), f"no reader {reader} of {'/'.join(group)} is online")

    return admin.do(work)


@groups.command("delete")
@_group
@_admin
def delete_group(admin: Admin, group: Name) -> int:
    """Delete a group, which ends its readers."""

    async def work(client: Client) -> None:
        async with client.reader_group(*group) as opened:
            await opened.delete()

    return admin.do(work)


# --- key-value tables -------------------------------------------------------------------------------------------------


@admin.group(cls=Listing)
def tables() -> None:
    """List, show, create and delete key-value tables."""


@tables.command("list")
@_any_scope
@_admin
def list_tables(admin: Admin, scope: str | None) -> int:
    """List the key-value tables of a scope, or of all."""
    return admin.list_in("table", scope, lambda client, each: client.controller.list_tables(each))


@tables.command("show")
@_table
@_admin
def show_table(admin: Admin, table: Name) -> int:
    """Show a table's configuration."""

    async def work(client: Client) -> None:
        config = await client.controller.table_config(*table)
        admin.show({"table": "/".join(table)} | config.model_dump())

    return admin.do(work)


@tables.command("create")
@_table
@click.option(
    "--partitions", type=click.IntRange(1, _MAX_INT), default=1, show_default=True, help="Number of its segments."
)
@click.option("--key-bytes", type=click.IntRange(1, _MAX_KEY_BYTES), required=True, help="Length of primary keys.")
@click.option(
    "--secondary-key-bytes", type=click.IntRange(0, _MAX_KEY_BYTES), default=0, help="Length of secondary keys."
)
@_admin
def create_table(admin: Admin, table: Name, partitions: int, key_bytes: int, secondary_key_bytes: int) -> int:
    """Create a key-value table."""
    from segstore.client import TableConfig

    if key_bytes + secondary_key_bytes > _MAX_KEY_BYTES:
        raise click.UsageError(f"keys have at most {_MAX_KEY_BYTES} bytes in both parts together")
    config = TableConfig(partitions=partitions, primary_key_bytes=key_bytes, secondary_key_bytes=secondary_key_bytes)

    async def work(client: Client) -> None:
        _must(await client.controller.create_table(*table, config), f"table {'/'.join(table)} exists")

    return admin.do(work)


@tables.command("delete")
@_table
@_admin
def delete_table(admin: Admin, table: Name) -> int:
    """Delete a table and its entries."""

    async def work(client: Client) -> None:
        _must(await client.controller.delete_table(*table), f"there is no table {'/'.join(table)}")

    return admin.do(work)


# --- transactions -----------------------------------------------------------------------------------------------------


@admin.group()
def transactions() -> None:
    """List ended transactions; show, commit and abort one by its id. Pravega does not list open transactions."""


@transactions.command("list")
@_stream
@_admin
def list_transactions(admin: Admin, stream: Name) -> int:
    """List the last transactions of a stream that ended."""

    async def work(client: Client) -> None:
        found = await client.controller.completed_transactions(*stream)
        rows = [{"id": str(each), "status": status.value} for each, status in found.items()]
        admin.table(("id", "status"), rows)

    return admin.do(work)


@transactions.command("show")
@_stream
@_identifier
@_admin
def show_transaction(admin: Admin, stream: Name, identifier: UUID) -> int:
    """Show the status of a transaction."""

    async def work(client: Client) -> None:
        from segstore.client import TransactionStatus

        status = await client.controller.transaction_status(*stream, identifier)
        known = status is not TransactionStatus.UNKNOWN
        _must(known, f"transaction {identifier} of {'/'.join(stream)} does not exist, or ended long ago")
        admin.show({"id": str(identifier), "status": status.value})

    return admin.do(work)


@transactions.command("commit")
@_stream
@_identifier
@_admin
def commit_transaction(admin: Admin, stream: Name, identifier: UUID) -> int:
    """Commit an open transaction, whose writer must have flushed it."""
    return admin.do(lambda client: client.controller.commit_transaction(*stream, identifier))


@transactions.command("abort")
@_stream
@_identifier
@_admin
def abort_transaction(admin: Admin, stream: Name, identifier: UUID) -> int:
    """Abort an open transaction."""
    return admin.do(lambda client: client.controller.abort_transaction(*stream, identifier))


let_options_follow(admin, Admin.changed)
