"""`segstore produce`: writes lines of standard input as events. Its options follow kcat's.

Exit status as in `segstore.cli.pravega.cluster`; with 0, all events are stored.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from segstore.cli.pravega.cluster import RATE, STREAM, Cluster, Interruption, Pace, cluster_options, run
from segstore.cli.pravega.formats import unescaped

if TYPE_CHECKING:
    from segstore.client import Client

_READ_BYTES: Final = 256 * 1024


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

    Every line is an event, also an empty one. The command ends when all events are stored. Ctrl-C ends reading.
    """

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


class Lines:
    """The events in standard input, each with its routing key. Memory is bounded by `most_bytes` and one read."""

    def __init__(self, delimiter: bytes, key_delimiter: bytes | None, key: str | None, most_bytes: int) -> None:
        self._delimiter = delimiter
        self._key_delimiter = key_delimiter
        self._key = key
        self._most_bytes = most_bytes
        self._number = 0

    async def __aiter__(self) -> AsyncIterator[tuple[bytes, str | None]]:
        """Raises ClickException for a line above the limit, and for a key that is not UTF-8."""
        held = bytearray()
        searched = 0
        async for chunk in chunks(sys.stdin.fileno()):
            held += chunk
            begun = 0
            while (end := held.find(self._delimiter, max(begun, searched))) >= 0:
                yield self._split(bytes(held[begun:end]))
                begun = end + len(self._delimiter)
            del held[:begun]
            searched = max(len(held) - len(self._delimiter) + 1, 0)
            if len(held) > self._most_bytes:
                raise self._wrong(f"an event has at most {self._most_bytes} bytes (max_large_event_bytes)")
        if held:
            yield self._split(bytes(held))

    def _split(self, line: bytes) -> tuple[bytes, str | None]:
        self._number += 1
        if self._key_delimiter is None:
            return line, self._key
        key, found, event = line.partition(self._key_delimiter)
        if not found:
            return line, self._key
        try:
            return event, key.decode()
        except UnicodeDecodeError as error:
            raise self._wrong(f"its routing key is not UTF-8 at byte {error.start}", 0) from error

    def _wrong(self, said: str, ahead: int = 1) -> click.ClickException:
        return click.ClickException(f"standard input: event {self._number + ahead}: {said}")


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yields what can be read, without changing the descriptor, which other processes may share."""
    loop = asyncio.get_running_loop()
    while True:
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(descriptor, partial(_set, ready))
        except PermissionError:
            await asyncio.sleep(0)  # a file, whose reads do not wait
        else:
            try:
                await ready
            finally:
                loop.remove_reader(descriptor)
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            return
        yield data


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
