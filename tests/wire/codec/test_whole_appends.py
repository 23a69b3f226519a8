"""Appends whose two frames are read as one: what comes out of the block decoder does not depend on it."""

from __future__ import annotations

from itertools import chain, pairwise
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    FrameDecoder,
    FrameTooLarge,
    KeepAlive,
    Padding,
    PartialEvent,
    SetupAppend,
    WireError,
    encode,
)
from segstore.wire.blocks import Append, AppendBlockDecoder, AppendRule, AppendViolation
from segstore.wire.codec import WholeAppend

WRITERS = [UUID(int=1), UUID(int=2)]
BLOCK = AppendBlock(WRITERS[0], b"events")
END = AppendBlockEnd(WRITERS[0], 6, b"", 2, 9, 7)

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
pairs = st.builds(
    lambda writer, data, count, number: [
        AppendBlock(writer, data),
        AppendBlockEnd(writer, len(data), b"", count, number, 1),
    ],
    st.sampled_from(WRITERS),
    st.binary(max_size=9),
    st.integers(0, 3),
    st.integers(0, 5),
)
others = st.sampled_from([KeepAlive(), SetupAppend(1, WRITERS[0], "a", ""), SetupAppend(2, WRITERS[1], "b", "")])
streams = st.lists(pairs | st.lists(blocks | ends | others, max_size=2), max_size=8).map(
    lambda found: list(chain(*found))
)


def plain(item: Command | Append) -> object:
    return {**msgspec.structs.asdict(item), "data": bytes(item.data)} if isinstance(item, Append) else item


def outcome(frames: bytes, cuts: list[int], *, join_appends: bool, view: bool) -> tuple[list[object], object]:
    """Everything that comes out, payloads copied, and the rule or error that ends it."""
    decoder, blocks = FrameDecoder(join_appends=join_appends), AppendBlockDecoder()
    setups: list[Command] = [SetupAppend(n, writer, f"segment-{n}", "") for n, writer in enumerate(WRITERS)]
    out: list[object] = []
    blocks.feed_all(setups)
    places = sorted({0, len(frames), *(cut % (len(frames) + 1) for cut in cuts)})
    for start, stop in pairwise(places):
        piece = bytearray(frames[start:stop])
        try:
            items = blocks.feed_all(decoder.feed(memoryview(piece) if view else piece))
        except AppendViolation as error:
            return [*out, *map(plain, error.decoded)], error.rule
        except WireError as error:
            return [*out, *map(plain, error.decoded)], type(error)
        out += map(plain, items)
    return out, (blocks.block_open, blocks.block_bytes, decoder.buffered_bytes)


@given(streams, st.lists(st.integers(0, 1000), max_size=4), st.booleans())
def test_joining_changes_no_append_no_order_and_no_violation(
    stream: list[Command], cuts: list[int], view: bool
) -> None:
    frames = b"".join(map(encode, stream))
    joined = outcome(frames, cuts, join_appends=True, view=view)
    assert joined == outcome(frames, cuts, join_appends=False, view=view)


def test_a_block_and_its_end_in_one_read_are_one_command_where_that_is_asked_for() -> None:
    frames = encode(BLOCK) + encode(END)
    assert FrameDecoder().feed(frames) == [BLOCK, END]
    (found,) = FrameDecoder(join_appends=True).feed(frames)
    assert type(found) is WholeAppend
    assert (found.writer_id, found.data, found.num_events, found.last_event_number) == (WRITERS[0], b"events", 2, 9)
    assert found.request_id == 7
    assert FrameDecoder(join_appends=True, codec="construct").feed(frames) == [BLOCK, END]


@pytest.mark.parametrize(
    "end",
    [
        AppendBlockEnd(WRITERS[1], 6, b"", 2, 9, 7),
        AppendBlockEnd(WRITERS[0], 5, b"", 2, 9, 7),
        AppendBlockEnd(WRITERS[0], 6, b"x", 2, 9, 7),
    ],
    ids=["of another writer", "of a part of it", "with data"],
)
def test_an_end_that_says_more_than_the_block_stays_a_command_of_its_own(end: AppendBlockEnd) -> None:
    assert FrameDecoder(join_appends=True).feed(encode(BLOCK) + encode(end)) == [BLOCK, end]


def test_what_lies_behind_the_bytes_received_is_not_joined() -> None:
    frames = encode(BLOCK) + encode(END)
    decoder = FrameDecoder(join_appends=True)
    assert decoder.feed(frames, len(frames) - 1) == [BLOCK]
    assert decoder.feed(frames[-1:]) == [END]


def test_an_end_above_the_limit_is_refused_behind_its_block() -> None:
    decoder = FrameDecoder(join_appends=True, max_frame_bytes=40)
    with pytest.raises(FrameTooLarge) as caught:
        decoder.feed(encode(BLOCK) + encode(END))
    assert caught.value.decoded == [BLOCK]


def test_a_whole_append_within_an_open_block_is_the_violation_that_its_block_is() -> None:
    blocks = AppendBlockDecoder()
    blocks.feed_all([SetupAppend(1, WRITERS[0], "a", ""), BLOCK])
    (whole,) = FrameDecoder(join_appends=True).feed(encode(BLOCK) + encode(END))
    with pytest.raises(AppendViolation) as caught:
        blocks.feed_all([whole])
    assert caught.value.rule is AppendRule.BLOCK_OPEN
    assert not blocks.block_open
