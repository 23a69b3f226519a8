"""A connection from its first byte to its last: how it is opened, refused, closed, cut, and what that leaves.

Everything is driven by hand: see `driven`.
"""

import logging
import socket

import pytest

from segstore.server.connection import SessionEnding
from segstore.server.connection.deadlines import Missed
from segstore.wire import (
    AppendBlock,
    FlushToStorage,
    Hello,
    NoSuchSegment,
    SegmentCreated,
    SegmentRead,
    StorageFlushed,
    StreamSegmentInfo,
    encode,
)
from segstore.wire.trace import Direction
from tests.server.connection.driven import INFO, PART, PONG, Line, NewRoom, Room, account, exists, filled, idle
from tests.server.support import HELLO, SEGMENT, WRITER, append, create, read, set_up

MALFORMED = b"\0\0\0\0\0\0\0\0"
PEER, STORE = "10.0.0.1:5000", "10.0.0.2:12345"


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was logged of connections: the peer, if it is a fact of the record, and the message."""
    return [
        (getattr(record, "peer", ""), record.getMessage())
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]


def test_connections_are_recorded_with_their_addresses_and_numbers_and_all_bytes(new_room: NewRoom) -> None:
    room = new_room(record=True)
    first, second = room.connect(), room.connect(admin=True, peername="/run/peer")
    assert [first.session.peer, second.session.peer] == [PEER, "/run/peer"]
    assert room.log.begun == [{"peer": PEER, "store": STORE}, {"peer": "/run/peer", "store": STORE, "port": "admin"}]
    first.send(PONG)
    second.send(HELLO)
    first.send(PONG)
    pong, hello = encode(PONG), encode(HELLO)
    assert room.log.bytes == {(1, "in"): 2 * pong, (1, "out"): 2 * pong, (2, "in"): hello, (2, "out"): hello}


def test_connections_and_their_bytes_are_counted(room: Room) -> None:
    first, second, _ = room.connect(), room.connect(), room.connect()
    assert (room.counters.connections, room.counters.connections_open) == (3, 3)
    sizes = [first.send(HELLO), first.send(create(), PONG), second.send(HELLO)]
    assert first.connection.bytes_in == sizes[0] + sizes[1]
    assert second.connection.bytes_in == sizes[2]
    assert room.counters.bytes_in == sum(sizes)
    assert first.connection.bytes_out == len(first.written) > second.connection.bytes_out == len(second.written) > 0
    assert room.counters.bytes_out == len(first.written) + len(second.written)
    second.socket.lose()
    room.run()
    assert (room.counters.connections, room.counters.connections_open) == (3, 2)
    assert len(room.hub.connections) == 2


@pytest.mark.parametrize("admin", [False, True])
def test_a_connection_serves_the_requests_of_its_port(room: Room, admin: bool) -> None:
    line = room.connect(admin=admin)
    assert (line.connection.admin, line.session.admin) == (admin, admin)
    line.send(FlushToStorage(0, "", 5))
    assert line.answers() == ([StorageFlushed(5)] if admin else [])
    assert line.session.ended is not admin


FULL = "1 connections are open, the limit (max_connections)"


@pytest.mark.parametrize("why", ["the store shuts down", "the disk is gone", FULL])
def test_a_refused_connection_is_cut_counted_and_recorded_with_the_reason(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    room = new_room(record=True, disk=True, max_connections=1 if why == FULL else 2)
    served = room.connect()
    if why == "the disk is gone":
        room.disk.failure = why
    room.hub.closing = why == "the store shuts down"
    refused = room.connect()
    assert refused.socket.calls == ["abort"]
    assert room.hub.connections == {served.connection}
    room.run()
    assert room.log.ended == {2: (Direction.REPLY, {"reason": why})}
    counters = room.counters
    assert (counters.connections, counters.connections_open, counters.connections_refused) == (2, 1, 1)
    assert (f"refused: {why}" in caplog.text) is not room.hub.closing


def test_rules_see_the_number_of_the_store_and_answer_in_its_wire_version(new_room: NewRoom) -> None:
    room = new_room(rules=True, number=3)
    room.faults.add("type = GET_STREAM_SEGMENT_INFO", do="NoSuchSegment")
    first, second = room.connect(), room.connect()
    second.send(create(), INFO)
    assert second.answers() == [SegmentCreated(1, SEGMENT), NoSuchSegment(1, SEGMENT, "", -1)]
    observer = room.faults.observer
    assert [(request.store, request.connection) for request in observer.requests()] == [(3, 2)] * 2
    assert (first.connection.number, second.connection.number) == (1, 2)


def test_a_peer_that_ends_its_side_is_closed_without_a_word(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(record=True)
    line = room.connect()
    line.send(PONG)
    assert not line.connection.eof_received(), "the transport need not stay open"
    assert line.socket.calls == ["close"]
    room.run()
    assert room.log.ended == {1: (Direction.REQUEST, {})}
    assert warnings(caplog) == []


def test_a_peer_that_ends_its_side_gets_the_reply_that_was_to_be_written_next(room: Room, line: Line) -> None:
    line.send(create(), read())
    line.answers()
    room.clock.advance(room.service.settings.long_poll_s)  # the read is answered, empty, in the next iteration
    assert line.answers() == []
    line.connection.eof_received()
    assert [type(answer) for answer in line.answers()] == [SegmentRead]


def test_a_peer_that_ends_its_side_with_requests_pending_is_closed_behind_their_replies(room: Room, line: Line) -> None:
    line.queue(PONG, create())
    assert line.connection.eof_received(), "the transport is needed for the replies"
    assert line.socket.calls == []
    room.run()
    assert line.answers() == [PONG, SegmentCreated(1, SEGMENT)]
    assert line.socket.calls == ["close"], "it is not read again"
    assert not room.hub.connections


@pytest.mark.parametrize("overtake", [False, True])
@pytest.mark.parametrize("at", ["before", "after"])
def test_requests_and_replies_that_a_rule_holds_as_their_peer_ends_its_side_are_executed_and_sent(
    new_room: NewRoom, at: str, overtake: bool
) -> None:
    room = new_room(rules=True)
    room.faults.add("type = CREATE_SEGMENT", do={"hold": at, "overtake": overtake}, name="held")
    line = room.connect()
    line.send(create())
    assert line.connection.eof_received(), "the transport is needed for the replies"
    room.run()
    assert line.socket.calls == []
    room.faults.release("held")
    room.run()
    assert exists(room)
    assert line.answers() == [SegmentCreated(1, SEGMENT)]
    assert line.socket.calls == ["close"], "it is not read again"
    assert not room.hub.connections


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_read_that_waits_as_its_peer_ends_its_side_is_not_answered_behind_delayed_replies(
    new_room: NewRoom, at: str
) -> None:
    room = new_room(rules=True)
    room.faults.add("type = GET_STREAM_SEGMENT_INFO", do={"hold": at, "overtake": True}, name="held")
    line = room.connect()
    line.send(create(), read(), INFO)
    assert len(line.answers()) == 1
    line.connection.eof_received()
    room.run()
    room.faults.release("held")
    room.run()
    assert [type(answer) for answer in line.answers()] == [StreamSegmentInfo]
    assert line.socket.calls == ["close"]
    room.run()
    assert len(room.service.store.waiters) == 0


@pytest.mark.parametrize("overtake", [False, True])
@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("part", [PART, encode(AppendBlock(WRITER, b"no end"))], ids=["frame", "block"])
def test_what_is_incomplete_as_its_peer_ends_its_side_has_no_deadline_while_replies_are_delayed(
    new_room: NewRoom, part: bytes, at: str, overtake: bool
) -> None:
    room = new_room(rules=True, frame_timeout_s=5)
    line = room.connect()
    line.send(create("a/b/0"), set_up("a/b/0"))
    line.answers()
    room.faults.add("type = CREATE_SEGMENT", do={"hold": at, "overtake": overtake}, name="reply")
    line.send(create(), part)
    line.connection.eof_received()
    for _ in range(20):
        room.loop.sweep()
    assert room.counters.deadlines_missed == 0
    room.faults.release("reply")
    room.run()
    assert line.answers() == [SegmentCreated(1, SEGMENT)]
    assert line.socket.calls == ["close"]


def test_an_end_behind_a_malformed_frame_is_no_error_while_a_rule_holds_a_request(new_room: NewRoom) -> None:
    room = new_room(rules=True)
    room.faults.add("type = CREATE_SEGMENT", do={"hold": "before", "overtake": True}, name="held")
    line = room.connect()
    line.send(create(), b"\0\0\0\0\0\0\0\0")
    line.connection.eof_received()
    room.faults.release("held")
    room.run()
    assert line.socket.calls[-1] == "close"


def test_a_connection_that_has_executed_what_its_peer_sent_before_its_end_needs_no_other_step(room: Room) -> None:
    line, other = room.connect(), room.connect()
    line.queue(PONG)
    other.send(Hello(18, 18))
    line.connection.eof_received()
    for each in (line, other):
        each.connection.catch_up_soon()
        room.run()
        assert each.socket.calls == ["close"]


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_peer_that_ends_its_side_gets_the_replies_that_wait_for_the_disk_except_under_tls(
    new_room: NewRoom, is_tls: bool
) -> None:
    room = new_room(disk=True)
    line = room.connect(**({"sslcontext": object()} if is_tls else {}))
    line.send(PONG)
    room.disk.behind()
    line.send(PONG, PONG)
    assert line.connection.eof_received() is not is_tls
    assert line.socket.calls == []
    room.disk.commit()
    assert line.answers() == [PONG] * 3
    assert line.socket.calls == ["close"]


def test_a_peer_that_ends_its_side_while_nothing_is_held_needs_no_transport(new_room: NewRoom) -> None:
    room = new_room(disk=True)
    line = room.connect()
    line.send(PONG)
    assert line.connection.eof_received() is False


def test_a_connection_that_waits_for_the_disk_to_close_is_not_read_and_has_a_deadline(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(record=True, disk=True, linger_s=5)
    line = idle(room)
    room.disk.behind()
    line.send(PONG)
    line.connection.end("it is to go", SessionEnding.FLUSHED)
    assert (line.socket.calls, line.socket.reads) == ([], False)
    room.loop.sweep(4.5)
    assert line.socket.calls == []
    room.loop.sweep(0.5)
    assert line.socket.calls == ["abort"]
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "it is to go"})}
    assert warnings(caplog) == [(PEER, f"connection from {PEER} cut: it did not read its last replies in 5 s")]
    assert room.counters.deadlines_missed == 1
    room.disk.commit()
    assert line.answers() == []


def test_a_connection_that_closes_has_a_deadline_from_its_closing(new_room: NewRoom) -> None:
    room = new_room(linger_s=5)
    line = room.connect()
    line.send(HELLO)
    line.socket.is_stuck = True
    line.send(PONG)
    room.loop.sweep(100)
    line.connection.end("enough")
    room.loop.sweep(4.5)
    assert line.socket.calls == ["close"]
    line.connection.end("once more")
    room.loop.sweep(0.5)
    assert line.socket.calls == ["close", "abort"]


def test_a_connection_whose_transport_closes_late_is_closed_once(
    room: Room, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.socket.closes_late = True
    line.connection.end("it is to go")
    line.connection.end("once more")
    line.connection.flush()
    assert line.socket.calls == ["close"]
    assert [text for _, text in warnings(caplog)] == [f"connection from {PEER} closed: it is to go"]


@pytest.mark.parametrize("is_closing", [False, True])
def test_why_a_connection_is_closed_is_logged_with_its_peer(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture, is_closing: bool
) -> None:
    caplog.set_level(logging.INFO, "segstore")
    room = new_room(record=True)
    line = room.connect()
    line.send(HELLO)
    room.hub.closing = is_closing
    line.connection.end("it is to go")
    room.run()
    (record,) = caplog.records
    assert record.getMessage() == f"connection from {PEER} closed: it is to go"
    assert record.levelno == (logging.INFO if is_closing else logging.WARNING)
    assert vars(record)["peer"] == PEER
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "it is to go"})}


@pytest.mark.parametrize(("ending", "replies"), [(SessionEnding.FLUSHED, 1), (SessionEnding.DROPPED, 0)])
def test_a_connection_that_is_ended_writes_what_is_queued_or_drops_it(
    room: Room, line: Line, ending: SessionEnding, replies: int
) -> None:
    line.session.reply(PONG)
    line.connection.end("it is to go", ending)
    assert line.answers() == [PONG] * replies
    assert (line.session.out, line.socket.calls) == ([], ["close"])


def test_what_is_pending_has_no_account_when_its_connection_is_ended(room: Room, line: Line) -> None:
    line.socket.is_stuck = True
    line.send(HELLO)
    line.queue(create())
    assert room.hub.outstanding_bytes == len(encode(HELLO)) + len(encode(create()))
    line.connection.end("enough")
    assert room.hub.outstanding_bytes == len(encode(HELLO))
    line.socket.peer_reads()
    room.run()
    assert not exists(room)
    assert room.hub.outstanding_bytes == 0


def test_bytes_behind_the_end_are_recorded_and_counted_and_not_executed(new_room: NewRoom) -> None:
    room = new_room(record=True)
    line = room.connect()
    line.socket.is_stuck = True
    sizes = [line.send(Hello(18, 18)), line.send(create())]
    assert room.counters.bytes_in == sum(sizes)
    assert room.log.bytes[1, "in"].endswith(encode(create()))
    line.socket.peer_reads()
    room.run()
    assert line.answers() == [HELLO]
    assert not exists(room)
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "it speaks wire versions 18 to 18, this store 5 to 17"})}


def test_a_reply_for_a_transport_that_closes_by_itself_is_dropped(room: Room) -> None:
    line, writer = room.connect(), room.connect()
    writer.send(create(), set_up())
    line.send(read())
    line.socket.calls.append("abort")  # it has found out that the peer is gone, and has not told yet
    writer.send(append(1))
    assert line.answers() == []
    assert line.session.out == []
    line.connection.catch_up_soon()
    room.run()
    assert "resume" not in line.socket.calls


def test_requests_that_are_pending_when_a_transport_closes_by_itself_are_executed_once_it_is_lost(
    room: Room, line: Line
) -> None:
    line.queue(create())
    line.socket.calls.append("abort")
    line.connection.catch_up_soon()
    room.run()
    assert not exists(room)
    line.connection.connection_lost(None)
    assert exists(room)
    assert line.answers() == []


def test_a_malformed_frame_is_logged_and_recorded_with_what_was_wrong(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(record=True)
    line = room.connect()
    line.send(PONG, MALFORMED)
    assert line.answers() == [PONG]
    assert line.socket.calls == ["close"]
    room.run()
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    by, facts = room.log.ended[1]
    assert by is Direction.REPLY
    assert facts["reason"].startswith("it broke the protocol: ")
    assert record.getMessage() == f"connection from {PEER} closed: {facts['reason']}"
    assert vars(record)["peer"] == PEER
    assert (vars(record)["code"], vars(record)["offset"]) == (0, 0)


def test_a_malformed_frame_behind_a_request_that_ends_the_connection_is_not_logged(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(record=True)
    line = room.connect()
    line.send(Hello(18, 18), MALFORMED)
    room.run()
    why = "it speaks wire versions 18 to 18, this store 5 to 17"
    assert room.log.ended == {1: (Direction.REPLY, {"reason": why})}
    assert [text for _, text in warnings(caplog)] == [f"connection from {PEER} closed: {why}"]


def test_an_unexpected_error_is_logged_and_closes_its_connection(
    new_room: NewRoom, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(record=True)
    line = room.connect()
    monkeypatch.setattr(room.service.store, "create_segment", lambda *_, **__: 1 // 0)
    line.send(create())
    assert line.socket.calls == ["close"]
    assert room.counters.internal_errors == 1
    assert "ZeroDivisionError" in caplog.text
    room.run()
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "unexpected error in a request"})}


def test_a_connection_that_is_cut_is_recorded_and_logged_with_the_reason_and_has_no_account(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(record=True)
    line = room.connect()
    line.socket.is_stuck = True
    line.send(PONG)
    assert room.hub.outstanding_bytes == len(encode(PONG))
    line.connection.cut("the hub needs its memory")
    assert (line.socket.calls, line.connection.transport) == (["abort"], None)
    assert room.hub.outstanding_bytes == line.connection.held_bytes == 0
    line.connection.cut("once more")
    line.connection.missed(Missed.CLOSING, room.loop.now_s)
    line.connection.look_up()
    line.connection.pause_writing()
    room.run()
    assert line.socket.calls == ["abort"]
    assert not line.session.full
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "the hub needs its memory"})}
    assert warnings(caplog)[0] == (PEER, f"connection from {PEER} cut: the hub needs its memory")
    assert (room.hub.outstanding_bytes, room.counters.deadlines_missed) == (0, 0)


@pytest.mark.parametrize("end", ["cut", "end"])
@pytest.mark.parametrize("data", [PART, AppendBlock(WRITER, bytes(1000))], ids=["frame", "block"])
def test_what_is_incomplete_is_dropped_when_the_connection_is_cut_or_ended(
    room: Room, line: Line, data: bytes | AppendBlock, end: str
) -> None:
    line.send(create(), set_up(), data)
    assert account(room, line) == (1000 if isinstance(data, AppendBlock) else len(data))
    getattr(line.connection, end)("enough")
    assert line.connection.received.held_bytes == account(room, line) == 0


def test_replies_of_a_connection_that_is_cut_are_dropped_at_once(new_room: NewRoom) -> None:
    room = new_room(rules=True, disk=True)
    filled(room, 100_000)
    line = room.connect()
    room.disk.behind()
    line.send(read(length=100_000))
    assert sum(len(each) for _, _, out in room.disk.held for each in out) > 100_000
    room.faults.add("type = READ_SEGMENT", do={"hold": "after"})
    line.send(read(length=100_000))
    lane = line.connection._lane
    assert lane.held_bytes > 100_000
    line.connection.cut("the hub needs its memory")
    assert [out for _, _, out in room.disk.held] == [[]]
    assert lane.held_bytes == account(room, line) == 0


def test_requests_of_a_connection_that_is_cut_are_not_executed(
    new_room: NewRoom, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room(record=True)
    line = room.connect()
    line.queue(create())
    line.connection.abort()
    line.connection.abort()
    room.run()
    assert not exists(room)
    assert line.socket.calls == ["abort"]
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "cut by the store"})}
    assert warnings(caplog) == []


def test_a_rule_that_resets_a_connection_lets_earlier_replies_leave_and_is_recorded(new_room: NewRoom) -> None:
    room = new_room(rules=True, record=True)
    room.faults.add("type = GET_STREAM_SEGMENT_INFO", do={"close": "before", "reset": True}, name="cut")
    line = room.connect()
    line.send(create(), INFO, PONG)
    assert line.answers() == [SegmentCreated(1, SEGMENT)]
    assert line.socket.calls == ["abort"]
    assert line.socket.socket.options == [(socket.SOL_SOCKET, socket.SO_LINGER)]
    room.run()
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "fault 'cut': close before"})}


def test_a_rule_that_resets_a_connection_that_is_lost_is_recorded(new_room: NewRoom) -> None:
    room = new_room(rules=True, record=True)
    room.faults.add("type = GET_STREAM_SEGMENT_INFO", do={"close": "before", "reset": True}, name="cut")
    line = room.connect()
    line.queue(INFO, create())
    line.connection.connection_lost(None)
    assert room.log.ended == {1: (Direction.REPLY, {"reason": "fault 'cut': close before"})}
    assert not exists(room)


def test_a_connection_that_ends_waits_for_replies_that_a_rule_delays(new_room: NewRoom) -> None:
    room = new_room(rules=True)
    room.faults.add("type = CREATE_SEGMENT", do="hold after", name="reply")
    line = room.connect()
    line.send(create())
    line.connection.end("it is to go", SessionEnding.FLUSHED)
    assert line.socket.calls == []
    line.send(PONG)
    room.faults.release("reply")
    assert line.answers() == [SegmentCreated(1, SEGMENT)]
    assert line.socket.calls == ["close"]


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_connection_that_is_dropped_or_whose_store_closes_waits_for_no_delayed_reply(
    new_room: NewRoom, is_closing: bool
) -> None:
    room = new_room(rules=True)
    room.faults.add("type = CREATE_SEGMENT", do="hold after", name="reply")
    line = room.connect()
    line.send(create())
    room.hub.closing = is_closing
    line.connection.end("it is to go", SessionEnding.FLUSHED if is_closing else SessionEnding.DROPPED)
    assert line.socket.calls == ["close"]
    assert line.answers() == []
    room.run()
    assert room.faults.held("reply") == 0
