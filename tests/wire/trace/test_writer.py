"""Streams of bytes become records: every byte once, frames whole, in order, in time."""

import random
import weakref
from array import array
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.trace import (
    SECRET_CODES,
    Damage,
    Direction,
    Record,
    RecordKind,
    TraceWriter,
    event_data,
    read_blocks,
    read_records,
    redact,
)
from tests.looped import looped
from tests.wire.trace.traces import MARK, METADATA, frame, whole_frames

FRAME, OPEN, CLOSE, BYTES, CALL = RecordKind
REQUEST, REPLY = Direction


def a_writer(**settings: int) -> TraceWriter:
    return TraceWriter(MARK, METADATA, **settings)


def read(*blocks: bytes) -> list[Record]:
    found = list(read_records(b"".join(blocks)))
    assert not any(isinstance(each, Damage) for each in found)
    return [each for each in found if isinstance(each, Record)]


def test_what_happens_on_connections_is_recorded_with_times() -> None:
    writer = a_writer()
    writer.opened(10, 1, peer="127.0.0.1:4711")
    writer.add(11, 1, REQUEST, frame(100))
    writer.add(12, 1, REPLY, frame(100) + frame(9, b"x"))
    writer.closed(13, 1, REPLY, reason="it broke the protocol")
    assert read(writer.start(), writer.finish(14)) == [
        Record(10, 1, REQUEST, OPEN, event_data(peer="127.0.0.1:4711")),
        Record(11, 1, REQUEST, FRAME, frame(100)),
        Record(12, 1, REPLY, FRAME, frame(100)),
        Record(12, 1, REPLY, FRAME, frame(9, b"x")),
        Record(13, 1, REPLY, CLOSE, event_data(reason="it broke the protocol")),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(Direction), whole_frames()), max_size=12),
    st.lists(st.integers(1, 30), min_size=1),
    st.sampled_from((1, 40, 1 << 20)),
    st.booleans(),
)
def test_frames_come_out_whole_in_whatever_pieces_they_came(
    drawn: list[tuple[int, Direction, bytes]], sizes: list[int], block_bytes: int, closing: bool
) -> None:
    """Pieces of several streams, interleaved; the last frame of one stream stays half."""
    writer = a_writer(block_bytes=block_bytes)
    out, clock, turn = [writer.start()], 0, 0
    queues: dict[tuple[int, Direction], bytes] = {}
    for connection, direction, data in drawn:
        queues[connection, direction] = queues.get((connection, direction), b"") + data
    sent = dict(queues)
    while any(queues.values()):
        key = [key for key, left in queues.items() if left][turn % sum(map(bool, queues.values()))]
        size = sizes[turn % len(sizes)]
        turn, clock = turn + 1, clock + 1
        piece, queues[key] = queues[key][:size], queues[key][size:]
        if writer.add(clock, *key, piece):
            out.append(writer.take())
    for key in sent:
        writer.add(clock, *key, frame(9, b"half")[:-1])
    if closing:
        for connection in {key[0] for key in sent}:
            writer.closed(clock, connection)
    out.append(writer.finish(clock))
    found = [each for each in read(*out) if each.kind is not CLOSE]
    for key in sent:
        mine = [each for each in found if (each.connection, each.direction) == key]
        assert [each.data for each in mine if each.kind is FRAME] == [data for *way, data in drawn if tuple(way) == key]
        assert [each.data for each in mine if each.kind is BYTES] == [frame(9, b"half")[:-1]]
        assert mine[-1].kind is BYTES
        assert [each.ts_ns for each in mine] == sorted(each.ts_ns for each in mine)


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=40)), max_size=10), st.integers(8, 50))
def test_each_byte_of_a_stream_is_recorded_once_and_in_order(drawn: list[tuple[bool, bytes]], longest: int) -> None:
    writer = a_writer(max_frame_bytes=longest)
    out = [writer.start()]
    for flush, data in drawn:
        writer.add(1, 1, REQUEST, data)
        if flush:
            out.append(writer.take())
    found = read(*out, writer.finish(2))
    assert b"".join(each.data for each in found) == b"".join(data for _, data in drawn)
    for each in found:
        if each.kind is FRAME:
            assert int.from_bytes(each.data[4:8], "big") == len(each.data) - 8 <= longest - 8


def test_memory_is_used_again_only_after_it_was_given_out() -> None:
    writer, out = a_writer(block_bytes=100), [a_writer().start()]
    sent = [frame(index, bytes([index]) * size) for index, size in enumerate((10, 90, 5, 300_000, 20, 80, 3))]
    for data in sent:
        if writer.add(1, 1, REQUEST, memoryview(bytearray(data))):
            out += [bytes(part) for part in writer.take_parts()]
    assert [each.data for each in read(*out, writer.finish(2))] == sent


def test_a_frame_has_the_time_of_its_last_byte() -> None:
    writer = a_writer()
    for index, byte in enumerate(frame(9, b"abc")):
        writer.add(index, 1, REQUEST, bytes((byte,)))
    assert read(writer.start(), writer.finish(99)) == [Record(10, 1, REQUEST, FRAME, frame(9, b"abc"))]


@looped("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", (101).to_bytes(4, "big")])
def test_after_an_impossible_length_the_rest_of_a_stream_is_bytes(length: bytes) -> None:
    writer = a_writer(max_frame_bytes=108)
    writer.add(1, 1, REQUEST, frame(100) + b"\0\0\0\x09" + length + b"rest")
    writer.add(2, 1, REQUEST, frame(100))
    writer.add(3, 1, REPLY, frame(100))
    writer.closed(4, 1)
    writer.add(5, 1, REQUEST, frame(100))
    found = read(writer.start(), writer.finish(6))
    assert [(each.ts_ns, each.kind, each.data) for each in found if each.kind is not CLOSE] == [
        (1, FRAME, frame(100)),
        (1, BYTES, b"\0\0\0\x09" + length + b"rest"),
        (2, BYTES, frame(100)),
        (3, FRAME, frame(100)),
        (5, FRAME, frame(100)),
    ]


def test_a_block_is_due_when_it_is_full_and_when_it_is_old() -> None:
    writer = a_writer(block_bytes=100, flush_after_ns=50)
    assert not writer.due(10**9)
    assert not writer.add(1000, 1, REQUEST, frame(100, bytes(40)))
    assert writer.add(1001, 1, REQUEST, frame(100, bytes(50)))
    assert writer.take()
    assert not writer.due(10**9)
    assert not writer.add(2000, 1, REQUEST, frame(100))
    assert (writer.due(2049), writer.due(2050)) == (False, True)
    assert writer.due(1999), "the clock was set back"
    assert writer.add(2050, 1, REQUEST, frame(100))


@looped("times", [(5, 3, 9, 4), (-1, -9, -3, -9), (7,)])
def test_a_block_says_its_earliest_and_its_latest_time(times: tuple[int, ...]) -> None:
    for size in (0, 5000):
        writer = a_writer()
        for time in times:
            writer.add(time, 1, REQUEST, frame(100, bytes(size)))
        _, block = read_blocks(writer.start() + writer.finish(99))
        assert (block.header.first_ts_ns, block.header.last_ts_ns) == (min(times), max(times))


def test_pieces_that_find_no_room_in_the_memory_are_in_order_and_empty_ones_change_nothing() -> None:
    writer = TraceWriter(MARK, METADATA, memory=bytearray(60))
    sent: list[tuple[int, int, bytes]] = []
    for number in range(40):
        data = frame(100, bytes((number,)) * (number % 30))
        sent.append((number % 3, number % 2, data))
        writer.add(number, number % 3, number % 2, data)
        writer.add(number, 3, REQUEST, b"")
    found = read(writer.start(), writer.finish(50))
    assert [(each.connection, each.direction, each.data) for each in found] == sent


def test_room_is_left_for_the_start_of_a_frame_that_came_in_small_pieces() -> None:
    memory = bytearray(64 * 1024)
    writer = TraceWriter(MARK, METADATA, memory=memory)
    long, short = frame(1, bytes(46_000)), frame(2, b"short")
    for at in range(0, 20_000, 4_000):
        writer.add(1, 1, REQUEST, long[at : at + 4_000])
        writer.add(2, 2, REQUEST, short)
    assert writer.room(2, REQUEST) - writer.room(1, REQUEST) == 20_000
    assert len(long) - 20_000 < writer.room(1, REQUEST) < len(long)
    writer.add(3, 1, REQUEST, long[20_000:])
    pending = writer.take_pending()
    assert all(getattr(each, "obj", None) is memory for each in pending.data)


def in_pieces(chance: random.Random, frames: dict[tuple[int, Direction], list[bytes]]) -> Iterator[tuple[Any, ...]]:
    """Calls of `add` with streams in pieces, most of which last."""
    left, clock = {key: b"".join(each) for key, each in frames.items()}, 0
    while left:
        key, clock = chance.choice(list(left)), clock + 1
        size = chance.choice((7, 3_000, 65_536, 200_000, 500_000))
        piece, left[key] = memoryview(left[key][:size]), left[key][size:]
        if not left[key]:
            del left[key]
        yield clock, *key, piece, chance.random() < 0.8


def long_frames(chance: random.Random, *codes: int) -> dict[tuple[int, Direction], list[bytes]]:
    sizes = (5, 40_000, 70_000, 300_000, 900_000)
    return {
        (number, way): [frame(chance.choice(codes), chance.randbytes(chance.choice(sizes))) for _ in range(5)]
        for number in (1, 2)
        for way in Direction
    }


@looped("seed", range(6))
def test_long_frames_come_out_whole_and_without_their_tokens_however_they_came(seed: int) -> None:
    chance = random.Random(seed)
    writer = TraceWriter(MARK, METADATA, redact=redact, redact_codes=SECRET_CODES)
    frames = long_frames(chance, 3, 28)
    out = [writer.start()]
    for call in in_pieces(chance, frames):
        writer.add(*call)
        if chance.random() < 0.3:
            out.append(writer.take())
    found = read(*out, writer.finish(1_000_000))
    for key, sent in frames.items():
        mine = [each.data for each in found if (each.connection, each.direction) == key]
        assert mine == [redact(each) for each in sent]


def test_long_parts_that_last_are_not_copied() -> None:
    writer, data = a_writer(), frame(3, bytes(900_000)) + frame(3, bytes(100))
    sizes, at = (10, 100_000, 65_536, 65_535, 300_000, 5, len(data)), 0
    kept = []
    for size in sizes:
        before = writer.pieces
        writer.add(1, 1, REQUEST, memoryview(data)[at : at + size], True)
        kept.append(writer.pieces > before)
        at += size
    pending = writer.take_pending()
    assert kept == [False, True, True, False, True, False, True]
    in_place = [len(each) for each in pending.data if isinstance(each, memoryview) and each.obj is data]
    assert in_place == [100_000, 65_536, 300_000, 900_008 - 531_086]
    assert [column.data for column in pending.columns()] == [data[:900_008], data[900_008:]]


@looped("seed", range(6))
def test_the_memory_that_incomplete_frames_are_in_is_bounded_and_no_byte_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    writer = a_writer(most_held_bytes=600_000)
    frames, lent, out = long_frames(chance, 3), list[weakref.ref[Any]](), [writer.start()]
    for clock, connection, direction, data, lasting in in_pieces(chance, frames):
        area = array("B", bytes(data) + bytes(200_000))
        lent.append(weakref.ref(area))
        writer.add(clock, connection, direction, memoryview(area)[: len(data)], lasting)
        del area
        out.append(writer.take())
        assert sum(len(each) for get in lent if (each := get()) is not None) <= 600_000
    found = read(*out, writer.finish(1_000_000))
    for key, sent in frames.items():
        mine = [each.data for each in found if (each.connection, each.direction) == key]
        assert b"".join(mine) == b"".join(sent)


def test_frames_are_redacted_before_they_are_kept() -> None:
    seen = []

    def stars(data: bytes, whole: bool) -> bytes:
        seen.append((data, whole))
        return b"*" * len(data)

    writer = TraceWriter(MARK, METADATA, redact=stars, redact_codes={9})
    writer.add(1, 1, REQUEST, frame(9, b"a"))
    writer.add(1, 1, REPLY, frame(100))
    writer.add(2, 1, REQUEST, frame(100) + frame(9, b"b") + frame(9, b"c") + frame(9, b"half")[:-1])
    found = read(writer.start(), writer.finish(3))
    assert seen == [*((frame(9, each), True) for each in (b"a", b"b", b"c")), (frame(9, b"half")[:-1], False)]
    assert [each.data for each in found if each.data != frame(100)] == [b"*" * 9, b"*" * 9, b"*" * 9, b"*" * 11]
    assert len(found) == 6


def test_bytes_of_replies_are_kept_as_they_are() -> None:
    writer = TraceWriter(MARK, METADATA, redact=redact, redact_codes=SECRET_CODES)
    oversized = b"\0\0\0\x4b\x7f\xff\xff\xff" + bytes(range(256))
    for direction in (REQUEST, REPLY):
        writer.add(1, 1, direction, oversized)
    found = read(writer.start(), writer.finish(2))
    assert {each.direction: each.data for each in found} == {REQUEST: b"*" * len(oversized), REPLY: oversized}


def test_the_start_of_a_request_has_no_token_in_the_wrong_direction_either() -> None:
    writer = TraceWriter(MARK, METADATA, redact=redact, redact_codes=SECRET_CODES)
    whole = frame(28, bytes(8) + b"\0\x01s\0\x05token")
    writer.add(1, 1, REPLY, whole[:-2])
    (found,) = read(writer.start(), writer.finish(2))
    assert found.data == whole[:-5] + b"***"
