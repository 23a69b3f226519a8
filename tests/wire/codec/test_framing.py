"""`FrameDecoder`: the same commands whatever the pieces, the same errors with either codec, the end after an error."""

import struct
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.wire import (
    COMMANDS,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    AppendBlock,
    AppendBlockEnd,
    BadField,
    Command,
    DataAppended,
    FrameDecoder,
    FrameTooLarge,
    KeepAlive,
    PartialEvent,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    Truncated,
    Unknown,
    UnknownCommand,
    WireError,
    encode,
)
from segstore.wire.codec import CODECS, Codec, FrameMemory, framing
from segstore.wire.codec.generate import FrameRows
from tests.looped import looped
from tests.strategies import as_read, command_of, commands, framed, mutated
from tests.wire.agreement import read_by_schema, refusal

EACH_CODEC = looped("codec", CODECS)
PAYLOADS = (AppendBlock, AppendBlockEnd, DataAppended)
"""Commands that are short or mostly payload: decoding one is quick, whatever its size."""
KINDS = st.sampled_from((bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))))


def header(code: int, length: int) -> bytes:
    return struct.pack(">iI", code, length % (1 << 32))


@st.composite
def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data in pieces of any size, empty ones among them."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    near = draw(st.integers(0, 12))
    cuts = sorted({*cuts, min(near, len(data))}) if draw(st.booleans()) else cuts
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


OFTEN = (AppendBlock, AppendBlockEnd, DataAppended, SegmentRead, ReadSegment)
OFTEN_OR_ANY = st.one_of(st.sampled_from(OFTEN).flatmap(command_of), commands())


@given(st.lists(OFTEN_OR_ANY, max_size=6), KINDS, st.data())
def test_any_pieces_of_any_frames_give_the_same_commands(values: list[Command], kind: Any, data: st.DataObject) -> None:
    stream = b"".join(map(encode, values))
    pieces = data.draw(chunked(stream))
    for codec in CODECS:
        decoder = FrameDecoder(codec=codec)
        found = []
        for piece in pieces:
            # as_read copies: payloads of a call are only valid until the next
            found += [as_read(command) for command in decoder.feed(kind(piece))]
        assert found == [as_read(value) for value in values]
        assert decoder.buffered_bytes == 0


@given(st.lists(OFTEN_OR_ANY, min_size=1, max_size=4), st.binary(max_size=40))
def test_only_the_first_bytes_of_a_larger_buffer_are_taken(values: list[Command], behind: bytes) -> None:
    stream = b"".join(map(encode, values))
    for buffer in (stream + behind, bytearray(stream + behind), memoryview(stream + behind)):
        decoder = FrameDecoder()
        assert decoder.feed(buffer, len(stream)) == [as_read(value) for value in values]
        assert decoder.feed(buffer, 0) == []
        assert decoder.buffered_bytes == 0
        assert decoder.feed(buffer, len(stream) - 1) == [as_read(value) for value in values[:-1]]
        assert decoder.buffered_bytes == len(encode(values[-1])) - 1


@given(st.lists(OFTEN_OR_ANY, max_size=6), st.integers(1, 3), st.integers(8, 200), st.integers(0, 40), KINDS)
def test_steps_give_all_commands_and_end_behind_a_heavy_one(
    values: list[Command], most: int, heavy: int, cut: int, kind: Any
) -> None:
    stream = b"".join(map(encode, values))
    end = max(0, len(stream) - cut)
    for codec in CODECS:
        decoder, at, found = FrameDecoder(codec=codec), 0, []
        with patch.object(framing, "_HEAVY_BYTES", heavy):
            while at < end:
                step = [as_read(command) for command in decoder.feed(kind(stream), end, at, most=most)]
                assert len(step) <= most
                assert all(len(encode(each)) <= heavy or isinstance(each, PAYLOADS) for each in step[:-1])
                assert decoder.position > at
                at, found = decoder.position, found + step
        found += [as_read(command) for command in decoder.feed(stream[end:])]
        assert found == [as_read(value) for value in values]


@settings(max_examples=300)
@given(
    st.lists(OFTEN_OR_ANY, min_size=1, max_size=4).flatmap(lambda values: mutated(b"".join(map(encode, values)))),
    st.sampled_from((MAX_FRAME_BYTES, 100, 1000)),
    KINDS,
    st.data(),
)
def test_a_broken_stream_gives_its_good_commands_then_its_error(
    stream: bytes, limit: int, kind: Any, data: st.DataObject
) -> None:
    commands_before, error, left = read_by_schema(stream, limit)
    pieces = data.draw(chunked(stream))
    for codec in CODECS:
        decoder = FrameDecoder(max_frame_bytes=limit, codec=codec)
        found: list[Command] = []
        failed: WireError | None = None
        for piece in pieces:
            try:
                found += map(as_read, decoder.feed(kind(piece)))
            except WireError as caught:
                failed = caught
                found += map(as_read, caught.decoded)
                break
        assert found == list(map(as_read, commands_before))
        if error is None:
            assert failed is None
            assert decoder.buffered_bytes == left
            continue
        assert type(failed) is error[0]
        assert failed.code == error[1] if type(failed) is FrameTooLarge else (str(failed), failed.facts()) == error[1:]
        assert decoder.buffered_bytes == 0


@EACH_CODEC
def test_a_frame_of_the_greatest_length_passes(codec: Codec) -> None:
    frame = encode(PartialEvent(bytes(MAX_FRAME_BYTES - HEADER_BYTES)))
    assert len(frame) == 16_777_215
    decoder = FrameDecoder(codec=codec)
    (whole,) = decoder.feed(frame)
    assert isinstance(whole, PartialEvent)
    assert len(whole.data) == MAX_FRAME_BYTES - HEADER_BYTES
    for start in range(0, len(frame), 1 << 20):
        found = decoder.feed(frame[start : start + (1 << 20)])
    assert found == [whole]


@EACH_CODEC
@looped("pieces", [1, 2, 8])
@looped("length", [MAX_FRAME_BYTES - HEADER_BYTES + 1, (1 << 31) - 1, -1, -8, -9, -(1 << 31)])
@looped("code", [PartialEvent.code, OFTEN[0].code, 4711])
def test_a_longer_frame_is_refused_on_its_header(codec: Codec, pieces: int, length: int, code: int) -> None:
    start = header(code, length)
    decoder = FrameDecoder(codec=codec, unknown="keep")
    for at in range(0, 8 - 8 // pieces, 8 // pieces):
        assert decoder.feed(start[at : at + 8 // pieces]) == []
    with pytest.raises(FrameTooLarge) as caught:
        decoder.feed(start[8 - 8 // pieces :])
    error = caught.value
    assert (error.code, error.field, error.offset, error.limit) == (code, "length", 4, MAX_FRAME_BYTES)
    assert error.actual == length % (1 << 32) + HEADER_BYTES
    assert decoder.buffered_bytes == 0


@EACH_CODEC
@given(value=st.one_of(*map(command_of, OFTEN), commands()).filter(lambda value: len(encode(value)) < 1000), kind=KINDS)
def test_a_lower_limit_holds_for_every_command_and_counts_the_header(codec: Codec, value: Command, kind: Any) -> None:
    frame = encode(value)
    assert FrameDecoder(max_frame_bytes=len(frame), codec=codec).feed(kind(frame)) == [as_read(value)]
    for piece in (frame, frame * 2, frame[:8]):
        with pytest.raises(FrameTooLarge) as caught:
            FrameDecoder(max_frame_bytes=len(frame) - 1, codec=codec).feed(kind(piece))
        assert (caught.value.limit, caught.value.actual) == (len(frame) - 1, len(frame))
        assert list(caught.value.decoded) == []


@EACH_CODEC
@looped(
    ("bad", "kind"),
    [
        (framed(21, b"\0" * 3), Truncated),
        (framed(21, b"\0" * 8 + b"\0\1\xff"), BadField),
        (framed(0, b""), UnknownCommand),
        (framed(4711, b"x"), UnknownCommand),
        (header(21, MAX_FRAME_BYTES), FrameTooLarge),
    ],
)
@looped("split", [0, 3, 8, 10])
def test_an_error_carries_what_came_before_it_and_ends_the_decoder(
    codec: Codec, bad: bytes, kind: type[WireError], split: int
) -> None:
    good = encode(SegmentCreated(1, "s")) + encode(KeepAlive())
    decoder = FrameDecoder(codec=codec)
    assert decoder.feed(bad[: min(split, 7)]) == []
    decoder = FrameDecoder(codec=codec)
    with pytest.raises(kind) as first:
        decoder.feed(good + bad + good)
    assert list(first.value.decoded) == [SegmentCreated(1, "s"), KeepAlive()]
    for more in (good, b"", bad):
        with pytest.raises(kind) as again:
            decoder.feed(more)
        assert (str(again.value), again.value.facts()) == (str(first.value), first.value.facts())
        assert list(again.value.decoded) == []
        assert decoder.buffered_bytes == 0
    assert list(first.value.decoded) == [SegmentCreated(1, "s"), KeepAlive()], "a later feed does not take them back"


def test_a_failed_decoder_keeps_neither_the_bytes_nor_the_commands() -> None:
    data = bytearray(encode(PartialEvent(b"payload")) + framed(0, b""))
    decoder = FrameDecoder()
    refused = refusal(lambda: decoder.feed(data))
    assert refused is not None
    del refused
    data.clear()  # a BufferError if anything still views it
    again = [refusal(lambda: decoder.feed(b"")) for _ in range(3)]
    lengths = []
    for error in again:
        length, trace = 0, error.__traceback__
        while trace is not None:
            length, trace = length + 1, trace.tb_next
        lengths.append(length)
    assert len(set(lengths)) == 1, "tracebacks do not pile up"


@EACH_CODEC
@given(data=st.data())
def test_unknown_codes_are_kept_whole_where_asked_for(codec: Codec, data: st.DataObject) -> None:
    code = data.draw(st.integers(-(1 << 31), (1 << 31) - 1).filter(lambda code: code not in COMMANDS or code == 0))
    body = data.draw(st.binary(max_size=30))
    stream = encode(KeepAlive()) + framed(code, body) + encode(KeepAlive())
    decoder = FrameDecoder(unknown="keep", codec=codec)
    found: list[Any] = []
    for piece in data.draw(chunked(stream)):
        fed = decoder.feed(piece)
        found += [Unknown(each.code, bytes(each.data)) if type(each) is Unknown else each for each in fed]
    assert found == [KeepAlive(), Unknown(code, body), KeepAlive()]
    with pytest.raises(UnknownCommand) as caught:
        FrameDecoder(codec=codec).feed(stream)
    assert list(caught.value.decoded) == [KeepAlive()]


def test_payloads_view_the_data_that_was_fed_and_the_decoder_lets_go_of_it() -> None:
    data = bytearray(encode(PartialEvent(b"first")) + encode(PartialEvent(b"second"))[:9])
    decoder = FrameDecoder()
    (command,) = decoder.feed(data)
    assert isinstance(command, PartialEvent)
    assert isinstance(command.data, memoryview)
    assert command.data.obj is data
    del command
    data.clear()  # a BufferError if the decoder still viewed it
    assert decoder.buffered_bytes == 9


def received(decoder: FrameDecoder, data: bytes, sizes: list[int], buffer: bytearray) -> list[Command]:
    """The commands of data that comes in reads of these sizes at most, into the decoder's room or else the buffer."""
    found: list[Command] = []
    at = 0
    for size in [*sizes, *[len(data)] * (len(data) + 1)]:
        where = memoryview(buffer) if decoder.room is None else decoder.room
        read = data[at : at + min(size, len(where))]
        where[: len(read)] = read
        found += map(as_read, decoder.feed(where, len(read)))
        at += len(read)
        assert decoder.room is None or len(decoder.room) > 0
        if at == len(data):
            break
    return found


@EACH_CODEC
@given(
    values=st.lists(OFTEN_OR_ANY, max_size=6),
    sizes=st.lists(st.integers(1, 40), max_size=30),
    longer_than=st.integers(8, 60),
    size=st.integers(1, 60),
)
def test_long_frames_received_in_place_are_the_same(
    codec: Codec, values: list[Command], sizes: list[int], longer_than: int, size: int
) -> None:
    stream, memory = b"".join(map(encode, values)), FrameMemory(longer_than=longer_than)
    decoder = FrameDecoder(codec=codec, memory=memory)
    expected = [as_read(value) for value in values]
    assert received(decoder, stream, sizes, bytearray(size)) == expected
    assert (decoder.buffered_bytes, decoder.room) == (0, None)
    found = []
    for at in range(0, len(stream), size):  # fed from elsewhere
        found += map(as_read, decoder.feed(stream[at : at + size]))
    assert found == expected


@EACH_CODEC
@looped("cut", [3, 8, 9, 60])
def test_a_long_frame_is_held_in_its_memory_alone(codec: Codec, cut: int) -> None:
    frame = encode(PartialEvent(bytes(range(100))))
    decoder = FrameDecoder(codec=codec, memory=FrameMemory(longer_than=50))
    held = []
    for number in range(5):
        assert decoder.feed(frame[:cut]) == []
        assert decoder.buffered_bytes == cut
        begun = cut
        if cut < HEADER_BYTES:
            assert decoder.room is None
            begun = HEADER_BYTES + 1
            assert decoder.feed(frame[cut:begun]) == []
        room = decoder.room
        assert len(room) == len(frame) - begun
        room[:] = frame[-len(room) :]
        room[-1] = number
        held += decoder.feed(room)
        assert (decoder.buffered_bytes, decoder.room) == (0, None)
    last = []
    for each in held:
        assert isinstance(each, PartialEvent)
        last.append(each.data[-1])
    assert last == list(range(5)), "payloads stay valid while they are held"


@EACH_CODEC
def test_a_long_frame_that_is_wrong_ends_the_decoder_and_leaves_its_memory(codec: Codec) -> None:
    memory = FrameMemory(longer_than=50)
    decoder = FrameDecoder(codec=codec, memory=memory)
    decoder.feed(framed(4711, bytes(100))[:70])
    room = decoder.room
    used = room.obj
    with pytest.raises(UnknownCommand):
        decoder.feed(room)
    assert (decoder.buffered_bytes, decoder.room) == (0, None)
    with pytest.raises(UnknownCommand):
        decoder.feed(b"")
    del room
    again = memory.take(100)
    assert again.obj is used


def test_a_frame_longer_than_any_memory_is_held_as_it_comes() -> None:
    frame = encode(PartialEvent(bytes(3 << 20)))
    decoder = FrameDecoder(memory=FrameMemory(longer_than=50))
    assert decoder.feed(frame[:1000]) == []
    assert (decoder.buffered_bytes, decoder.room) == (1000, None)
    assert list(map(encode, decoder.feed(frame[1000:]))) == [frame]


ACKS = command_of(DataAppended)


def in_full(items: list[Any]) -> list[Command]:
    """The commands, those that came in rows among them."""
    found: list[Command] = []
    for item in items:
        if type(item) is FrameRows:
            for writer, number, previous, request_id, length in item.fields:
                found.append(DataAppended(request_id, UUID(bytes=writer), number, previous, length))
        else:
            found.append(as_read(item))
    return found


@given(st.lists(ACKS, min_size=2, max_size=4).flatmap(lambda values: mutated(b"".join(map(encode, values)))))
def test_what_is_wrong_among_acknowledgements_is_found_in_rows_too(stream: bytes) -> None:
    heard = []
    for decoder in (FrameDecoder(), FrameDecoder(acks_in_rows=True)):
        try:
            heard.append((in_full(decoder.feed(stream)), None, decoder.buffered_bytes))
        except WireError as error:
            heard.append((in_full(list(error.decoded)), str(error), 0))
    assert heard[0] == heard[1]


AREA = 64 * 1024


def area(view: memoryview | None) -> object:
    """The memory that a view is of."""
    return view.obj


def test_memory_is_reused_when_no_view_of_it_is_left() -> None:
    memory = FrameMemory(longer_than=9)
    first = memory.take(100)
    part = first[50:]
    used = area(first)
    assert area(memory.take(100)) is not used
    del first
    part[0] = 7
    others = [memory.take(100) for _ in range(3)]
    assert used not in map(area, others)
    assert part[0] == 7
    del part, others
    assert area(memory.take(AREA)) is used, "any size that it has"
    longer = memory.take(AREA + 1)
    assert len(longer) == AREA + 1
    assert area(longer) is not used


@looped(("size", "has_some"), [(0, False), (9, False), (10, True), (2 << 20, True), (3 << 20, False)])
def test_only_long_frames_of_a_bounded_size_get_some(size: int, has_some: bool) -> None:
    taken = FrameMemory(longer_than=9).take(size)
    assert (taken is not None) is has_some
    assert taken is None or len(taken) == size


def test_at_most_eight_areas_are_kept() -> None:
    memory = FrameMemory(longer_than=9)
    held = [memory.take(10) for _ in range(20)]
    areas = {id(area(each)) for each in held}
    assert len(areas) == 20
    last = [area(each) for each in held[-8:]]
    held.clear()
    found = [memory.take(10) for _ in range(8)]
    assert [area(each) for each in found] == last
