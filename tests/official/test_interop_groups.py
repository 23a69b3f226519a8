"""Reader groups that the official client and this one share: made by either, read by both, handed over and balanced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from segstore.client import connect
from segstore.client.errors import ReaderExists
from segstore.client.reader_group import ReaderGroup
from segstore.client.reader_group_reader import GroupEvent, GroupReader
from segstore.client.streams import Client
from segstore.server.cluster import MockCluster
from tests.client.support import settings
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS, eventually, make_stream, scale, uri

pytestmark = MARKS

KEYS = 8
GROUP: dict[str, Any] = {"scope": "a", "group": "g", "stream": "s"}


def ours(cluster: MockCluster) -> Client:
    return connect(uri(cluster), settings())


def group(pravega: Client, streams: Sequence[str] = ("s",)) -> ReaderGroup:
    return pravega.reader_group("a", "g", streams=streams, refresh_ms=50)


async def write(pravega: Client, start: int, stop: int) -> None:
    async with pravega.event_writer("a", "s") as writer:
        for number in range(start, stop):
            await writer.submit(b"k%d:%d" % (number % KEYS, number), routing_key=f"k{number % KEYS}")


async def take(reader: GroupReader, count: int) -> list[str]:
    got: list[str] = []
    async with asyncio.timeout(30):
        while len(got) < count:
            event = await reader.read()
            assert event is not None
            got.append(event.data.decode())
    return got


def numbers(events: Sequence[str]) -> list[int]:
    return sorted(int(each.partition(":")[2]) for each in events)


def assert_in_order(events: Sequence[str], count: int) -> None:
    for key in range(KEYS):
        mine = [int(each.partition(":")[2]) for each in events if each.startswith(f"k{key}:")]
        assert mine == list(range(key, count, KEYS)), f"key {key}"


async def test_a_group_that_we_made_is_read_by_the_official_client_and_on_by_us() -> None:
    async with MockCluster(2) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 3)
        await write(pravega, 0, 600)
        async with group(pravega) as shared:
            async with shared.reader("ours") as reader:
                first = await take(reader, 150)
            second = await run(uri(cluster), "interop_groups.read_some", **GROUP, reader="official", count=100)
            assert await shared.readers() == []
            async with shared.reader("official") as reader:
                third = await take(reader, 600 - len(first) - len(second))
        assert_in_order(first + second + third, 600)


async def test_a_group_that_the_official_client_made_is_read_by_us_and_on_by_it() -> None:
    async with MockCluster(2) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 3)
        await write(pravega, 0, 600)
        first = await run(uri(cluster), "interop_groups.read_some", **GROUP, reader="official", count=100)
        async with group(pravega, streams=()) as shared:
            assert await shared.streams() == ["a/s"]
            left = 600 - len(first)
            async with shared.reader("ours") as reader:
                second = await take(reader, left // 2)
        third = await run(uri(cluster), "interop_groups.read_some", **GROUP, reader="ours", count=left - len(second))
        assert_in_order(first + second + third, 600)


async def test_names_of_readers_are_taken_for_both_clients() -> None:
    async with MockCluster(1) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 1)
        await write(pravega, 0, 10)
        async with group(pravega) as shared:
            async with shared.reader("r"):
                refused = await run(uri(cluster), "interop_groups.doubled", **GROUP, reader="r")
                assert "already online" in refused["text"]
            stays = OfficialClient(uri(cluster), "interop_groups.read_and_stay", **GROUP, reader="r", count=10)
            async with stays as official:
                await official.said(" ".join(f"k{number % KEYS}:{number}" for number in range(10)))
                assert await shared.readers() == ["r"]
                with pytest.raises(ReaderExists):
                    await shared.reader("r").open()


async def test_we_read_on_after_a_reader_of_the_official_client_has_crashed() -> None:
    async with MockCluster(2) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 2)
        await write(pravega, 0, 400)
        stays = OfficialClient(uri(cluster), "interop_groups.read_and_stay", **GROUP, reader="gone", count=1)
        async with stays as official:
            said = json.loads(await _line(official))["said"].split()
            await official.kill()
        async with group(pravega, streams=()) as shared:
            assert await shared.reader_offline("gone")
            async with shared.reader("ours") as reader:
                # It recorded nothing in its first three seconds: all is read again, nothing is missing.
                assert_in_order(await take(reader, 400), 400)
        assert set(numbers(said)) <= set(range(400))


async def test_the_official_client_reads_on_after_our_reader_has_crashed() -> None:
    async with MockCluster(2) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 2)
        await write(pravega, 0, 400)
        async with group(pravega) as shared:
            gone = shared.reader("gone")
            await gone.open()
            first = await take(gone, 100)

            async def recorded() -> bool:
                return (await shared.cuts())["a/s"] == {
                    int(name.split("/")[2].split(".")[0]): offset for name, offset in gone.positions.items()
                }

            async with asyncio.timeout(20):
                while not await recorded():  # noqa: ASYNC110 — what is waited for is in the table
                    await asyncio.sleep(0.01)
            await gone.abort()
            found = await run(uri(cluster), "interop_groups.put_offline", **GROUP, gone="gone", count=301)
            assert found["put"] == found["again"] == {"gives": None}
            # What was in our user's hands when the reader crashed is read again.
            assert numbers(first[:-1] + found["events"]) == list(range(400))
            assert first[-1] in found["events"]
            assert found["cut"].keys() == {"0", "1"}
            assert await shared.readers() == []


async def test_successors_that_one_client_noted_are_read_by_the_other() -> None:
    """We end one of four segments and leave: the official client ends the others and goes on behind all."""
    async with MockCluster(2) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 4)
        await write(pravega, 0, 800)
        await scale(cluster, "a", "s", 5)
        await write(pravega, 800, 1200)
        async with group(pravega) as shared:
            async with shared.reader("ours") as reader:
                got: list[str] = []
                async with asyncio.timeout(30):
                    while sum(each.endswith("#epoch.0") for each in reader.segments) == 4:
                        got += await take(reader, 1)
            # One has ended: what follows it alone can be read, what follows another as well waits for that.
            assert any(segment_id < 4 for segment_id in (await shared.cuts())["a/s"])
            left = 1200 - len(got)
            got += await run(uri(cluster), "interop_groups.read_some", **GROUP, reader="official", count=left)
        assert_in_order(got, 1200)


async def test_we_read_the_successors_that_the_official_client_noted() -> None:
    async with MockCluster(2) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 4)
        await write(pravega, 0, 400)
        await scale(cluster, "a", "s", 5)
        await write(pravega, 400, 800)
        await scale(cluster, "a", "s", 6)
        await write(pravega, 800, 1200)
        got = await run(uri(cluster), "interop_groups.read_some", **GROUP, reader="official", count=500)
        assert len(got) < 1200
        async with group(pravega, streams=()) as shared, shared.reader("ours") as reader:
            got += await take(reader, 1200 - len(got))
        assert_in_order(got, 1200)


async def test_readers_of_both_clients_share_the_segments_side_by_side_whoever_comes_first() -> None:
    """The official client takes and gives up segments after ten seconds, not before: both orders at once."""
    await asyncio.gather(_side_by_side("ours"), _side_by_side("official"))


async def _side_by_side(first: str) -> None:
    async with MockCluster(2) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 4)
        where: dict[str, Any] = {"scope": "a", "stream": "s"}
        shared = pravega.reader_group("a", "shared", streams=["s"], refresh_ms=200)
        reader: GroupReader | None = None
        got: list[GroupEvent] = []
        sizes: set[int] = set()

        async def read(reader: GroupReader) -> None:
            async for event in reader:
                got.append(event)
                sizes.add(len(reader.segments))

        official = OfficialClient(uri(cluster), "groups.share", **where, name="official", at_least=30)
        async with shared, asyncio.TaskGroup() as tasks:

            async def join() -> asyncio.Task[None]:
                nonlocal reader
                reader = shared.reader("ours")
                await reader.open()
                return tasks.create_task(read(reader))

            if first == "ours":
                reading = await join()
            async with official:
                await official.said("reading")
                if first == "official":
                    reading = await join()
                assert reader is not None
                written = await run(uri(cluster), "groups.write_slowly", **where, seconds=13, keys=12)
                theirs: list[int] = await official.result()
            await eventually(lambda: len(got) + len(theirs) >= written, "all is read")
            reading.cancel()
            await asyncio.wait((reading,))
            await reader.aclose()
        mine = numbers([event.data.decode() for event in got])
        assert sorted(mine + theirs) == list(range(written))
        assert {"ours": 2, "official": 1}[first] in sizes, "the official client gives up one segment in ten seconds"


async def _line(official: OfficialClient) -> Any:
    """What a scenario says next, whatever it is."""
    assert official.process.stdout is not None
    async with asyncio.timeout(45):
        while not (line := await official.process.stdout.readline()).startswith(b"{"):
            assert line, "the scenario has ended"
    return line
