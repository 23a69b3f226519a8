"""The lag of a group, by segment, across scales; cuts are whole while a merge is half read."""

import asyncio

import pytest

from segstore.client import SegmentEnded, SegmentLag, SegmentsAcquired, SegmentsReleased, StreamConfig
from segstore.client.client import Client
from segstore.client.controller import name_of
from segstore.client.groups import GroupChange
from tests.client.groups.support import fill, group
from tests.client.groups.test_group import take
from tests.client.support import until

pytestmark = pytest.mark.usefixtures("grpc_runs")

EVENT = 8 + len(b"k0:00")


async def merge(pravega: Client) -> None:
    """Replaces all segments by one."""
    await pravega.controller.update_stream("a", "s", StreamConfig())  # at least one segment, instead of two
    sealed = [segment.segment_id for segment in await pravega.controller.current_segments("a", "s")]
    await pravega.controller.scale("a", "s", sealed, [(0.0, 1.0)], wait_ms=10_000)


def ended(changes: dict[str, list[GroupChange]]) -> list[SegmentEnded]:
    return [each for some in changes.values() for each in some if isinstance(each, SegmentEnded)]


async def test_the_lag_is_what_lies_behind_the_recorded_positions(pravega: Client) -> None:
    await fill(pravega, 90, segments=1, start=10)
    async with group(pravega) as shared:
        assert await shared.metrics() == ((SegmentLag("a/s/0.#epoch.0", None, 0, 90 * EVENT),), {})
        async with shared.reader("r") as reader:
            await take(reader, 40)
            found = await shared.metrics()
            assert [segment.reader for segment in found.segments] == ["r"]
            assert found.readers == {"r": 1}
        assert (await shared.metrics()).unread_bytes == 50 * EVENT
        await pravega.controller.truncate_stream("a", "s", {0: 60 * EVENT})
        assert (await shared.metrics()).segments == (SegmentLag("a/s/0.#epoch.0", None, 60 * EVENT, 90 * EVENT),)
        await pravega.controller.scale("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)], wait_ms=10_000)
        await merge(pravega)
        await fill(pravega, 10, start=10)
        found = await shared.metrics()
        assert [each.unread_bytes for each in found.segments if each.unread_bytes] == [30 * EVENT, 10 * EVENT]
        assert {each.end for each in found.segments if not each.unread_bytes} == {0}
        assert found.unread_bytes == 40 * EVENT


async def test_a_cut_of_a_half_read_merge_has_the_end_of_the_finished_part(pravega: Client) -> None:
    await fill(pravega, 80, segments=2, start=10)
    await merge(pravega)
    changes: dict[str, list[GroupChange]] = {"r": []}
    async with group(pravega) as shared:
        ends = {segment.segment: segment.end for segment in (await shared.metrics()).segments if segment.end}
        async with shared.reader("r", listener=changes["r"].append) as reader:
            while not ended(changes):
                assert await reader.read() is not None
                await asyncio.sleep(0.005)
        left = (await shared.cuts())["a/s"]
        (finished,) = {name_of("a", "s", each) for each, at in left.items() if at == ends[name_of("a", "s", each)]}
        assert {each.segment for each in ended(changes)} == {finished}
        assert len(left) == 2
        async with pravega.event_reader("a", "s", from_=left) as events:
            await fill(pravega, 1, start=99)
            while (await anext(events)).data != b"k3:99":
                continue


async def test_a_listener_is_called_with_segments_that_come_and_go(pravega: Client) -> None:
    await fill(pravega, 40, segments=2, start=10)
    changes: dict[str, list[GroupChange]] = {"one": [], "two": []}

    async def run(name: str) -> None:
        async with shared.reader(name, listener=changes[name].append) as reader:
            async for _ in reader:
                continue

    async with group(pravega) as shared, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(run("one"))
        await until(lambda: bool(changes["one"]))
        assert changes["one"] == [SegmentsAcquired({"a/s/0.#epoch.0": 0, "a/s/1.#epoch.0": 0})]
        second = tasks.create_task(run("two"))
        await until(lambda: bool(changes["two"]))
        (released,) = [change for change in changes["one"] if isinstance(change, SegmentsReleased)]
        (acquired,) = [each for each in changes["two"] if isinstance(each, SegmentsAcquired)]
        assert released.positions == acquired.positions
        await merge(pravega)
        await until(lambda: len(ended(changes)) == 2)
        names = {each.segment: each.successors for each in ended(changes)}
        assert names == dict.fromkeys(["a/s/0.#epoch.0", "a/s/1.#epoch.0"], ("a/s/2.#epoch.1",))
        first.cancel()
        second.cancel()
