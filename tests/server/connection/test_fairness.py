"""Peers with many requests and one with few: the order of replies, with a clock that advances when it is read.

Nothing here depends on the speed of the machine: a slice is a number of readings of the clock.
"""

from __future__ import annotations

import asyncio
from itertools import count
from uuid import UUID

import pytest

from segstore.server import LimitSettings, MockSegmentStore
from segstore.server.connection.deadlines import Missed
from segstore.server.fair_queue import SLICE_S
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    CreateTransientSegment,
    DataAppended,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    ReadSegment,
    ReadTable,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    TableKey,
    encode,
)
from tests.server.support import HELLO, SEGMENT, WRITER, Peer, append, create, read, set_up, until
from tests.server.tap.test_inspection import peer_of as tap_peer
from tests.server.tap.test_inspection import tapped

MANY = 20_000


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice ends after about five readings of the clock."""
    looks = count()
    monkeypatch.setattr("segstore.server.fair_queue.perf_counter", lambda: next(looks) * SLICE_S / 5)


@pytest.fixture(params=[False, True], ids=["plain", "watched"])
def watched(request: pytest.FixtureRequest) -> bool:
    """Both kinds of connections."""
    return bool(request.param)


async def writer_of(mock: MockSegmentStore) -> Peer:
    peer = await Peer.connect(mock)
    await peer.ask(HELLO, create(), set_up())
    return peer


@pytest.mark.parametrize("attackers", [1, 8])
async def test_one_request_does_not_wait_for_thousands_of_others(watched: bool, attackers: int) -> None:
    async with MockSegmentStore(watched=watched) as mock, await writer_of(mock) as victim:
        peers = [await Peer.connect(mock) for _ in range(attackers)]
        counters = mock.server.service.counters
        flood = encode(GetStreamSegmentInfo(1, SEGMENT, "")) * (MANY // attackers)
        for peer in peers:
            peer.send_bytes(encode(HELLO) + flood)
        await until(lambda: counters.requests >= 100)
        for number in range(3):
            before = counters.requests
            assert isinstance((await victim.ask(append(number)))[0], DataAppended)
            assert counters.requests - before < 2_000, "too many requests of others were answered first"
        assert counters.requests < MANY // attackers * attackers
        for peer in peers:
            peer.abort()
            await peer.close()


async def test_requests_are_answered_in_order_however_many_slices_they_take(watched: bool) -> None:
    async with MockSegmentStore(watched=watched) as mock, await Peer.connect(mock) as peer:
        await peer.ask(HELLO, create())
        asking = [GetStreamSegmentInfo(number, SEGMENT, "") for number in range(3_000)]
        peer.send(*asking)
        answers = await peer.receive(len(asking))
        assert [each.request_id for each in answers if isinstance(each, StreamSegmentInfo)] == list(range(3_000))


async def test_appends_that_take_many_slices_are_stored_once_and_in_order(watched: bool) -> None:
    async with MockSegmentStore(watched=watched) as mock, await writer_of(mock) as peer:
        frames = []
        for number in range(1, 2_001):
            data = number.to_bytes(4, "big") * 50
            frames += [encode(AppendBlock(WRITER, data)), encode(AppendBlockEnd(WRITER, 200, b"", 1, number, number))]
            if number % 100 == 0:
                frames.append(encode(KeepAlive()))  # between appends, so that the clock is read
        peer.send_bytes(b"".join(frames))
        answers = await peer.receive(2_000 + 20)
        acknowledged = [each.event_number for each in answers if isinstance(each, DataAppended)]
        assert acknowledged == list(range(1, 2_001))
        stored = mock.segments[SEGMENT].read_bytes(0, 2_000 * 200)
        assert stored == b"".join(number.to_bytes(4, "big") * 50 for number in range(1, 2_001))


async def test_what_a_peer_sent_before_its_end_is_executed_and_answered(watched: bool) -> None:
    async with MockSegmentStore(watched=watched) as mock, await writer_of(mock) as peer:
        asked = [GetStreamSegmentInfo(number, SEGMENT, "") for number in range(2_000)]
        peer.send(*asked, append(1, b"the last"))
        peer.writer.write_eof()
        answers = await peer.receive(2_001)
        assert isinstance(answers[-1], DataAppended)
        assert await peer.closed() == b""
        assert mock.segments[SEGMENT].length == len(b"the last")


async def test_what_was_read_is_executed_although_the_peer_has_gone(watched: bool) -> None:
    async with MockSegmentStore(watched=watched) as mock, await writer_of(mock) as peer:
        (connection,) = mock.server.hub.connections
        asked = encode(GetStreamSegmentInfo(1, SEGMENT, "")) * 2_000
        sent = asked + encode(append(1, b"the last"))
        view = mock.server.hub.buffers.view
        view[: len(sent)] = sent
        connection.buffer_updated(len(sent))
        assert mock.segments[SEGMENT].length == 0, "all were executed in one slice"
        peer.abort()
        await until(lambda: not mock.server.hub.connections)
        assert mock.segments[SEGMENT].length == len(b"the last")
        assert mock.server.hub.outstanding_bytes == 0
        await peer.close()


async def test_what_comes_before_a_malformed_frame_is_executed_in_its_slices(watched: bool) -> None:
    async with MockSegmentStore(watched=watched) as mock, await writer_of(mock) as peer:
        peer.send(*(GetStreamSegmentInfo(number, SEGMENT, "") for number in range(2_000)))
        peer.send_bytes(b"\0\0\0\0\0\0\0\0")
        assert len(await peer.receive(2_000)) == 2_000
        assert await peer.closed() == b""
        assert mock.server.service.counters.malformed_frames == 1


@pytest.mark.mock(watched=False, limits=LimitSettings(connection_waiting_reads=MANY))
async def test_an_append_does_not_wait_for_all_the_reads_that_it_wakes(store: MockSegmentStore) -> None:
    async with await writer_of(store) as writer, await Peer.connect(store) as reader:
        reader.send(HELLO, *[ReadSegment(SEGMENT, 0, 100, "", number) for number in range(5_000)])
        await until(lambda: len(store.store.waiters) == 5_000)
        assert isinstance((await writer.ask(append(1, b"news")))[0], DataAppended)
        assert len(store.store.waiters) > 1_000, "too many woken reads were answered first"
        answers = (await reader.receive(5_001))[1:]
        assert sorted(each.request_id for each in answers if isinstance(each, SegmentRead)) == list(range(5_000))


async def test_reads_that_wait_share_timers_and_are_answered_empty_in_slices() -> None:
    async with MockSegmentStore(watched=False, long_poll_s=0.05) as mock, await Peer.connect(mock) as reader:
        await reader.ask(HELLO, create())
        reader.send(*[read(request_id=number) for number in range(2_000)])
        answers = await reader.receive(2_000)
        assert sorted(each.request_id for each in answers if isinstance(each, SegmentRead)) == list(range(2_000))
        assert len(mock.store.waiters) == 0


async def test_a_connection_with_many_writers_and_segments_is_cleaned_up_in_slices() -> None:
    async with MockSegmentStore(watched=False) as mock, await writer_of(mock) as victim:
        busy = await Peer.connect(mock)
        sent = [SetupAppend(number, UUID(int=100 + number), SEGMENT, "") for number in range(2_000)]
        transients = [CreateTransientSegment(number, WRITER, SEGMENT, "") for number in range(500)]
        answers = await busy.ask(HELLO, *sent, *transients)
        assert sum(isinstance(each, SegmentCreated) for each in answers) == 500
        busy.abort()
        await until(lambda: mock.server.service.counters.connections_open == 1)
        assert isinstance((await victim.ask(append(1)))[0], DataAppended)
        await until(lambda: len(mock.server.hub.connections) == 1)
        assert not [name for name in mock.segments if "transient" in name]
        await busy.close()


@pytest.mark.mock(watched=False, limits=LimitSettings(request_keys=10))
async def test_a_request_with_a_list_that_would_take_too_long_to_read_ends_its_connection(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.ask(HELLO)
    peer.send(ReadTable(1, "table", "", tuple(TableKey(b"key") for _ in range(161))))
    assert await peer.closed() == b""
    assert "READ_TABLE.keys at byte" in caplog.text
    assert "a list of 161 elements exceeds 160" in caplog.text


@pytest.mark.mock(watched=False, limits=LimitSettings(frame_timeout_s=0.1))
async def test_time_in_which_a_peer_waits_for_its_turn_is_not_its_own(store: MockSegmentStore, peer: Peer) -> None:
    await peer.ask(HELLO, create())
    (connection,) = store.server.hub.connections
    asked = encode(GetStreamSegmentInfo(1, SEGMENT, "")) * 2_000 + encode(Hello(17, 5))[:-3]
    store.server.hub.buffers.view[: len(asked)] = asked
    connection.waits.frame_since = asyncio.get_running_loop().time() - 1.0
    connection.buffer_updated(len(asked))
    connection.missed(Missed.FRAME, asyncio.get_running_loop().time())
    assert connection.session is not None
    assert not connection.session.ended
    await peer.receive(2_000)
    peer.send_bytes(encode(Hello(17, 5))[-3:])
    assert await peer.receive() == [HELLO]


async def test_one_request_through_a_tap_does_not_wait_for_thousands_of_others() -> None:
    async with tapped() as (mock, tap), await tap_peer(tap) as victim, await tap_peer(tap) as busy:
        await victim.ask(HELLO, create(), set_up())
        busy.send_bytes(encode(HELLO) + encode(GetStreamSegmentInfo(1, SEGMENT, "")) * MANY)
        asked = "type = GET_STREAM_SEGMENT_INFO"
        await until(lambda: len(tap.requests(asked)) >= 100)
        before = len(tap.requests(asked))
        assert isinstance((await victim.ask(append(1)))[0], DataAppended)
        assert len(tap.requests(asked)) - before < 2_000, "too many requests of others were processed first"
        busy.abort()
        await until(lambda: len(tap.links) == 1)
        assert mock.segments[SEGMENT].length == 4


async def test_what_goes_through_a_tap_in_slices_arrives_in_order_and_before_its_end() -> None:
    async with tapped() as (mock, tap), await tap_peer(tap) as peer:
        await peer.ask(HELLO, create(), set_up())
        peer.send(*(GetStreamSegmentInfo(number, SEGMENT, "") for number in range(1_000)), append(1, b"the last"))
        peer.writer.write_eof()
        answers = await peer.receive(1_001)
        assert [each.request_id for each in answers if isinstance(each, StreamSegmentInfo)] == list(range(1_000))
        assert await peer.closed() == b""
        assert mock.segments[SEGMENT].length == len(b"the last")
