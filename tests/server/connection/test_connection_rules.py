"""What flows through a connection whose requests and replies fault rules hold, delay or see.

Everything is driven by hand: see `driven`.
"""

from __future__ import annotations

from typing import Any

import pytest

from segstore.wire import DataAppended, KeepAlive, SegmentRead, StreamSegmentInfo
from tests.server.connection.driven import INFO, PART, PONG, WAITING_READ_BYTES, Line, Room, account, exists, filled
from tests.server.support import append, create, read


def with_rule(monkeypatch: pytest.MonkeyPatch, do: Any, **limits: Any) -> tuple[Room, Line]:
    """A connection, and a rule named `rule` on GetStreamSegmentInfo."""
    room = Room(monkeypatch, rules=True, **limits)
    room.faults.add("type = GET_STREAM_SEGMENT_INFO", do=do, name="rule")
    line = room.connect()
    line.send(create())
    assert len(line.answers()) == 1
    return room, line


def test_a_request_that_a_rule_holds_pauses_reading_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    room, line = with_rule(monkeypatch, "hold")
    line.send(INFO)
    assert not line.socket.reads
    assert account(room, line) >= 1024
    room.run()
    assert not line.connection.advance()
    assert not line.socket.reads
    room.faults.release("rule")
    assert [type(each) for each in line.answers()] == [StreamSegmentInfo], "it does not wait for a slice"
    room.run()
    assert line.socket.reads
    assert account(room, line) == 0


def test_requests_behind_one_that_a_rule_holds_are_executed_in_order_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    room, line = with_rule(monkeypatch, "hold")
    line.send(PONG, INFO, PONG, PONG)
    room.run()
    assert line.answers() == [PONG]
    room.faults.release("rule")
    room.run()
    assert [type(each) for each in line.answers()] == [StreamSegmentInfo, KeepAlive, KeepAlive]
    assert line.socket.reads


@pytest.mark.parametrize("is_request", [True, False])
def test_the_time_of_a_frame_starts_again_behind_a_request_that_waited_and_not_behind_a_reply(
    monkeypatch: pytest.MonkeyPatch, is_request: bool
) -> None:
    room, line = with_rule(monkeypatch, "hold" if is_request else "hold after")
    if is_request:
        line.send(INFO)
        line.waits.frame_since = room.loop.now_s  # as if a frame's first bytes had come before
    else:
        line.send(INFO, PART)
    since = line.waits.frame_since
    assert since == room.loop.now_s
    room.loop.now_s += 10
    room.faults.release("rule")
    assert line.waits.frame_since == (since + 10 if is_request else since)


def test_an_unexpected_error_in_a_request_that_waited_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    room, line = with_rule(monkeypatch, "hold")
    line.send(INFO)
    monkeypatch.setattr(room.service.store, "segment_info", lambda *_, **__: 1 // 0)
    room.faults.release("rule")
    assert line.socket.calls == ["close"]
    assert room.counters.internal_errors == 1


@pytest.mark.parametrize("by_rule", [False, True])
def test_containers_that_the_store_has_lost_are_removed_before_a_request_is_executed(
    monkeypatch: pytest.MonkeyPatch, by_rule: bool
) -> None:
    room = Room(monkeypatch, rules=True)
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


def test_a_request_that_waited_wakes_the_reads_of_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, rules=True)
    writer, reader = filled(room, 0), room.connect()
    room.faults.add("type = APPEND_BLOCK_END", do="hold", name="rule")
    writer.send(append(2))
    reader.send(read(0, 10))
    assert reader.answers() == []
    room.faults.release("rule")
    assert [type(each) for each in writer.answers()] == [DataAppended]
    assert [type(each) for each in reader.answers()] == [SegmentRead]


@pytest.mark.parametrize("count", [1, 2])
def test_rules_see_each_append_of_a_read_of_nothing_else(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    room = Room(monkeypatch, rules=True)
    line = filled(room, 1)
    room.faults.add("type = APPEND_BLOCK_END", do="hold", name="rule")
    line.send(*(append(number, b"x") for number in range(2, 2 + count)))
    for done in range(count):
        assert len(line.answers()) == min(done, 1)
        assert room.faults.release("rule") == 1
        room.run()
    assert [type(each) for each in line.answers()] == [DataAppended]


def test_replies_that_a_rule_delays_pause_reading_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    room, line = with_rule(monkeypatch, "hold after", connection_outstanding_bytes=3_000)
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


def test_large_replies_that_have_passed_a_lane_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, rules=True)
    line = filled(room, 50_000)
    line.socket.written.clear()
    line.send(PONG, read(0, 50_000), PONG)
    assert [len(each) > 50_000 for each in line.socket.written] == [False, True, False]
    assert line.connection.bytes_out == room.counters.bytes_out
    assert [each.type_name for each in room.faults.observer.requests(stage="replied")][-3:] == [  # type: ignore[union-attr]
        "KEEP_ALIVE",
        "READ_SEGMENT",
        "KEEP_ALIVE",
    ]


def test_a_reply_of_a_read_that_waited_passes_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, rules=True)
    writer, reader = filled(room, 0), room.connect()
    reader.send(read(0, 10))
    assert account(room, reader) == WAITING_READ_BYTES
    writer.send(append(2))
    assert [type(each) for each in reader.answers()] == [SegmentRead]
    assert account(room, reader) == 0
    assert reader.connection.bytes_out == len(reader.written)
