"""Faults on another store's traffic: each action does to client and store what it says, and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby, pairwise
from operator import itemgetter
from random import Random
from typing import Any
from uuid import UUID

import pytest

from segstore.server import MockSegmentStore
from segstore.server.faults import Faults, Lane
from segstore.server.tap import TapServer
from segstore.server.tap.inspection import Inspection
from segstore.server.tap.side import Side
from segstore.server.tap.states import LinkState
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    DataAppended,
    Event,
    FrameDecoder,
    PartialEvent,
    SegmentCreated,
    SegmentIsSealed,
    SegmentRead,
    encode,
)
from segstore.wire.blocks import Append
from segstore.wire.codec import codec_backend
from segstore.wire.protocol import frames_of
from segstore.wire.trace import Direction
from tests.server.faults.traffic import APPENDS, PONG, acknowledged, stored
from tests.server.support import (
    HELLO,
    PATIENCE_S,
    SEGMENT,
    WRITER,
    FakeClock,
    Peer,
    append,
    create,
    read,
    set_up,
    until,
)
from tests.server.tap.fake_transport import FakeTransport
from tests.server.tap.test_server import connected, tap_before, upstream


@asynccontextmanager
async def tapped() -> AsyncIterator[tuple[MockSegmentStore, TapServer]]:
    """A store that knows nothing of faults, and a tap before it."""
    async with MockSegmentStore(watched=False) as mock, tap_before(mock.host, mock.port, watched=True) as tap:
        yield mock, tap


async def writer_of(tap: TapServer) -> Peer:
    peer = await connected(tap)
    assert len(await peer.ask(HELLO, create(), set_up())) == 3
    return peer


async def test_a_store_that_does_not_hear_the_end_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []

    async def stays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(16))
        left.append(await reader.read())
        while not reader.at_eof() or not writer.transport.is_closing():
            writer.write(encode(PONG))
            await asyncio.sleep(0.01)

    monkeypatch.setattr("segstore.server.tap.inspection._LINGER_S", 0.02)
    async with upstream(stays) as store, tap_before(*store, watched=True) as tap, await connected(tap) as peer:
        tap.faults.add("type = CREATE_SEGMENT", do="close before")
        peer.send(HELLO, PONG, create())
        assert (await peer.receive(1)) == [HELLO]
        assert set(await peer.receive(1_000)) <= {PONG}
        await until(lambda: not tap.links)
    assert left == [encode(PONG)]


async def test_a_client_that_does_not_wait_for_the_end_that_a_rule_makes_leaves_no_connection() -> None:
    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(encode(HELLO))))
        await reader.read()

    async with upstream(says_nothing) as store, tap_before(*store, watched=True) as tap, await connected(tap) as peer:
        tap.faults.add(APPENDS, do="close after")
        peer.send(HELLO, set_up(), append(1), append(2))
        await tap.wait_for(APPENDS, stage="received")
        peer.writer.write_eof()
        await until(lambda: not tap.links)


async def test_an_answer_in_place_of_a_store_that_has_ended_is_not_sent_behind_its_end_and_a_rule_closes_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def says_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(encode(HELLO))))
        writer.write_eof()
        await reader.read()

    monkeypatch.setattr("segstore.server.tap.inspection._LINGER_S", 10 * PATIENCE_S)
    async with upstream(says_little) as store, tap_before(*store, watched=True) as tap:
        tap.faults.add("type = READ_SEGMENT", do="NoSuchSegment")
        tap.faults.add("type = KEEP_ALIVE", do="close before")
        for closed_by_rule in (False, True):
            async with await connected(tap) as peer:
                peer.send(HELLO)
                assert await peer.closed() == encode(HELLO)
                peer.send(read())
                await tap.wait_for("type = READ_SEGMENT", count=1 + closed_by_rule, stage="refused")
                if closed_by_rule:
                    peer.send(PONG)
                else:
                    peer.writer.write_eof()
                await until(lambda: not tap.links)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio" and record.exc_info] == []


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


async def test_a_dropped_append_is_not_passed_whatever_frames_brought_it() -> None:
    event = encode(Event(b"data"))
    async with tapped() as (mock, tap), await writer_of(tap) as peer:
        tap.faults.add(APPENDS, nth=[1, 2], do="drop")
        block = AppendBlock(WRITER, event), AppendBlockEnd(WRITER, len(event), b"", 1, 1, 3)
        peer.send(*block, append(2), PONG)
        assert await peer.receive(1) == [PONG]
        assert stored(mock) == 0
        assert [request.type_name for request in tap.requests(APPENDS)] == ["APPEND_BLOCK_END"] * 2
        peer.send(block[0])
        peer.send(AppendBlockEnd(WRITER, len(event), b"", 1, 3, 3))
        assert acknowledged(await peer.receive(1)) == [3]
        assert stored(mock) == len(event)


async def test_the_eof_of_a_client_waits_behind_held_requests() -> None:
    async with tapped() as (mock, tap), await writer_of(tap) as peer:
        tap.faults.add(APPENDS, do="hold", name="slow")
        peer.send(append(1))
        peer.writer.write_eof()
        await tap.faults.wait_held("slow")
        tap.faults.release("slow")
        assert await peer.closed() == encode(DataAppended(3, WRITER, 1, -(2**63), 4))
        assert stored(mock) == 4


OTHER = UUID(int=77)
RULES = (
    ("type = CREATE_SEGMENT", "SegmentAlreadyExists"),
    ("type = READ_SEGMENT", "close before"),
    ("type = SETUP_APPEND", ["ok", "WrongHost"]),
    ("type = CREATE_SEGMENT", "duplicate request"),
)


class FakeLink:
    """An inspected link without sockets, whose clock stands still; what it does, in order."""

    def __init__(self, rules: Sequence[tuple[str, Any]]) -> None:
        self.state = LinkState.PASSING
        self.peer = ""
        self.done: list[str] = []
        self.client, self.store = Side(self, Direction.REQUEST, "client"), Side(self, Direction.REPLY, "store")
        self.client.other, self.store.other = self.store, self.client
        self.to_client, self.to_store = FakeTransport(1), FakeTransport(3)
        self.client.connection_made(self.to_client)
        self.store.connection_made(self.to_store)
        self.faults = Faults(FakeClock())
        for match, do in rules:
            self.faults.add(match, do=do)
        self.inspection = Inspection(self, self.faults, store=0)

    def made(self, side: Side) -> None: ...
    def ended(self, side: Side) -> None: ...
    def lost(self, side: Side, exc: Exception | None) -> None: ...
    def hold(self, size: int) -> None: ...

    def received(self, side: Side, data: bytes) -> None:
        self.inspection.take(side, data)

    def pass_end(self, side: Side) -> None:
        self.done.append(f"end of {side.direction.name}")

    def end_by(self, side: Side, exc: Exception | None) -> None:
        self.done.append(f"lost {side.direction.name}: {exc}")

    def cut(self, why: str) -> None:
        self.state = LinkState.DRAINING
        self.done.append(why)

    def log_end(self, why: str) -> None:
        self.done.append(why)

    def take(self) -> tuple[bytes, bytes, list[str], list[str]]:
        """What was sent to the store and to the client since the last call, what else was done, and all decisions."""
        sent = [
            b"".join(each for each in side.take() if type(each) is bytes) for side in (self.to_store, self.to_client)
        ]
        return sent[0], sent[1], self.done, [str(decision) for decision in self.faults.decisions]


def traffic(chance: Random) -> list[tuple[Direction, bytes]]:
    """What both sides of a connection send, in any pieces: mostly whole appends and their acknowledgements."""
    numbers = dict.fromkeys((WRITER, OTHER), 0)
    answers: list[Command] = [HELLO, AppendSetup(2, SEGMENT, WRITER, 0), AppendSetup(2, SEGMENT, OTHER, 0)]
    steps = [(Direction.REQUEST, b"".join(encode(each) for each in (HELLO, set_up(), set_up(writer_id=OTHER))))]
    usual = ("appends", "acks", "appends", "acks", "failed", "other")
    for _ in range(chance.randint(1, 40)):
        kind = chance.choice(usual if chance.random() < 0.9 else ("set up", "split", "open", "backwards", "junk"))
        writer = chance.choice((WRITER, OTHER))
        direction, frames = Direction.REQUEST, []
        if kind == "set up":
            frames = [encode(set_up(writer_id=writer))]
            numbers[writer] = chance.randint(0, numbers[writer])
            answers.append(AppendSetup(2, SEGMENT, writer, 0))
        elif kind == "appends":
            for _ in range(chance.randint(1, 5)):
                numbers[writer] += 1
                data = bytes(chance.choice((9, 600)))
                frames.append(frames_of(Append(SEGMENT, writer, numbers[writer], 1, data, None, numbers[writer] % 3)))
        elif kind == "split":
            numbers[writer] += 1
            block = b"\0\0\0\0\0\0\0\1x" + PartialEvent.code.to_bytes(4, "big", signed=True) + b"\0\0\0\1y"
            end = AppendBlockEnd(writer, 9, b"z", 2, numbers[writer], 1)
            frames = [encode(AppendBlock(writer, block)), encode(end)]
        elif kind == "open":
            frames = [encode(AppendBlock(writer, b"x"))]
        elif kind == "backwards":
            frames = [frames_of(Append(SEGMENT, writer, numbers[writer] - 1, 1, b"x", None, 1))]
        elif kind == "other":
            found = SegmentRead(SEGMENT, 0, True, False, b"", 4)
            request, answer = chance.choice(((create(), SegmentCreated(1, SEGMENT)), (read(), found), (PONG, PONG)))
            frames = [encode(request)]
            answers.append(answer)
        elif kind == "junk":
            frames = [chance.choice((b"\0\0\x22\x22\0\0\0\1x", b"\0\0\0\1\xff\xff\xff\xff"))]
            direction = chance.choice(list(Direction))
        else:
            direction = Direction.REPLY
            last = chance.randint(0, numbers[writer])
            for number in range(chance.randint(0, last), last + 1):
                reply = DataAppended(number % 3, writer, number, number - 1, 0)
                sealed = SegmentIsSealed(number % 3, SEGMENT, "", 0)
                frames.append(encode(sealed if kind == "failed" else reply))
            frames += map(encode, answers)
            answers.clear()
        steps.append((direction, b"".join(frames)))
    pieces: list[tuple[Direction, bytes]] = []
    for direction, run in groupby(steps, key=itemgetter(0)):
        data = b"".join(each for _, each in run)
        cuts = sorted({0, len(data), *(chance.randint(0, len(data)) for _ in range(chance.randint(0, 2)))})
        pieces += [(direction, data[start:stop]) for start, stop in pairwise(cuts)]
    return pieces


LATER = (
    {"match": APPENDS, "do": {"error": "SegmentIsSealed", "at": "after"}, "nth": [2]},
    {"match": APPENDS, "do": {"error": "ConditionalCheckFailed", "at": "after"}},
    {"match": APPENDS, "do": "drop request", "every": 3},
    {"match": f'type = DATA_APPENDED and segment = "{SEGMENT}"', "do": "drop", "on": "reply"},
)
"""Rules that are added while appends are in flight."""


@pytest.mark.parametrize("seed", range(10))
async def test_appends_that_no_rule_looks_at_pass_as_they_would_if_one_did(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[int] = []

    def pass_appends(lane: Lane, segment: str, writer_id: UUID, appends: list[tuple[int, int]]) -> None:
        passed.append(len(appends))
        passes(lane, segment, writer_id, appends)

    passes = Lane.pass_appends
    monkeypatch.setattr(Lane, "pass_appends", pass_appends)
    for part in range(20):
        chance = Random(1000 * seed + part)
        rules = chance.sample(RULES, chance.randint(0, 2))
        check_that_both_are_alike(traffic(chance), rules, chance)
    assert bool(passed) is (codec_backend == "c")


def check_that_both_are_alike(
    pieces: list[tuple[Direction, bytes]], rules: list[tuple[str, Any]], chance: Random
) -> None:
    links = [FakeLink(rules), FakeLink([*rules, (f"{APPENDS} and segment = nothing", "close before")])]
    assert [each.faults.looks_at_appends for each in links] == [False, True]
    for direction, data in pieces:
        if chance.random() < 0.05:
            later = chance.choice(LATER)
            for link in links:
                if "later" in link.faults.rules:
                    link.faults.clear("later")
                else:
                    link.faults.add(name="later", **later)
        for link in links:
            (link.client if direction is Direction.REQUEST else link.store).data_received(data)
        passed, asked = (link.take() for link in links)
        assert passed == asked


@pytest.mark.skipif(codec_backend != "c", reason="only C finds runs")
def test_appends_are_bounded_that_pass_without_being_answered() -> None:
    link = FakeLink([])
    link.client.data_received(encode(HELLO) + encode(set_up()))
    for first in range(1, 10_000, 1_000):
        numbers = range(first, first + 1_000)
        link.client.data_received(b"".join(frames_of(Append(SEGMENT, WRITER, n, 1, b"x", None, 3)) for n in numbers))
    assert "pause" in link.to_client.done
    sent = FrameDecoder().feed(link.take()[0])
    assert 4_096 <= sum(type(each) is AppendBlockEnd for each in sent) <= 5_096
    acks = [HELLO, AppendSetup(2, SEGMENT, WRITER, 0), *(DataAppended(3, WRITER, n, n - 1, 0) for n in (1_000, 5_000))]
    link.store.data_received(b"".join(map(encode, acks)))
    assert link.take()[0], "there is room again"


def test_appends_behind_a_request_that_is_held_are_looked_at_if_a_rule_was_added_meanwhile() -> None:
    link = FakeLink([("type = READ_SEGMENT", "hold before")])
    link.client.data_received(encode(HELLO) + encode(set_up()))
    appends = [frames_of(Append(SEGMENT, WRITER, number, 1, bytes(9), None, 3)) for number in (1, 2, 3)]
    link.client.data_received(encode(read()))
    link.client.data_received(appends[0] + appends[1])
    (held,) = link.faults.rules
    link.faults.add(APPENDS, nth=2, do="drop request")
    assert link.take()[0] == encode(HELLO) + encode(set_up())
    link.faults.release(held)
    link.client.data_received(appends[2])
    assert link.take()[0] == encode(read()) + appends[0] + appends[2]
