"""Events through the official client: keys, sizes, order, exactly once."""

import asyncio

from segstore.server.cluster import MockCluster
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS, segment_names, transient_segments, uri

pytestmark = MARKS

KEYS, PER_KEY = 100, 1000
MIB = 1024 * 1024
SIZES = [1, 100, 7, 65_536, 1_000_000, 1, 8 * MIB - 8, 8 * MIB, 8 * MIB + 1, 50, 16 * MIB - 8, 3]
"""From one byte to what goes through a transient segment, small ones between."""


async def test_events_with_and_without_keys_come_back() -> None:
    async with MockCluster(watched=False) as cluster:
        assert await run(uri(cluster), "events.basics") == {"texts": True, "binary": 2}


async def test_events_of_one_byte_to_16_mebibytes_come_back_in_order() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "events.sizes", sizes=SIZES)
        assert found["read"] == SIZES
        assert found["wrong"] == []
        assert found["too large"].get("fails") == "ValueError"
        assert transient_segments(cluster) == []


async def test_100_000_events_keep_the_order_of_their_keys_and_come_once() -> None:
    async with MockCluster(3, watched=False, containers=6) as cluster:
        found = await run(
            uri(cluster), "events.write_and_read", scope="a", stream="s", segments=5, keys=KEYS, per_key=PER_KEY
        )
        used = [any(part.segments for part in store.store.containers.values()) for store in cluster.stores]
    assert found == {"events": KEYS * PER_KEY, "wrong": [], "problem": ""}
    assert all(used), "a store holds nothing, so nothing was tried there"


async def test_a_sealed_stream_ends_its_readers_and_refuses_writers() -> None:
    async with MockCluster(watched=False) as cluster:
        found = await run(uri(cluster), "events.write_until_refused", scope="a", stream="s")
        assert found["sealed"] is True
        assert found["late"].get("fails") == "ValueError"
        read = await run(uri(cluster), "events.read_to_the_end", scope="a", stream="s", keys=2, per_key=200)
    assert read == {"events": 400, "wrong": [], "segments ended": 2}


async def test_several_clients_at_once() -> None:
    async with MockCluster(2, watched=False) as cluster:
        found = await asyncio.gather(
            run(uri(cluster), "events.write_and_read", scope="a", stream="s1", segments=2, keys=5, per_key=400),
            run(uri(cluster), "events.write_and_read", scope="a", stream="s2", segments=1, keys=5, per_key=400),
            run(uri(cluster), "transactions.large", scope="b", stream="t", keys=5, per_key=20),
        )
    assert [each["events"] for each in found] == [2000, 2000, 100]
    assert [each["wrong"] for each in found] == [[], [], []]


async def test_a_reader_that_waits_at_the_tail_gets_what_comes() -> None:
    async with MockCluster(watched=False) as cluster:
        await run(uri(cluster), "events.write_and_read", scope="a", stream="s", segments=2, keys=1, per_key=1)
        async with OfficialClient(uri(cluster), "groups.wait_for_events", scope="a", stream="s", count=101) as reader:
            await reader.said("waiting")
            await run(uri(cluster), "events.write", scope="a", stream="s", keys=10, per_key=10)
            assert await reader.result() == {"events": 101}


async def test_deleting_streams_leaves_no_segment() -> None:
    async with MockCluster(2, watched=False) as cluster:
        await run(uri(cluster), "events.basics")
        before = segment_names(cluster)
        assert await run(uri(cluster), "events.churn", scope="a", rounds=3) == "done"
        assert segment_names(cluster) == before
