"""Transactions of this project's client and of the official one: begun by one, seen, ended and read by the other."""

from segstore.client import TransactionStatus, connect
from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from tests.client.support import all_events, settings
from tests.official.client import OfficialClient, run
from tests.official.support import MARKS, eventually, make_stream, uri

pytestmark = MARKS


async def events_of(cluster: MockCluster, stream: str = "s") -> list[bytes]:
    """What this project's reader finds in a stream, which is sealed for it."""
    async with connect(uri(cluster), settings()) as pravega:
        return await all_events(pravega, stream)


def found_wrong(events: list[bytes], keys: int, per_key: int) -> list[str]:
    by_key: dict[bytes, list[int]] = {}
    for event in events:
        key, number, _ = event.split(b":", 2)
        by_key.setdefault(key, []).append(int(number))
    wanted = {b"k%d" % key: list(range(per_key)) for key in range(keys)}
    return [] if by_key == wanted else [f"{key!r}: {numbers}" for key, numbers in by_key.items()]


async def test_what_this_client_commits_the_official_one_reads_in_order_and_nothing_that_is_open() -> None:
    async with MockCluster(2, watched=False, controller=ControllerConfig(commit_delay_ms=20)) as cluster:
        await make_stream(cluster, "a", "s", 3)
        async with connect(uri(cluster), settings()) as pravega, pravega.transaction_writer("a", "s") as writer:
            left = writer.begin()
            await left.open()
            await left.write(b"never seen", routing_key="k0")
            for number in range(5):
                async with writer.begin() as transaction:
                    for key in range(7):
                        await transaction.write(b"k%d:%d:" % (key, number), routing_key=f"k{key}")
            found = await run(uri(cluster), "events.read", scope="a", stream="s", keys=7, per_key=5, group="g")
            assert found == {"events": 35, "wrong": [], "problem": ""}


async def test_what_the_official_client_commits_this_one_reads_in_order() -> None:
    async with MockCluster(2, watched=False) as cluster:
        found = await run(uri(cluster), "transactions.large", scope="a", stream="s", keys=10, per_key=6)
        assert found == {"events": 60, "wrong": []}
        events = await events_of(cluster)
        assert len(events) == 60
        assert found_wrong(events, 10, 6) == []


async def test_one_that_the_official_client_left_open_is_resumed_and_committed_here() -> None:
    async with MockCluster(2, watched=False) as cluster:
        await make_stream(cluster, "a", "s", 2)
        known = cluster.controller.state.stream("a", "s").transactions
        async with OfficialClient(uri(cluster), "transactions.leave_open", scope="a", stream="s") as client:
            await eventually(lambda: bool(known), "a transaction is open")
            (identifier,) = known
            async with connect(uri(cluster), settings()) as pravega, pravega.transaction_writer("a", "s") as writer:
                await client.said(str(identifier.int))
                await client.kill()
                async with writer.resume(identifier) as transaction:
                    await transaction.write(b"and more")
                assert await transaction.status() is TransactionStatus.COMMITTED
        events = await events_of(cluster)
        assert events.count(b"and more") == 1
        assert all(event.startswith(b"never seen ") or event == b"and more" for event in events)


async def test_the_official_client_sees_a_transaction_of_this_client_open_and_then_ended() -> None:
    async with MockCluster(2, watched=False) as cluster:
        await make_stream(cluster, "a", "s", 2)
        async with connect(uri(cluster), settings()) as pravega, pravega.transaction_writer("a", "s") as writer:
            transaction = writer.begin()
            await transaction.open()
            await transaction.write(b"here")
            given = {"scope": "a", "stream": "s", "identifier": str(transaction.id.int)}
            async with OfficialClient(uri(cluster), "transactions.look_by_id", **given) as client:
                await client.said("seen")
                await transaction.commit()
                client.go_on()
                found = await client.result()
            assert found == {"before": True, "write": "TxnFailedException", "after": False}
        assert await events_of(cluster) == [b"here"]
