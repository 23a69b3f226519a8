"""Batch reads: the ranges between two positions hold exactly the events between them, across scales and truncation."""

import asyncio
import pickle
from typing import Any, cast

import pytest

from segstore.client import Client, CutError, EventRange, ScalingPolicy, StreamConfig, StreamCut, StreamEvent
from segstore.client.errors import ClientError, Closed, NoSuchStream, ProtocolViolation, SegmentTruncated
from segstore.client.stream import event_ranges
from segstore.server.cluster import MockCluster
from tests.client.segments import FAST_RETRY
from tests.client.support import client, make_stream

pytestmark = pytest.mark.usefixtures("grpc_runs")


async def write(pravega: Client, first: int, count: int) -> None:
    async with pravega.event_writer("a", "s") as writer:
        for number in range(first, first + count):
            await writer.submit(b"%d" % number, routing_key=f"k{number % 7}")


async def tail(pravega: Client) -> StreamCut:
    async with pravega.event_reader("a", "s", from_="tail") as events:
        return events.cut


async def scale(pravega: Client) -> None:
    """Replaces all segments by three."""
    sealed = [segment.segment_id for segment in await pravega.controller.current_segments("a", "s")]
    await pravega.controller.scale("a", "s", sealed, [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)], wait_ms=10_000)


async def read(pravega: Client, wanted: EventRange) -> list[StreamEvent]:
    async with pravega.range_reader(wanted) as events:
        return [event async for event in events]


async def read_all(pravega: Client, ranges: list[EventRange]) -> list[int]:
    """Reads ranges concurrently; returns the numbers in the order of the ranges."""
    found = await asyncio.gather(*[read(pravega, range_) for range_ in ranges])
    return [int(event.data) for events in found for event in events]


async def test_ranges_between_two_cuts_hold_what_was_written_between_them_across_scales() -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock, read_size_bytes=100) as pravega:
        await make_stream(pravega, 2)
        await write(pravega, 0, 50)
        start = await tail(pravega)
        await write(pravega, 50, 50)
        await scale(pravega)
        await write(pravega, 100, 50)
        end = await tail(pravega)
        await write(pravega, 150, 50)

        ranges = await pravega.event_ranges("a", "s", from_=start, to=end)
        assert len(ranges) == 4  # one of the three successors gets none of the keys
        assert pickle.loads(pickle.dumps(ranges)) == ranges
        assert {type(each.segment_id) for each in ranges} == {int}
        assert sum(range_.size for range_ in ranges) == sum(8 + len(b"%d" % number) for number in range(50, 150))
        numbers = await read_all(pravega, ranges)
        assert sorted(numbers) == list(range(50, 150))
        for key in range(7):  # predecessors come first
            of_key = [number for number in numbers if number % 7 == key]
            assert of_key == sorted(of_key)

        assert sorted(await read_all(pravega, await pravega.event_ranges("a", "s"))) == list(range(200))
        assert sorted(await read_all(pravega, await pravega.event_ranges("a", "s", from_=end))) == [*range(150, 200)]
        assert await pravega.event_ranges("a", "s", from_="tail") == []
        assert await pravega.event_ranges("a", "s", to="head") == []
        await pravega.controller.seal_stream("a", "s")
        assert await pravega.event_ranges("a", "s", from_="tail") == []
        assert sorted(await read_all(pravega, await pravega.event_ranges("a", "s", from_=end))) == [*range(150, 200)]


async def test_an_iteration_that_was_left_continues_and_slices_give_the_rest() -> None:
    async with MockCluster(watched=False) as mock, client(mock) as pravega:
        await make_stream(pravega)
        await write(pravega, 0, 9)
        (wanted,) = await pravega.event_ranges("a", "s")
        async with pravega.range_reader(wanted) as events:
            async for event in events:
                assert event == StreamEvent(b"0", 0, 0)
                break
            assert (await anext(aiter(events))).data == b"1"
            rest = [event.data async for some in events.slices() for event in some]
            assert rest == [b"%d" % number for number in range(2, 9)]
            assert await events.read_slice() == []
        await events.aclose()
        closed = pravega.range_reader(wanted)
        await closed.aclose()
        with pytest.raises(Closed):
            await closed.read_slice()


async def test_what_is_no_range_is_refused_and_what_is_gone_is_reported() -> None:
    async with MockCluster(watched=False) as mock, client(mock, retry=FAST_RETRY) as pravega:
        await make_stream(pravega)
        await write(pravega, 0, 9)
        with pytest.raises(CutError, match=r"behind the end of a/s/0.#epoch.0: it has 1000, the segment ends at 81"):
            await pravega.event_ranges("a", "s", to={0: 1000})
        await pravega.controller.create_stream("a", "two", StreamConfig(scaling=ScalingPolicy.fixed(2)))
        with pytest.raises(CutError, match=r"behind the end of a/two/1.#epoch.0: it has 8, the segment ends at 0"):
            await pravega.event_ranges("a", "two", to={1: 8, 0: 9})
        with pytest.raises((CutError, ClientError), match="a/s"):
            await pravega.event_ranges("a", "s", from_={0: 18}, to={0: 9})
        with pytest.raises(CutError, match="a cut of a/t, not of a/s"):
            await pravega.event_ranges("a", "s", from_=StreamCut("a", "t", {0: 0}))
        with pytest.raises(ValueError, match="'head', 'tail' or a cut, not 'now'"):
            await event_ranges(pravega._cluster("READ"), "a", "s", cast("Any", "now"), "tail")
        with pytest.raises(NoSuchStream):
            await pravega.event_ranges("a", "none")
        with pytest.raises(ProtocolViolation, match="no whole event at 9: the range ends at 13"):
            await read(pravega, EventRange("a", "s", 0, 9, 13))
        await pravega.controller.truncate_stream("a", "s", {0: 27})
        with pytest.raises(SegmentTruncated):
            await read(pravega, EventRange("a", "s", 0, 9, 27))
        assert [range_.start for range_ in await pravega.event_ranges("a", "s")] == [27]
