"""A batch becomes visible once and whole, whoever commits it and however often, also when the stream is scaled.

On a store without sockets; `tests/streams` has all of this over sockets too, and what only sockets can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from segstore.client.errors import StreamSealed
from segstore.pipeline.stream import write as stream_write
from segstore.pipeline.stream.commit import BatchCommitter, TargetSealed, WriteLost, abandon, sweep
from segstore.pipeline.stream.registry import Registry, registry_name
from segstore.pipeline.stream.segments import Segments
from segstore.pipeline.stream.write import TaskResult
from segstore.server.cluster import MockCluster
from tests.pipeline.memory_stream import MemoryStream
from tests.pipeline.stream_support import (
    QUERY,
    SCOPE,
    STREAM,
    Where,
    batch_of,
    every_event,
    options,
    scale,
    task,
    using,
)

Cluster = MemoryStream | MockCluster

KEYS = [f"k{number}" for number in range(12)]
EVENTS = [f"{key}:{number}".encode() for number in range(3) for key in KEYS]
OF_EVENTS = [event.split(b":")[0].decode() for event in EVENTS]


class Killed(BaseException):
    """Stands for the end of a process: nothing of this project catches it."""


@pytest.fixture
def cluster() -> MemoryStream:
    return MemoryStream(SCOPE, STREAM)


@pytest.fixture
def uri(cluster: MemoryStream) -> Where:
    return cluster


def left_over(cluster: Cluster) -> list[str]:
    """Segments of tasks that are still there."""
    return [
        name
        for store in cluster.stores
        for container in store.store.containers.values()
        for name in container.segments
        if "#transaction." in name and name != registry_name(SCOPE, STREAM)
    ]


async def two_tasks(uri: Where, batch: int = 0, **more: str) -> list[TaskResult]:
    async with using(uri, **more) as segments:
        return [await task(segments, batch, number, EVENTS[number::2], OF_EVENTS[number::2]) for number in (0, 1)]


async def expect_once(uri: Where) -> None:
    """Every event is there once; those of a key come partition by partition, each in the order of its rows."""
    found = [event.data for event in await every_event(uri)]
    assert sorted(found) == sorted(EVENTS)
    for key in KEYS:
        prefix = f"{key}:".encode()
        expected = [event for part in (EVENTS[0::2], EVENTS[1::2]) for event in part if event.startswith(prefix)]
        assert [event for event in found if event.startswith(prefix)] == expected


async def test_nothing_is_visible_before_the_commit_and_everything_after_it(cluster: Cluster, uri: Where) -> None:
    results = await two_tasks(uri)
    async with using(uri) as segments:
        assert await segments.tail() == {0: 0}
    await batch_of(uri, 0, results)
    assert left_over(cluster) == []
    await expect_once(uri)


async def test_a_batch_that_is_repeated_by_another_driver_is_there_once(cluster: Cluster, uri: Where) -> None:
    await batch_of(uri, 0, await two_tasks(uri))
    again = await two_tasks(uri)
    assert [each.parts for each in again] == [(), ()]  # the tasks see that their rows are there
    await batch_of(uri, 0, again)
    assert left_over(cluster) == []
    await expect_once(uri)


async def test_of_two_drivers_with_the_same_batch_one_comes_through(cluster: Cluster, uri: Where) -> None:
    ours, zombies = await two_tasks(uri), await two_tasks(uri)
    done = await asyncio.gather(batch_of(uri, 0, ours), batch_of(uri, 0, zombies))
    assert sorted(len(each.merged) for each in done) == [0, 1]
    await batch_of(uri, 0, zombies)
    assert left_over(cluster) == []
    await expect_once(uri)


async def test_a_driver_that_wakes_up_batches_later_changes_nothing(cluster: Cluster, uri: Where) -> None:
    zombies = await two_tasks(uri)
    await batch_of(uri, 0, await two_tasks(uri))
    async with using(uri) as segments:
        later = await task(segments, 1, 0, [b"later"])
    await batch_of(uri, 1, [later])
    await batch_of(uri, 0, zombies)
    assert [event.data for event in await every_event(uri)].count(b"later") == 1
    assert left_over(cluster) == []


async def test_a_driver_that_dies_between_two_targets_is_completed_by_the_next(
    cluster: Cluster, uri: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scale(uri, 3)
    results = await two_tasks(uri)
    assert len({part.target for result in results for part in result.parts}) == 3
    merge_if, calls = Segments.merge_if, []

    async def dies(self: Segments, *given: object) -> bool:
        calls.append(given)
        if len(calls) == 2:
            raise Killed
        return await merge_if(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "merge_if", dies)
        with pytest.raises(Killed):
            await batch_of(uri, 0, results)
    await scale(uri, 2)  # which puts parts that are there and parts that are not under one segment
    again = await two_tasks(uri)
    assert 0 < sum(part.events for each in again for part in each.parts) < len(EVENTS)
    await batch_of(uri, 0, again)
    assert left_over(cluster) == []
    await expect_once(uri)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
async def test_rows_whose_target_was_sealed_are_placed_again(
    cluster: Cluster, uri: Where, before: int, after: int
) -> None:
    if before > 1:
        await scale(uri, before)
    results = await two_tasks(uri)
    await scale(uri, after)
    await batch_of(uri, 0, results)
    assert left_over(cluster) == []
    await expect_once(uri)


async def test_a_target_that_is_sealed_just_before_the_merge_is_noticed(
    cluster: Cluster, uri: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = await two_tasks(uri)
    merge_if, scaled = Segments.merge_if, []

    async def late(self: Segments, *given: object) -> bool:
        if not scaled:
            scaled.append(True)
            await scale(uri, 2)
        return await merge_if(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Segments, "merge_if", late)
    await batch_of(uri, 0, results)
    assert left_over(cluster) == []
    await expect_once(uri)


async def test_tasks_that_saw_different_segments_make_one_batch(cluster: Cluster, uri: Where) -> None:
    async with using(uri) as segments:
        first = await task(segments, 0, 0, EVENTS[0::2], OF_EVENTS[0::2])
        await scale(uri, 3)
        second = await task(segments, 0, 1, EVENTS[1::2], OF_EVENTS[1::2])
    await batch_of(uri, 0, [second, first])
    await expect_once(uri)


async def test_too_many_rows_to_be_placed_again_mean_that_the_batch_is_run_again(
    cluster: Cluster, uri: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_write, "MOST_POSITIONS", 5)
    results = await two_tasks(uri)
    await scale(uri, 2)
    with pytest.raises(TargetSealed, match=r"run batch 0 again"):
        await batch_of(uri, 0, results)
    await batch_of(uri, 0, await two_tasks(uri))
    assert left_over(cluster) == []
    await expect_once(uri)


async def test_rows_without_keys_go_to_one_segment_and_so_come_at_once(cluster: Cluster, uri: Where) -> None:
    await scale(uri, 4)
    async with using(uri) as segments:
        results = [await task(segments, 0, number, EVENTS[number::2]) for number in (0, 1)]
    assert len({part.target for result in results for part in result.parts}) == 1
    await scale(uri, 2)
    done = await batch_of(uri, 0, results)
    assert len(done.merged) == 1
    assert [event.data for event in await every_event(uri)] == EVENTS[0::2] + EVENTS[1::2]


async def test_what_a_failed_task_has_left_goes_with_the_next_commit(cluster: Cluster, uri: Where) -> None:
    async def breaks() -> AsyncIterator[stream_write.Rows]:
        yield [b"half"], None
        raise ArithmeticError("the rows end here")

    async with using(uri) as segments:
        with pytest.raises(ArithmeticError, match="the rows end here"):
            await stream_write.write_rows(segments, QUERY, 0, 0, breaks())
        assert len(left_over(cluster)) == 1
        done = await task(segments, 0, 0, [b"whole"])
    await batch_of(uri, 0, [done])
    assert left_over(cluster) == []
    assert [event.data for event in await every_event(uri)] == [b"whole"]


async def test_what_is_given_up_leaves_nothing(cluster: Cluster, uri: Where) -> None:
    results = await two_tasks(uri)
    async with using(uri) as segments:
        assert await abandon(segments, results) == 2
        assert await Registry(segments).parts() == []
    assert left_over(cluster) == []
    assert await every_event(uri) == []


async def test_a_task_that_ends_after_its_query_was_given_up_deletes_what_it_wrote(
    cluster: Cluster, uri: Where
) -> None:
    async def late() -> AsyncIterator[stream_write.Rows]:
        async with using(uri) as other:
            await abandon(other, (), query=QUERY)
        yield [b"late"], None

    async with using(uri) as segments:
        with pytest.raises(stream_write.GivenUp, match="was given up while partition 0 was written"):
            await stream_write.write_rows(segments, QUERY, 0, 0, late())
        assert await Registry(segments).parts() == []
        await sweep(segments, before_s=float("inf"))
        assert not await Registry(segments).is_given_up(QUERY)
    assert left_over(cluster) == []


async def test_the_sweeper_takes_what_is_old_of_every_query(cluster: Cluster, uri: Where) -> None:
    await two_tasks(uri)
    async with using(uri) as segments:
        await task(segments, 7, 0, [b"of another query"], query=uuid4())
        noted = await Registry(segments).parts()
        assert len(noted) == 3
        assert await sweep(segments, before_s=min(each.since_s for each in noted)) == 0
        assert await sweep(segments, before_s=float("inf")) == 3
        assert await Registry(segments).parts() == []
    assert left_over(cluster) == []


async def test_a_part_that_is_gone_is_named(cluster: Cluster, uri: Where) -> None:
    results = await two_tasks(uri)
    gone = results[1].parts[0].segment
    async with using(uri) as segments:
        await segments.delete(gone)
    with pytest.raises(WriteLost, match=r"of batch 0 for s/out/0\.#epoch\.0, is gone"):
        await batch_of(uri, 0, results)
    async with using(uri) as segments:
        assert await segments.tail() == {0: 0}


async def test_a_part_of_another_length_is_refused(cluster: Cluster, uri: Where) -> None:
    (first, second) = await two_tasks(uri)
    part = second.parts[0]
    torn = second._replace(parts=(part._replace(size=part.size + 1),))
    with pytest.raises(WriteLost, match=r"has \d+ bytes where the tasks wrote") as caught:
        await batch_of(uri, 0, [first, torn])
    assert (caught.value.expected, caught.value.actual) == (first.parts[0].size + part.size + 1, caught.value.actual)
    assert caught.value.actual == first.parts[0].size + part.size


async def test_a_sealed_stream_and_a_dead_server_say_so(cluster: Cluster, uri: Where) -> None:
    results = await two_tasks(uri)
    async with using(uri) as segments:
        await segments.client.controller.seal_stream(SCOPE, STREAM)
        with pytest.raises(StreamSealed, match="s/out is sealed and takes no events"):
            await task(segments, 1, 0, [b"late"])
        with pytest.raises(StreamSealed):
            await BatchCommitter(segments, options(uri), QUERY, 0).commit(results)
