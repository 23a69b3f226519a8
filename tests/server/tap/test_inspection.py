"""Faults on another store's traffic: each action does to client and store what it says, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from segstore.server import MockSegmentStore
from segstore.server.clock import Clock, LoopClock
from segstore.server.controller import Endpoint
from segstore.server.faults import Faults, Observer
from segstore.server.tap import TapServer, TapSettings
from segstore.server.tap.states import LinkState
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalCheckFailed,
    DataAppended,
    Event,
    SegmentCreated,
    WrongHost,
    encode,
)
from tests.server.faults.traffic import APPENDS, PONG, acknowledged, stored
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, WRITER, Peer, append, create, read, set_up, until
from tests.server.tap.test_server import entry, upstream


@asynccontextmanager
async def tapped(clock: Clock | None = None) -> AsyncIterator[tuple[MockSegmentStore, TapServer]]:
    """A store that knows nothing of faults, and a tap before it."""
    async with MockSegmentStore(watched=False) as mock:
        faults = Faults(clock or LoopClock(), observer=Observer())
        async with TapServer(TapSettings(store=Endpoint(mock.host, mock.port)), faults=faults) as tap:
            yield mock, tap


async def peer_of(tap: TapServer) -> Peer:
    return await Peer.connect(entry(tap))  # type: ignore[arg-type]  # it asks for host and port alone


async def writer_of(tap: TapServer) -> Peer:
    peer = await peer_of(tap)
    assert len(await peer.ask(HELLO, create(), set_up())) == 3
    return peer


def names(replies: list[object]) -> list[str]:
    return [getattr(each, "type_name", "") for each in replies]


# --- closing ----------------------------------------------------------------------------------------------------


async def test_a_store_that_does_not_hear_the_end_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []

    async def stays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(16))
        left.append(await reader.read())
        while not reader.at_eof() or not writer.transport.is_closing():
            writer.write(encode(PONG))
            await asyncio.sleep(0.01)

    monkeypatch.setattr("segstore.server.tap.inspection._LINGER_S", 0.02)
    async with upstream(stays) as (host, port):
        faults = Faults(LoopClock(), observer=Observer())
        faults.add("type = CREATE_SEGMENT", do="close before")
        async with TapServer(TapSettings(store=Endpoint(host, port)), faults=faults) as tap, await peer_of(tap) as peer:
            peer.send(HELLO, PONG, create())
            assert (await peer.receive(1)) == [HELLO]
            assert set(await peer.receive(1_000)) <= {PONG}
            await until(lambda: not tap.links)
    assert left == [encode(PONG)]


async def test_a_client_that_does_not_wait_for_the_end_that_a_rule_makes_leaves_no_connection() -> None:
    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(encode(HELLO))))
        await reader.read()

    async with upstream(says_nothing) as (host, port):
        faults = Faults(LoopClock(), observer=Observer())
        async with TapServer(TapSettings(store=Endpoint(host, port)), faults=faults) as tap:
            faults.add(APPENDS, do="close after")
            async with await peer_of(tap) as peer:
                peer.send(HELLO, set_up(), append(1), append(2))
                await tap.wait_for(APPENDS, stage="received")
                peer.writer.write_eof()
                await until(lambda: not tap.links)


async def test_a_queued_reply_leaves_before_a_rule_closes_the_connection_to_a_store_that_has_ended() -> None:
    async def ends_after_pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(encode(HELLO))))
        await reader.readexactly(len(encode(PONG)))
        writer.write_eof()
        await reader.read()

    async with upstream(ends_after_pong) as (host, port):
        faults = Faults(LoopClock(), observer=Observer())
        faults.add("type = CREATE_SEGMENT", do="hold after", name="held")
        faults.add("type = CREATE_SEGMENT", do="SegmentAlreadyExists")
        faults.add("type = READ_SEGMENT", do="close before")
        async with TapServer(TapSettings(store=Endpoint(host, port)), faults=faults) as tap, await peer_of(tap) as peer:
            peer.send(HELLO, create(), PONG)
            await faults.wait_held("held")
            (link,) = tap.links
            await until(lambda: link.store.ended)
            peer.send(read())
            await tap.wait_for("type = READ_SEGMENT", stage="received")
            assert link.state is LinkState.CLIENT_ENDED
            faults.release("held")
            assert names(await peer.receive(3)) == ["HELLO", "SEGMENT_ALREADY_EXISTS"]
            await until(lambda: not tap.links)


async def test_a_rule_closes_a_connection_at_once_whose_store_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def says_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(encode(HELLO))))
        writer.write_eof()
        await reader.read()

    monkeypatch.setattr("segstore.server.tap.inspection._LINGER_S", 10 * PATIENCE_S)
    async with upstream(says_little) as (host, port):
        faults = Faults(LoopClock(), observer=Observer())
        faults.add("type = READ_SEGMENT", do="close before")
        async with TapServer(TapSettings(store=Endpoint(host, port)), faults=faults) as tap, await peer_of(tap) as peer:
            peer.send(HELLO)
            assert await peer.receive(2) == [HELLO]
            (link,) = tap.links
            assert link.state is LinkState.STORE_ENDED
            peer.send(read())
            await until(lambda: not tap.links)


async def test_an_answer_in_place_of_a_store_that_has_ended_is_not_sent_behind_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def says_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(encode(HELLO))))
        writer.write_eof()
        await reader.read()

    async with upstream(says_little) as (host, port):
        faults = Faults(LoopClock(), observer=Observer())
        async with TapServer(TapSettings(store=Endpoint(host, port)), faults=faults) as tap:
            faults.add("type = READ_SEGMENT", do={"error": "NoSuchSegment"})
            async with await peer_of(tap) as peer:
                peer.send(HELLO)
                assert await peer.closed() == encode(HELLO)
                peer.send(read())
                await tap.wait_for("type = READ_SEGMENT", stage="refused")
                peer.writer.write_eof()
                await until(lambda: not tap.links)
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio" and each.exc_info] == []


async def test_a_client_that_is_cut_while_its_answers_may_be_overtaken_leaves_no_connection() -> None:
    async with tapped() as (_, tap), await writer_of(tap) as peer:
        tap.faults.add(APPENDS, do={"hold": "after", "overtake": True}, name="held")
        peer.send(append(1))
        await tap.faults.wait_held("held")
        tap.cut()
        await until(lambda: not tap.links)


async def test_a_read_that_waits_does_not_keep_a_connection_from_ending() -> None:
    async with tapped() as (_, tap), await writer_of(tap) as peer:
        tap.faults.add("type = KEEP_ALIVE", do="close before")
        peer.send(read(0), PONG)
        assert await peer.closed() == b""
        await until(lambda: not tap.links)


# --- answering --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "bytes_stored"), [("before", 4), ("after", 12)])
async def test_appends_behind_one_that_a_rule_refuses_are_refused_as_it_is_until_their_writer_is_set_up_again(
    at: str, bytes_stored: int
) -> None:
    async with tapped() as (mock, tap), await writer_of(tap) as peer:
        tap.faults.add(APPENDS, nth=2, do={"error": "SegmentIsSealed", "at": at})
        other = UUID(int=77)
        await peer.ask(set_up(writer_id=other))
        peer.send(append(1), append(2), append(3), append(1, writer_id=other))
        answers = await peer.receive(4)
        assert [each.type_name for each in answers if getattr(each, "writer_id", None) != other] == [
            "DATA_APPENDED",
            "SEGMENT_IS_SEALED",
            "SEGMENT_IS_SEALED",
        ]
        assert {each.writer_id for each in answers if isinstance(each, DataAppended)} == {WRITER, other}
        assert stored(mock) == bytes_stored + 4
        again = await peer.ask(set_up(), append(5))
        assert names(again) == ["APPEND_SETUP", "DATA_APPENDED"]


async def test_an_append_whose_writer_was_refused_ends_the_connection() -> None:
    async with tapped() as (mock, tap), await peer_of(tap) as peer:
        tap.faults.add("type = SETUP_APPEND", nth=1, do="WrongHost")
        assert names(await peer.ask(HELLO, create(), set_up())) == ["HELLO", "SEGMENT_CREATED", "WRONG_HOST"]
        peer.send(append(1))
        assert await peer.closed() == b""
        assert stored(mock) == 0


async def test_an_error_after_the_store_has_applied_it_hides_that_it_has() -> None:
    async with tapped() as (_, tap), await peer_of(tap) as peer:
        tap.faults.add("type = CREATE_SEGMENT", nth=1, do={"error": "WrongHost", "at": "after"})
        answers = await peer.ask(HELLO, create(), create(request_id=9))
        assert names(answers) == ["HELLO", "WRONG_HOST", "SEGMENT_ALREADY_EXISTS"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("WRONG_HOST", [(DataAppended, 1), WrongHost, WrongHost]),
        ("CONDITIONAL_CHECK_FAILED", [(DataAppended, 1), (ConditionalCheckFailed, 2), (DataAppended, 3)]),
    ],
)
async def test_one_acknowledgement_for_several_appends_is_taken_apart_where_a_rule_refuses_one(
    error: str, said: list[object]
) -> None:
    async def acknowledges_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(encode(HELLO))))
        await reader.readexactly(len(encode(set_up())))
        writer.write(encode(AppendSetup(2, SEGMENT, WRITER, 0)))
        await reader.readexactly(3 * len(encode(append(1))))
        writer.write(encode(DataAppended(3, WRITER, 3, 0, 12)))
        await reader.read()

    async with upstream(acknowledges_once) as (host, port):
        faults = Faults(LoopClock(), observer=Observer())
        async with TapServer(TapSettings(store=Endpoint(host, port)), faults=faults) as tap, await peer_of(tap) as peer:
            assert len(await peer.ask(HELLO, set_up())) == 2
            faults.add(APPENDS, nth=2, do={"error": error, "at": "after"})
            peer.send(append(1), append(2), append(3))
            heard = await peer.receive(3)
            assert [
                (type(each), each.event_number) if hasattr(each, "event_number") else type(each) for each in heard
            ] == said
            previous = [each.previous_event_number for each in heard if isinstance(each, DataAppended)]
            assert previous == [0, 2][: len(previous)]


# --- losing, doubling, spoiling ---------------------------------------------------------------------------------


async def test_a_dropped_append_is_not_passed_whatever_frames_brought_it() -> None:
    event = encode(Event(b"data"))
    async with tapped() as (mock, tap), await writer_of(tap) as peer:
        tap.faults.add(APPENDS, nth=[1, 2], do="drop")
        block = AppendBlock(WRITER, event), AppendBlockEnd(WRITER, len(event), b"", 1, 1, 3)
        peer.send(*block, append(2), PONG)
        assert await peer.receive(1) == [PONG]
        assert stored(mock) == 0
        assert [each.type_name for each in tap.requests(APPENDS)] == ["APPEND_BLOCK_END"] * 2
        peer.send(block[0])
        peer.send(AppendBlockEnd(WRITER, len(event), b"", 1, 3, 3))
        assert acknowledged(await peer.receive(1)) == [3]
        assert stored(mock) == len(event)


async def test_a_reply_can_come_twice_changed_or_cut_short() -> None:
    async with tapped() as (_, tap), await peer_of(tap) as peer:
        tap.faults.add("type = CREATE_SEGMENT", nth=1, do="duplicate reply")
        tap.faults.add("type = CREATE_SEGMENT", nth=1, do={"corrupt": 15, "xor": 3})
        tap.faults.add("type = CREATE_SEGMENT", nth=1, do={"truncate": 10})
        others = [create(f"scope/stream/{number}.#epoch.0", 4) for number in (1, 2)]
        peer.send(HELLO, create(), *others, PONG)
        expected = [HELLO, SegmentCreated(1, SEGMENT), SegmentCreated(1, SEGMENT), SegmentCreated(7, others[0].segment)]
        assert await peer.receive(4) == expected
        cut = encode(SegmentCreated(4, others[1].segment))[:10]
        async with asyncio.timeout(60):
            held = bytes(peer._decoder._pending)
            assert held + await peer.reader.readexactly(10 + 8 - len(held)) == cut + encode(PONG)


async def test_rules_on_replies_match_the_replies_of_the_store() -> None:
    async with tapped() as (_, tap), await peer_of(tap) as peer:
        tap.faults.add("type = NO_SUCH_SEGMENT", on="reply", do={"error": "WrongHost"}, name="elsewhere")
        tap.faults.add("type = KEEP_ALIVE", on="reply", nth=1, do="drop")
        peer.send(HELLO, read(0), PONG, PONG)
        assert await peer.receive(3) == [HELLO, WrongHost(4, SEGMENT, "", ""), PONG]
        assert tap.requests("type = READ_SEGMENT")[0].faults == ("elsewhere: error WRONG_HOST",)


# --- time -------------------------------------------------------------------------------------------------------


async def test_the_eof_of_a_client_waits_behind_held_requests() -> None:
    async with tapped() as (mock, tap), await writer_of(tap) as peer:
        tap.faults.add(APPENDS, do="hold", name="slow")
        peer.send(append(1))
        peer.writer.write_eof()
        await tap.faults.wait_held("slow")
        tap.faults.release("slow")
        assert await peer.closed() == encode(DataAppended(3, WRITER, 1, -(2**63), 4))
        assert stored(mock) == 4


async def test_a_store_is_not_asked_more_than_it_answers() -> None:
    async with tapped() as (_, tap), await writer_of(tap) as peer:
        tap.faults.add(APPENDS, nth=9_000, do="drop reply", name="late")
        peer.send(*(append(number, b"") for number in range(1, 9_001)), PONG)
        last = 0
        while last < 8_999:
            last = max(acknowledged(await peer.receive(1)))
        assert await peer.receive(1) == [PONG]
        assert [each.nth for each in tap.faults.decisions] == [9_000]
        assert len(tap.requests(APPENDS, stage="applied")) == 9_000


# --- what happened ----------------------------------------------------------------------------------------------


async def test_requests_are_recorded_with_their_outcome_at_the_store() -> None:
    async with tapped() as (_, tap), await writer_of(tap) as peer:
        await peer.ask(append(1), read(0))
        peer.send(read(0, request_id=5, token="a token"), create())
        await peer.receive(2)
        await tap.wait_for("type = CREATE_SEGMENT", count=2, stage="received")
        assert [each.reply for each in tap.requests(f"segment = {SEGMENT}")] == [
            "SEGMENT_CREATED",
            "APPEND_SETUP",
            "DATA_APPENDED",
            "SEGMENT_READ",
            "SEGMENT_READ",
            "SEGMENT_ALREADY_EXISTS",
        ]
        assert len(tap.requests("failure", stage="refused")) == 1
        assert tap.mark() == 7


async def test_a_rule_that_nothing_fits_is_reported_when_the_tap_stops(caplog: pytest.LogCaptureFixture) -> None:
    async with tapped() as (_, tap):
        tap.faults.add("type = SEAL_SEGMENT", do="close", name="never")
    assert "fault 'never' has matched nothing" in caplog.text
