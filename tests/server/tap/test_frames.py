"""What a tap with rules makes of bytes: nothing is lost, nothing is changed, nothing is raised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.faults import Plan, request_seen
from segstore.server.tap.frames import Asked, Frames, Passed
from segstore.wire import (
    MAX_FRAME_BYTES,
    Command,
    DataAppended,
    ErrorMessage,
    ErrorMessageCode,
    Hello,
    KeepAlive,
    SegmentRead,
    encode,
)
from segstore.wire.blocks import Append
from tests.server.support import SEGMENT, WRITER, append, create, read

FRAMES = [encode(Hello(17, 5)), encode(create()), encode(append(1)), encode(read(3))]
UNKNOWN = b"\0\0\x22\x22\0\0\0\x03abc"


def passed(item: Command | Append, number: int = 1) -> Passed:
    return Passed(request_seen(item, number, store=0, connection=1, now_s=0.0, started_s=0.0), Plan())


@given(
    st.lists(st.sampled_from([*FRAMES, UNKNOWN]) | st.binary(max_size=40)).map(b"".join), st.lists(st.integers(1, 30))
)
def test_whatever_comes_in_whatever_pieces_leaves_as_it_came(data: bytes, sizes: list[int]) -> None:
    frames, out, at = Frames(), b"", 0
    for size in [*sizes, len(data)]:
        if at < len(data):
            out += b"".join(piece.data for piece in frames.feed(data[at : at + size]))
        at += size
    assert out + frames.rest() == data
    assert frames.rest() == b""


@given(st.lists(st.sampled_from([*FRAMES, UNKNOWN]) | st.binary(max_size=40)).map(b"".join), st.integers(1, 3))
def test_pieces_that_are_asked_for_a_few_at_a_time_are_the_same(data: bytes, most: int) -> None:
    frames, few = Frames(), Frames()
    expected, found = frames.feed(data), few.feed(data, most)
    while few.has_more:
        more = few.feed(b"", most)
        assert len(more) <= most
        found += more
    assert found == expected
    assert few.rest() == frames.rest()
    assert few.problem == frames.problem


def test_frames_come_with_their_commands_once_they_are_whole() -> None:
    frames = Frames()
    found = [piece for byte in b"".join(FRAMES) for piece in frames.feed(bytes([byte]))]
    assert [piece.data for piece in found] == FRAMES
    assert [piece.command for piece in found] == [Hello(17, 5), create(), append(1), read(3)]
    assert frames.problem == ""


def test_a_frame_of_a_type_that_nobody_knows_passes_as_it_comes_and_those_behind_it_are_found() -> None:
    frames = Frames()
    assert [(each.data, each.command) for each in frames.feed(UNKNOWN[:9])] == [(UNKNOWN[:9], None)]
    found = frames.feed(UNKNOWN[9:] + FRAMES[0])
    assert [(each.data, each.command) for each in found] == [(b"bc", None), (FRAMES[0], Hello(17, 5))]
    assert frames.problem == "no command has the type code 8738"


@pytest.mark.parametrize("length", [-1, MAX_FRAME_BYTES])
def test_behind_a_length_that_cannot_be_all_passes(length: int) -> None:
    frames, bad = Frames(), b"\0\0\0\x09" + length.to_bytes(4, "big", signed=True)
    assert [each.command for each in frames.feed(bad)] == [None]
    assert [(each.data, each.command) for each in frames.feed(FRAMES[0])] == [(FRAMES[0], None)]
    assert frames.problem.startswith("a frame that announces ")


def test_what_does_not_decode_passes() -> None:
    frames, bad = Frames(), b"\0\0\0\x09\0\0\0\x02no"
    assert [(each.data, each.command) for each in frames.feed(bad)] == [(bad, None)]
    assert frames.problem != ""


def test_an_acknowledgement_answers_all_appends_up_to_its_number() -> None:
    asked = Asked()
    items = [Append(SEGMENT, WRITER, number, 1, memoryview(b"data"), None, 3) for number in (1, 2, 3)]
    notes = [passed(each, number) for number, each in enumerate(items)]
    for item, note in zip(items, notes, strict=True):
        assert asked.add(item, note)
    assert asked.answered(DataAppended(3, WRITER, 2, 0, 8)) == notes[:2]
    failed = ErrorMessage(3, SEGMENT, "", ErrorMessageCode.UNSPECIFIED)
    assert asked.answered(failed) == notes[2:]
    assert asked.answered(failed) == []


def test_replies_find_their_requests_by_id_and_greetings_by_their_kind() -> None:
    asked = Asked()
    notes = [passed(each) for each in (read(0, request_id=1), KeepAlive(), read(0, request_id=2))]
    for item, note in zip((read(0, request_id=1), KeepAlive(), read(0, request_id=2)), notes, strict=True):
        assert asked.add(item, note)
    assert asked.answered(SegmentRead(SEGMENT, 0, False, False, b"", 2)) == [notes[2]]
    assert asked.answered(KeepAlive()) == [notes[1]]
    assert asked.answered(Hello(17, 5)) == []


def test_requests_that_are_never_answered_do_not_pile_up() -> None:
    asked, note = Asked(), passed(read(0))
    added = [asked.add(read(0, request_id=number), note) for number in range(20_000)]
    assert added.count(False) == 1
    assert len(asked._waiting) <= 16_384
    assert not asked.full, "reads wait at the tail"
    assert asked.answered(SegmentRead(SEGMENT, 0, False, False, b"", 19_999)) == [note]
