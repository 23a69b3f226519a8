"""Reader groups that the official client and this one share: made by either, read by both, handed over and balanced."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from segstore.client import connect
from segstore.client.client import Client
from segstore.client.errors import ReaderExists
from segstore.client.groups import GroupEvent, GroupReader, ReaderGroup
from segstore.server.cluster import MockCluster
from tests.client.support import settings
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS, eventually, make_stream, scale, uri

pytestmark = MARKS

KEYS = 8
PATIENCE_S = 90.0
GROUP: dict[str, Any] = {"scope": "a", "group": "g", "stream": "s"}


def ours(cluster: MockCluster) -> Client:
    return connect(uri(cluster), settings())


def group(pravega: Client, streams: Sequence[str] = ("s",)) -> ReaderGroup:
    return pravega.reader_group("a", "g", streams=streams, refresh_ms=50, shared_with="rust")


async def write(pravega: Client, start: int, stop: int) -> None:
    async with pravega.event_writer("a", "s") as writer:
        for number in range(start, stop):
            await writer.submit(b"k%d:%d" % (number % KEYS, number), routing_key=f"k{number % KEYS}")


async def take(reader: GroupReader, count: int) -> list[str]:
    got: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(got) < count:
            event = await reader.read()
            got.append(event.data.decode())
    return got


def numbers(events: Sequence[str]) -> list[int]:
    return sorted(int(event.partition(":")[2]) for event in events)


def assert_in_order(events: Sequence[str], count: int) -> None:
    for key in range(KEYS):
        mine = [int(event.partition(":")[2]) for event in events if event.startswith(f"k{key}:")]
        assert mine == list(range(key, count, KEYS)), f"key {key}"


async def test_a_group_that_we_made_is_read_by_the_official_client_and_on_by_us() -> None:
    async with MockCluster(2, watched=False) as cluster, ours(cluster) as pravega:
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
    async with MockCluster(2, watched=False) as cluster, ours(cluster) as pravega:
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
    async with MockCluster(1, watched=False) as cluster, ours(cluster) as pravega:
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
    async with MockCluster(2, watched=False) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 2)
        await write(pravega, 0, 400)
        stays = OfficialClient(uri(cluster), "interop_groups.read_and_stay", **GROUP, reader="gone", count=1)
        async with stays as official:
            said = (await official.says()).split()
            await official.kill()
        async with group(pravega, streams=()) as shared:
            assert await shared.reader_offline("gone")
            # It records where it is every three seconds: on a quick machine nothing, and all is read again.
            begun = sum((await shared.cuts())["a/s"].values()) > 0
            got: list[str] = []
            async with shared.reader("ours") as reader:
                while len({*said, *got} if begun else got) < 400:
                    got += await take(reader, 1)
        if begun:
            assert_in_order([*dict.fromkeys(said), *(event for event in got if event not in said)], 400)
        else:
            assert_in_order(got, 400)
        assert set(numbers(said)) <= set(range(400))


async def test_the_official_client_reads_on_after_our_reader_has_crashed() -> None:
    async with MockCluster(2, watched=False) as cluster, ours(cluster) as pravega:
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

            async with asyncio.timeout(PATIENCE_S):
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


async def test_successors_that_one_client_recorded_are_read_by_the_other() -> None:
    """We end one of four segments and leave: the official client ends the others and goes on behind all."""
    async with MockCluster(2, watched=False) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 4)
        await write(pravega, 0, 800)
        await scale(cluster, "a", "s", 5)
        await write(pravega, 800, 1200)
        async with group(pravega) as shared:
            got: list[str] = []
            first = "a/s/0.#epoch.0"

            async def read(reader: GroupReader) -> None:
                async for event in reader:
                    got.append(event.data.decode())

            # Four readers have a segment each, and one of them reads: no other segment can come to its end.
            async with AsyncExitStack() as stack:
                readers = [await stack.enter_async_context(shared.reader(f"ours {number}")) for number in range(4)]
                await eventually(lambda: all(len(each.segments) == 1 for each in readers), "each has a segment")
                one = next(each for each in readers if each.segments == [first])
                reading = asyncio.create_task(read(one))
                await eventually(lambda: first not in one.segments, "a segment has ended")
                reading.cancel()
                await asyncio.wait((reading,))
            # One has ended: what follows it alone can be read, what follows another as well waits for that.
            assert any(segment_id < 4 for segment_id in (await shared.cuts())["a/s"])
            left = 1200 - len(got)
            got += await run(uri(cluster), "interop_groups.read_some", **GROUP, reader="official", count=left)
        assert_in_order(got, 1200)


@pytest.mark.long
async def test_readers_of_both_clients_share_the_segments_in_either_order_of_arrival() -> None:
    """The official client takes and gives up segments after ten seconds, not before: both orders at once."""
    await asyncio.gather(_side_by_side("ours"), _side_by_side("official"))


async def _side_by_side(first: str) -> None:
    async with MockCluster(2, watched=False) as cluster, ours(cluster) as pravega:
        await make_stream(cluster, "a", "s", 4)
        where: dict[str, Any] = {"scope": "a", "stream": "s"}
        shared = pravega.reader_group("a", "shared", streams=["s"], refresh_ms=200, shared_with="rust")
        got: list[GroupEvent] = []
        sizes: set[int] = set()
        theirs: list[int] = []

        async def read(reader: GroupReader) -> None:
            async for event in reader:
                got.append(event)
                sizes.add(len(reader.segments))

        reader = shared.reader("ours")
        official = OfficialClient(uri(cluster), "groups.share", **where, name="official")
        writer = OfficialClient(uri(cluster), "groups.write_until_told", **where, keys=12)
        async with shared, official, writer:
            if first == "ours":
                await reader.open()
            await official.said("reading")
            if first == "official":
                await reader.open()
            await writer.said("writing")
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(read(reader))
                result = tasks.create_task(official.result(heard=lambda said: theirs.append(int(said))))
                # The official client gives up one of its four segments in ten seconds, we all but our share at once.
                share = {"ours": 2, "official": 1}[first]
                await eventually(lambda: share in sizes and bool(theirs), "both have segments")
                writer.go_on()
                written = await writer.result()
                await eventually(lambda: len(got) + theirs[-1] >= written, "all is read")
                official.go_on()
                numbers_of_theirs: list[int] = await result
                reading.cancel()
            await reader.aclose()
        mine = numbers([event.data.decode() for event in got])
        assert sorted(mine + numbers_of_theirs) == list(range(written))
