"""Connections that break, clients that are killed: nothing is lost, doubled or left behind."""

import asyncio

from segstore.server.cluster import MockCluster
from tests.official.client import OfficialClient
from tests.official.support import MARKS, Held, cut_connections, eventually, make_stream, transient_segments, uri

pytestmark = MARKS

KEYS, PER_KEY = 40, 250


async def test_broken_connections_lose_and_double_nothing() -> None:
    what = {"scope": "a", "stream": "s", "keys": KEYS, "per_key": PER_KEY}
    cut = 0
    async with MockCluster(2, watched=False) as cluster:
        await make_stream(cluster, "a", "s", 3)
        async with (
            OfficialClient(uri(cluster), "events.read", **what) as reader,
            OfficialClient(uri(cluster), "events.write", **what, in_flight=200, pauses=8) as writer,
        ):
            await reader.said("reading")
            await writer.said("writing")
            for _ in range(8):
                await writer.said("paused")
                writer.go_on()
                await asyncio.sleep(0.005)  # into the writing
                cut += cut_connections(cluster)
            await writer.result()
            assert await reader.result() == {"events": KEYS * PER_KEY, "wrong": [], "problem": ""}
    assert cut >= 8, "no connection was there to be cut"


async def test_killed_clients_leave_no_task_descriptor_or_transient_segment() -> None:
    async with MockCluster(2, watched=False) as cluster:
        await make_stream(cluster, "a", "s", 2)
        first = Held.now()
        seen_transient = 0
        for number in range(3):
            async with OfficialClient(uri(cluster), "events.write_for_ever", scope="a", stream="s") as client:
                await client.said("writing")
                if number % 2:
                    await eventually(lambda: bool(transient_segments(cluster)), "a large event is on its way")
                    seen_transient += 1
                else:
                    await asyncio.sleep(0.02 * number)
                await client.kill()
            await eventually(lambda: not any(store.hub.connections for store in cluster.stores), "connections are gone")
            await eventually(lambda: not transient_segments(cluster), "transient segments are gone")
            if not number:
                first = Held.now()  # what gRPC opens for its first client it keeps
            await eventually(
                lambda: Held.now().is_within(first),  # noqa: B023 — called at once
                "there is no more than after the first",
            )
        assert seen_transient == 1
