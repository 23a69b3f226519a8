"""Whole appends of one size as rows: what a row says is what the frames say, and what is no whole append looks so."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import AppendBlock, AppendBlockEnd, Command, FrameDecoder, KeepAlive, encode
from segstore.wire.codec import AppendRows
from segstore.wire.schema import MAX_FRAME_BYTES

WRITER = UUID(int=(1 << 127) + 5)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
ROW_BYTES = 4096


def whole(data: bytes, *, writer: UUID = WRITER, number: int = 1, events: int = 1, request_id: int = 1) -> bytes:
    end = AppendBlockEnd(writer, len(data), b"", events, number, request_id)
    return encode(AppendBlock(writer, data)) + encode(end)


def rows_of(frames: bytes, limit: int = MAX_FRAME_BYTES) -> AppendRows | None:
    return FrameDecoder(join_appends=True, max_frame_bytes=limit).append_rows(memoryview(frames))


def is_whole(rows: AppendRows, row: tuple[bytes | int, ...], writer: UUID = WRITER) -> bool:
    header, id_bytes, _, end_header, end_id, sizes, *_ = row
    return (header, end_header, sizes) == rows.same and id_bytes == end_id == writer.bytes


@given(st.uuids(), st.binary(max_size=40), st.lists(st.tuples(int64, int32, int64), min_size=1, max_size=5))
def test_a_row_says_what_the_frames_say(writer: UUID, data: bytes, appends: list[tuple[int, int, int]]) -> None:
    frames = b"".join(
        whole(data, writer=writer, number=number, events=events, request_id=request_id)
        for number, events, request_id in appends
    )
    rows = rows_of(frames + b"beginning")
    assert rows is not None
    assert rows.size * len(appends) == len(frames)
    found = list(rows.rows)
    assert all(is_whole(rows, row, writer) for row in found)
    assert [(row[2], row[7], row[6], row[8]) for row in found] == [(data, *append) for append in appends]


OTHERS: list[tuple[Command, Command]] = [
    (AppendBlock(WRITER, b"1234"), AppendBlockEnd(WRITER, 3, b"", 1, 1, 1)),
    (AppendBlock(WRITER, b"1234"), AppendBlockEnd(WRITER, 4, b"tail", 1, 1, 1)),
    (AppendBlock(WRITER, b"1234"), AppendBlockEnd(UUID(int=1), 4, b"", 1, 1, 1)),
    (AppendBlock(UUID(int=1), b"1234"), AppendBlockEnd(WRITER, 4, b"", 1, 1, 1)),
    (AppendBlock(WRITER, b"1234"), AppendBlock(WRITER, b"1234" * 8)),
    (AppendBlock(WRITER, b"12345"), AppendBlockEnd(WRITER, 5, b"", 1, 1, 1)),
]


def test_what_is_no_whole_append_of_that_size_does_not_look_like_one() -> None:
    for block, end in OTHERS:
        rows = rows_of(whole(b"1234") + encode(block) + encode(end) + bytes(80))
        assert rows is not None
        first, second, *_ = rows.rows
        assert is_whole(rows, first)
        assert not is_whole(rows, second)


def test_there_are_no_rows_where_no_whole_append_of_few_bytes_is() -> None:
    frames = whole(b"1234")
    assert rows_of(b"") is None
    beginning = rows_of(frames[:-1])
    assert beginning is not None
    assert list(beginning.rows) == []
    assert rows_of(frames[60:] + frames) is None
    assert rows_of(encode(KeepAlive()) + frames) is None
    assert rows_of(whole(bytes(ROW_BYTES + 1))) is None
    assert rows_of(frames, limit=43 + 8) is None
    assert rows_of(whole(bytes(100)), limit=115 + 8) is None
    negative = AppendBlock.code.to_bytes(4, "big") + (-1).to_bytes(4, "big", signed=True) + bytes(100)
    assert rows_of(negative) is None
    assert rows_of(AppendBlock.code.to_bytes(4, "big") + bytes(100)) is None


def test_a_decoder_goes_on_where_the_rows_that_were_taken_end() -> None:
    frames = whole(b"1234", number=1) + whole(b"5678", number=2) + encode(KeepAlive())
    decoder, read = FrameDecoder(join_appends=True), memoryview(frames)
    rows = decoder.append_rows(read)
    assert rows is not None
    first, last = decoder.feed(frames, len(frames), rows.size)
    assert first == FrameDecoder(join_appends=True).feed(whole(b"5678", number=2))[0]
    assert last == KeepAlive()
    assert decoder.append_rows(read) is not None
    decoder.feed(frames[:3])
    assert decoder.append_rows(read) is None


def test_a_decoder_that_does_not_join_appends_has_no_rows() -> None:
    frames = whole(b"1234")
    assert FrameDecoder().append_rows(memoryview(frames)) is None
