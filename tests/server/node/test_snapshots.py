"""Snapshots and reset of servers in memory: what comes back, what is cut, what memory they take."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.controller import ScalingPolicy, StreamConfig
from segstore.server.faults import FaultSettings
from segstore.server.node import NoSuchSnapshot, SnapshotRefused
from segstore.server.store import StoreFull
from segstore.wire import CreateTransientSegment, DataAppended, Hello, SegmentCreated
from segstore.wire.names import is_transient
from tests.server.support import PATIENCE_S, SEGMENT, WRITER, Peer, append, create, read, set_up

pytestmark = pytest.mark.usefixtures("grpc_runs")


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[MockSegmentStore, Callable[[], Awaitable[Peer]]]]:
    """A store, and a function that connects a peer to it."""
    peers = []
    async with MockSegmentStore(**settings) as mock:

        async def connect() -> Peer:
            peer = await Peer.connect(mock)
            peers.append(peer)
            await peer.ask(Hello(17, 5))
            return peer

        try:
            yield mock, connect
        finally:
            for each in peers:
                each.writer.transport.abort()


async def test_a_restore_brings_back_the_bytes_attributes_and_used_names() -> None:
    async with serving() as (mock, connect):
        peer = await connect()
        await peer.ask(create(), set_up(), append(0, b"12345678"))
        gone = "scope/gone/0.#epoch.0"
        mock.store.create_segment(gone, now_ms=1)
        mock.store.setup_append(gone, WRITER, now_ms=1)
        mock.store.delete_segment(gone)
        before = mock.store.pool.memory.used
        await mock.snapshot("base")
        await peer.ask(append(1, b"more"))
        mock.store.delete_segment(SEGMENT)
        for _ in range(2):
            await mock.restore("base")
            assert set(mock.segments) == {SEGMENT, f"{SEGMENT}#index"}
            assert mock.segments[SEGMENT].read_bytes(0, 8) == b"12345678"
            assert mock.segments[SEGMENT].event_count == 1
            assert mock.store.container_for(gone).is_retired(gone)
        again = await connect()
        (known,) = await again.ask(set_up())
        assert known.last_event_number == 0
        (stored,) = await again.ask(append(1, b"90"))
        assert isinstance(stored, DataAppended)
        await mock.reset()
        assert (mock.segments, mock.requests()) == ({}, [])
        mock.snapshots.delete("base")
        assert 0 == mock.store.pool.memory.used < before


async def test_a_restore_cuts_connections_whose_transient_segments_do_not_come_back() -> None:
    async with serving() as (mock, connect):
        peer = await connect()
        await peer.ask(create(), set_up())
        await mock.snapshot("base")
        (made,) = await peer.ask(CreateTransientSegment(1, set_up().writer_id, SEGMENT, ""))
        assert isinstance(made, SegmentCreated)
        reading = await connect()
        reading.send(read(0))
        await mock.restore("base")
        for each in (peer, reading):
            with suppress(ConnectionResetError):
                assert await each.reader.read() == b""
        assert not any(map(is_transient, mock.segments))
        assert mock.server.hub.connections == set()


async def test_a_transient_segment_of_a_snapshot_is_not_deleted_with_the_connection_that_made_it() -> None:
    async with serving() as (mock, connect):
        peer = await connect()
        await peer.ask(create(), set_up(), CreateTransientSegment(1, set_up().writer_id, SEGMENT, ""))
        await mock.snapshot("base")
        await mock.restore("base")
        assert [segment for segment in mock.segments if is_transient(segment)] != []


async def test_a_restore_removes_rules_and_requests_and_goes_on_counting() -> None:
    async with serving() as (mock, connect):
        peer = await connect()
        await peer.ask(create())
        await mock.snapshot("base")
        mock.faults.add("type = READ_SEGMENT", do="hold", name="held")
        peer.send(read(0))
        await mock.faults.wait_held("held")
        last = mock.mark()
        await mock.restore("base")
        assert (mock.faults.rules, mock.requests()) == ([], [])
        again = await connect()
        await again.ask(set_up())
        assert mock.mark() > last


async def test_a_restore_and_a_reset_undo_the_seed_the_round_trip_time_and_decisions() -> None:
    async with serving(faults=FaultSettings(seed=3, round_trip_ms=1)) as (mock, connect):
        mock.faults.load(FaultSettings(seed=4, round_trip_ms={0: 2}))
        await mock.snapshot("base")
        restore = partial(mock.restore, "base")
        for number, (go_back, general) in enumerate(((restore, (4, {0: 2})), (mock.reset, (3, 1))), 1):
            mock.faults.load(FaultSettings(seed=7, round_trip_ms=20))
            assert mock.faults.add("type = HELLO", do="ok") == "rule 1"
            await connect()
            assert len(mock.faults.decisions) == 1
            await go_back()
            assert (mock.faults.decisions, mock.faults.forgotten_decisions) == ([], number)
            assert (mock.faults.seed, mock.faults.round_trip_ms) == general


async def test_the_controllers_state_comes_back_and_calls_in_progress_do_not_reach_it() -> None:
    async with MockCluster(stores=2) as mock:
        controller = mock.controller
        controller.scopes.create("scope")
        await controller.create_stream("scope", "kept", StreamConfig(ScalingPolicy(min_segments=2)))
        identifier, _ = await controller.transactions.open("scope", "kept", 10_000)
        await mock.snapshot("base")
        await controller.transactions.abort("scope", "kept", identifier)
        await controller.create_stream("scope", "more", StreamConfig())
        used = controller.state.streams()
        assert {each.name for each in used} == {"kept", "more"}
        await mock.restore("base")
        assert [stream.name for stream in controller.state.streams()] == ["kept"]
        await controller.transactions.commit("scope", "kept", identifier)
        assert identifier in controller.transactions.completed("scope", "kept")
        await mock.reset()
        assert controller.state.scopes == {}


async def test_a_restore_publishes_the_streams_again() -> None:
    async with MockCluster(stores=2) as mock:
        published = mock.members.configuration.scopes
        mock.controller.scopes.create("scope")
        await mock.snapshot("base")
        for change, expected in ((mock.reset(), []), (mock.restore("base"), ["scope"])):
            await change
            async with asyncio.timeout(PATIENCE_S):
                while await published() != expected:  # noqa: ASYNC110 — published nodes have no event
                    await asyncio.sleep(0.01)


async def test_a_server_with_a_data_directory_refuses(tmp_path: Path) -> None:
    async with MockCluster(data=tmp_path / "data") as mock:
        for call in (mock.snapshot("base"), mock.restore("base"), mock.reset()):
            with pytest.raises(SnapshotRefused, match="data directory"):
                await call


async def test_a_container_without_an_owner_is_named() -> None:
    async with MockCluster(stores=2) as mock:
        await mock.snapshot("base")
        (owner,) = (store.store for store in mock.stores if 0 in store.store.containers)
        container = owner.release(0)
        for call in (mock.snapshot("next"), mock.restore("base")):
            with pytest.raises(SnapshotRefused, match="container 0 has no owner"):
                await call
        owner.own(0, container)


async def test_names_are_checked_and_memory_is_bounded() -> None:
    async with serving() as (mock, connect):
        with pytest.raises(NoSuchSnapshot, match="there are no snapshots"):
            await mock.restore("base")
        with pytest.raises(SnapshotRefused, match="not empty"):
            await mock.snapshot("")
        await mock.snapshot("base")
        peer = await connect()
        await peer.ask(create(), set_up(), append(0, bytes(1000)))
        mock.store.pool.memory.limit = mock.store.pool.memory.used + 500
        with pytest.raises(StoreFull):
            await mock.snapshot("base")
