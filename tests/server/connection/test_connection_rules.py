"""What flows through a connection whose requests and replies fault rules hold, delay or see.

Everything is driven by hand: see `driven`.
"""

from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest

from segstore.server.connection.deadlines import Missed
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    DataAppended,
    Event,
    KeepAlive,
    SealSegment,
    SegmentRead,
    StreamSegmentInfo,
    encode,
)
from tests.server.connection.driven import (
    INFO,
    PART,
    PONG,
    WAITING_READ_BYTES,
    Line,
    NewRoom,
    Room,
    account,
    exists,
    filled,
)
from tests.server.support import HELLO, SEGMENT, WRITER, append, create, read, set_up


def with_rule(new_room: NewRoom, do: Any, **limits: Any) -> tuple[Room, Line]:
    """A connection, and a rule named `rule` on GetStreamSegmentInfo."""
    room = new_room(rules=True, **limits)
    room.faults.add("type = GET_STREAM_SEGMENT_INFO", do=do, name="rule")
    line = room.connect()
    line.send(create())
    assert len(line.answers()) == 1
    return room, line


def test_a_request_that_a_rule_holds_pauses_reading_and_is_counted(new_room: NewRoom) -> None:
    room, line = with_rule(new_room, "hold")
    line.send(INFO)
    assert not line.socket.reads
    assert account(room, line) >= 1024
    room.run()
    line.connection.catch_up_soon()
    room.run()
    assert not line.socket.reads
    room.faults.release("rule")
    assert [type(answer) for answer in line.answers()] == [StreamSegmentInfo], "it does not wait for the next step"
    room.run()
    assert line.socket.reads
    assert account(room, line) == 0


def test_requests_behind_one_that_a_rule_holds_are_executed_in_order_behind_it(new_room: NewRoom) -> None:
    room, line = with_rule(new_room, "hold")
    line.send(PONG, INFO, PONG, PONG)
    room.run()
    assert line.answers() == [PONG]
    room.faults.release("rule")
    room.run()
    assert [type(answer) for answer in line.answers()] == [StreamSegmentInfo, KeepAlive, KeepAlive]
    assert line.socket.reads


@pytest.mark.parametrize("is_request", [True, False])
def test_the_time_of_a_frame_starts_again_behind_a_request_that_waited_and_not_behind_a_reply(
    new_room: NewRoom, is_request: bool
) -> None:
    room, line = with_rule(new_room, "hold" if is_request else "hold after")
    if is_request:
        line.send(INFO)
        line.waits.since[Missed.FRAME] = room.loop.now_s  # as if a frame's first bytes had come before
    else:
        line.send(INFO, PART)
    since = line.waits.since.get(Missed.FRAME)
    assert since == room.loop.now_s
    room.loop.now_s += 10
    room.faults.release("rule")
    assert line.waits.since.get(Missed.FRAME) == (since + 10 if is_request else since)


def test_an_unexpected_error_in_a_request_that_waited_ends_its_connection(
    new_room: NewRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, line = with_rule(new_room, "hold")
    line.send(INFO)
    monkeypatch.setattr(room.service.store, "segment_info", lambda *_, **__: 1 // 0)
    room.faults.release("rule")
    assert line.socket.calls == ["close"]
    assert room.counters.internal_errors == 1


@pytest.mark.parametrize("by_rule", [False, True])
def test_containers_that_the_store_has_lost_are_removed_before_a_request_is_executed(
    new_room: NewRoom, by_rule: bool
) -> None:
    room = new_room(rules=True)
    line = room.connect()
    if by_rule:
        room.faults.add("type = CREATE_SEGMENT", do="hold", name="rule")
        line.send(create())
    found: list[bool] = []
    room.hub.fence = lambda: found.append(exists(room))
    if by_rule:
        room.faults.release("rule")
    else:
        line.send(create())
    assert found == [False]
    assert exists(room)


def test_nothing_is_left_of_a_read_when_the_fence_ends_the_connection(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = filled(room, 0)
    room.hub.fence = lambda: line.connection.failed("its containers are another store's now")
    line.send(append(2), read())
    assert not line.connection.received.is_pending()
    assert line.socket.calls[-1] == "close"
    assert room.service.store.segment(SEGMENT).length == 0


def test_a_request_that_waited_wakes_the_reads_of_others_at_once(new_room: NewRoom) -> None:
    room = new_room(rules=True)
    writer, reader = filled(room, 0), room.connect()
    room.faults.add("type = APPEND_BLOCK_END", do="hold", name="rule")
    writer.send(append(2))
    reader.send(read(0, 10))
    assert reader.answers() == []
    room.faults.release("rule")
    assert [type(answer) for answer in writer.answers()] == [DataAppended]
    assert [type(each) for each in reader.answers()] == [SegmentRead]


@pytest.mark.parametrize("count", [1, 2])
def test_rules_see_each_append_of_a_read_of_nothing_else(new_room: NewRoom, count: int) -> None:
    room = new_room(rules=True)
    line = filled(room, 1)
    room.faults.add("type = APPEND_BLOCK_END", do="hold", name="rule")
    line.send(*(append(number, b"x") for number in range(2, 2 + count)))
    for done in range(count):
        assert len(line.answers()) == min(done, 1)
        assert room.faults.release("rule") == 1
        room.run()
    assert [type(answer) for answer in line.answers()] == [DataAppended]


def test_replies_that_a_rule_delays_pause_reading_when_they_are_too_many(new_room: NewRoom) -> None:
    room, line = with_rule(new_room, "hold after", connection_outstanding_bytes=3_000)
    line.send(INFO, INFO)
    assert line.socket.reads
    line.send(INFO)
    assert not line.socket.reads
    assert account(room, line) > 3_000
    room.faults.release("rule")
    room.run()
    assert line.socket.reads
    assert len(line.answers()) == 3
    assert account(room, line) == 0


def test_large_replies_that_have_passed_a_lane_are_not_joined(new_room: NewRoom) -> None:
    room = new_room(rules=True)
    line = filled(room, 50_000)
    line.socket.written.clear()
    line.send(PONG, read(0, 50_000), PONG)
    assert [len(each) > 50_000 for each in line.socket.written] == [False, True, False]
    assert line.connection.bytes_out == room.counters.bytes_out
    assert [request.type_name for request in room.faults.observer.requests(stage="replied")][-3:] == [  # type: ignore[union-attr]
        "KEEP_ALIVE",
        "READ_SEGMENT",
        "KEEP_ALIVE",
    ]


def test_a_reply_of_a_read_that_waited_passes_the_lane(new_room: NewRoom) -> None:
    room = new_room(rules=True)
    writer, reader = filled(room, 0), room.connect()
    reader.send(read(0, 10))
    assert account(room, reader) == WAITING_READ_BYTES
    writer.send(append(2))
    assert [type(answer) for answer in reader.answers()] == [SegmentRead]
    assert account(room, reader) == 0
    assert reader.connection.bytes_out == len(reader.written)


RULES = (
    ("type = READ_SEGMENT", "close before"),
    ("type = GET_STREAM_SEGMENT_INFO", "hold"),
    ("type = GET_STREAM_SEGMENT_INFO", ["ok", {"delay_ms": 50, "at": "after"}]),
    ("type = SETUP_APPEND", ["ok", "WrongHost"]),
    ("type = CONDITIONAL_APPEND", "ConditionalCheckFailed"),
)
LATER: tuple[dict[str, Any], ...] = (
    {"match": "type = APPEND_BLOCK_END", "do": {"error": "SegmentIsSealed", "at": "after"}, "nth": [2]},
    {"match": "type = APPEND_BLOCK_END", "do": "ConditionalCheckFailed"},
    {"match": "type = APPEND_BLOCK_END", "do": "drop request", "every": 3},
    {"match": "type = APPEND_BLOCK_END", "do": "hold", "nth": [3]},
    {"match": "type = DATA_APPENDED", "do": "duplicate", "on": "reply"},
    {"match": "type = DATA_APPENDED", "do": {"delay_ms": 20}, "on": "reply", "nth": [2]},
)
"""Rules on appends, which are added and removed on the way."""
OTHER = UUID(int=77)


def traffic(chance: Random) -> list[bytes]:
    """What a peer sends, by reads: mostly whole appends."""
    numbers, frames = dict.fromkeys((WRITER, OTHER), 0), [encode(each) for each in (HELLO, create())]
    frames += [encode(set_up(writer_id=each)) for each in numbers]
    usual = ("appends",) * 5 + ("whole block", "conditional", "info", "read", "pong")
    for _ in range(chance.randint(1, 40)):
        writer = chance.choice((WRITER, OTHER))
        number = numbers[writer] = numbers[writer] + 1
        match chance.choice(usual if chance.random() < 0.95 else ("set up", "open", "backwards", "seal", "junk")):
            case "appends":
                for _ in range(chance.randint(1, 6)):
                    data, numbers[writer] = chance.randbytes(chance.choice((0, 9, 600))), numbers[writer] + 1
                    end = AppendBlockEnd(writer, len(data), b"", 1, numbers[writer], 3)
                    frames += [encode(AppendBlock(writer, data)), encode(end)]
            case "whole block":
                frames.append(encode(append(number, b"in its end", writer)))
            case "conditional":
                frames.append(encode(ConditionalAppend(writer, number, chance.choice((0, 9)), Event(b"x"), 5)))
            case "set up":
                frames.append(encode(set_up(writer_id=writer)))
            case "open":
                frames.append(encode(AppendBlock(writer, b"x")))
            case "backwards":
                frames.append(encode(append(number - 2, b"x", writer)))
            case "seal":
                frames.append(encode(SealSegment(6, SEGMENT, "")))
            case "junk":
                frames.append(b"\0\0\x22\x22\0\0\0\1x")
            case other:
                frames.append(encode({"info": INFO, "read": read(1 << 20, 10), "pong": PONG}[other]))
    data = b"".join(frames)
    cuts = sorted({0, len(data), *(chance.randint(0, len(data)) for _ in range(chance.randint(0, 4)))})
    return [data[start:stop] for start, stop in pairwise(cuts)]


def outcome(new_room: NewRoom, seed: int, *, asks: bool) -> tuple[list[Any], int]:
    """What the store answers, decides and keeps, by reads, and how many appends passed the rules by.

    asks: whether a rule that matches no append is asked about each all the same.
    """
    chance, passed, done = Random(seed), 0, list[Any]()
    room = new_room(rules=True)
    room.faults.observer = None
    for match, do in chance.sample(RULES, chance.randint(0, 2)):
        room.faults.add(match, do=do)
    if asks:
        room.faults.add("type = APPEND_BLOCK_END and segment = nothing", do="close before")
    line = room.connect()
    lane: Any = line.connection._lane
    passes = lane.lane.appends_passed

    def appends_passed(count: int) -> None:
        nonlocal passed
        passed += count
        passes(count)

    lane.lane.appends_passed = appends_passed
    for data in traffic(chance):
        if chance.random() < 0.4:
            if "later" in room.faults.rules:
                room.faults.clear("later")
            else:
                room.faults.add(name="later", **chance.choice(LATER))
        if not line.socket.is_closing():
            line.send(data)
        for rule in room.faults.rules if chance.random() < 0.5 else ():
            room.faults.release(rule)
        room.clock.advance(0.1)
        room.run()
        stored = room.service.store.segment(SEGMENT).length if room.service.has_segment(SEGMENT) else 0
        decided = [str(decision) for decision in room.faults.decisions]
        done.append((line.written, line.socket.calls[:], decided, stored, line.session.why, line.connection.bytes_out))
    return done, passed


@pytest.mark.parametrize("seed", range(4))
def test_appends_that_no_rule_looks_at_pass_as_they_would_if_one_did(seed: int, new_room: NewRoom) -> None:
    all_passed = 0
    for part in range(20):
        (done, passed), (asked, none) = (outcome(new_room, 1000 * seed + part, asks=asks) for asks in (False, True))
        assert done == asked
        assert none == 0
        all_passed += passed
    assert all_passed
