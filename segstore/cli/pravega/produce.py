"""`segstore produce`: writes lines of standard input as events. Its options follow kcat's.

Exit status as in `segstore.cli.pravega.running`; with 0, all events are stored. Otherwise their number is on standard
error; all events before an invalid event are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from segstore.cli.pravega.cluster import RATE, ClusterOptions, cluster_options
from segstore.cli.pravega.formats import unescaped
from segstore.cli.terminal import echo, scoped_name

if TYPE_CHECKING:
    from segstore.cli.pravega.running import Interruption
    from segstore.client import Client, EventWriter


def _delimiter(context: click.Context, parameter: click.Parameter, value: str | None) -> bytes | None:
    if value is None:
        return None
    try:
        delimiter = unescaped(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    if not delimiter:
        raise click.BadParameter("a delimiter has at least one byte", context, parameter)
    return delimiter


@click.command(short_help="Write lines as events of a stream.")
@click.argument("stream", type=scoped_name)
@click.option(
    "-D", "delimiter", default=r"\n", show_default=True, callback=_delimiter, metavar="TEXT", help="Ends an event."
)
@click.option(
    "-K", "key_delimiter", callback=_delimiter, metavar="TEXT", help="Ends the routing key at the start of an event."
)
@click.option("-k", "key", metavar="KEY", help="Routing key of events without a key of their own.")
@click.option("-c", "count", type=click.IntRange(1), metavar="N", help="Stop after N events.")
@RATE
@cluster_options
def produce(
    stream: tuple[str, str],
    delimiter: bytes,
    key_delimiter: bytes | None,
    key: str | None,
    count: int | None,
    rate: float | None,
    cluster: ClusterOptions,
) -> int:
    """Write lines of standard input as events of the stream SCOPE/NAME.

    Every line is an event, including empty lines. The command ends when all events are stored. Ctrl-C ends reading. All
    events before an invalid event are stored. If the command stops early, it prints how many events are stored.
    """
    import asyncio

    from segstore.cli.pravega.running import EventPace, Lines, run
    from segstore.client import ClientError

    async def work(client: Client, interruption: Interruption) -> None:
        lines = Lines(delimiter, key_delimiter, key, client.pool.settings.max_large_event_bytes)
        pace, left, stored = EventPace(rate), count, 0

        def check(event: asyncio.Future[None]) -> None:
            nonlocal stored
            if event.cancelled() or event.exception() is not None:
                interruption.end_block()  # the flush raises it
            else:
                stored += 1

        async def write(writer: EventWriter) -> None:
            nonlocal left
            async with interruption.ends():
                async for event, routing_key in lines:
                    await pace.next()
                    (await writer.submit(event, routing_key=routing_key)).add_done_callback(check)
                    left = None if left is None else left - 1
                    if left == 0:
                        break

        try:
            async with client.event_writer(*stream) as writer:
                try:
                    await write(writer)
                except Exception:
                    await writer.flush()
                    raise
                await writer.flush()
        except (ClientError, ValueError, OSError, click.ClickException) as error:
            await asyncio.sleep(0)  # until all callbacks have run
            message = error.message if isinstance(error, ClientError | click.ClickException) else str(error)
            raise click.ClickException(f"{message}; events stored: {stored}") from error
        finally:
            if interruption.number:
                echo(f"segstore: interrupted; events stored: {stored}", err=True)

    return run(cluster, work)
