"""The sink's commits over sockets: all that holds in memory, and what becomes of lost replies and dead stores."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from segstore.client.errors import RetriesExhausted
from segstore.pipeline.stream import write as stream_write
from segstore.server.cluster import MockCluster
from tests.pipeline.stream import test_commit as in_memory
from tests.pipeline.stream.test_commit import expect_once, two_tasks
from tests.pipeline.stream_support import QUERY, batch_of, every_event, task, using

IMPATIENT = {"client.retry": '{"initial_ms": 1, "max_ms": 5, "max_attempts": 3}'}

globals().update({name: each for name, each in vars(in_memory).items() if name.startswith("test_")})


async def test_a_merge_whose_reply_is_lost_is_not_made_twice(cluster: MockCluster, uri: str) -> None:
    results = await two_tasks(uri)
    cluster.faults.add("type = MERGE_SEGMENTS", do="close after", nth=[1, 3])  # the fold's, and the last one's
    await batch_of(uri, 0, results)
    assert len(cluster.faults.decisions) == 2
    await expect_once(uri)


async def test_a_store_that_dies_in_the_middle_ends_the_task_with_its_name(cluster: MockCluster, uri: str) -> None:
    address = cluster.stores[0].address

    async def dies() -> AsyncIterator[stream_write.Rows]:
        yield [b"first"], None
        for store in cluster.stores:
            await store.stop(drain_s=0)
        yield [b"second" * 100_000], None

    async with using(uri, **IMPATIENT) as segments:
        with pytest.raises(RetriesExhausted) as caught:
            await stream_write.write_rows(segments, QUERY, 0, 0, dies())
    assert address is not None
    assert "s/out/0.#epoch.0#transaction." in str(caught.value)


async def test_an_event_larger_than_an_append_is_written(cluster: MockCluster, uri: str) -> None:
    large = bytes(range(256)) * (9 << 12)
    async with using(uri) as segments:
        done = await task(segments, 0, 0, [b"a", large, b"b"])
    await batch_of(uri, 0, [done])
    assert [event.data for event in await every_event(uri)] == [b"a", large, b"b"]
