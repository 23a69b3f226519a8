"""`segstore consume`: prints the events of a stream. Its options follow kcat's.

Exit status as in `segstore.cli.pravega.running`. Payloads go to a pipe or file as they are; on a terminal, control
characters are escaped.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

from segstore.cli.pravega.cluster import RATE, ClusterOptions, cluster_options, cut_of, part_name
from segstore.cli.pravega.formats import EventPlace, as_json, formatter
from segstore.cli.terminal import scoped_name

if TYPE_CHECKING:
    from segstore.cli.pravega.running import Interruption
    from segstore.client import Client
    from segstore.client.groups import GroupForm

Start = Literal["head", "tail"] | Mapping[int, int]


class MemberOptions(NamedTuple):
    """The reader group to join, and the form in which it is created."""

    group: str
    shared_with: GroupForm


_SINCE: Final = "s@"


def _start(context: click.Context, parameter: click.Parameter, value: str) -> Start | str | int:
    if value in ("begin", "beginning", "head"):
        return "head"
    if value in ("end", "tail"):
        return "tail"
    if value.startswith(_SINCE):
        try:
            return int(value.removeprefix(_SINCE))
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not {_SINCE}TIME", context, parameter) from error
    return value


@click.command(short_help="Print the events of a stream.")
@click.argument("stream", type=scoped_name)
@click.option(
    "-o",
    "start",
    default="begin",
    show_default=True,
    callback=_start,
    metavar="begin|end|CUT|s@TIME",
    help="Where to start.",
)
@click.option("-e", "at_end", is_flag=True, help="Exit at the end that the stream has now; else wait for events.")
@click.option("-c", "count", type=click.IntRange(1), metavar="N", help="Exit after N events.")
@click.option(
    "-f",
    "layout",
    metavar="FORMAT",
    help="Fields %s payload, %S its size, %R the same in 4 bytes, %t stream, %p segment, %e epoch, %o offset.",
)
@click.option("-D", "delimiter", metavar="TEXT", help=r"Printed after each payload; default: \n.")
@click.option("-J", "in_json", is_flag=True, help="Print a line of JSON for each event.")
@click.option(
    "-G",
    "group",
    type=part_name,
    metavar="GROUP",
    help="Read as a member of a reader group, which is created if needed.",
)
@click.option(
    "--shared-with",
    type=click.Choice(["java", "rust"]),
    help="Clients whose readers can be in a group that -G creates: Java, or Rust and the package pravega; "
    "default: java.",
)
@RATE
@cluster_options
def consume(
    stream: tuple[str, str],
    start: Start | str | int,
    at_end: bool,
    count: int | None,
    layout: str | None,
    delimiter: str | None,
    in_json: bool,
    group: str | None,
    shared_with: GroupForm | None,
    rate: float | None,
    cluster: ClusterOptions,
) -> int:
    """Print the events of the stream SCOPE/NAME, until it is sealed or Ctrl-C is pressed.

    A CUT is the text of a stream cut, as `segstore admin streams show` and Java's StreamCut.asText give it. s@TIME is
    the last watermark of that time or before, or else the head. Pravega stores no routing keys, headers or times with
    events. With -G, an event that was printed is not read again.
    """
    from segstore.cli.pravega.running import EventPace, run

    if sum((layout is not None, delimiter is not None, in_json)) > 1:
        raise click.UsageError("give one of -f, -D and -J")
    if group is not None and at_end:
        raise click.UsageError("a member of a group does not know where the stream ends: give -G or -e")
    if group is None and shared_with is not None:
        raise click.UsageError("--shared-with is for a group: give -G")
    member = None if group is None else MemberOptions(group, shared_with or "java")
    end = r"\n" if delimiter is None else delimiter.replace("%", "%%")
    try:
        printed = as_json if in_json else formatter(layout if layout is not None else f"%s{end}")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    takes = f"-o takes begin, end, {_SINCE}TIME"
    given = cut_of(stream, start, takes) if isinstance(start, str) and start not in ("head", "tail") else start

    async def work(client: Client, interruption: Interruption) -> None:
        place = await _since(client, stream, given) if isinstance(given, int) else given
        pace, left, on_terminal = EventPace(rate), count, sys.stdout.isatty()
        async with _slices(client, stream, place, at_end=at_end, member=member) as slices, interruption.ends():
            async for events in slices:
                for event in events[:left]:
                    await pace.next()
                    _print(printed(event), on_terminal=on_terminal)
                    if rate is not None:
                        sys.stdout.flush()
                sys.stdout.flush()
                if left is not None and (left := left - len(events)) <= 0:
                    break
        sys.stdout.flush()

    return run(cluster, work, prints=True)


async def _since(client: Client, stream: tuple[str, str], timestamp: int) -> Start:
    async with client.time_windows(*stream) as windows:
        return await windows.cut_before(timestamp) or "head"


def _print(data: bytes, *, on_terminal: bool) -> None:
    if not on_terminal:
        sys.stdout.buffer.write(data)
        return
    from segstore.wire.printable import printable

    lines = data.decode("utf-8", "backslashreplace").split("\n")
    sys.stdout.write("\n".join(map(printable, lines)))


@asynccontextmanager
async def _slices(
    client: Client, stream: tuple[str, str], start: Any, *, at_end: bool, member: MemberOptions | None
) -> AsyncIterator[AsyncIterator[list[EventPlace]]]:
    """Yields the events in lists."""
    if member is not None:
        scope, name = stream
        starts = {name: start} if isinstance(start, Mapping) else start
        opened = client.reader_group(scope, member.group, streams=[name], from_=starts, shared_with=member.shared_with)
        async with opened, opened.reader(f"segstore-{platform.node()}-{os.getpid()}") as reader:
            yield _of_group(reader)
    elif at_end:
        yield _of_ranges(client, stream, start)
    else:
        async with client.event_reader(*stream, from_=start) as events:
            yield _placed(stream, events.slices())


async def _placed(stream: tuple[str, str], slices: AsyncIterator[Any]) -> AsyncIterator[list[EventPlace]]:
    from segstore.wire.names import split_segment_id

    name = "/".join(stream)
    async for events in slices:
        epoch, number = split_segment_id(events[0].segment_id)
        yield [EventPlace(event.data, name, number, epoch, event.offset) for event in events]


async def _of_ranges(client: Client, stream: tuple[str, str], start: Any) -> AsyncIterator[list[EventPlace]]:
    for range_ in await client.event_ranges(*stream, from_=start):
        async with client.range_reader(range_) as reader:
            async for events in _placed(stream, reader.slices()):
                yield events


async def _of_group(reader: Any) -> AsyncIterator[list[EventPlace]]:
    async for event in reader:
        stream, _, segment = event.segment.rpartition("/")
        number, _, epoch = segment.partition(".#epoch.")
        yield [EventPlace(event.data, stream, int(number), int(epoch or 0), event.offset)]
