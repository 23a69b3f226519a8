"""Long reads that stay where they were received, because the latest traffic is kept: on a real socket."""

import asyncio

from segstore.server import MockSegmentStore
from segstore.server.traffic import KEPT_BYTES, Traffic
from segstore.wire import AppendBlock, AppendBlockEnd, DataAppended, encode
from segstore.wire.trace import Direction, RecordKind
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, WRITER, Peer, create, read, set_up

COUNT = 12_000


def pair(number: int) -> tuple[bytes, bytes]:
    """The frames of an append whose bytes tell its number."""
    data = number.to_bytes(4, "big") * 512
    end = AppendBlockEnd(WRITER, len(data), b"", 1, number, number)
    return encode(AppendBlock(WRITER, data)), encode(end)


@looped(("others", "watched"), [(0, True), (3, False)])
async def test_a_flood_of_appends_is_stored_and_recorded_as_it_was_sent(others: int, watched: bool) -> None:
    frames = [frame for number in range(1, COUNT + 1) for frame in pair(number)]
    async with MockSegmentStore(watched=watched) as mock:
        kept = mock.server.hub.recorder = Traffic()
        peers = [await Peer.connect(mock) for _ in range(1 + others)]
        for peer, name in zip(peers, (SEGMENT, "a/b/1.#epoch.0", "a/b/2.#epoch.0", "a/b/3.#epoch.0"), strict=False):
            await peer.ask(HELLO, create(name), set_up(name, token="a secret"))
        for peer in peers:
            peer.send_bytes(b"".join(frames))
        for peer in peers:
            last = 0
            async with asyncio.timeout(60):
                while last < COUNT:
                    (reply,) = await peer.receive()
                    assert isinstance(reply, DataAppended)
                    last = reply.event_number
        (found,) = await peers[0].ask(read(0, 2_048 * 900))
        assert found.data == b"".join(number.to_bytes(4, "big") * 512 for number in range(1, 901))  # type: ignore[attr-defined]
        kept.flush()
        records = [record for _, _, record in kept.records()]
        trace = b"".join(kept.trace())
        areas = {id(area) for area in mock.server.hub.buffers._areas._areas}
        parts = [each for block in kept._blocks if block.pending is not None for each in block.pending.data]
        in_place = sum(len(part) for part in parts if isinstance(part, memoryview) and id(part.obj) in areas)
        for peer in peers:
            await peer.close()
    assert in_place > KEPT_BYTES // 8
    assert b"a secret" not in trace
    assert len(trace) < KEPT_BYTES * 1.2
    assert sum(each.kind is RecordKind.FRAME for each in records) > 9_000
    for connection in range(1, 2 + others):
        own = [each for each in records if each.connection == connection and each.direction is Direction.REQUEST]
        appends = [each.data for each in own if each.kind is RecordKind.FRAME][: -1 if connection == 1 else None]
        assert appends == frames[len(frames) - len(appends) :], (
            "each once and in order; the first connection has also read"
        )
