"""PDP-43A, ids 43.1 to 43.6 and 43.10: transient segments as a store keeps them, over sockets."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from segstore.client import connect
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.wire import (
    AppendSetup,
    Command,
    ConditionalBlockEnd,
    CreateTableSegment,
    CreateTransientSegment,
    DataAppended,
    GetSegmentAttribute,
    KeepAlive,
    MergeSegments,
    NoSuchSegment,
    SealSegment,
    SegmentAlreadyExists,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentIsSealed,
    SegmentsMerged,
    SetupAppend,
    UpdateSegmentAttribute,
    encode,
)
from segstore.wire.names import SegmentName, index_name, is_transaction, is_transient, parent_of, transient_name
from tests.client.support import create, settings
from tests.server.support import SEGMENT, WRITER, FakeClock, Peer, until

NEVER_WROTE = -(1 << 63)
EVENT_COUNT = UUID(int=(1 << 127) + 1)


async def asked(peer: Peer, command: Command) -> Any:
    (reply,) = await peer.ask(command)
    return reply


async def transient(peer: Peer, writer: UUID = WRITER) -> str:
    """A transient segment of SEGMENT with a writer that is set up."""
    created = await asked(peer, CreateTransientSegment(5, writer, SEGMENT, ""))
    assert isinstance(created, SegmentCreated)
    assert await asked(peer, SetupAppend(6, writer, created.segment, "")) == AppendSetup(
        6, created.segment, writer, NEVER_WROTE
    )
    return created.segment


async def written(peer: Peer, *chunks: bytes, writer: UUID = WRITER) -> str:
    name = await transient(peer, writer)
    offset = 0
    for number, chunk in enumerate(chunks):
        ack = await asked(peer, ConditionalBlockEnd(writer, number, offset, chunk, 10 + number))
        assert isinstance(ack, DataAppended)
        assert ack.event_number == number
        offset += len(chunk)
    return name


@pytest.mark.seed("43.1")
async def test_the_command_has_code_40_and_is_answered_with_segment_created_and_the_name() -> None:
    command = CreateTransientSegment(5, WRITER, SEGMENT, "")
    assert encode(command)[:4] == (40).to_bytes(4)
    async with MockSegmentStore(watched=False) as store, await Peer.connect(store) as peer:
        created = await asked(peer, command)
        assert type(created) is SegmentCreated
        assert created.request_id == 5
        assert created.segment in store.segments


@pytest.mark.seed("43.2")
async def test_the_name_contains_parent_and_writer_and_is_no_transactions() -> None:
    async with MockSegmentStore(watched=False) as store, await Peer.connect(store) as peer:
        first, second = [await transient(peer) for _ in range(2)]
    assert first != second
    for name in (first, second):
        parent, _, tail = name.partition("#transient.")
        writer, random = tail.split(".")
        assert (parent, writer, len(random), bytes.fromhex(random)[:0]) == (SEGMENT, WRITER.hex, 32, b"")
        assert is_transient(name)
        assert not is_transaction(name)
        assert parent_of(name) == SEGMENT
        assert SegmentName.parse(name).transient_writer_id == WRITER
    assert not is_transient(first[:-1] + "g")  # the reference looks at the delimiter and the length alone
    assert not is_transient(f"{SEGMENT}#transaction.{WRITER.hex}")
    assert is_transaction(f"{SEGMENT}#transaction.{WRITER.hex}")


def update(name: str, number: int) -> UpdateSegmentAttribute:
    return UpdateSegmentAttribute(20 + number, name, UUID(int=1 << 70 | number), number, NEVER_WROTE, "")


@pytest.mark.seed("43.3")
async def test_a_transient_segment_takes_attributes_up_to_its_limit(store: MockSegmentStore, peer: Peer) -> None:
    name = await transient(peer)
    before = len(store.segments[name].attributes)
    taken = 0
    while replies := await peer.ask(update(name, taken)):
        assert replies == [SegmentAttributeUpdated(20 + taken, True)]
        taken += 1
        assert taken < 20
    # One that has more than sixteen takes no update any more, and the protocol has no reply for that.
    assert before + taken == 17
    await until(lambda: name not in store.segments)


@pytest.mark.seed("43.3")
@pytest.mark.mock(strict_transient_attributes=True)
async def test_a_strict_transient_segment_takes_the_number_of_its_own_writer_only(
    store: MockSegmentStore, peer: Peer
) -> None:
    name = await written(peer, b"chunk", b"and its number")
    assert await asked(peer, GetSegmentAttribute(8, name, WRITER, "")) == SegmentAttribute(8, 1)
    assert await peer.ask(update(name, 1)) == []
    await until(lambda: name not in store.segments)


@pytest.mark.seed("43.4")
async def test_a_transient_segment_is_no_table_whatever_its_name_and_has_no_index() -> None:
    async with MockSegmentStore(watched=False) as store, await Peer.connect(store) as peer:
        await peer.ask(create(SEGMENT))
        assert index_name(SEGMENT) in store.segments
        name = await written(peer, b"chunk")
        assert index_name(name) not in store.segments
        assert await asked(peer, CreateTableSegment(7, name, False, 0, "")) == SegmentAlreadyExists(7, name, "")
        table = transient_name(SEGMENT, WRITER, "0" * 32)
        assert await asked(peer, CreateTableSegment(8, table, False, 0, "")) == SegmentCreated(8, table)
        kinds = {segment.name: (segment.is_transient, segment.is_table) for segment in store.segments.values()}
        assert (kinds[name], kinds[table]) == ((True, False), (False, True))
        assert (True, True) not in kinds.values()


@pytest.mark.seed("43.4")
@pytest.mark.usefixtures("grpc_runs")
async def test_a_transient_segment_is_in_no_list_of_the_controller() -> None:
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
        await pravega.controller.create_scope("scope")
        await pravega.controller.create_stream("scope", "stream")
        address = mock.stores[0].address
        async with Peer(*await asyncio.open_connection(*address)) as peer:
            name = await written(peer, b"chunk")
            assert [scope async for scope in pravega.controller.list_scopes()] == ["scope"]
            assert [stream async for stream in pravega.controller.list_streams("scope")] == ["stream"]
            assert [segment.name for segment in await pravega.controller.current_segments("scope", "stream")] == [
                SEGMENT
            ]
            assert list(await pravega.controller.head("scope", "stream")) == [0]
            await asked(peer, KeepAlive())
        assert parent_of(name) == SEGMENT


@pytest.mark.seed("43.5")
async def test_unmerged_transient_segments_go_with_their_connection_once() -> None:
    async with MockSegmentStore(watched=False) as store, await Peer.connect(store) as other:
        await other.ask(create(SEGMENT))
        kept = await written(other, b"kept")
        peer = await Peer.connect(store)
        merged, left = await written(peer, b"one"), await written(peer, b"two", writer=UUID(int=8))
        assert isinstance(await asked(peer, MergeSegments(30, SEGMENT, merged, "")), SegmentsMerged)
        gone: list[str] = []
        drop = store.server.service.drop_transient

        def dropped(name: str) -> None:
            if name in store.segments:
                gone.append(name)
            drop(name)

        store.server.service.drop_transient = dropped  # type: ignore[method-assign]
        peer.abort()
        await until(lambda: left not in store.segments)
        assert gone == [left]
        assert kept in store.segments
        assert store.store.segment_info(SEGMENT).length == 3
        await peer.close()


@pytest.mark.seed("43.6")
async def test_the_cleaner_deletes_idle_segments_by_clock_time_and_all_that_are_older_than_a_recovery() -> None:
    clock = FakeClock()
    async with MockSegmentStore(watched=False, clock=clock) as store, await Peer.connect(store) as peer:
        service = store.server.service
        idle, used = await written(peer, b"idle"), await written(peer, b"used", writer=UUID(int=8))
        assert store.server.settings.transient_idle_s == 600
        clock.advance(599)
        assert store.server.clean_transients(service.now_ms()) == 0
        await asked(peer, ConditionalBlockEnd(UUID(int=8), 1, 4, b"more", 12))
        await asked(peer, SetupAppend(13, UUID(int=8), used, ""))
        clock.advance(2)
        assert store.server.clean_transients(service.now_ms()) == 1
        assert (idle in store.segments, used in store.segments) == (False, True)
        for container in store.store.containers.values():
            container.recovered()
        assert store.server.clean_transients(service.now_ms()) == 1
        assert used not in store.segments
        assert await asked(peer, KeepAlive()) == KeepAlive()


@pytest.mark.seed("43.10")
async def test_a_merge_appends_the_whole_source_as_one_event_and_seals_it_first() -> None:
    async with MockSegmentStore(watched=False) as store, await Peer.connect(store) as peer:
        await peer.ask(create(SEGMENT))
        name = await written(peer, b"one ", b"two ", b"three")
        assert await asked(peer, MergeSegments(30, SEGMENT, name, "")) == SegmentsMerged(30, SEGMENT, name, 13)
        result = store.store.read(SEGMENT, 0, 100)
        assert b"".join(result.data) == b"one two three"
        assert await asked(peer, GetSegmentAttribute(31, SEGMENT, EVENT_COUNT, "")) == SegmentAttribute(31, 1)
        again = await asked(peer, MergeSegments(32, SEGMENT, name, ""))
        assert isinstance(again, NoSuchSegment)
        assert (again.request_id, again.segment) == (32, name)


@pytest.mark.seed("43.10")
async def test_a_merge_that_is_refused_leaves_the_target_as_it_was_and_the_source_sealed() -> None:
    async with MockSegmentStore(watched=False) as store, await Peer.connect(store) as peer:
        await peer.ask(create(SEGMENT))
        name = await written(peer, b"data")
        await asked(peer, SealSegment(29, SEGMENT, ""))
        refused = await asked(peer, MergeSegments(30, SEGMENT, name, ""))
        assert isinstance(refused, SegmentIsSealed)
        assert store.store.segment_info(SEGMENT).length == 0
        assert store.segments[name].sealed
        missing = await asked(peer, MergeSegments(31, "scope/none/0.#epoch.0", name, ""))
        assert isinstance(missing, NoSuchSegment)


@pytest.mark.seed("43.10")
async def test_an_empty_source_is_only_deleted(store: MockSegmentStore, peer: Peer) -> None:
    await peer.ask(create(SEGMENT))
    source = SEGMENT + "#transaction." + "0" * 31 + "1"
    await peer.ask(create(source))
    assert await asked(peer, MergeSegments(30, SEGMENT, source, "")) == SegmentsMerged(30, SEGMENT, source, 0)
    assert source not in store.segments
    name = await transient(peer)
    missing = await asked(peer, MergeSegments(31, SEGMENT, name, ""))  # as the reference answers
    assert isinstance(missing, NoSuchSegment)
    assert missing.segment == name
    assert name not in store.segments
    assert store.store.segment_info(SEGMENT).length == 0
