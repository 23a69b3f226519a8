"""A connection of a store as the host of a lane: what differs from a tap, and what it holds meanwhile."""

import asyncio

import pytest

from segstore.server import MockSegmentStore
from segstore.server.config import LimitSettings
from segstore.server.connection.deadlines import Waits
from segstore.server.connection.executing import Execution
from segstore.server.faults import Lane
from segstore.wire import GetStreamSegmentInfo, SealSegment, encode
from tests.looped import looped
from tests.server.faults.traffic import APPENDS, PONG, writer_of
from tests.server.support import SEGMENT, FakeClock, Peer, append, set_up, until


@looped("by_rule", [True, False])
async def test_what_comes_after_a_refused_append_that_was_held_did_not_come_with_it(by_rule: bool) -> None:
    async with MockSegmentStore() as mock, await writer_of(mock) as peer:
        if by_rule:
            mock.faults.add(APPENDS, nth=[1, 2], do="SegmentIsSealed")
        else:
            await peer.ask(SealSegment(8, SEGMENT, ""))
        mock.faults.add(APPENDS, nth=2, do="hold", name="late")
        peer.send(append(1), append(2))
        await mock.faults.wait_held("late", 1)
        mock.faults.release("late")
        assert [each.type_name for each in await peer.receive(2)] == ["SEGMENT_IS_SEALED"] * 2
        peer.send(append(3))
        assert await peer.closed() == b"", "it has no writer"


async def test_a_refusal_ends_with_its_read_also_if_a_rule_drops_the_request_behind_it() -> None:
    async with MockSegmentStore() as mock, await writer_of(mock) as peer:
        mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="hold", name="held")
        mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="drop")
        mock.faults.add(APPENDS, nth=1, do="SegmentIsSealed")
        peer.send(append(1), GetStreamSegmentInfo(5, SEGMENT, ""))
        assert [each.type_name for each in await peer.receive(1)] == ["SEGMENT_IS_SEALED"]
        await mock.faults.wait_held("held")
        mock.faults.release("held")
        peer.send(append(2))
        assert await peer.closed() == b"", "it has no writer"


async def test_a_request_whose_reply_is_dropped_with_the_connection_was_not_replied_to() -> None:
    async with MockSegmentStore(admin_port=0) as mock, await Peer.connect(mock, admin=True) as peer:
        peer.send(PONG, set_up())
        assert await peer.closed() == b"", "SetupAppend is not served on the admin port"
        assert len(mock.requests("type = KEEP_ALIVE", stage="applied")) == 1
        assert mock.requests("type = KEEP_ALIVE", stage="replied") == []


@looped("at", ["before", "after"])
@looped("overtake", [True, False])
async def test_what_waits_for_a_peer_is_counted_and_bounded(at: str, overtake: bool) -> None:
    clock = FakeClock()
    limits = LimitSettings(connection_outstanding_bytes=64 * 1024)
    async with MockSegmentStore(clock=clock, limits=limits) as mock, await writer_of(mock) as peer:
        mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do={"delay_ms": 100, "at": at, "overtake": overtake})
        count, hub = 500, mock.server.hub
        peer.send(*(GetStreamSegmentInfo(8, SEGMENT, "") for _ in range(count)))
        await mock.wait_for("type = GET_STREAM_SEGMENT_INFO", stage="received" if at == "before" else "applied")
        (connection,) = hub.connections
        await until(lambda: connection.held_bytes >= (64 * 1024 if overtake or at == "after" else 1024))
        assert hub.outstanding_bytes == connection.held_bytes
        waiting = len(mock.requests("type = GET_STREAM_SEGMENT_INFO"))
        assert waiting < 100, "no more is carried out for a peer for whom so much waits"
        answered = asyncio.create_task(peer.receive(count))
        while not answered.done():
            clock.advance(0.1)
            await asyncio.sleep(0)
        connection.look_up()
        assert (len(await answered), hub.outstanding_bytes) == (count, 0)


@pytest.mark.parametrize("watched", [False, True])
async def test_a_step_ends_after_a_number_of_requests_or_bytes_of_replies(
    store: MockSegmentStore, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr("segstore.server.connection.executing._STEP", 512)
    hub, lane, waits = store.server.hub, None, Waits(0.0)
    assert hub.faults is not None
    if watched:
        lane = Lane(hub.faults, store=0, encode=hub.service.encode, on_effects=lambda effects: None)
    execution = Execution(
        hub, lane, "peer", waits, lambda: 0.0, admin=False, on_reply=lambda: None, reset=lambda why: None
    )

    def replies_of_steps(data: bytes, steps: int) -> list[int]:
        hub.buffers.view[: len(data)] = data
        execution.received.read(len(data))
        counts = []
        for _ in range(steps):
            execution.run()
            counts.append(len((execution.lane or execution.session).take_out()))
        assert execution.received.finish()
        return counts

    assert replies_of_steps(encode(PONG) * (2 * 512 + 100), 4) == [512, 512, 100, 0]
    monkeypatch.setattr("segstore.server.connection.executing.WRITE_ABOVE_BYTES", 1)
    monkeypatch.setattr("segstore.server.connection.session.WRITE_ABOVE_BYTES", 1)
    assert replies_of_steps(encode(PONG) * 3, 4) == [1, 1, 1, 0]
