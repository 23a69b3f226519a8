"""Key-value tables against a controller and stores in this process, and their keys' places by Pravega's own rule."""

import asyncio
from contextlib import AsyncExitStack, nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client import KeyValueTable, TableConfig, TableKey, Version
from segstore.client.client import Client
from segstore.client.connection import ConnectionPool, FixedStore, SegmentRequests
from segstore.client.errors import (
    BadKeyVersion,
    Closed,
    EntryRefused,
    NoSuchKey,
    NoSuchStream,
    NoSuchTable,
    ProtocolViolation,
    RequestRejected,
    SegmentMissing,
)
from segstore.client.routing import SegmentRange
from segstore.client.tables import Item, TableSegment
from segstore.client.tables.iteration import Bounds, TableIterator
from segstore.client.tables.segment import MAX_VALUE_BYTES
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.wire import Command, ReadTableKeys, TableKeysRead
from segstore.wire import TableKey as WireKey
from segstore.wire.hashing import position_of_key
from tests.client.support import ScriptedPeer, ScriptedStore, client, endpoint, settings
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")


async def made(pravega: Client, *, partitions: int = 3, primary: int = 2, secondary: int = 0) -> KeyValueTable:
    await pravega.controller.create_scope("a")
    config = TableConfig(partitions=partitions, primary_key_bytes=primary, secondary_key_bytes=secondary)
    assert await pravega.controller.create_table("a", "t", config)
    return pravega.table("a", "t")


async def test_tables_are_made_found_listed_and_deleted() -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega:
        controller = pravega.controller
        config = TableConfig(partitions=2, primary_key_bytes=4, secondary_key_bytes=3, rollover_bytes=2_000_000)
        with pytest.raises(NoSuchStream):
            await controller.create_table("a", "t", config)
        await controller.create_scope("a")
        assert await controller.create_table("a", "t", config)
        assert not await controller.create_table("a", "t", config)
        found = await controller.table_config("a", "t")
        assert found == config.model_copy(update={"rollover_bytes": 0})  # a controller does not say it again
        assert [segment.name for segment in await controller.table_segments("a", "t")] == [
            "a/t_kvtable/0.#epoch.0",
            "a/t_kvtable/1.#epoch.0",
        ]
        assert [name async for name in controller.list_tables("a")] == ["t"]
        assert await controller.delete_table("a", "t")
        assert not await controller.delete_table("a", "t")
        assert [name async for name in controller.list_tables("a")] == []
        for ask in (controller.table_config, controller.table_segments):
            with pytest.raises(NoSuchTable):
                await ask("a", "t")
        with pytest.raises(NoSuchTable):
            await pravega.table("a", "t").open()
        with pytest.raises(RequestRejected):
            await controller.create_table("a", "no/name", config)


async def test_a_value_is_put_read_changed_on_its_version_and_removed() -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega, await made(pravega) as table:
        assert await table.get(b"k1") is None
        assert not await table.exists(b"k1")
        first = await table.put(b"k1", b"one")
        entry = await table.get(b"k1")
        assert entry == (TableKey(b"k1"), b"one", first)
        second = await table.put(b"k1", b"two", version=first)
        assert second != first
        with pytest.raises(BadKeyVersion):
            await table.put(b"k1", b"three", version=first)
        with pytest.raises(BadKeyVersion):
            await table.put_if_absent(b"k1", b"three")
        with pytest.raises(BadKeyVersion):
            await table.remove(b"k1", version=first)
        assert await table.exists(b"k1")
        await table.remove(b"k1", version=second)
        assert await table.get(b"k1") is None
        await table.remove(b"k1")
        with pytest.raises(BadKeyVersion):
            await table.remove(b"k1", version=second)
        with pytest.raises(BadKeyVersion):
            await table.put(b"k1", b"x", version=second)
        assert (await table.put_if_absent(b"k1", b"")) == (await table.get(b"k1")).version  # type: ignore[union-attr]


async def test_entries_of_one_primary_key_change_together_or_not_at_all(pravega: Client) -> None:
    async with await made(pravega, secondary=1) as table:
        a, b = TableKey(b"pp", b"a"), TableKey(b"pp", b"b")
        versions = await table.put_all([(a, b"1"), (b, b"2")])
        assert len(set(versions)) == 2
        with pytest.raises(BadKeyVersion):
            await table.put_all([(a, b"3"), (b, b"4", versions[0])])
        assert [each and each.value for each in await table.get_all([b, a])] == [b"2", b"1"]
        with pytest.raises(BadKeyVersion):
            await table.remove_all([(a, None), (b, versions[0])])
        await table.remove_all([(a, versions[0]), (b, versions[1])])
        assert await table.get_all([a, b]) == [None, None]
        assert await table.put_all([]) == []
        await table.remove_all([])
        with pytest.raises(EntryRefused, match="primary"):
            await table.put_all([(a, b"1"), (TableKey(b"qq", b"a"), b"2")])


async def test_a_version_of_another_partition_does_not_match() -> None:
    async with MockCluster(watched=False) as mock, client(mock) as pravega, await made(pravega) as table:
        version = await table.put(b"k1", b"x")
        with pytest.raises(BadKeyVersion, match="partition"):
            await table.put(b"k1", b"y", version=Version(version.segment_id + 1, version.number))
    assert Version.parse(str(version)) == version
    with pytest.raises(ValueError, match="segment:number"):
        Version.parse("7")


async def test_what_the_table_cannot_hold_is_refused_before_it_is_sent(pravega: Client) -> None:
    async with await made(pravega, secondary=2) as table:
        before = pravega.metrics().bytes_out
        for key, value, limit, actual in (
            (TableKey(b"k", b"ss"), b"", 2, 1),
            (TableKey(b"kk", b"sss"), b"", 2, 3),
            (b"kk", b"", 2, 0),
            (TableKey(b"kk", b"ss"), bytes(MAX_VALUE_BYTES + 1), MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1),
        ):
            with pytest.raises(EntryRefused) as caught:
                await table.put(key, value)
            assert (caught.value.limit, caught.value.actual, caught.value.stream) == (limit, actual, "a/t")
        with pytest.raises(EntryRefused, match="256"):
            await table.put_all([(TableKey(b"kk", number.to_bytes(2)), b"") for number in range(257)])
        for wrong in ({"from_": b"k"}, {"prefix": b"kkk"}, {"primary": b"k"}, {"prefix": b"k", "to": b"kk"}):
            with pytest.raises(EntryRefused):
                table.keys(**wrong)  # type: ignore[arg-type]
        with pytest.raises(EntryRefused, match="token"):
            table.entries(after=b"?")
        assert pravega.metrics().bytes_out == before


@pytest.mark.mock(stores=2)
async def test_large_values_of_many_keys_are_read_in_the_order_asked_for(mock: MockCluster) -> None:
    async with client(mock) as pravega, await made(pravega, partitions=2) as table:
        keys = [number.to_bytes(2) for number in range(40)]
        for key in keys:
            await table.put(key, key * (MAX_VALUE_BYTES // 2))
        wanted = [*reversed(keys), b"no", keys[3]]
        found = await table.get_all(wanted)
        assert [each and (each.key.primary, each.value[:2]) for each in found] == [
            None if key == b"no" else (key, key) for key in wanted
        ]


@pytest.mark.parametrize("page", [3, 1000])
@pytest.mark.mock(stores=2)
async def test_an_iteration_gives_every_entry_once_in_the_order_of_the_keys(mock: MockCluster, page: int) -> None:
    async with client(mock) as pravega, await made(pravega, partitions=4) as table:
        random = Random(5)
        keys = [number.to_bytes(2) for number in random.sample(range(65536), 60)] + [b"\0\0", b"\xff\xff"]
        for key in keys:
            await table.put(key, b"of " + key)
        found = [entry async for entry in table.entries(page=page)]
        assert [entry.key.primary for entry in found] == sorted(set(keys))
        assert all(entry.value == b"of " + entry.key.primary for entry in found)
        some = await table.get_all([entry.key for entry in found])
        assert some == found
        low, high = sorted(keys)[10], sorted(keys)[20]
        assert [key.primary async for key in table.keys(from_=low, to=high, page=page)] == sorted(keys)[10:21]
        prefix = keys[0][:1]
        assert [key.primary async for key in table.keys(prefix=prefix)] == sorted(
            key for key in keys if key.startswith(prefix)
        )
        assert [key async for key in table.keys(from_=high, to=low)] == []


@pytest.mark.watched
async def test_an_iteration_over_one_primary_key_asks_its_partition_alone(mock: MockCluster, pravega: Client) -> None:
    async with await made(pravega, secondary=2) as table:
        for primary in (b"p1", b"p2"):
            for number in range(10):
                await table.put(TableKey(primary, number.to_bytes(2)), primary)
        keys = [key async for key in table.keys(primary=b"p1")]
        assert len({request.segments for request in mock.requests("type = READ_TABLE_KEYS")}) == 1
        assert keys == [TableKey(b"p1", number.to_bytes(2)) for number in range(10)]
        some = [entry.key.secondary async for entry in table.entries(primary=b"p2", from_=b"\0\3", to=b"\0\5")]
        assert some == [b"\0\3", b"\0\4", b"\0\5"]


async def test_a_token_goes_on_behind_what_was_given_also_in_another_client(mock: MockCluster, pravega: Client) -> None:
    async with client(mock) as other, await made(pravega) as table:
        keys = [number.to_bytes(2) for number in range(0, 50, 2)]
        for key in keys:
            await table.put(key, b"")
        iteration = table.keys(page=4)
        assert iteration.token == b""
        first = [(await anext(iteration)).primary for _ in range(11)]
        assert iteration.token == first[-1]
        await table.put(b"\0\1", b"behind it")
        await table.put(b"\0\x2f", b"before it")
        async with other.table("a", "t") as again:
            rest = [key.primary async for key in again.keys(after=iteration.token)]
            assert first + rest == sorted([*keys, b"\0\x2f"])
            assert [key async for key in again.keys(after=b"\xff\xff")] == []


async def test_cancelling_a_step_of_an_iteration_loses_nothing(pravega: Client) -> None:
    async with await made(pravega) as table:
        keys = [number.to_bytes(2) for number in range(40)]
        for key in keys:
            await table.put(key, b"")
        iteration = table.keys(page=3)
        got: list[bytes] = []
        async for _ in _turns(400):
            step = asyncio.ensure_future(anext(iteration))
            await asyncio.sleep(0)
            step.cancel()
            (found,) = await asyncio.gather(step, return_exceptions=True)
            if isinstance(found, TableKey):
                got.append(found.primary)
        got += [key.primary async for key in iteration]
        assert got == keys


async def _turns(count: int) -> Any:
    for number in range(count):
        yield number


async def test_changes_survive_connections_that_are_cut() -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega, await made(pravega) as table:
        random = Random(2)
        plain: dict[bytes, bytes] = {}
        for step in range(200):
            key, value = random.randrange(20).to_bytes(2), b"%d" % step
            if step % 10 == 0:
                for connection in tuple(random.choice(mock.stores).hub.connections):
                    connection.abort()
            if random.random() < 0.2:
                await table.remove(key)
                plain.pop(key, None)
            else:
                await table.put(key, value)
                plain[key] = value
        assert {entry.key.primary: entry.value async for entry in table.entries()} == plain


async def test_a_table_that_was_deleted_or_closed_says_so(pravega: Client) -> None:
    table = await made(pravega)
    with pytest.raises(Closed):
        await table.get(b"k1")
    async with table:
        await table.put(b"k1", b"x")
        iteration = table.keys(page=1)
        await pravega.controller.delete_table("a", "t")
        for ask in (table.put(b"k1", b"y"), table.get(b"k1"), table.remove(b"k1"), anext(iteration)):
            with pytest.raises(NoSuchTable) as caught:
                await ask
            assert caught.value.segment is not None
            assert caught.value.endpoint is not None
            assert caught.value.stream == "a/t"
            assert caught.value.request_id is not None
    with pytest.raises(Closed, match="closed"):
        await table.get(b"k1")
    table.close()


@looped(("key", "position"), [(b"", 0.42352702020022215), (b"key", 0.3729347093435733)])
def test_a_primary_key_always_lies_where_it_lay(key: bytes, position: float) -> None:
    assert position_of_key(key) == position


@given(st.binary(min_size=3, max_size=3))
def test_behind_a_key_comes_the_next_and_nothing_behind_the_last(key: bytes) -> None:
    bounds = Bounds(bytes(3), b"\xff" * 3).behind(key)
    if key == b"\xff" * 3:
        assert bounds.empty
    else:
        assert bounds.first > key
        assert int.from_bytes(bounds.first) == int.from_bytes(key) + 1


async def test_a_table_segment_with_keys_of_any_length_has_deltas() -> None:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(MockSegmentStore(watched=False))
        pool = await stack.enter_async_context(ConnectionPool(settings()))
        requests = await stack.enter_async_context(SegmentRequests(pool, FixedStore(endpoint(store))))
        segment = TableSegment(requests, "a/g_kvtable/0.#epoch.0")
        await segment.create()
        items = [Item(b"key %d" % number * (number + 1), value=b"%d" % number) for number in range(12)]
        await segment.update(items)
        delta = await segment.delta(0, 100)
        assert {each.key: each.value for each in delta.items} == {item.key: item.value for item in items}
        assert (await segment.delta(delta.position, 100)).items == []
        with pytest.raises(NoSuchKey):
            await segment.remove([(b"none", 7)])
        await segment.delete()
        with pytest.raises(SegmentMissing):
            await segment.delta(0, 100)


@looped("keys", [[b"bb", b"aa"], [b"aa", b"aa"], [b"\0\0\0"], [b"zz"]])
async def test_a_store_that_gives_keys_out_of_order_or_bounds_is_refused(keys: list[bytes]) -> None:
    def script(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, ReadTableKeys)
        peer.send(TableKeysRead(command.request_id, command.segment, [WireKey(key, 1) for key in keys], b""))

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(ScriptedStore(script))
        pool = await stack.enter_async_context(ConnectionPool(settings()))
        requests = await stack.enter_async_context(SegmentRequests(pool, FixedStore(store.endpoint)))
        partition = SegmentRange(0, "a/t_kvtable/0.#epoch.0", 0, 1)
        iteration = TableIterator(
            requests, [partition], Bounds(b"\0\1", b"yy"), 10, lambda _, item: item.key, nullcontext, with_values=False
        )
        with pytest.raises(ProtocolViolation, match="order"):
            await anext(iteration)
