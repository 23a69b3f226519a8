"""Time windows: what writers note bounds the positions of readers, across scales, writers and truncation."""

import asyncio

import pytest

from segstore.client import Client, CutError, ScalingPolicy, StreamConfig, StreamCut, TimeWindow, TimeWindows
from segstore.client.errors import Closed, ProtocolViolation, RequestRejected
from segstore.client.watermarks import compared
from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from segstore.wire.revisioned import Mark, MarkedSegment
from tests.client.support import client, make_stream
from tests.looped import looped
from tests.server.support import PATIENCE_S

MARK = Mark(1, 2, (MarkedSegment(1, 0.0, 0.5, 100), MarkedSegment(2, 0.5, 1.0, 100)))


@looped(
    ("position", "order"),
    [
        ({1: (0.0, 0.5, 99), 2: (0.5, 1.0, 100)}, -1),
        ({1: (0.0, 0.5, 100), 2: (0.5, 1.0, 100)}, 1),
        ({1: (0.0, 0.5, 101), 2: (0.5, 1.0, 99)}, 0),
        ({0: (0.0, 1.0, 500)}, -1),
        ({3: (0.0, 1.0, 0)}, 1),
        ({0: (0.5, 1.0, 500)}, -1),
        ({1: (0.0, 0.5, 100)}, 1),
        ({}, 1),
    ],
)
def test_a_position_is_before_or_behind_a_watermark(position: dict[int, tuple[float, float, int]], order: int) -> None:
    assert compared(position, MARK) == order


async def until_window(windows: TimeWindows, cut: StreamCut, window: TimeWindow) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await windows.at(cut) != window:  # noqa: ASYNC110 — the controller writes watermarks by its clock
            await asyncio.sleep(0.01)


async def tail(pravega: Client) -> StreamCut:
    async with pravega.event_reader("a", "s", from_="tail") as events:
        return events.cut


@pytest.mark.usefixtures("grpc_runs")
async def test_the_window_of_a_position_is_what_its_writers_noted_around_it() -> None:
    controller = ControllerConfig(watermark_every_ms=10)
    async with MockCluster(watched=False, controller=controller) as mock, client(mock) as pravega:
        await pravega.controller.create_scope("a")
        config = StreamConfig(scaling=ScalingPolicy.fixed(2), timestamp_aggregation_timeout_ms=600_000)
        await pravega.controller.create_stream("a", "s", config)
        head = StreamCut("a", "s", await pravega.controller.head("a", "s"))
        async with (
            pravega.time_windows("a", "s") as windows,
            pravega.time_windows("a", "s") as late,
            pravega.event_writer("a", "s") as writer,
            pravega.event_writer("a", "s") as other,
        ):
            assert await windows.at(head) == TimeWindow(None, None)
            for number in range(8):
                await writer.write(b"early", routing_key=f"{number}")
            await writer.note_time(1_000)
            early = await tail(pravega)
            await until_window(windows, head, TimeWindow(None, 1_000))

            sealed = [segment.segment_id for segment in await pravega.controller.current_segments("a", "s")]
            ranges = [(0.0, 0.3), (0.3, 0.7), (0.7, 1.0)]
            await pravega.controller.scale("a", "s", sealed, ranges, wait_ms=10_000)
            for number in range(8):
                await other.write(b"late", routing_key=f"{number}")
            await other.note_time(2_000)
            for number in range(8):
                await writer.write(b"late", routing_key=f"{number}")
            await writer.note_time(3_000)
            later = await tail(pravega)
            await until_window(windows, early, TimeWindow(1_000, 3_000))
            await until_window(windows, later, TimeWindow(2_000, None))
            assert (await late.at(early)).lower == 1_000
            assert [await late.cut_before(time) for time in (999, 1_000, 2_999)] == [None, early, early]
            assert await late.cut_before(3_000) not in (None, early)
            with pytest.raises(CutError, match="a cut of a/t, not of a/s"):
                await windows.at(StreamCut("a", "t", {0: 0}))
            with pytest.raises(RequestRejected, match=f"the time 1 of writer {writer.name} .* INVALID_TIME"):
                await writer.note_time(1)
        with pytest.raises(Closed):
            await writer.note_time(4_000)
        marks = mock.controller.state.stream("a", "s").writers
        assert not any(mark.alive for mark in marks.values())  # closing the writers removed them
        assert not await pravega.controller.remove_writer("a", "s", "unknown")


@pytest.mark.usefixtures("grpc_runs")
async def test_truncated_watermarks_are_skipped_and_an_entry_that_is_none_is_reported() -> None:
    async with MockCluster(watched=False) as mock, client(mock) as pravega:
        await make_stream(pravega)
        await pravega.controller.current_segments("a", "_MARKs")  # makes the stream
        cut = StreamCut("a", "s", {0: 0})
        async with pravega.revisioned_stream("a", "_MARKs") as marks, pravega.time_windows("a", "s") as windows:
            assert await windows.at(cut) == TimeWindow(None, None)
            content = (5).to_bytes(8) + (6).to_bytes(8) + b"\0"
            await marks.write(b"\0\0\1\0" + len(content).to_bytes(4) + content)
            await marks.truncate(await marks.latest())
            assert await windows.at(cut) == TimeWindow(None, None)  # finds the new start
            await marks.write(b"\0\0\1\0" + len(content).to_bytes(4) + content)
            assert await windows.at(cut) == TimeWindow(5, None)  # a watermark without segments is passed
            await marks.write(b"?")
            with pytest.raises(ProtocolViolation, match=r"_MARKs/0\.#epoch\.0 has an entry that is not a watermark"):
                await windows.at(cut)
