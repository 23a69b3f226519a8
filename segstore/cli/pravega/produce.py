"""`segstore produce`: writes lines of standard input as events. Its options follow kcat's.

Exit status as in `segstore.cli.pravega.running`; with 0, all events are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from segstore.cli.pravega.cluster import RATE, STREAM, Cluster, cluster_options
from segstore.cli.pravega.formats import unescaped

if TYPE_CHECKING:
    import asyncio

    from segstore.cli.pravega.running import Interruption
    from segstore.client import Client


def _delimiter(context: click.Context, parameter: click.Parameter, given: str | None) -> bytes | None:
    if given is None:
        return None
    try:
        made = unescaped(given)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    if not made:
        raise click.BadParameter("a delimiter has at least one byte", context, parameter)
    return made


@click.command(short_help="Write lines as events of a stream.")
@click.argument("stream", type=STREAM)
@click.option(
    "-D", "delimiter", default=r"\n", show_default=True, callback=_delimiter, metavar="TEXT", help="Ends an event."
)
@click.option(
    "-K", "key_delimiter", callback=_delimiter, metavar="TEXT", help="Ends the routing key at the start of an event."
)
@click.option("-k", "key", metavar="KEY", help="Routing key of the events without one of their own.")
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
    cluster: Cluster,
) -> int:
    """Write lines of standard input as events of the stream SCOPE/NAME.

    Every line is an event, including empty lines. The command ends when all events are stored. Ctrl-C ends reading.
    """
    from segstore.cli.pravega.lines import Lines
    from segstore.cli.pravega.running import Pace, run

    async def work(client: Client, interruption: Interruption) -> None:
        lines = Lines(delimiter, key_delimiter, key, client.pool.settings.max_large_event_bytes)
        pace, left = Pace(rate), count

        def check(stored: asyncio.Future[None]) -> None:
            if not stored.cancelled() and stored.exception() is not None:
                interruption.end_block()  # the flush raises it

        async with client.event_writer(*stream) as writer:
            async with interruption.ends():
                async for event, routing_key in lines:
                    await pace.next()
                    (await writer.submit(event, routing_key=routing_key)).add_done_callback(check)
                    left = None if left is None else left - 1
                    if left == 0:
                        break
            await writer.flush()

    return run(cluster, work)
