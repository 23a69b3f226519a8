"""Reader groups: several readers, slices, positions, stream cuts, head and tail."""

from __future__ import annotations

import time
from typing import Any

from pravega_client import StreamManager, StreamReaderGroupConfig

from common import Reading, apart, attempt, manager, say, texts, told


def _fill(made: StreamManager, scope: str, stream: str, count: int, start: int = 0, keys: int = 8) -> None:
    writer = made.create_writer(scope, stream, 500)
    for number in range(start, start + count):
        writer.write_event(f"{number}", routing_key=f"k{number % keys}")
    writer.flush()


def _numbers(events: list[bytes]) -> list[int]:
    return sorted(map(int, texts(events)))


async def hand_over(uri: str) -> dict[str, Any]:
    """A reader stops half way, another goes on where it stopped."""
    made = manager(uri, "a", s=4)
    _fill(made, "a", "s", 2000)
    group = made.create_reader_group("g", "a", "s")
    first = Reading(group.create_reader("first"))
    doubled = attempt(lambda: group.create_reader("first"))
    await first.until(1)
    first.reader.reader_offline()
    await apart()
    second = Reading(group.create_reader("second"))
    await second.until(2000 - len(first.events))
    return {
        "first": len(first.events),
        "all": _numbers(first.events + second.events) == list(range(2000)),
        "doubled": doubled,
        "offline again": attempt(first.reader.reader_offline),
        "release after it": attempt(lambda: group.reader_offline("second")),
    }


async def share(uri: str, scope: str, stream: str, name: str) -> list[int]:
    """One reader of a group that has others in other processes: read, and say how much, until told to end.

    Who reads with others cannot know that it has read all. A segment that another gives up may lie for ten seconds
    before the client asks for it, and then brings what was written long ago.
    """
    made = StreamManager(uri)
    reading = Reading(made.create_reader_group("shared", scope, stream).create_reader(name))
    say("reading")
    while not told():
        if await reading.once():
            say(str(len(reading.events)))
    reading.reader.reader_offline()
    await apart()
    return [int(event.split(b":")[1]) for event in reading.events]


def write_until_told(uri: str, scope: str, stream: str, keys: int) -> int:
    """Write numbered events with some keys, slowly, until told to end; give how many."""
    made = StreamManager(uri)
    writer, number = made.create_writer(scope, stream), 0
    say("writing")
    while not told():
        for key in range(keys):
            writer.write_event(f"k{key}:{number}", routing_key=f"k{key}")
            number += 1
        time.sleep(0.05)
    writer.flush()
    return number


async def positions(uri: str) -> dict[str, Any]:
    """Head, tail, a cut on the way; offsets of events."""
    made = manager(uri, "a", s=2, one=1)
    _fill(made, "a", "s", 1000)
    group = made.create_reader_group("head", "a", "s")
    reading = Reading(group.create_reader("r"))
    await reading.until(1)
    reading.reader.reader_offline()
    await apart()
    cut = group.get_streamcut()
    before = list(reading.events)
    from_cut = Reading(made.create_reader_group("from-cut", "a", "s", False, cut).create_reader("r"))
    await from_cut.until(1000 - len(before))
    tail_group = made.create_reader_group("tail", "a", "s", True)
    at_tail = tail_group.get_streamcut().get_segment_offset_map()
    tail = Reading(tail_group.create_reader("r"))
    _fill(made, "a", "s", 50, start=1000)
    await tail.until(50)

    writer = made.create_writer("a", "one")
    for text in ("a", "bb", "ccc"):
        writer.write_event(text)
    writer.flush()
    offsets = Reading(made.create_reader_group("offsets", "a", "one").create_reader("r"))
    await offsets.until(3)
    return {
        "read before the cut": len(before),
        "cut": sorted(cut.get_segment_offset_map().items()),
        "from the cut": _numbers(before + from_cut.events) == list(range(1000)),
        "tail": _numbers(tail.events) == list(range(1000, 1050)),
        "bytes at the tail": sum(at_tail.values()),
        "offsets": offsets.offsets,
    }


async def several_streams(uri: str) -> dict[str, Any]:
    """One group over three streams; a group is deleted and made again under its name."""
    made = manager(uri, "a", s1=1, s2=2, s3=3)
    for number in range(3):
        _fill(made, "a", f"s{number + 1}", 100, start=100 * number)
    config = StreamReaderGroupConfig(False, "a", "s1", "s2", "s3")
    group = made.create_reader_group_with_config("g", "a", config)
    reading = Reading(group.create_reader("r"))
    await reading.until(300)
    reading.reader.reader_offline()
    await apart()
    deleted = attempt(lambda: made.delete_reader_group("g", "a"))
    again = Reading(made.create_reader_group_with_config("g2", "a", config).create_reader("r"))
    await again.until(300)
    return {"all": _numbers(reading.events) == list(range(300)), "deleted": deleted, "again": len(again.events)}


async def wait_for_events(uri: str, scope: str, stream: str, count: int) -> dict[str, Any]:
    """Read at the tail of a stream to which nobody has written yet."""
    made = StreamManager(uri)
    reading = Reading(made.create_reader_group("waits", scope, stream).create_reader("r"))
    say("waiting")
    await reading.until(count)
    return {"events": len(reading.events)}


async def made_again(uri: str) -> list[int]:
    """One name for a group that is made, read with and deleted, twice."""
    made, read = manager(uri, "a", s=1), []
    _fill(made, "a", "s", 100)
    for _ in range(2):
        reading = Reading(made.create_reader_group("g", "a", "s").create_reader("r"))
        read.append(len(await reading.until(100)))
        reading.reader.reader_offline()
        await apart()
        made.delete_reader_group("g", "a")
    return read
