"""Streams that are scaled while the official client writes and reads."""

import asyncio

from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS, current_segments, eventually, make_stream, scale, uri

pytestmark = MARKS

KEYS, PER_KEY = 40, 250
COUNTS = (4, 1, 3, 5, 2)
"""Segments after each scale: splits and merges."""


async def test_order_and_exactly_once_hold_while_a_stream_is_scaled() -> None:
    what = {"scope": "a", "stream": "s", "keys": KEYS, "per_key": PER_KEY}
    async with MockCluster(3, watched=False, containers=6) as cluster:
        await make_stream(cluster, "a", "s", 1)
        async with (
            OfficialClient(uri(cluster), "events.read", **what) as reader,
            OfficialClient(uri(cluster), "events.write", **what, in_flight=50, pauses=len(COUNTS)) as writer,
        ):
            await reader.said("reading")
            await writer.said("writing")
            for count in COUNTS:
                await writer.said("paused")
                writer.go_on()
                await asyncio.sleep(0.02)  # into the writing
                await scale(cluster, "a", "s", count)
            await writer.result()
            assert await reader.result() == {"events": KEYS * PER_KEY, "wrong": [], "problem": ""}
        assert len(current_segments(cluster, "a", "s")) == COUNTS[-1]
        again = await run(uri(cluster), "events.read", **what, group="from the head")
    assert again == {"events": KEYS * PER_KEY, "wrong": [], "problem": ""}


async def test_a_scale_that_takes_its_time_is_waited_for() -> None:
    what = {"scope": "a", "stream": "s", "keys": 4, "per_key": 200}
    async with MockCluster(watched=False, controller=ControllerConfig(scale_delay_ms=150)) as cluster:
        await make_stream(cluster, "a", "s", 1)
        async with OfficialClient(uri(cluster), "events.write", **what, pauses=1) as writer:
            await writer.said("writing")
            await writer.said("paused")
            await scale(cluster, "a", "s", 2)
            assert len(current_segments(cluster, "a", "s")) == 1
            writer.go_on()
            await writer.result()
        await eventually(lambda: len(current_segments(cluster, "a", "s")) == 2, "the scale is done")
        assert (await run(uri(cluster), "events.read", **what))["wrong"] == []
