"""This project's client, explored: its writers and readers break nowhere; a planted bug of an application is found."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from segstore.client import Client, ClientError, ClientSettings, TableConfig, TableKey, connect
from segstore.explore import ExploredCluster, explore
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")

WORLD = ("store restarts", "half-open", "container moves", "scale *", "stream *", "truncated *")


async def prepare(mock: ExploredCluster) -> None:
    async with connect(f"tcp://{mock.controller_uri}") as client:
        await client.controller.create_scope("shop")
        await client.controller.create_stream("shop", "orders")


async def writes(mock: ExploredCluster) -> None:
    async with connect(f"tcp://{mock.controller_uri}") as client, client.event_writer("shop", "orders") as writer:
        for number in range(4):
            await writer.write(b"order %d" % number, routing_key="table")


async def test_the_writer_breaks_nowhere_whatever_the_world_does() -> None:
    explored = await explore(writes, prepare=prepare, match="kind = frame", failures=WORLD, stores=2, timeout_s=20)
    assert explored.findings == [], str(explored)
    assert explored.runs > 2 + 4 * 5
    assert {name for name, _ in explored.not_injected} == {"scale down"}, "the stream has one segment"


async def test_the_writer_breaks_at_no_cut() -> None:
    explored = await explore(writes, prepare=prepare, match="kind = frame", failures=["cut *", "reset *"], timeout_s=20)
    assert (explored.findings, explored.unreached) == ([], []), str(explored)


async def test_a_transaction_that_its_cluster_aborts_is_no_finding() -> None:
    async def commits(mock: ExploredCluster) -> None:
        async with (
            connect(f"tcp://{mock.controller_uri}") as client,
            client.transaction_writer("shop", "orders") as writer,
            writer.begin() as transaction,
        ):
            await transaction.write(b"order", routing_key="table")
            await transaction.commit()

    failures = ["transaction aborted", "scale up", "cut *"]
    explored = await explore(commits, prepare=prepare, match="kind = frame", failures=failures, timeout_s=20)
    assert explored.findings == [], str(explored)
    aborted = [cell for cell in explored.cells if cell.injections[0].failure.name == "transaction aborted"]
    assert [cell.colour for cell in aborted] == ["green"] * len(aborted)
    assert len(aborted) == 2


async def test_a_reader_of_a_group_reads_each_event_wherever_containers_move() -> None:
    async def write(mock: ExploredCluster) -> None:
        await prepare(mock)
        await writes(mock)

    async def reads(mock: ExploredCluster) -> bytes:
        events: list[bytes] = []
        async with (
            connect(f"tcp://{mock.controller_uri}") as client,
            client.reader_group("shop", "cooks", streams=["orders"]) as group,
            group.reader("a") as reader,
        ):
            while len(events) < 4:
                event = await reader.read()
                events += [] if event is None else [bytes(event.data)]
        return b",".join(events)

    failures = ["container moves", "cut after"]
    explored = await explore(
        reads, prepare=write, match="kind = frame", failures=failures, stores=2, timeout_s=20, jobs=4
    )
    assert explored.findings == [], str(explored)
    assert any("reader group" in alike.name for alike in explored.classes)


async def test_a_reader_reads_what_a_reader_that_comes_and_goes_has_left() -> None:
    counts: list[int] = []

    async def write(mock: ExploredCluster) -> None:
        async with connect(f"tcp://{mock.controller_uri}") as client:
            await client.controller.create_scope("shop")
            await client.controller.create_stream("shop", "orders", segments=2)
            async with client.event_writer("shop", "orders") as writer:
                for number in range(6):
                    await writer.write(b"order %d" % number, routing_key=str(number))
            await client.controller.seal_stream("shop", "orders")

    async def reads(mock: ExploredCluster) -> None:
        async with (
            connect(f"tcp://{mock.controller_uri}") as client,
            client.reader_group("shop", "cooks", streams=["orders"]) as group,
            group.reader("a") as reader,
        ):
            count = 0
            while await reader.read() is not None:
                count += 1
        counts.append(count)

    failures = ["reader joins, reads and leaves"]
    explored = await explore(reads, prepare=write, match="type = READ_SEGMENT", failures=failures, timeout_s=20)
    assert explored.findings == [], str(explored)
    assert {cell.colour for cell in explored.cells} >= {"green"}, str(explored)
    assert (max(counts), min(counts)) == (6, 5), "the events that the other reader took count as read"


async def transaction(client: Client) -> bytes:
    async with client.transaction_writer("shop", "orders") as writer, writer.begin() as opened:
        await opened.write(b"order", routing_key="table")
        await opened.commit()
        return (await opened.status()).name.encode()


async def large_event(client: Client) -> None:
    async with client.event_writer("shop", "orders") as writer:
        await writer.write(bytes(2500), routing_key="table")


async def byte_stream(client: Client) -> None:
    async with client.byte_writer("shop", "orders") as writer:
        await writer.append(b"some bytes")
        await writer.flush()
    async with client.byte_reader("shop", "orders") as reader:
        await reader.read_exactly(10)


async def revisioned(client: Client) -> None:
    async with client.revisioned_stream("shop", "orders") as stream:
        assert await stream.write_conditionally(await stream.latest(), b"one") is not None


async def scales(client: Client) -> None:
    async with client.event_writer("shop", "orders") as writer:
        await writer.write(b"order", routing_key="table")
    await client.controller.scale("shop", "orders", [0], [(0, 0.5), (0.5, 1)])


async def table(client: Client) -> None:
    await client.controller.create_table("shop", "stock", TableConfig(primary_key_bytes=4))
    async with client.table("shop", "stock") as stock:
        version = await stock.put_if_absent(TableKey(b"0007"), b"12 cups")
        await stock.remove(TableKey(b"0007"), version=version)


async def group(client: Client) -> None:
    async with client.reader_group("shop", "cooks", streams=["orders"]) as opened, opened.reader("a"):
        pass


@looped(
    ("uses", "failures"),
    [
        (transaction, ["ABORTED*", "state ABORTED*", "status FAILURE*", "PERMISSION_DENIED*", "INTERNAL*"]),
        (large_event, ["WrongHost", "token expired", "cut after", "cut within"]),
        (byte_stream, ["scale up", "container moves", "token expired"]),
        (revisioned, ["scale up"]),
        (scales, ["scale up"]),
        (table, ["TableKey*", "cut after", "WrongHost"]),
        (group, ["reader joins and leaves", "ConditionalCheckFailed", "token expired"]),
    ],
)
async def test_no_client_breaks_and_invented_replies_break_no_rule(
    uses: Callable[[Client], Awaitable[bytes | None]], failures: list[str]
) -> None:
    async def client(mock: ExploredCluster) -> bytes | None:
        settings = ClientSettings(max_event_bytes=1000, large_event_chunk_bytes=1000)
        async with connect(f"tcp://{mock.controller_uri}", settings=settings) as opened:
            return await uses(opened)

    explored = await explore(client, prepare=prepare, failures=failures, stores=2, timeout_s=20, jobs=4)
    assert explored.findings == [], str(explored)
    assert {
        fnmatch.filter([cell.injections[0].failure.name for cell in explored.cells], name) != [] for name in failures
    } == {True}


async def test_events_that_a_client_could_not_remove_are_no_finding() -> None:
    async def removes(mock: ExploredCluster) -> None:
        await writes(mock)
        async with connect(f"tcp://{mock.controller_uri}") as client, client.event_reader("shop", "orders") as reader:
            await anext(reader)
            await client.controller.truncate_stream("shop", "orders", reader.cut)

    match = "rpc = truncateStream or type = READ_SEGMENT"
    explored = await explore(removes, prepare=prepare, match=match, failures=["NOT_FOUND*", "NoSuchSegment"])
    assert explored.findings == [], str(explored)
    assert explored.runs > 2


async def test_how_far_a_client_truncates_is_no_finding_but_whether_it_does() -> None:
    async def removes(mock: ExploredCluster, usual: int, failed: int) -> None:
        await writes(mock)
        async with connect(f"tcp://{mock.controller_uri}") as client, client.event_reader("shop", "orders") as reader:
            try:
                await client.controller.stream_config("shop", "orders")
            except ClientError:
                usual = failed
            for _ in range(usual):
                await anext(reader)
            if usual:
                await client.controller.truncate_stream("shop", "orders", reader.cut)

    options = {"prepare": prepare, "match": "rpc = getStreamConfiguration", "failures": ["NOT_FOUND*"]}
    for usual, failed, kinds in ((1, 2, set()), (2, 1, set()), (0, 2, {"lost"}), (2, 0, {"foreign"})):
        explored = await explore(partial(removes, usual=usual, failed=failed), **options)
        assert {kind for finding in explored.findings for kind in finding.kinds} == kinds, str(explored)
        assert all("1 other" in line for finding in explored.findings for line in finding.broken), str(explored)


async def test_an_application_that_retries_with_a_new_writer_stores_events_twice() -> None:
    async def retries(mock: ExploredCluster) -> None:
        async with connect(f"tcp://{mock.controller_uri}") as client:
            for number in range(2):
                for _ in range(3):
                    try:
                        async with client.event_writer("shop", "orders") as writer, asyncio.timeout(0.3):
                            await writer.write(b"order %d" % number, routing_key="table")
                        break
                    except TimeoutError:
                        continue

    explored = await explore(
        retries, prepare=prepare, match="type = APPEND_BLOCK_END", failures=["reply late", "cut after"], timeout_s=4
    )
    assert {finding.kinds == {"duplicated"} for finding in explored.findings} == {True}, str(explored)
    assert [finding.name for finding in explored.findings][:1] == ["reply late at APPEND_BLOCK_END 1"]
