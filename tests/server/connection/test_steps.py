"""A connection, store or tap, executes one step of its requests before other connections have their turn."""

import pytest

from segstore.server import LimitSettings, MockSegmentStore
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    DataAppended,
    GetStreamSegmentInfo,
    KeepAlive,
    ReadTable,
    StreamSegmentInfo,
    TableKey,
    encode,
)
from tests.server.faults.traffic import writer_of
from tests.server.support import HELLO, SEGMENT, WRITER, Peer, append, create, set_up, until
from tests.server.tap.test_inspection import tapped
from tests.server.tap.test_server import connected

MANY = 20_000


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.connection.executing._STEP", 64)
    monkeypatch.setattr("segstore.server.tap.inspection._STEP", 64)


@pytest.fixture(params=[False, True], ids=["plain", "watched"])
def watched(request: pytest.FixtureRequest) -> bool:
    """Both kinds of connections."""
    return bool(request.param)


async def test_an_append_waits_for_few_requests_of_a_flood(watched: bool) -> None:
    async with MockSegmentStore(watched=watched) as mock, await writer_of(mock) as victim:
        peers = [await Peer.connect(mock) for _ in range(8)]
        counters = mock.server.service.counters
        for peer in peers:
            peer.send_bytes(encode(HELLO) + encode(GetStreamSegmentInfo(1, SEGMENT, "")) * (MANY // 8))
        await until(lambda: counters.requests >= 100)
        for number in range(3):
            before = counters.requests
            assert isinstance((await victim.ask(append(number)))[0], DataAppended)
            assert counters.requests - before < 8 * 64 * 4, "too many requests of others were answered first"
        assert counters.requests < MANY
        for peer in peers:
            peer.abort()
            await peer.close()


async def test_what_takes_many_steps_is_executed_once_and_in_order_before_the_end_of_its_peer(watched: bool) -> None:
    async with MockSegmentStore(watched=watched) as mock, await writer_of(mock) as peer:
        frames = []
        for number in range(1, 1_001):
            data = number.to_bytes(4, "big") * 50
            frames += [encode(AppendBlock(WRITER, data)), encode(AppendBlockEnd(WRITER, 200, b"", 1, number, number))]
            if number % 10 == 0:
                frames.append(encode(GetStreamSegmentInfo(number, SEGMENT, "")))
        peer.send_bytes(b"".join(frames))
        peer.writer.write_eof()
        answers = await peer.receive(1_100)
        infos = [(each.request_id, each.write_offset) for each in answers if isinstance(each, StreamSegmentInfo)]
        assert infos == [(number, number * 200) for number in range(10, 1_001, 10)]
        assert [answer.event_number for answer in answers if isinstance(answer, DataAppended)] == list(range(1, 1_001))
        assert await peer.closed() == b""
        stored = mock.segments[SEGMENT].read_bytes(0, 1_000 * 200)
        assert stored == b"".join(number.to_bytes(4, "big") * 50 for number in range(1, 1_001))


@pytest.mark.mock(watched=False, limits=LimitSettings(request_keys=10))
async def test_a_request_with_a_list_that_would_take_too_long_to_read_ends_its_connection(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.ask(HELLO)
    peer.send(ReadTable(1, "table", "", tuple(TableKey(b"key") for _ in range(161))))
    assert await peer.closed() == b""
    assert "a list of 161 elements exceeds 160" in caplog.text


async def test_a_tap_forwards_in_order_and_an_append_waits_for_few_requests_of_a_flood() -> None:
    async with tapped() as (_, tap), await connected(tap) as victim, await connected(tap) as busy:
        await victim.ask(HELLO, create(), set_up())
        asked = "type = GET_STREAM_SEGMENT_INFO"
        busy.send(HELLO, *(GetStreamSegmentInfo(number, SEGMENT, "") for number in range(3_000)), KeepAlive())
        busy.writer.write_eof()
        await until(lambda: len(tap.requests(asked)) >= 64)
        before = len(tap.requests(asked))
        assert isinstance((await victim.ask(append(1)))[0], DataAppended)
        assert len(tap.requests(asked)) - before < 64 * 10, "too many requests of others were processed first"
        answers = await busy.receive(3_002)
        assert [answer.request_id for answer in answers if isinstance(answer, StreamSegmentInfo)] == list(range(3_000))
        assert answers[-1] == KeepAlive()
        assert await busy.closed() == b""
