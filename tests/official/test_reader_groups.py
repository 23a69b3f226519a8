"""Reader groups of the official client: several readers, positions, stream cuts, head and tail."""

import asyncio
from typing import Any

from segstore.server.cluster import MockCluster
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS, eventually, make_stream, uri

pytestmark = MARKS


async def test_a_reader_goes_on_where_another_stopped() -> None:
    async with MockCluster(2, watched=False) as cluster:
        found = await run(uri(cluster), "groups.hand_over")
    assert 0 < found["first"] < 2000
    assert found["all"], "the two readers did not read each event once"
    assert "already online" in found["doubled"]["text"]
    assert found["offline again"] == {"gives": None}
    assert found["release after it"] == {"gives": None}


async def test_groups_start_at_head_tail_and_cut() -> None:
    async with MockCluster(2, watched=False) as cluster:
        found = await run(uri(cluster), "groups.positions")
    assert 0 < found["read before the cut"] < 1000
    assert len(found["cut"]) == 2
    assert found["from the cut"]
    assert found["tail"]
    assert found["bytes at the tail"] == sum(len(str(number)) + 8 for number in range(1000))
    assert found["offsets"] == [0, 9, 19]


async def test_a_group_reads_several_streams_and_another_again() -> None:
    async with MockCluster(2, watched=False) as cluster:
        found = await run(uri(cluster), "groups.several_streams")
    assert found == {"all": True, "deleted": {"gives": None}, "again": 300}


async def test_a_deleted_group_can_be_made_again_under_its_name() -> None:
    async with MockCluster(2, watched=False) as cluster:
        assert await run(uri(cluster), "groups.made_again") == [100, 100]


async def test_readers_in_two_processes_share_the_segments_of_a_group() -> None:
    async with MockCluster(2, watched=False) as cluster:
        read, written = await read_by_two(cluster)
    assert read == list(range(written))


async def read_by_two(cluster: MockCluster) -> tuple[list[int], int]:
    """Returns the numbers that two readers of a group read, sorted, and how many were written.

    The client gives up segments to a reader that came later after ten seconds, not before.
    """
    where: dict[str, Any] = {"scope": "a", "stream": "s"}
    await make_stream(cluster, "a", "s", 4)
    async with (
        OfficialClient(uri(cluster), "groups.share", **where, name="first") as first,
        OfficialClient(uri(cluster), "groups.share", **where, name="second") as second,
        OfficialClient(uri(cluster), "groups.write_until_told", **where, keys=12) as writer,
        asyncio.TaskGroup() as tasks,
    ):
        sharing = [Sharing(client) for client in (first, second)]
        results = [tasks.create_task(reader.result()) for reader in sharing]
        await writer.said("writing")
        await eventually(lambda: min(reader.count for reader in sharing) >= 100, "both have segments")
        writer.go_on()
        written = await writer.result()
        await all_is_read(cluster, sharing, written)
        return sorted([number for result in results for number in await result]), written


class Sharing:
    """A reader of the official client that shares a group with others. count: how many events it has read so far."""

    def __init__(self, client: OfficialClient) -> None:
        self.client = client
        self.count = 0

    async def result(self) -> list[int]:
        """The numbers of all events that it read, once it was told to end."""

        def heard(said: str) -> None:
            self.count = int(said)

        await self.client.said("reading")
        found: list[int] = await self.client.result(heard=heard)
        return found


async def all_is_read(cluster: MockCluster, sharing: list[Sharing], written: int) -> None:
    """Wait until the readers have read all that was written, and tell them to end.

    If they do not get there, another reader of the group tries: what it finds was never lost by the servers.
    """

    def count() -> int:
        return sum(each.count for each in sharing)

    try:
        await eventually(lambda: count() >= written, f"{written} events are read", 60.0)
    finally:
        for each in sharing:
            each.client.go_on()
        if (missing := written - count()) > 0:
            group = {"scope": "a", "group": "shared", "stream": "s", "reader": "after them"}
            late = await run(uri(cluster), "interop_groups.read_some", **group, count=missing)
            print(f"{missing} events were read by no reader of the two, and {len(late)} by another after them")
