"""Reader groups of the official client: several readers, positions, stream cuts, head and tail."""

from __future__ import annotations

import asyncio

from segstore.server.cluster import MockCluster
from tests.official.client import run
from tests.official.support import MARKS, make_stream, uri

pytestmark = MARKS


async def test_a_reader_goes_on_where_another_stopped() -> None:
    async with MockCluster(2) as cluster:
        found = await run(uri(cluster), "groups.hand_over")
    assert 0 < found["first"] < 2000
    assert found["all"], "the two readers did not read each event once"
    assert "already online" in found["doubled"]["text"]
    assert found["offline again"] == {"gives": None}
    assert found["release after it"] == {"gives": None}


async def test_groups_start_at_head_tail_and_cut() -> None:
    async with MockCluster(2) as cluster:
        found = await run(uri(cluster), "groups.positions")
    assert 0 < found["read before the cut"] < 1000
    assert len(found["cut"]) == 2
    assert found["from the cut"]
    assert found["tail"]
    assert found["bytes at the tail"] == sum(len(str(number)) + 8 for number in range(1000))
    assert found["offsets"] == [0, 9, 19]


async def test_a_group_reads_several_streams_and_another_again() -> None:
    async with MockCluster(2) as cluster:
        found = await run(uri(cluster), "groups.several_streams")
    assert found == {"all": True, "deleted": {"gives": None}, "again": 300}


async def test_a_deleted_group_can_be_made_again_under_its_name() -> None:
    async with MockCluster(2) as cluster:
        assert await run(uri(cluster), "groups.made_again") == [100, 100]


async def test_readers_in_two_processes_share_the_segments_of_a_group() -> None:
    """The client gives up segments to a reader that came later after ten seconds, not before."""
    async with MockCluster(2) as cluster, asyncio.TaskGroup() as tasks:
        await make_stream(cluster, "a", "s", 4)
        where = {"scope": "a", "stream": "s"}
        first = tasks.create_task(run(uri(cluster), "groups.share", **where, name="first", at_least=100))
        second = tasks.create_task(run(uri(cluster), "groups.share", **where, name="second", at_least=30))
        written = await run(uri(cluster), "groups.write_slowly", **where, seconds=13, keys=12)
        read = [await first, await second]
    assert sorted(read[0] + read[1]) == list(range(written))
