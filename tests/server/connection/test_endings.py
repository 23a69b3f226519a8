"""How a connection ends: what is still answered, what a rule resets, and what a recording says about it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from segstore.server import MockSegmentStore
from segstore.wire import AppendSetup, DataAppended, ReadSegment, SegmentCreated, encode
from segstore.wire.trace import Direction
from tests.looped import looped
from tests.server.durable.test_acknowledging import Cluster as DurableCluster
from tests.server.durable.test_acknowledging import Held, connected
from tests.server.faults.traffic import APPENDS, PONG, HostName, hosted, stored, writer_of
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, WRITER, append, create, set_up, until
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
