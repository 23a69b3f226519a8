"""The newest traffic in memory: bounded, numbered, without tokens."""

import tracemalloc
from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import pytest

from segstore.server import areas
from segstore.server.connection.receiving import LONG_BYTES, ReceiveBuffers
from segstore.server.recording import WITH_ROLE, RecordedConnection, together
from segstore.server.traffic import KEPT_BYTES, Traffic
from segstore.wire import AppendBlock, KeepAlive, Padding, SetupAppend, encode
from segstore.wire.trace import Direction, Exchanges, Record, RecordKind, read_records
from tests.looped import looped
from tests.server.support import SEGMENT, WRITER, append, set_up
from tests.server.test_recording import Notes

MIB = 1024 * 1024


def traffic(max_bytes: int = MIB) -> Traffic:
    ticks = count(1_000)
    return Traffic(max_bytes, clock=lambda: next(ticks))


def kinds(kept: Traffic) -> list[tuple[int, RecordKind]]:
    kept.flush()
    return [(number, each.kind) for number, _, each in kept.records()]


def test_records_are_read_while_more_is_recorded_and_keep_their_numbers() -> None:
    kept = traffic()
    number = kept.opened(peer="here")
    kept.received(number, encode(KeepAlive())[:3])
    assert kinds(kept) == [(1, RecordKind.OPEN)]
    kept.received(number, encode(KeepAlive())[3:])
    kept.sent(number, [encode(KeepAlive())])
    assert kinds(kept) == [(1, RecordKind.OPEN), (2, RecordKind.FRAME), (3, RecordKind.FRAME)]
    kept.closed(number, Direction.REPLY, reason="why")
    assert kept.flush() == 4
    assert [each for each, _, _ in kept.records(2, 3)] == [2, 3]
    assert [each for each, _, _ in kept.records(4)] == [4]
    assert list(kept.records(5)) == []


@looped("step", [1, 7, 1_000])
def test_requests_are_numbered_over_all_connections_in_the_order_in_which_they_are_complete(step: int) -> None:
    kept = traffic()
    one, other = kept.opened(), kept.opened()
    data = b"".join(map(encode, (set_up(), AppendBlock(WRITER, b"data"), append(1), Padding(8), append(2))))
    kept.received(other, encode(KeepAlive()))
    kept.sent(other, [encode(KeepAlive())])
    for at in range(0, len(data), step):
        kept.received(one, data[at : at + step])
        kept.flush()
    kept.received(other, encode(KeepAlive()))
    kept.flush()
    found = [(request, each.connection, each.data[3]) for _, request, each in kept.records() if request]
    assert found == [(1, other, 100), (2, one, 1), (3, one, 4), (4, one, 4), (5, other, 100)]
    assert [kept.place_of(request) for request in range(1, 7)] == [3, 5, 7, 9, 10, 0]
    assert (kept.requests, kept.last_request, kept.first_request) == (5, 5, 1)


def test_the_oldest_records_are_discarded_and_the_trace_has_the_others() -> None:
    kept = traffic(3 * MIB)
    number, frame = kept.opened(), encode(append(1, bytes(100_000)))
    for _ in range(100):
        kept.received(number, frame)
    assert kept.flush() == 101
    assert 60 < kept.first < 101
    data = b"".join(kept.trace())
    assert 2 * MIB < len(data) < 3 * MIB + 1000
    records = [each for each in read_records(data) if isinstance(each, Record)]
    assert len(records) == kept.last - kept.first + 1
    assert {record.data for record in records} == {frame}


def test_the_newest_of_tiny_frames_that_come_byte_by_byte_are_kept() -> None:
    kept, frame = traffic(MIB), bytes(8)
    number = kept.opened()
    for _ in range(10_000):
        for at in range(len(frame)):
            kept.received(number, frame[at : at + 1])
        assert kept.first <= max(kept.last, 1)
    assert kept.flush() == 10_001
    assert len(list(kept.records())) > 1_000


def test_memory_is_counted_once_if_a_frame_that_fills_it_is_incomplete_when_it_is_read() -> None:
    kept, frame = traffic(4 * MIB), encode(append(1, bytes(200_000)))
    number = kept.opened()
    kept.flush()
    for at in range(0, len(frame), 1_000):
        if at == 199_000:
            assert kept.flush() == 1
        kept.received(number, frame[at : at + 1_000])
    kept.closed(number)
    kept.flush()
    (area,) = {size for block in kept._blocks for size in block.areas.values()}
    assert len(kept._blocks) > 1
    assert area <= kept._bytes < area + 5_000


def test_cleared_traffic_is_empty_and_numbers_continue() -> None:
    kept = traffic()
    number = kept.opened()
    kept.received(number, encode(KeepAlive())[:3])
    kept.clear()
    assert (kept.first, kept.last, list(kept.records())) == (2, 1, [])
    kept.received(number, encode(KeepAlive())[3:])
    assert kept.flush() == 2
    assert [(*each, record.data) for *each, record in kept.records()] == [(2, 1, encode(KeepAlive()))]


def test_memory_of_discarded_records_is_used_again_without_changing_what_is_read() -> None:
    kept = traffic(4 * MIB)
    number, sent = kept.opened(), list[bytes]()
    reading = None
    for each in range(400):
        frames = b"".join(encode(append(each, bytes((each % 256,)) * size)) for size in (10, 9_000, 60_000))
        sent.append(frames)
        kept.received(number, frames[:1])
        kept.received(number, frames[1:])
        if each == 100:
            kept.flush()
            reading = kept.records()
            first, *_ = next(reading)
    kept.flush()
    assert kept.first > first
    frames_of = dict(enumerate((frame for each in sent for frame in split(each)), 2))
    for found, _, record in (*reading, *kept.records()):
        assert record.data == frames_of[found]
    assert kept.last == 1 + 3 * 400
    assert [each for each, _, _ in kept.records()] == list(range(kept.first, kept.last + 1))


def test_reads_that_are_larger_than_a_block_fill_one_block_after_the_other() -> None:
    kept = traffic(4 * MIB)
    number = kept.opened()
    frames = [encode(append(each, bytes((each % 251,)) * 1_000)) for each in range(700)]
    for _ in range(10):
        kept.received(number, b"".join(frames))
        kept.sent(number, [encode(KeepAlive()) * 500])
    assert kept.flush() == 1 + 10 * (700 + 500)
    found = [each for _, _, each in kept.records() if each.direction is Direction.REQUEST]
    assert all(each.kind is RecordKind.FRAME for each in found)
    wanted = frames * 10
    assert [each.data for each in found] == wanted[len(wanted) - len(found) :]
    assert 3 * MIB < sum(len(each.data) for each in found) < 4 * MIB


class Reads:
    """Reads that a store receives and a recorder records, in memory as a store has it."""

    def __init__(self, kept: Traffic) -> None:
        self.kept = kept
        self.buffers = ReceiveBuffers()
        self.areas = dict[int, Any]()

    def read(self, number: int, data: bytes) -> None:
        while data:
            if self.buffers.held_bytes:
                self.buffers.advance()
            view = self.buffers.view[: len(data)]
            view[:], data = data[: len(view)], data[len(view) :]
            self.areas[id(view.obj)] = view.obj
            if self.kept.received(number, view, lasting=len(view) >= LONG_BYTES):
                self.buffers.held_bytes = len(view)

    def in_place(self) -> int:
        """How many of the bytes that are kept are where they were received."""
        parts = [part for block in self.kept._blocks if block.pending is not None for part in block.pending.data]
        return sum(len(each) for each in parts if isinstance(each, memoryview) and id(each.obj) in self.areas)


def test_long_reads_stay_where_they_are_and_the_memory_of_discarded_ones_is_used_again() -> None:
    kept = traffic(KEPT_BYTES)
    reads, number, sent = Reads(kept), kept.opened(), list[bytes]()
    reading, first = None, 0
    for each in range(100):
        frames = [encode(append(each, bytes((each,)) * size)) for size in (10, 300_000, 60_000, 480_000, 100)]
        data = b"".join(frames)
        sent += (part for frame in frames for part in split(frame))
        reads.read(number, data[: 500_000 + each])
        kept.sent(number, [encode(KeepAlive()) * each])
        reads.read(number, data[500_000 + each :])
        if each == 30:
            kept.flush()
            reading = kept.records()
            first, *_ = next(reading)
    kept.flush()
    assert kept.first > first
    assert 12 * MIB < kept._bytes <= KEPT_BYTES
    assert len(reads.areas) <= 10, "of 2 MiB"
    own = [record for _, _, record in (*reading, *kept.records()) if record.direction is Direction.REQUEST]
    assert {each.kind for each in own} == {RecordKind.FRAME}
    wanted = {bytes(each): None for each in sent}
    assert all(each.data in wanted for each in own)
    newest = [each.data for _, _, each in kept.records() if each.direction is Direction.REQUEST]
    assert newest == sent[-len(newest) :]
    assert sum(map(len, newest)) > 10 * MIB
    assert reads.in_place() > 10 * MIB


def test_frames_of_several_reads_stay_where_they_are_in_memory_that_is_bounded() -> None:
    kept = traffic(KEPT_BYTES)
    reads, sent = Reads(kept), list[bytes]()
    one, other = kept.opened(), kept.opened()
    for each in range(20):
        frames = [encode(append(each, bytes((each, way)) * size)) for way, size in ((0, 1_700_000), (1, 900_000))]
        sent += (split(frame)[0] for frame in frames)
        for at in range(0, len(frames[0]), 700_000):
            reads.read(one, frames[0][at : at + 700_000])
            reads.read(other, frames[1][at : at + 700_000])
    kept.flush()
    found = [each.data for _, _, each in kept.records() if len(each.data) > 1_000]
    assert sorted(found) == sorted(sent[-len(found) :])
    assert sum(map(len, found)) > 9 * MIB
    assert reads.in_place() > 0.95 * sum(map(len, found))
    assert len(reads.areas) < 16, "of 2 MiB"


def test_incomplete_frames_of_many_connections_are_copied_so_that_they_pin_little_memory() -> None:
    kept = traffic(KEPT_BYTES)
    reads, sent = Reads(kept), dict[int, bytes]()
    for each in range(100):
        number = kept.opened()
        sent[number] = split(encode(append(1, bytes((each,)) * 200_000)))[0]
        reads.read(number, split(encode(append(1, bytes(300_000))))[0] + sent[number][:100_000])
    assert len(reads.areas) < 24, "of 2 MiB"
    for number, frame in sent.items():
        kept.received(number, frame[100_000:])
    kept.flush()
    found = {each.connection: each.data for _, _, each in kept.records() if each.kind is RecordKind.FRAME}
    assert found
    assert all(sent[number] == data for number, data in found.items() if len(data) < 300_000)
    assert list(found)[-1] == number


def test_incomplete_frames_beyond_the_bound_are_recorded_as_the_bytes_that_they_are() -> None:
    kept = traffic(4 * MIB)
    sent = {}
    for each in range(61):
        number = kept.opened()
        sent[number] = b"\0\0\0\2\0\x10\0\0" + bytes((each,)) * 80_000
        kept.received(number, sent[number])
    kept.flush()
    found = {each.connection: each.data for _, _, each in kept.records() if each.kind is RecordKind.BYTES}
    assert len(found) > 9
    other = kept.opened()
    for _ in range(20):
        kept.received(other, encode(append(1, b"\xff" * 20_000)))
    kept.flush()
    again = {each.connection: each.data for _, _, each in kept.records() if each.kind is RecordKind.BYTES}
    assert again
    assert all(data == sent[connection] for connection, data in (*found.items(), *again.items()))


def test_requests_have_numbers_of_their_own_if_incomplete_frames_exceed_the_bound() -> None:
    kept = traffic(MIB)
    connections = [RecordedConnection(kept) for _ in range(4)]
    for each in connections:
        each.is_numbering = True
    frames = [b"\0\0\0\x09\0\x06\0\0" + bytes(393_216) for _ in connections]
    for at in range(0, len(frames[0]), 65_536):
        for each, frame in zip(connections, frames, strict=True):
            each.received(frame[at : at + 65_536])
    for each in connections:
        each.received(encode(KeepAlive()) * 3)
    taken = {each.number: [each.take_numbers(1)[0] for _ in range(4)] for each in connections}
    kept.received(kept.opened(), encode(KeepAlive()))
    kept.flush()
    found = [(number, each.connection, each.kind) for _, number, each in kept.records() if number]
    *recorded, (last, _, _) = found
    assert 0 < len(recorded) < 16, "incomplete frames of some connections became bytes"
    assert {kind for _, _, kind in found} == {RecordKind.FRAME}
    assert all(number in taken[connection] for number, connection, _ in recorded)
    assert sorted([*chain(*taken.values()), last]) == list(range(1, 18))


@looped("most", [1, 15, 16, 100])
def test_hardly_any_memory_is_enough_to_run(most: int) -> None:
    kept = traffic(most)
    number = kept.opened()
    for size in (0, 5, 5_000, 30_000):
        kept.received(number, encode(append(1, bytes(size))))
    assert kept.flush() == 1 + 4
    assert list(kept.records()) == []


def test_an_area_is_counted_once_however_many_blocks_have_a_part_of_it() -> None:
    kept = traffic(KEPT_BYTES)
    reads, number = Reads(kept), kept.opened()
    for each in range(6):
        reads.read(number, encode(append(each, bytes(300_000))))
        kept.flush()
    assert len(reads.areas) == 1
    sizes = {area: size for block in kept._blocks for area, size in block.areas.items()}
    assert sum(sizes.values()) <= kept._bytes < sum(sizes.values()) + 50_000
    assert len(kept._blocks) == 6
    kept.clear()
    assert (kept._bytes, kept._users) == (0, {})


def test_tokens_are_overwritten_in_the_records_of_long_reads_and_not_in_what_was_read() -> None:
    kept = traffic(KEPT_BYTES)
    reads, number = Reads(kept), kept.opened()
    frames = encode(append(1, bytes(300_000))), encode(SetupAppend(1, WRITER, SEGMENT, "secret")), encode(KeepAlive())
    data = b"".join(frames)
    reads.read(number, data)
    assert reads.buffers.view[: len(data)] == data
    assert b"secret" not in b"".join(kept.trace())
    found = [each.data for _, _, each in kept.records(2)]
    assert [len(each) for each in found] == [len(each) for frame in frames for each in split(frame)]
    assert found[-1] == frames[-1]


def split(data: bytes) -> list[bytes]:
    frames = []
    while data:
        size = 8 + int.from_bytes(data[4:8], "big")
        frames.append(data[:size])
        data = data[size:]
    return frames


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counts all memory, which is allocated and not mapped."""
    monkeypatch.setattr(areas, "_MAPPED", False)
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("counted")
def test_what_is_kept_takes_no_more_memory_than_was_set_whatever_comes() -> None:
    kept = traffic(6 * MIB)
    number = kept.opened()
    for size in (100, 700_000, 3 * MIB, 5_000, 100, 900_000) * 6:
        frame = encode(append(1, bytes(size)))
        for _ in range(max(1, 300_000 // size)):
            kept.received(number, frame)
            kept.sent(number, [frame])
        if size == 5_000:
            kept.flush()
        assert tracemalloc.get_traced_memory()[0] < 6 * MIB + 2 * 1_200_000 + 4 * MIB, "beside it, what is written to"


@pytest.mark.usefixtures("counted")
def test_frames_that_come_in_many_small_pieces_take_no_more_memory_than_was_set() -> None:
    frames = [encode(append(number, bytes((number,)) * 200_000)) for number in range(40)]
    tracemalloc.clear_traces()
    kept = traffic(2 * MIB)
    numbers = [kept.opened() for _ in frames]
    for at in range(0, len(frames[0]), 1_000):
        for number, frame in zip(numbers, frames, strict=True):
            kept.received(number, frame[at : at + 1_000])
            kept.sent(number, [encode(KeepAlive())])
        assert tracemalloc.get_traced_memory()[0] < 2 * MIB + 2 * MIB + MIB, "records, incomplete frames, a block"
    kept.flush()
    requests = [each for _, _, each in kept.records() if each.direction is Direction.REQUEST and each.data]
    assert {request.kind for request in requests} <= {RecordKind.BYTES, RecordKind.FRAME, RecordKind.OPEN}
    assert RecordKind.BYTES in {each.kind for each in requests}, "the longest are no frames then"


@pytest.mark.usefixtures("counted")
def test_many_small_runs_of_records_take_no_more_memory_than_was_set() -> None:
    kept = traffic(MIB)
    number = kept.opened()
    for _ in range(2_000):
        kept.received(number, encode(KeepAlive()) + encode(set_up()))
        kept.closed(kept.opened())  # ends a run of frames
    kept.flush()
    assert tracemalloc.get_traced_memory()[0] < MIB * 3 // 2
    assert kept.first > 1


def test_a_low_limit_keeps_the_newest_records_too() -> None:
    kept = traffic(400_000)
    number, frame = kept.opened(), encode(append(1, bytes(1_000)))
    for _ in range(900):
        kept.received(number, frame)
    assert kept.flush() - kept.first > 100
    for _ in range(100):
        kept.received(number, encode(KeepAlive()) * 517)
    assert kept.flush() - kept.first > 1_000


def test_a_trace_lacks_what_is_discarded_before_it_is_reached() -> None:
    kept = traffic()
    number = kept.opened()
    kept.received(number, encode(KeepAlive()))
    kept.flush()
    kept.received(number, encode(set_up()))
    pieces = kept.trace()
    data = next(pieces) + next(pieces)
    kept.clear()
    data += b"".join(pieces)
    assert [record.kind for record in read_records(data) if isinstance(record, Record)] == [
        RecordKind.OPEN,
        RecordKind.FRAME,
    ]


def test_a_writers_segment_is_known_after_its_set_up_was_discarded() -> None:
    kept = traffic(2 * MIB)
    number = kept.opened()
    kept.received(number, encode(set_up()))
    for event_number in range(1, 4):
        kept.received(number, encode(append(event_number, bytes(MIB))))
    kept.flush()
    assert kept.first > 2
    exchanges = Exchanges(writers=kept.writers)
    assert {exchanges.see(each).segments for _, _, each in kept.records()} == {(SEGMENT,)}


def test_tokens_are_overwritten_in_frames_of_all_sizes() -> None:
    kept = traffic(8 * MIB)
    number = kept.opened()
    for size in (10, 5_000, 40_000):
        frame = encode(SetupAppend(1, WRITER, SEGMENT, "secret" * (size // 6)))
        kept.received(number, frame)  # by itself,
        kept.received(number, frame[:7])  # in parts,
        kept.received(number, frame[7:] + frame)  # and with others
    data = b"".join(kept.trace())
    assert kept.last == 10
    assert b"secret" not in data


def test_facts_about_closed_connections_are_forgotten_in_time() -> None:
    kept = traffic()
    for each in range(1_002):
        kept.closed(kept.opened(peer=str(each)), Direction.REQUEST)
    assert len(kept.peers) == 1_000
    assert kept.peers[1_002] == {"peer": "1001", "ended": ""}


def test_connections_of_the_controller_do_not_change_the_numbers_of_clients() -> None:
    kept = traffic()
    assert [kept.opened(), kept.opened(role="controller"), kept.opened()] == [1, WITH_ROLE + 1, 2]
    assert kept.connections == 3


def test_two_recorders_are_told_the_same() -> None:
    kept, notes = traffic(), Notes()
    assert together(None, notes) is notes
    both = together(kept, notes)
    number = both.opened(peer="here")
    both.received(number, b"in")
    both.sent(number, [b"o", b"ut"])
    both.closed(number, Direction.REPLY, reason="why")
    assert number == 1
    assert notes.bytes == {(1, "in"): b"in", (1, "out"): b"out"}
    assert notes.ended == {1: (Direction.REPLY, {"reason": "why"})}
    assert kinds(kept)[-1] == (4, RecordKind.CLOSE)
