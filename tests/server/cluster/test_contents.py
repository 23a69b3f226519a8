"""Streams, transactions, groups and tables of a cluster: by its own methods, and by those of a server for tests."""

import inspect
from collections.abc import Iterator

import pytest

from segstore.client import connect
from segstore.server.cluster import MockCluster
from segstore.server.cluster.contents import WithContents
from segstore.server.controller.errors import AlreadyExists, NotFound
from segstore.server.store import NoSuchSegment
from segstore.testing import RunningServer, ServerProcess, ServerThread

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.fixture(scope="module")
def process(grpc_runs: None) -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


@pytest.fixture(params=["thread", "process"])
def server(request: pytest.FixtureRequest, process: ServerProcess) -> Iterator[RunningServer]:
    if request.param == "process":
        server = process.serve(stores=2)
        yield server
        server.stop()
    else:
        with ServerThread() as thread:
            yield thread.serve(stores=2)


def test_events_are_written_and_read_across_scales_and_transactions(server: RunningServer) -> None:
    assert len(server.create_stream("shop", "orders", segments=2).segments) == 2
    assert [event.offset for event in server.write_events("shop/orders", [b"tea", "cake"], routing_key="k")] == [0, 11]
    server.scale_stream("shop/orders", 3)
    server.write_events("shop/orders", [b"\xff" * 10], routing_key="k")
    aborted, kept = (server.begin_transaction("shop/orders") for _ in range(2))
    for transaction in (aborted, kept):
        server.write_events("shop/orders", [transaction.bytes], routing_key="k", transaction=transaction)
    assert server.events("shop/orders") == [b"tea", b"cake", b"\xff" * 10]
    assert {each.id for each in server.transactions("shop/orders")} == {aborted, kept}
    server.abort_transaction("shop/orders", aborted)
    assert server.commit_transaction("shop/orders", kept).status == "COMMITTED"
    assert server.transaction("shop/orders", kept).status == "COMMITTED"
    assert server.events("shop/orders") == [b"tea", b"cake", b"\xff" * 10, kept.bytes]
    first = server.stream_segments("shop/orders")[0].name
    assert server.events(first) + server.events("shop/orders")[2:] == server.events("shop/orders")
    server.truncate_stream("shop/orders", {0: 11, 1: 0})
    assert server.events("shop/orders")[0] == b"cake"
    server.snapshot("before")
    assert server.seal_stream("shop/orders").sealed
    server.delete_stream("shop/orders")
    assert (server.scopes(), server.streams("shop")) == (["shop"], [])
    server.restore("before")
    assert server.stream("shop/orders").epoch == 1
    assert server.events("shop/orders")[0] == b"cake"
    server.reset()
    assert server.scopes() == []


def test_more_events_than_a_page_has_are_read(server: RunningServer) -> None:
    server.create_stream("shop", "orders")
    events = [b"%d" % number for number in range(2_500)]
    server.write_events("shop/orders", events)
    assert server.events("shop/orders") == events


def test_entries_are_written_and_read(server: RunningServer) -> None:
    server.create_table("shop/stock", primary_key_bytes=1, partitions=2)
    server.write_entries("shop/stock", {b"\xff": b"1", "b": "2", b"c": b""})
    server.remove_entry("shop/stock", "c")
    assert server.entries("shop/stock") == {b"\xff": b"1", b"b": b"2"}
    assert ([table.table for table in server.tables("shop")], server.table("shop/stock").entries) == (["stock"], 2)
    server.delete_table("shop/stock")
    assert server.tables("shop") == []


def test_what_is_not_there_is_named(server: RunningServer) -> None:
    server.create_stream("shop", "orders")
    with pytest.raises(AlreadyExists):
        server.create_stream("shop", "orders")
    for missing in (server.events, server.stream, server.transactions, server.group, server.table):
        with pytest.raises(NotFound, match="shop/nowhere does not exist"):
            missing("shop/nowhere")
    with pytest.raises(NoSuchSegment, match="orders/0"):
        server.events("shop/orders/1.#epoch.0")
    transaction = server.begin_transaction("shop/orders")
    server.abort_transaction("shop/orders", transaction)
    with pytest.raises(RuntimeError, match=f"transaction {transaction} is ABORTED"):
        server.write_events("shop/orders", [b"late"], transaction=transaction)
    with pytest.raises(ValueError, match="events: the list must not be empty"):
        server.write_events("shop/orders", [])


async def test_a_cluster_has_the_same_methods_and_shows_what_clients_did() -> None:
    async with MockCluster() as mock, connect(f"tcp://{mock.controller_uri}") as pravega:
        await mock.create_stream("shop", "orders", segments=3)
        async with pravega.event_writer("shop", "orders") as writer:
            await writer.write(b"tea", routing_key="k")
        await mock.write_events("shop/orders", [b"cake"], routing_key="k")
        assert await mock.events("shop/orders") == [b"tea", b"cake"]
        async with pravega.reader_group("shop", "group", streams=["orders"]) as group, group.reader("r") as reader:
            assert (await anext(reader)).data == b"tea"
            assert [each.group for each in await mock.groups("shop")] == ["group"]
            assert [each.reader for each in (await mock.group("shop/group")).readers] == ["r"]
    methods = {name for name, _ in inspect.getmembers(WithContents, inspect.iscoroutinefunction)}
    assert {name for name in methods if name[0] != "_"} <= set(dir(RunningServer))
