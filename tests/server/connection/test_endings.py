"""How a connection ends: what is still answered, what a rule resets, and what a recording says about it."""

from __future__ import annotations

import asyncio

import pytest

from segstore.server import MockSegmentStore
from segstore.wire import DataAppended, encode
from segstore.wire.trace import Direction
from tests.server.faults.traffic import PONG, writer_of
from tests.server.support import PATIENCE_S, SEGMENT, WRITER, append, until
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
