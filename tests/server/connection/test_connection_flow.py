"""What flows through a connection: when it reads, executes, writes and waits, and what it tells the hub it holds.

Everything is driven by hand: see `driven`.
"""

import pytest

from segstore.server.connection.deadlines import Missed
from segstore.wire import AppendBlock, KeepAlive, SegmentCreated, SegmentRead, StreamSegmentInfo, encode
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
    idle,
)
from tests.server.support import HELLO, SEGMENT, WRITER, append, create, read


def test_what_was_read_and_not_executed_waits_for_the_next_step_in_order(room: Room, line: Line) -> None:
    sizes = [line.queue(PONG, create())]
    assert (line.answers(), line.socket.reads) == ([], False)
    assert account(room, line) == sizes[0]
    sizes.append(line.send(INFO))  # it was read before reading was paused
    room.hub.buffers.view[:100] = bytes(100)
    room.run()
    assert [type(answer) for answer in line.answers()] == [KeepAlive, SegmentCreated, StreamSegmentInfo]
    assert line.socket.reads
    assert account(room, line) == 0
    assert line.connection.bytes_in == sum(sizes)


def test_a_connection_with_more_requests_than_a_step_is_read_again_when_all_are_executed(
    room: Room, line: Line
) -> None:
    room.step(50)
    line.send(*[INFO] * 200)
    assert room.counters.requests == 50
    assert not line.socket.reads
    room.loop.iterate()
    assert room.counters.requests == 100
    assert not line.socket.reads
    room.run()
    assert room.counters.requests == len(line.answers()) == 200
    assert line.socket.calls == ["resume"]


def test_the_rest_of_a_long_read_is_executed_as_it_was_read(room: Room, line: Line) -> None:
    line.queue(PONG, *[INFO] * 4_000)
    room.hub.buffers.view[:] = bytes(len(room.hub.buffers.view))  # the next read
    room.run()
    assert room.counters.requests == 4_000


def test_a_peer_that_does_not_read_is_not_read_until_it_has_caught_up(new_room: NewRoom) -> None:
    room = new_room(connection_outstanding_bytes=100)
    line = room.connect()
    line.socket.is_stuck = True
    line.send(*[PONG] * 12)
    assert (line.socket.reads, line.session.full) == (True, False)
    line.send(PONG)
    assert (line.socket.reads, line.session.full) == (False, True)
    assert account(room, line) == 13 * 8
    line.send(create())
    room.run()
    assert not exists(room)
    line.connection.catch_up_soon()
    room.run()
    line.socket.peer_reads(20)
    room.run()
    assert not exists(room)
    line.socket.peer_reads(70)
    assert not line.session.full
    assert account(room, line) == 13 * 8 + len(encode(create())), "it is looked at in the next step"
    room.run()
    assert exists(room)
    assert line.socket.reads
    assert account(room, line) == 14 + len(encode(SegmentCreated(1, SEGMENT)))


def test_what_a_peer_reads_later_is_seen_by_the_sweep(room: Room) -> None:
    line = idle(room)
    line.socket.is_stuck = True
    line.send(PONG)
    assert account(room, line) == 8
    room.loop.sweep()
    assert account(room, line) == 8
    line.socket.peer_reads()
    room.loop.sweep()
    assert account(room, line) == 0
    assert not room.loop.has_timers


def test_what_is_executed_for_a_peer_that_does_not_read_is_bounded_within_a_step(new_room: NewRoom) -> None:
    room = new_room(connection_outstanding_bytes=1024 * 1024)
    line = filled(room, 600_000)
    line.socket.is_stuck = True
    before = room.counters.requests
    line.send(*[read(0, 600_000)] * 10)
    assert room.counters.requests == before + 2
    assert line.session.full
    assert account(room, line) > 1_200_000
    line.socket.peer_reads()
    room.run()
    assert room.counters.requests == before + 10
    assert len(line.answers()) == 10


def test_a_peer_that_reads_nothing_has_a_deadline_from_the_moment_it_was_behind(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(stalled_peer_timeout_s=60)
    line = idle(room)
    line.connection.pause_writing()  # a transport may say so at any time
    room.loop.sweep(59.5)
    assert line.socket.calls == []
    room.loop.sweep(0.5)
    assert line.socket.calls == ["abort"]
    assert "cut: it read none of its replies for 60 s" in caplog.text
    assert room.counters.deadlines_missed == 1


def test_a_peer_that_reads_slowly_has_its_time_again_and_is_cut_when_it_stops(new_room: NewRoom) -> None:
    room = new_room(connection_outstanding_bytes=100, stalled_peer_timeout_s=60)
    line = room.connect()
    line.socket.is_stuck = True
    line.send(*[PONG] * 20)
    assert line.session.full
    line.socket.peer_reads(1)
    room.loop.sweep(60)
    assert (line.socket.calls, room.counters.deadlines_missed) == ([], 0)
    room.loop.sweep(59.5)
    assert line.socket.calls == []
    room.loop.sweep(0.5)
    assert (line.socket.calls, room.counters.deadlines_missed) == (["abort"], 1)


def test_the_time_of_a_frame_starts_again_when_its_peer_has_read(room: Room, line: Line) -> None:
    line.send(HELLO, PART)
    since = line.waits.since.get(Missed.FRAME)
    assert since is not None
    room.loop.now_s += 10
    line.connection.pause_writing()
    room.loop.now_s += 30
    line.connection.resume_writing()
    assert line.waits.since.get(Missed.FRAME) == room.loop.now_s


def test_reads_woken_for_a_peer_that_does_not_read_are_answered_when_it_has_caught_up(new_room: NewRoom) -> None:
    room = new_room(connection_outstanding_bytes=100)
    writer = filled(room, 0)
    line = room.connect()
    line.send(read(0, 10), read(0, 10, request_id=5))
    assert account(room, line) == 2 * WAITING_READ_BYTES
    line.socket.is_stuck = True
    line.send(*[PONG] * 13)
    writer.send(append(2))
    assert len(line.session.woken) == 2
    room.run()
    assert len(line.answers()) == 13
    line.socket.peer_reads()
    room.run()
    answers = line.answers()
    assert [(answer.request_id, bytes(answer.data)) for answer in answers if isinstance(answer, SegmentRead)] == [
        (4, b"data"),
        (5, b"data"),
    ]
    assert account(room, line) == 0


def test_reads_that_are_woken_while_much_output_is_queued_are_answered_later(room: Room) -> None:
    writer, line = filled(room, 0), room.connect()
    line.send(*[read(0, 700_000, request_id=each) for each in range(5)])
    writer.send(append(2, bytes(600_000)))
    assert len(line.session.woken) == 3
    room.run()
    assert [answer.request_id for answer in line.answers() if isinstance(answer, SegmentRead)] == list(range(5))
    assert not line.session.woken


def test_an_unexpected_error_in_a_read_that_is_answered_late_ends_its_connection_only(
    room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer, line = filled(room, 0), room.connect()
    line.send(*[read(0, 700_000, request_id=each) for each in range(3)])
    writer.send(append(2, bytes(600_000)))
    assert len(line.session.woken) == 1
    monkeypatch.setattr(room.service.store, "read", lambda *_, **__: 1 // 0)
    room.run()
    assert line.socket.calls[-1] == "close"
    assert room.counters.internal_errors == 1
    assert "ZeroDivisionError" in caplog.text
    writer.send(PONG)
    assert writer.answers()[-1] == PONG


def test_an_incomplete_frame_is_counted_and_has_a_deadline(new_room: NewRoom) -> None:
    room = new_room(frame_timeout_s=60)
    line = idle(room)
    line.send(PART)
    assert account(room, line) == len(PART)
    room.loop.sweep(59.5)
    assert line.socket.calls == []
    room.loop.sweep(0.5)
    assert line.socket.calls == ["close"]
    assert room.hub.outstanding_bytes == 0
    assert room.counters.deadlines_missed == 1


def test_the_account_of_a_frame_ends_with_its_rest(room: Room, line: Line) -> None:
    line.send(PART)
    line.send(encode(PONG)[5:])
    assert line.answers() == [PONG]
    assert account(room, line) == 0


def test_an_append_block_without_bytes_has_a_deadline_too(new_room: NewRoom) -> None:
    room = new_room(frame_timeout_s=60)
    line = filled(room, 0)
    room.loop.sweep()
    assert not room.loop.has_timers
    line.send(AppendBlock(WRITER, b""))
    assert account(room, line) == 0
    room.loop.sweep(59.5)
    assert line.socket.calls == []
    room.loop.sweep(0.5)
    assert line.socket.calls == ["close"]


@pytest.mark.parametrize("missed", [Missed.FIRST_FRAME, Missed.FRAME, Missed.BLOCK])
def test_bytes_are_not_missed_while_the_store_does_not_read(new_room: NewRoom, missed: Missed) -> None:
    room = new_room(connection_outstanding_bytes=10)
    line, full = room.connect(), room.connect()
    line.queue(create())
    line.connection.missed(missed, room.loop.now_s)
    assert not line.session.ended, "it is pending"
    full.socket.is_stuck = True
    full.send(HELLO)
    full.connection.missed(missed, room.loop.now_s)
    assert not full.session.ended, "its peer does not read"
    assert room.counters.deadlines_missed == 0
    room.run()
    line.connection.missed(missed, room.loop.now_s)
    assert line.socket.calls[-1] == "close"
    full.socket.peer_reads()
    full.connection.missed(missed, room.loop.now_s)
    assert full.socket.calls[-1] == "close"
    assert room.counters.deadlines_missed == 2


def test_replies_leave_with_the_commits_that_they_wait_for(new_room: NewRoom) -> None:
    room = new_room(disk=True, record=True)
    line = room.connect()
    line.send(PONG)
    assert line.answers() == [PONG]
    for _ in range(3):
        room.disk.behind()
        line.send(PONG)
    assert line.answers() == []
    assert line.connection.bytes_out == room.counters.bytes_out == 4 * 8
    for each in (1, 2, 3):
        room.disk.commit(each)
        assert line.answers() == [PONG]
    assert room.log.bytes[1, "out"] == encode(PONG) * 4


def test_what_is_durable_leaves_after_any_read(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    one, other = room.connect(), room.connect()
    room.disk.behind()
    one.send(PONG)
    assert one.answers() == []
    room.disk.is_ahead = True
    other.send(PART)
    assert one.answers() == [PONG]


def test_a_commit_for_another_does_not_change_the_time_of_a_frame(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = room.connect()
    line.send(HELLO)
    room.disk.behind()
    line.send(PONG, PART)
    since = line.waits.since.get(Missed.FRAME)
    room.loop.now_s += 10
    room.disk.commit()
    assert line.answers() == [HELLO, PONG]
    assert line.waits.since.get(Missed.FRAME) == since


def test_large_replies_that_wait_for_the_disk_are_counted_until_they_leave(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = filled(room, 100_000)
    room.disk.behind()
    line.send(read(0, 16_000))
    assert account(room, line) == 0, "so few are not worth it"
    line.send(read(0, 50_000))
    assert account(room, line) == line.connection.bytes_out - len(line.written) > 66_000
    room.disk.commit()
    assert len(line.answers()) == 2
    assert account(room, line) == 0
    assert max(map(len, line.socket.written)) == 50_000, "payloads are not copied"


def test_a_peer_with_too_many_replies_held_is_not_read_until_enough_have_left(new_room: NewRoom) -> None:
    room = new_room(disk=True, connection_outstanding_bytes=30)
    line = room.connect()
    line.send(HELLO)
    assert line.answers() == [HELLO]
    for _ in range(4):
        room.disk.behind()
        line.send(PONG)
    assert line.socket.reads
    room.disk.behind()
    line.send(create(), PART)
    room.loop.now_s += 10
    room.run()
    assert not exists(room)
    assert not line.socket.reads
    assert list(room.disk.stalled) == [line.connection]
    room.disk.commit(1)
    room.run()
    assert exists(room), "three replies are no more than is allowed"
    assert room.disk.stalled == {}
    assert line.socket.reads
    assert line.waits.since.get(Missed.FRAME) == room.loop.now_s
    room.disk.commit()
    assert line.answers() == [PONG] * 4 + [SegmentCreated(1, SEGMENT)]


def test_a_peer_is_not_read_while_the_disk_is_full_whatever_leaves(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = room.connect()
    line.send(HELLO)
    room.disk.behind()
    line.send(PONG)
    room.disk.is_full = True
    line.send(create(), PART)
    line.waits.since[Missed.FRAME] = 0.0  # as if the part had come before
    room.disk.commit()
    room.run()
    assert line.answers() == [HELLO, PONG]
    assert not exists(room)
    assert not line.socket.reads
    room.loop.now_s += 10
    room.disk.has_room()
    assert line.waits.since.get(Missed.FRAME) == room.loop.now_s
    assert room.disk.stalled == {}
    room.run()
    assert exists(room)
    assert line.socket.reads


def test_a_full_disk_pauses_nothing_for_a_connection_that_closes(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = room.connect()
    room.disk.is_full = True
    line.socket.calls.append("close")
    line.send(create())
    assert room.disk.stalled == {}
    assert line.socket.reads


def test_what_is_held_for_a_connection_that_is_cut_does_not_leave(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = room.connect()
    line.send(HELLO)
    room.disk.behind()
    line.send(PONG)
    line.connection.cut("enough")
    room.run()
    room.disk.commit()
    assert line.answers() == [HELLO]


def test_a_disk_that_fails_ends_connections_at_once_with_its_reason(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(disk=True, record=True)
    line = room.connect()
    line.send(HELLO)
    room.disk.behind()
    line.send(create())
    room.disk.is_full = True
    line.send(PONG)
    assert list(room.disk.stalled) == [line.connection]
    room.disk.fail("the disk is gone")
    assert line.socket.calls == ["close"]
    assert room.disk.stalled == {}
    assert line.answers() == [HELLO]
    room.run()
    assert room.log.ended[1][1] == {"reason": "the disk is gone"}
    assert "closed: the disk is gone" in caplog.text


def test_a_commit_closes_a_connection_that_has_ended_once_all_replies_have_left(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = room.connect()
    line.send(HELLO)
    for _ in range(2):
        room.disk.behind()
        line.send(PONG)
    line.connection.eof_received()
    room.disk.commit(1)
    assert (line.answers(), line.socket.calls) == ([HELLO, PONG], [])
    room.disk.commit(2)
    assert (line.answers(), line.socket.calls) == ([PONG], ["close"])
