"""The table that a reader group is: what is in it that should not be, what it cannot hold, replies that are lost."""

from typing import Any, cast

import pytest

from segstore.client import Client, Cluster
from segstore.client.connection import ConnectionPool, FixedStore
from segstore.client.controller import Controller
from segstore.client.errors import ConditionFailed, EntryRefused, NoSuchReaderGroup, ProtocolViolation, SegmentMissing
from segstore.client.groups import ReaderGroup
from segstore.client.groups.table import GroupTable
from segstore.client.tables import Item, TableSegment
from segstore.server.cluster import MockCluster
from segstore.wire import Command, CreateTableSegment, NoSuchSegment, ReadTableEntriesDelta, SegmentAlreadyExists
from segstore.wire.reader_groups import AddReader, GroupConfig, GroupState, InitialState, Update, encode_key
from segstore.wire.reader_groups.table import FUTURE, UNASSIGNED, encode_offset, encode_predecessors, encode_value
from tests.client.groups import support
from tests.client.groups.support import fill
from tests.client.support import ScriptedPeer, ScriptedStore, client, make_stream, settings

pytestmark = pytest.mark.usefixtures("grpc_runs")

TABLE = "a/g_kvtable/0.#epoch.0"
BEFORE = encode_value("HashSet<i64>", encode_predecessors([0]))


def group(pravega: Client, **more: Any) -> ReaderGroup:
    return support.group(pravega, shared_with="rust", **more)


def table_of(pravega: Client) -> GroupTable:
    return GroupTable(pravega._cluster("READ"), pravega.locations(), "a", "g", recovers=False)


async def test_a_deleted_group_whose_name_is_not_released_is_distinguished_from_a_missing_one() -> None:
    """As a real Pravega answers for minutes: the segment exists already, and there is none."""

    def script(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, CreateTableSegment):
            peer.send(SegmentAlreadyExists(command.request_id, command.segment, ""))
        else:
            assert isinstance(command, ReadTableEntriesDelta)
            peer.send(NoSuchSegment(command.request_id, command.segment, "", -1))

    async with ScriptedStore(script) as store, ConnectionPool(settings()) as pool:
        where = FixedStore(store.endpoint)
        table = GroupTable(Cluster(pool, cast("Controller", None), where), where, "a", "g", recovers=False)
        with pytest.raises(NoSuchReaderGroup, match=r"a/g was deleted, and its store cannot create it") as raised:
            await table.initialise(InitialState(GroupConfig({"a/s": {}}), {}, {}))
        assert raised.value.segment == TABLE
        with pytest.raises(SegmentMissing):
            await table.fetch()
        await table.aclose()


@pytest.mark.parametrize("inner", ["a/s/0.#epoch.p", "a/s", ""])
@pytest.mark.parametrize(("outer", "value"), [(UNASSIGNED, encode_value("Offset", encode_offset(0))), (FUTURE, BEFORE)])
async def test_a_segment_in_a_groups_table_that_is_none_is_refused_when_it_is_read(
    outer: str, inner: str, value: bytes, pravega: Client
) -> None:
    await fill(pravega, 0)
    async with pravega.segment_requests() as requests:
        table = TableSegment(requests, TABLE)
        await table.create()
        await table.update([Item(encode_key(outer, inner), -1, value)])
    with pytest.raises(ProtocolViolation, match=r"an entry that no reader group has: .* is not a stream segment"):
        await group(pravega).open()


async def test_a_key_that_another_client_removed_can_be_written_again(pravega: Client) -> None:
    """Older tools may remove what the clients only mark; no delta tells of it."""
    await fill(pravega, 0, segments=1)
    async with group(pravega) as shared, pravega.segment_requests() as requests:
        async with shared.reader("r"), group(pravega) as another:  # `shared` is to ask first when the key is gone
            assert await another.readers() == ["r"]
        table = TableSegment(requests, TABLE)
        items = await table.entries(100, b"", b"")
        await table.remove([(item.key, item.version) for item in items if b"assigned_segments/r" in item.key])
        assert await shared.readers() == []
        async with shared.reader("r"):
            assert await shared.readers() == ["r"]


async def test_an_update_whose_reply_was_lost_is_not_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MockCluster(watched=False) as mock, client(mock) as pravega:
        await fill(pravega, 0, segments=1)
        async with group(pravega) as shared:
            table = table_of(pravega)
            await table.fetch()
            update = table._table.update

            async def lost(items: Any) -> list[int]:
                await update(items)
                error = ConditionFailed("it was sent before")
                error.details["retried"] = 1
                raise error

            monkeypatch.setattr(TableSegment, "update", lambda self, items: lost(items))
            calls = 0

            def join(state: GroupState) -> list[Update]:
                nonlocal calls
                calls += 1
                return [AddReader("r")]

            await table.update(join)
            monkeypatch.undo()
            assert calls == 1
            assert await shared.readers() == ["r"]
            await table.aclose()


async def test_a_group_over_more_segments_than_one_update_takes_is_refused(pravega: Client) -> None:
    await make_stream(pravega, 254)
    with pytest.raises(EntryRefused):
        await group(pravega).open()
    await pravega.controller.create_stream("a", "almost", segments=253)
    async with group(pravega, streams=["almost"]) as shared:
        assert await shared.cuts() == {"a/almost": dict.fromkeys(range(253), 0)}
