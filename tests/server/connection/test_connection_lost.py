"""A connection that is lost: its requests are executed, and what it held is freed.

Everything is driven by hand: see `driven`.
"""

from typing import Any

import pytest

from segstore.wire import CreateTransientSegment, SegmentCreated, SegmentRead
from segstore.wire.trace import Direction
from tests.server.connection.driven import INFO, PONG, Line, NewRoom, Room, account, exists, filled
from tests.server.support import HELLO, SEGMENT, WRITER, create, read


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset by the peer")])
def test_a_lost_connection_is_recorded_as_ended_by_its_peer_with_the_error(
    new_room: NewRoom, error: Exception | None
) -> None:
    room = new_room(record=True)
    room.connect()
    line = room.connect()
    line.socket.lose(error)
    room.run()
    assert room.log.ended == {2: (Direction.REQUEST, {} if error is None else {"reason": "reset by the peer"})}


def test_a_connection_that_has_finished_finishes_once(new_room: NewRoom) -> None:
    room = new_room(record=True)
    line = room.connect()
    line.connection.connection_lost(None)
    assert room.log.calls == [(1, "closed")]
    assert not room.hub.connections
    assert room.loop.is_idle
    line.connection.catch_up_soon()
    room.run()
    assert room.log.calls == [(1, "closed")]


def test_a_lost_connection_has_no_account(room: Room, line: Line) -> None:
    line.queue(PONG, *[INFO] * 4_000)
    assert room.hub.outstanding_bytes > 128 * 1024
    line.connection.connection_lost(None)
    assert room.counters.requests == 4_000
    assert room.hub.outstanding_bytes == line.connection.held_bytes == 0


def test_requests_of_a_lost_connection_are_executed_although_its_peer_had_not_read(new_room: NewRoom) -> None:
    room = new_room(connection_outstanding_bytes=10)
    line = room.connect()
    line.socket.is_stuck = True
    line.send(HELLO)
    assert line.session.full
    line.send(create())
    room.run()
    assert not exists(room)
    line.socket.lose()
    room.run()
    assert exists(room)


def test_requests_of_a_lost_connection_are_executed_although_the_disk_is_behind(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = room.connect()
    room.disk.is_full = True
    line.send(create())
    room.run()
    assert not exists(room)
    assert list(room.disk.stalled) == [line.connection]
    line.socket.lose()
    room.run()
    assert exists(room)
    assert room.disk.stalled == {}
    assert not room.hub.connections


@pytest.mark.parametrize("is_held", [True, False])
def test_requests_of_a_lost_connection_behind_one_that_a_rule_holds_are_dropped(
    new_room: NewRoom, is_held: bool
) -> None:
    room = new_room(rules=True)
    room.faults.add("type = KEEP_ALIVE", do="hold", name="held")
    line = room.connect()
    line.send(PONG, create()) if is_held else line.queue(create(), PONG)  # then the rule is asked after the loss
    assert room.faults.held("held") == is_held
    line.connection.connection_lost(None)
    assert exists(room) is not is_held
    assert room.faults.held("held") == 0
    assert not room.hub.connections


def lost_with_requests(room: Room) -> Line:
    """A lost connection with requests of four steps."""
    line = room.connect()
    line.socket.is_stuck = True
    line.send(HELLO)
    line.send(*[INFO] * 200)
    room.run()
    assert room.counters.requests == 0
    room.step(50)
    line.connection.connection_lost(None)
    return line


def test_the_end_of_a_lost_connection_takes_as_many_steps_as_its_requests(new_room: NewRoom) -> None:
    room = new_room(connection_outstanding_bytes=10)
    line = lost_with_requests(room)
    assert room.counters.requests == 50
    assert room.hub.connections == {line.connection}
    room.loop.iterate()
    assert room.counters.requests == 100
    room.run()
    assert room.counters.requests == 200
    assert not room.hub.connections


@pytest.mark.parametrize("rules", [False, True])
def test_replies_to_requests_of_a_lost_connection_are_dropped_in_each_step(new_room: NewRoom, rules: bool) -> None:
    room = new_room(rules=rules, connection_outstanding_bytes=10)
    filled(room, 100_000)
    line = room.connect()
    line.socket.is_stuck = True
    line.send(HELLO)
    requests = line.send(*[read(request_id=each, length=100_000) for each in range(50)])
    line.socket.unread = 0
    room.step(1)
    line.connection.connection_lost(None)
    held, lane, before = [account(room, line)], line.connection._lane, room.counters.requests
    while line.connection in room.hub.connections:
        assert line.session.out_bytes + (0 if lane is None else lane.out_bytes) == 0
        room.loop.iterate()
        held.append(account(room, line))
    assert room.counters.requests - before > 10
    assert requests // 2 < held[0] < 50 * 1024, "the requests are counted, and no reply"
    assert held == sorted(held, reverse=True)
    assert held[-1] == 0


@pytest.mark.parametrize("do", [{"delay_ms": 10, "at": "after"}, {"hold": "after"}], ids=str)
def test_replies_that_a_rule_delays_are_dropped_after_the_loss_too(new_room: NewRoom, do: Any) -> None:
    room = new_room(rules=True)
    room.faults.add("type = READ_SEGMENT", do=do)
    filled(room, 100_000)
    line = room.connect()
    line.queue(*[read(request_id=each, length=100_000) for each in range(50)])
    lane = line.connection._lane
    line.connection.connection_lost(None)
    assert lane.held_bytes == 0
    assert room.counters.requests > 50


def test_the_end_of_a_connection_answers_the_readers_of_its_transient_segments(room: Room) -> None:
    owner, reader = room.connect(), room.connect()
    owner.send(create(), CreateTransientSegment(5, WRITER, SEGMENT, ""))
    (_, created) = owner.answers()
    assert isinstance(created, SegmentCreated)
    reader.send(type(read())(created.segment, 0, 8, "", 6))
    assert reader.answers() == []
    owner.connection.connection_lost(None)
    assert [type(answer) for answer in reader.answers()] == [SegmentRead]
