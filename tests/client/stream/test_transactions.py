"""Transactions against a controller and stores in this process: all events or none, leases, ends, other hands."""

import asyncio
from itertools import pairwise
from uuid import UUID

import pytest

from segstore.client import Transaction, TransactionStatus, TransactionWriter
from segstore.client.client import Client
from segstore.client.errors import Closed, EventTooLarge, NoSuchStream, RequestTimedOut, TransactionOver
from segstore.client.stream.transactions import ping_interval_ms
from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from tests.client.support import all_events, client, make_stream, until
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")

SHORT_LEASES = ControllerConfig(lease_cap_ms=150, lease_slack_ms=0)


def of_transactions(mock: MockCluster) -> list[str]:
    names = [name for store in mock.stores for part in store.store.containers.values() for name in part.segments]
    return [name for name in names if "#transaction" in name]


async def fail_within(transaction: Transaction) -> None:
    async with transaction:
        await transaction.write(b"never seen")
        raise ZeroDivisionError


async def outlive(transaction: Transaction, mock: MockCluster) -> None:
    """Writes before and after the lease has ended."""
    async with transaction:
        await transaction.write(b"never seen")
        await until(lambda: not of_transactions(mock))
        await transaction.write(b"too late")


async def status_of(writer: TransactionWriter, transaction: UUID | None) -> TransactionStatus:
    return await writer.status(transaction)


async def test_a_block_commits_at_its_end_and_each_key_keeps_its_order() -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega:
        await make_stream(pravega, 3)
        async with pravega.transaction_writer("a", "s") as writer:
            async with writer.begin() as transaction:
                for number in range(60):
                    await transaction.submit(b"%d:%d" % (number % 5, number), routing_key=f"key {number % 5}")
                await transaction.write(b"9:0")
                assert await transaction.status() is TransactionStatus.OPEN
                assert len(of_transactions(mock)) == 3
            assert await transaction.status() is TransactionStatus.COMMITTED
        assert of_transactions(mock) == []
        got = await all_events(pravega)
        assert len(got) == 61
        for key in range(5):
            mine = [int(each.partition(b":")[2]) for each in got if each.startswith(b"%d:" % key)]
            assert mine == list(range(key, 60, 5))


async def test_an_exception_in_the_block_aborts_and_is_the_callers(mock: MockCluster, pravega: Client) -> None:
    await make_stream(pravega)
    async with pravega.transaction_writer("a", "s") as writer:
        transaction = writer.begin()
        with pytest.raises(ZeroDivisionError):
            await fail_within(transaction)
        assert await transaction.status() is TransactionStatus.ABORTED
        with pytest.raises(TransactionOver):
            await transaction.write(b"late")
    assert of_transactions(mock) == []
    assert await all_events(pravega) == []


async def test_what_a_writer_leaves_open_it_aborts(pravega: Client) -> None:
    await make_stream(pravega)
    async with pravega.transaction_writer("a", "s") as writer:
        one, two = writer.begin(), writer.begin()
        await one.open()
        await one.write(b"never seen")
    assert await status_of(writer, one.id) is TransactionStatus.ABORTED
    with pytest.raises(Closed):
        writer.begin()
    with pytest.raises(TransactionOver):
        await one.commit()
    with pytest.raises(Closed):
        await two.write(b"not open")
    await writer.aclose()


async def test_a_commit_that_takes_time_is_waited_for_or_not() -> None:
    slow = ControllerConfig(commit_delay_ms=120)
    async with MockCluster(watched=False, controller=slow) as mock, client(mock) as pravega:
        await make_stream(pravega)
        async with pravega.transaction_writer("a", "s") as writer:
            async with writer.begin() as waited:
                await waited.write(b"waited for")
            assert await waited.status() is TransactionStatus.COMMITTED
            async with writer.begin() as other:
                await other.write(b"not")
                await other.commit(wait=False)
            assert await other.status() in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)
            async with asyncio.timeout(60):
                while await other.status() is not TransactionStatus.COMMITTED:  # noqa: ASYNC110 — it is asked, it does not tell
                    await asyncio.sleep(0.01)
        assert sorted(await all_events(pravega)) == [b"not", b"waited for"]


@pytest.mark.mock(controller=ControllerConfig(commit_delay_ms=3600000))
async def test_a_commit_that_takes_too_long_says_so_and_names_the_transaction(mock: MockCluster) -> None:
    async with client(mock, transaction_commit_timeout_ms=60) as pravega:
        await make_stream(pravega)
        async with pravega.transaction_writer("a", "s") as writer:
            with pytest.raises(RequestTimedOut) as caught:
                async with writer.begin() as transaction:
                    await transaction.write(b"x")
            assert caught.value.facts() == {"stream": "a/s", "limit": 60.0, "transaction": transaction.id}
            assert await transaction.status() is TransactionStatus.COMMITTING


async def test_a_lease_that_ends_is_an_error_of_what_is_written_then() -> None:
    async with MockCluster(watched=False, controller=SHORT_LEASES) as mock, client(mock) as pravega:
        await make_stream(pravega)
        async with pravega.transaction_writer("a", "s") as writer:
            transaction = writer.begin(lease_ms=10_000)
            with pytest.raises(TransactionOver) as caught:
                await outlive(transaction, mock)
            assert caught.value.details["transaction"] == transaction.id
            assert "#transaction" in caught.value.segment
            assert caught.value.endpoint is not None
            with pytest.raises(TransactionOver):
                await transaction.commit()
        assert await all_events(pravega) == []


async def test_pings_keep_a_transaction_beyond_its_lease() -> None:
    leases = ControllerConfig(min_lease_ms=0, lease_slack_ms=20_000)
    async with MockCluster(watched=False, controller=leases) as mock, client(mock) as pravega:
        await make_stream(pravega)
        core = mock.controller.transactions._core
        started = core.now_ms()
        async with pravega.transaction_writer("a", "s") as writer, writer.begin(lease_ms=60) as transaction:
            await transaction.write(b"kept")
            await until(lambda: transaction.pings >= 4)
            (known,) = core.state.stream("a", "s").transactions.values()
            assert known.lease_until_ms > started + 60 + 60
        assert await all_events(pravega) == [b"kept"]


async def test_a_ping_that_hears_of_the_end_fails_what_is_open() -> None:
    leases = ControllerConfig(min_lease_ms=0, lease_slack_ms=20_000)
    async with MockCluster(watched=False, controller=leases) as mock, client(mock) as pravega:
        await make_stream(pravega)
        async with pravega.transaction_writer("a", "s") as writer:
            transaction = writer.begin(lease_ms=40)
            await transaction.open()
            await pravega.controller.abort_transaction("a", "s", transaction.id)
            await until(lambda: transaction._error is not None)
            with pytest.raises(TransactionOver, match="ABORTED"):
                await transaction.write(b"late")


@looped(("lease_ms", "interval_ms"), [(10, 5), (1_000, 500), (4_000, 2_000), (100_000, 10_000)])
def test_there_are_two_pings_a_lease_and_more_for_long_ones(lease_ms: int, interval_ms: float) -> None:
    assert ping_interval_ms(lease_ms) == interval_ms


async def test_one_writer_resumes_a_transaction_of_another(mock: MockCluster, pravega: Client) -> None:
    async with client(mock) as other:
        await make_stream(pravega, 2)
        async with pravega.transaction_writer("a", "s") as writer, other.transaction_writer("a", "s") as second:
            begun = writer.begin()
            await begun.open()
            await begun.write(b"one", routing_key="k")
            async with second.resume(begun.id) as resumed:
                await resumed.write(b"two", routing_key="k")
            assert await begun.status() is TransactionStatus.COMMITTED
            with pytest.raises(TransactionOver):
                await begun.write(b"three", routing_key="k")
            with pytest.raises(TransactionOver, match="COMMITTED"):
                await second.resume(begun.id).open()
            with pytest.raises(TransactionOver, match="UNKNOWN"):
                await second.resume(UUID(int=77)).open()
            assert not second._open
        assert await all_events(pravega) == [b"one", b"two"]


async def test_a_transaction_from_before_a_scale_is_committed_after_it() -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega:
        await make_stream(pravega, 2)
        async with (
            pravega.event_writer("a", "s") as plain,
            pravega.transaction_writer("a", "s") as writer,
            writer.begin() as transaction,
        ):
            for number in range(30):
                await transaction.write(b"in %d" % number, routing_key=f"{number}")
            now = await pravega.controller.current_segments("a", "s")
            edges = [0, 1 / 3, 2 / 3, 1]
            await pravega.controller.scale(
                "a", "s", [each.segment_id for each in now], list(pairwise(edges)), wait_ms=60_000
            )
            await plain.write(b"outside")
            await transaction.write(b"in after", routing_key="x")
        got = await all_events(pravega)
        assert sorted(got) == sorted([b"outside", b"in after", *(b"in %d" % number for number in range(30))])


async def test_a_failed_begin_or_write_says_why(mock: MockCluster) -> None:
    async with client(mock, max_event_bytes=10) as pravega:
        await make_stream(pravega)
        async with pravega.transaction_writer("a", "none") as writer:
            with pytest.raises(NoSuchStream):
                await writer.begin().open()
            assert not writer._open
        async with pravega.transaction_writer("a", "s") as writer, writer.begin() as transaction:
            with pytest.raises(EventTooLarge) as caught:
                await transaction.write(b"x" * 11)
            assert (caught.value.actual, caught.value.limit, caught.value.stream) == (11, 10, "a/s")
