"""Transactions of the official client: all of their events or none, also when the client is gone."""

from typing import Any

from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS, eventually, make_stream, scale, segment_names, uri

pytestmark = MARKS

SHORT_LEASES = ControllerConfig(lease_cap_ms=400, lease_slack_ms=100)
LONGER_LEASES = ControllerConfig(lease_cap_ms=2_000, lease_slack_ms=100)
"""Within which a client that waits for its turn has set up, written and looked."""


def of_transactions(cluster: MockCluster) -> list[str]:
    return [name for name in segment_names(cluster) if "#transaction" in name]


def check_life(found: dict[str, Any]) -> None:
    assert found["open"] == [True, True]
    assert found["by its id"] == [True, True]
    assert found["after"] == [False, False, False]
    assert [each["fails"] for each in found["again"]] == ["TxnFailedException"] * 3
    assert found["late write"]["fails"] == "TxnFailedException"
    assert found["read"] is True
    assert found["segments ended"] == 2
    assert "stream a/no does not exist" in found["of a missing stream"]["text"]


async def test_what_is_committed_is_read_and_what_is_aborted_is_not() -> None:
    async with MockCluster(2, watched=False) as cluster:
        check_life(await run(uri(cluster), "transactions.life"))
        assert of_transactions(cluster) == []


async def test_a_client_waits_for_commits_that_take_time() -> None:
    async with MockCluster(watched=False, controller=ControllerConfig(commit_delay_ms=200)) as cluster:
        found = await run(uri(cluster), "transactions.large", scope="a", stream="s", keys=10, per_key=2)
        assert found == {"events": 20, "wrong": []}
        await eventually(lambda: not of_transactions(cluster), "the transactions' segments are gone")


async def test_the_lease_ends_the_transaction_of_a_client_that_was_killed() -> None:
    async with MockCluster(2, watched=False, controller=SHORT_LEASES) as cluster:
        await run(uri(cluster), "events.write_and_read", scope="a", stream="s", segments=2, keys=2, per_key=5)
        before = segment_names(cluster)
        async with OfficialClient(uri(cluster), "transactions.leave_open", scope="a", stream="s") as client:
            await eventually(lambda: len(of_transactions(cluster)) == 2, "a transaction is open")
            await client.kill()
        await eventually(lambda: not of_transactions(cluster), "the lease has ended the transaction")
        assert [name for name in segment_names(cluster) if "_kvtable" not in name] == [
            name for name in before if "_kvtable" not in name
        ]
        await eventually(lambda: not any(store.hub.connections for store in cluster.stores), "its connections are gone")
        again = await run(uri(cluster), "events.read", scope="a", stream="s", keys=2, per_key=5, group="again")
        assert again == {"events": 10, "wrong": [], "problem": ""}


async def test_a_client_that_comes_after_the_end_of_its_lease_hears_of_it() -> None:
    async with MockCluster(watched=False, controller=LONGER_LEASES) as cluster:
        await run(uri(cluster), "events.write_and_read", scope="a", stream="s", segments=1, keys=1, per_key=1)
        async with OfficialClient(uri(cluster), "transactions.outlive_the_lease", scope="a", stream="s") as client:
            await client.said("open")
            await eventually(lambda: not of_transactions(cluster), "the lease has ended the transaction")
            client.go_on()
            found = await client.result()
    assert (found["before"], found["after"], found["by its id"]) == (True, False, False)
    assert found["abort"] == {"gives": None}  # it is what has happened


async def test_a_transaction_from_before_a_scale_is_committed_after_it() -> None:
    async with MockCluster(2, watched=False) as cluster:
        await make_stream(cluster, "a", "s", 2)
        async with OfficialClient(uri(cluster), "transactions.commit_across_a_scale", scope="a", stream="s") as client:
            await client.said("written")
            await scale(cluster, "a", "s", 3)
            client.go_on()
            found = await client.result()
        assert of_transactions(cluster) == []
    assert found == {"open": [True, False], "read": True, "count": 150, "segments ended": 10}  # 2, 3, both again
