"""anyio's cancel scopes, which cancel every wait of a block again and again until it ends, leave the client usable."""

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from segstore.client import Client, TableConfig, TableKey, TransactionStatus, connect
from segstore.server.cluster import MockCluster
from tests.client.support import settings


@pytest.fixture
async def mock(grpc_runs: None) -> AsyncIterator[MockCluster]:
    async with MockCluster() as cluster:
        yield cluster


@pytest.fixture
async def pravega(mock: MockCluster) -> AsyncIterator[Client]:
    async with connect(f"tcp://{mock.controller_uri}", settings()) as client:
        await client.controller.create_scope("a")
        for name in ("s", "bytes"):
            await client.controller.create_stream("a", name)
        await client.controller.create_table("a", "t", TableConfig(primary_key_bytes=1))
        yield client


async def write(pravega: Client) -> None:
    async with pravega.event_writer("a", "s") as writer:
        while True:
            await writer.write(b"event")


async def submit(pravega: Client) -> None:
    async with pravega.event_writer("a", "s") as writer:
        while True:
            await writer.submit(bytes(1000))


async def read(pravega: Client) -> None:
    async with pravega.event_reader("a", "s", from_="tail") as reader:
        await reader.read()


async def read_in_a_group(pravega: Client) -> None:
    group = pravega.reader_group("a", "g", streams=["s"], from_="tail", refresh_ms=20)
    async with group, group.reader("r") as reader:
        await reader.read()


async def commit(pravega: Client) -> None:
    async with pravega.transaction_writer("a", "s") as writer:
        while True:
            async with writer.begin() as transaction:
                await transaction.write(b"event")


async def change_a_table(pravega: Client) -> None:
    async with pravega.table("a", "t") as table:
        while True:
            await table.put(TableKey(b"k"), b"value")
            assert [entry.value async for entry in table.entries()] == [b"value"]


async def append_and_read_bytes(pravega: Client) -> None:
    async with pravega.byte_writer("a", "bytes") as writer, pravega.byte_reader("a", "bytes", from_="tail") as reader:
        while True:
            await writer.append(b"bytes")
            await reader.read()


USES: list[Callable[[Client], Awaitable[None]]] = [
    write,
    submit,
    read,
    read_in_a_group,
    commit,
    change_a_table,
    append_and_read_bytes,
]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("after_s", [0.0, 0.004, 0.03])
async def test_a_scope_ends_any_use_at_any_time(
    pravega: Client, use: Callable[[Client], Awaitable[None]], after_s: float
) -> None:
    with anyio.move_on_after(after_s) as scope:
        await use(pravega)
    assert scope.cancelled_caught
    async with pravega.event_writer("a", "s") as writer:
        await writer.write(b"works")


@pytest.mark.parametrize("after_s", [0.0, 0.004, 0.03])
async def test_a_reader_of_a_group_is_offline_after_its_scope_was_cancelled(pravega: Client, after_s: float) -> None:
    async with pravega.reader_group("a", "g", streams=["s"], refresh_ms=20) as group:
        with anyio.move_on_after(after_s) as scope:
            async with group.reader("r") as reader:
                await reader.read()
        assert scope.cancelled_caught
        assert await group.readers() == []


async def test_a_transaction_is_aborted_when_its_scope_is_cancelled(pravega: Client) -> None:
    async with pravega.transaction_writer("a", "s") as writer:
        with anyio.CancelScope() as scope:
            async with writer.begin() as transaction:
                await transaction.write(b"event")
                scope.cancel()
                await transaction.write(b"more")
        assert scope.cancelled_caught
        assert await transaction.status() is TransactionStatus.ABORTED


async def test_a_task_group_cancels_its_tasks_and_gives_its_own_error(pravega: Client) -> None:
    async def fail() -> None:
        await anyio.sleep(0.01)
        raise ZeroDivisionError

    async def use_all() -> None:
        async with anyio.create_task_group() as tasks:
            for use in USES:
                tasks.start_soon(use, pravega)
            tasks.start_soon(fail)

    with pytest.raises(ExceptionGroup) as caught:
        await use_all()
    assert [type(exception) for exception in caught.value.exceptions] == [ZeroDivisionError]
    assert await pravega.controller.create_scope("after")


async def test_the_client_itself_closes_in_a_cancelled_scope(mock: MockCluster) -> None:
    with anyio.CancelScope() as scope:
        async with connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
            await pravega.controller.create_scope("b")
            await pravega.controller.create_stream("b", "s")
            async with pravega.event_writer("b", "s") as writer:
                await writer.write(b"event")
                scope.cancel()
                await writer.write(b"more")
    assert scope.cancelled_caught
