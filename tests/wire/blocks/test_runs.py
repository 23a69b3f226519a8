"""Whole appends in runs: what comes out of a connection does not depend on them, nor on the codec."""

from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    DataAppended,
    Event,
    FrameDecoder,
    KeepAlive,
    Padding,
    PartialEvent,
    SetupAppend,
    encode,
)
from segstore.wire.blocks import WHOLE_APPENDS, AppendBlockDecoder, BlockWriter
from segstore.wire.codec import CODECS, Codec, codec_backend, runs_at
from segstore.wire.codec.generate import FrameRows
from tests.looped import looped
from tests.wire.blocks.served import served

WRITERS = [UUID(int=1), UUID(int=(1 << 128) - 1)]
BLOCK = AppendBlock(WRITERS[0], b"events")
END = AppendBlockEnd(WRITERS[0], 6, b"", 2, 9, 7)
EMPTY = AppendBlock(WRITERS[0], b"")
needs_c = pytest.mark.needs("the codec c")


def block_decoder() -> AppendBlockDecoder:
    made = AppendBlockDecoder()
    made.feed_all(SetupAppend(1, writer, f"s/t/{at}", "") for at, writer in enumerate(WRITERS))
    return made


def whole(number: int, writer: UUID = WRITERS[0], events: int = 1, data: bytes = b"data") -> bytes:
    end = AppendBlockEnd(writer, len(data), b"", events, number, number + 100)
    return encode(AppendBlock(writer, data)) + encode(end)


def fed(
    codec: Codec, *frames: bytes, blocks: AppendBlockDecoder | None = None, changed: bool = False
) -> tuple[list[Any], int]:
    """What one step gives, runs with the writers' places and data copied, and how many frames are left."""
    blocks, stream = blocks or block_decoder(), b"".join(frames)
    decoder = FrameDecoder(codec=codec, joined=WHOLE_APPENDS)
    found: list[Any] = []
    for item in decoder.feed(stream, most=9, records=blocks.writers, changed=changed):
        if isinstance(item, list):
            rows = [(WRITERS.index(w.writer_id), [(n, c, bytes(d), i) for n, c, d, i in rows]) for w, rows in item]
            found.append(rows)
        else:
            found.append(item)
    return found, len(FrameDecoder().feed(stream[decoder.position :]))


@looped("codec", CODECS)
def test_appends_of_one_writer_that_follow_each_other_are_one_run(codec: Codec) -> None:
    blocks = block_decoder()
    row = [(number, 1, b"data", number + 100) for number in (1, 2, 3)]
    found, left = fed(codec, whole(1), whole(2), whole(2, WRITERS[1]), whole(3), blocks=blocks)
    assert (found, left) == ([[(0, row[:2]), (1, [row[1]]), (0, [row[2]])]], 0)
    assert [writer.last_event_number for writer in blocks.writers.values()] == [3, 2]


@needs_c
def test_acknowledgements_in_rows_end_the_runs_before_them() -> None:
    ack = encode(DataAppended(1, WRITERS[0], 3, 2, 100))
    decoder = FrameDecoder(joined=WHOLE_APPENDS, acks_in_rows=True)
    found: list[Any] = decoder.feed(whole(1) + ack + ack + whole(2), records=block_decoder().writers)
    assert [type(each) for each in found] == [list, FrameRows, list]
    assert [rows[0][0] for _, rows in (*found[0], *found[2])] == [1, 2]


def test_runs_end_where_something_else_begins() -> None:
    acks = [encode(DataAppended(1, WRITERS[0], number, number - 1, 100)) for number in (1, 2)]
    stream = b"".join((whole(1), whole(2), *acks, encode(KeepAlive()), whole(3)))
    start = len(whole(1)) + len(whole(2))
    runs, stop = runs_at(memoryview(stream), 0, joined=WHOLE_APPENDS, records=block_decoder().writers)
    rows, behind = runs_at(memoryview(stream), start, joined=None, records=None)
    assert ([row[0] for _, rows in runs[0] for row in rows], stop) == ([1, 2], start)
    if codec_backend == "c":
        assert [fields[1] for each in rows for fields in each.fields] == [1, 2]
        assert behind == start + 2 * len(acks[0])
        assert runs_at(memoryview(stream), behind, joined=None, records=None) == ([], behind)
    else:
        assert (rows, behind) == ([], start)


@looped("codec", CODECS)
@looped(
    "change",
    [
        encode(SetupAppend(1, WRITERS[0], "s/t/0", "")),
        encode(ConditionalAppend(WRITERS[0], 5, -1, Event(b"x"), 1)),
        encode(Padding(3)),
    ],
)
def test_a_step_ends_before_an_append_whose_writer_may_have_changed(change: bytes, codec: Codec) -> None:
    found, left = fed(codec, whole(1), change, encode(KeepAlive()), whole(2), whole(3))
    assert ([type(each) for each in found[:1]], len(found), left) == ([list], 3, 4)
    found, left = fed(codec, whole(1), whole(2), changed=True)
    assert [type(each) for each in found] == [AppendBlock, AppendBlockEnd]
    assert left == 2


@looped("codec", CODECS)
@looped(
    ("block", "end"),
    [
        (BLOCK, AppendBlockEnd(WRITERS[1], 6, b"", 2, 9, 7)),
        (BLOCK, AppendBlockEnd(WRITERS[0], 5, b"", 2, 9, 7)),
        (BLOCK, AppendBlockEnd(WRITERS[0], 6, b"x", 2, 9, 7)),
        (EMPTY, AppendBlockEnd(WRITERS[0], 0, b"", 0, 9, 7)),
        (EMPTY, AppendBlockEnd(WRITERS[0], 0, b"", 1, -1, 7)),
        (AppendBlock(UUID(int=9), b""), AppendBlockEnd(UUID(int=9), 0, b"", 1, 9, 7)),
    ],
)
def test_what_is_not_simply_the_next_append_stays_two_commands(
    block: AppendBlock, end: AppendBlockEnd, codec: Codec
) -> None:
    assert fed(codec, encode(block), encode(end)) == ([block, end], 0)


def test_what_lies_behind_the_bytes_received_is_not_joined() -> None:
    frames, writers = encode(BLOCK) + encode(END), block_decoder().writers
    decoder = FrameDecoder(joined=WHOLE_APPENDS)
    assert decoder.feed(frames, len(frames) - 1, records=writers) == [BLOCK]
    assert decoder.feed(frames[-1:], records=writers) == [END]


tails = st.sampled_from([b"", encode(Padding(3)), encode(PartialEvent(b"abc")), b"odd"])
blocks = st.builds(
    lambda writer, data, tail: AppendBlock(writer, data + tail), st.sampled_from(WRITERS), st.binary(max_size=9), tails
)
ends = st.builds(
    AppendBlockEnd,
    st.sampled_from(WRITERS),
    st.integers(-1, 12),
    st.sampled_from([b"", b"rest"]),
    st.integers(0, 3),
    st.integers(-1, 5),
    st.integers(0, 9),
)
numbers = st.integers(0, 5) | st.sampled_from([(1 << 63) - 1, -(1 << 63)])
pairs = st.builds(
    lambda writer, data, count, number: [
        AppendBlock(writer, data),
        AppendBlockEnd(writer, len(data), b"", count, number, 1),
    ],
    st.sampled_from([*WRITERS, *WRITERS, UUID(int=9)]),
    st.binary(max_size=9) | st.just(bytes(500)),
    st.integers(1, 3) | st.just(0),
    numbers,
)
others = st.one_of(
    st.sampled_from([KeepAlive(), SetupAppend(1, WRITERS[0], "a", ""), SetupAppend(2, WRITERS[1], "b", "")]),
    st.builds(ConditionalAppend, st.sampled_from(WRITERS), numbers, st.just(-1), st.just(Event(b"x")), st.just(1)),
)
streams = st.lists(pairs | st.lists(blocks | ends | others, max_size=2), max_size=8).map(
    lambda found: b"".join(map(encode, chain(*found)))
)


@given(
    streams,
    st.lists(st.integers(0, 1000), max_size=4),
    st.booleans(),
    st.sampled_from([1, 2, 3, 256]),
    st.sampled_from([0x00FF_FFFF, 60, 40]),
)
def test_runs_change_no_append_no_order_and_no_error(
    stream: bytes, cuts: list[int], view: bool, most: int, limit: int
) -> None:
    plain = served(stream, block_decoder(), codec="construct", runs=False, cuts=cuts, limit=limit)
    for codec in CODECS:
        found = served(stream, block_decoder(), codec=codec, cuts=cuts, view=view, most=most, limit=limit)
        assert found == plain


@needs_c
def test_records_that_are_not_as_they_should_be_are_left_alone() -> None:
    append = whole(1)
    empty, wide = BlockWriter.__new__(BlockWriter), BlockWriter("a", WRITERS[0])
    wide.last_event_number = 1 << 64
    for record in (object(), None, 5, empty, wide):
        out = FrameDecoder(joined=WHOLE_APPENDS).feed(append, most=9, records={WRITERS[0].bytes: record})
        assert [type(each) for each in out] == [AppendBlock, AppendBlockEnd]
    with pytest.raises(TypeError):
        FrameDecoder(joined=WHOLE_APPENDS).feed(append, records=[])  # type: ignore[arg-type]
