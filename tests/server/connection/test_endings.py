"""How a connection ends: what is still answered, what a rule resets, and what a recording says about it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from segstore.server import MockSegmentStore
from segstore.server.connection.deadlines import Missed
from segstore.wire import (
    AppendSetup,
    DataAppended,
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    encode,
)
from segstore.wire.trace import Direction
from tests.looped import looped
from tests.server.connection.conftest import Started
from tests.server.durable.test_acknowledging import Cluster as DurableCluster
from tests.server.durable.test_acknowledging import Held, connected
from tests.server.faults.traffic import APPENDS, PONG, HostName, hosted, stored, writer_of
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, WRITER, Peer, append, create, read, set_up, until
from tests.server.tap.test_server import reset
from tests.server.test_recording import Notes

OTHER = "scope/stream/1.#epoch.0"
RESET = {"close": "before", "reset": True}


async def test_a_reset_comes_behind_the_replies_that_have_passed_and_its_reason_is_recorded() -> None:
    notes = Notes()
    async with MockSegmentStore() as mock:
        mock.server.hub.recorder = notes
        peer = await writer_of(mock)
        mock.faults.add("type = KEEP_ALIVE", do=RESET, name="cut")
        peer.send(append(1), PONG, append(2))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(peer.reader.readexactly(1 << 20), PATIENCE_S)
        await peer.close()
        await until(lambda: notes.ended)
        assert notes.ended == {1: (Direction.REPLY, {"reason": "fault 'cut': close before"})}
        assert notes.bytes[1, "out"].endswith(encode(DataAppended(3, WRITER, 1, -(1 << 63), 4)))
        assert mock.segments[SEGMENT].length == 4


async def test_a_rule_that_resets_a_connection_that_is_lost_ends_it_there(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    async with MockSegmentStore() as mock:
        mock.server.hub.recorder = notes
        peer = await writer_of(mock)
        (connection,) = mock.server.hub.connections
        mock.faults.add("type = KEEP_ALIVE", do=RESET, name="cut")
        data = encode(append(1)) + encode(PONG) + encode(append(2))
        connection.received._buffers.view[: len(data)] = data
        connection.received.read(len(data))  # it is executed when the connection is lost
        reset(peer.writer)
        await until(lambda: notes.ended)
        assert notes.ended == {1: (Direction.REPLY, {"reason": "fault 'cut': close before"})}
        assert mock.segments[SEGMENT].length == 4
        assert mock.server.service.counters.internal_errors == 0
        await peer.close()


async def test_a_peer_that_has_ended_its_direction_gets_the_replies_that_a_rule_delays() -> None:
    async with MockSegmentStore() as mock, await writer_of(mock) as peer:
        mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="hold", name="request")
        mock.faults.add(APPENDS, do={"hold": "after"}, name="reply")
        peer.send(GetStreamSegmentInfo(5, SEGMENT, ""), append(1))
        await mock.faults.wait_held("request")
        (connection,) = mock.server.hub.connections
        assert connection.eof_received(), "it has not executed all of it"
        mock.faults.release("request")
        await mock.faults.wait_held("reply")
        assert [each.type_name for each in await peer.receive(1)] == ["STREAM_SEGMENT_INFO"]
        mock.faults.release("reply")
        assert [each.type_name for each in await peer.receive(2)] == ["DATA_APPENDED"]


@looped("name", get_args(HostName))
@looped("overtake", [False, True])
@looped("at", ["before", "after"])
async def test_a_client_that_half_closes_gets_delayed_replies_and_no_answer_to_a_read_that_waits(
    name: HostName, at: str, overtake: bool
) -> None:
    async with hosted(name) as host, await writer_of(host) as peer:
        host.faults.add(APPENDS, do={"hold": at, "overtake": overtake}, name="held")
        await peer.ask(create(OTHER))
        peer.send(ReadSegment(OTHER, 0, 8, "", 5), PONG, append(1))
        peer.writer.write_eof()
        await host.faults.wait_held("held")
        assert await peer.receive(1) == [PONG]
        await asyncio.sleep(0.02)  # the end is noticed
        host.faults.release("held")
        assert [each.type_name for each in await peer.receive(2)] == ["DATA_APPENDED"]
        assert stored(host) == 4
        await until(lambda: not host.server.hub.connections)


async def test_a_peer_that_has_ended_its_direction_is_closed_once_its_changes_are_durable(
    grpc_runs: None, tmp_path: Path
) -> None:
    async with DurableCluster(data=tmp_path, watched=False, containers=2) as mock, await connected(mock) as peer:
        await peer.ask(HELLO)
        hub = mock.stores[0].hub
        (connection,) = hub.connections
        Held.gate.clear()
        try:
            peer.send(create(), set_up(), append(1))
            await until(lambda: mock.stores[0].service.counters.appends)
            peer.writer.write_eof()
            await until(lambda: connection.session.ended)
            assert hub.connections == {connection}
        finally:
            Held.gate.set()
        assert [type(each) for each in await peer.receive(4)] == [SegmentCreated, AppendSetup, DataAppended]
        await until(lambda: not hub.connections)


@pytest.mark.parametrize("missed", [Missed.READING, Missed.FRAME])
async def test_the_reason_of_a_missed_deadline_is_recorded(started: Started, missed: Missed) -> None:
    notes = Notes()
    async with started() as store:
        store.server.hub.recorder = notes
        async with await Peer.connect(store) as peer:
            await peer.ask(HELLO)
            (connection,) = store.server.hub.connections
            connection.missed(missed, 0.0)
            assert await peer.closed() == b""
        await until(lambda: notes.ended)
        assert notes.ended == {1: (Direction.REPLY, {"reason": missed.sentence(store.server.hub.limits)})}
        assert store.server.service.counters.deadlines_missed == 1


async def test_nothing_is_executed_behind_a_malformed_frame_and_its_connection_is_not_answered_again(
    started: Started,
) -> None:
    async with started() as store, await Peer.connect(store) as peer:
        await peer.ask(HELLO)
        (connection,) = store.server.hub.connections
        peer.send_bytes(b"\0\0\0\0\0\0\0\0" + encode(create()))
        await until(lambda: store.server.service.counters.malformed_frames)
        assert connection.session.ended
        assert await peer.closed() == b""
        assert SEGMENT not in store.segments


async def test_replies_that_have_left_after_a_commit_are_no_longer_counted(grpc_runs: None, tmp_path: Path) -> None:
    async with DurableCluster(data=tmp_path, watched=False, containers=2) as mock, await connected(mock) as peer:
        await peer.ask(HELLO, create(), set_up(), append(1, bytes(100_000)))
        hub = mock.stores[0].hub
        (connection,) = hub.connections
        hub.watch = lambda _: None  # type: ignore[method-assign]  # nothing else looks
        Held.gate.clear()
        try:
            peer.send(append(2), read(0, 100_000))
            await until(lambda: connection.held_bytes > 100_000)
            assert hub.outstanding_bytes == connection.held_bytes
        finally:
            Held.gate.set()
        (_, found) = await peer.receive(2)
        assert isinstance(found, SegmentRead)
        assert (connection.held_bytes, hub.outstanding_bytes) == (0, 0)


async def test_a_connection_that_is_dropped_does_not_wait_for_a_reply_that_a_rule_holds() -> None:
    async with MockSegmentStore() as mock, await writer_of(mock) as peer:
        mock.faults.add(APPENDS, do={"hold": "after"}, name="reply")
        peer.send(append(1))
        await mock.faults.wait_held("reply")
        peer.send_bytes(bytes(8))
        assert await peer.closed() == b""
        await until(lambda: not mock.server.hub.connections)


async def test_what_is_pending_is_released_when_its_connection_ends() -> None:
    async with MockSegmentStore() as mock, await writer_of(mock) as peer:
        mock.faults.add("type = KEEP_ALIVE", do="hold", name="held")
        peer.send(*[PONG] * 600)
        await mock.faults.wait_held("held")
        (connection,) = mock.server.hub.connections
        assert connection.received.is_pending()
        connection.end("enough")
        assert not connection.received.is_pending()
        assert await peer.closed() == b""
