"""Frames as they are handed over: recognised, cut into frames, refused with what is wrong."""

import base64
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import Hello, KeepAlive, SegmentCreated, encode
from segstore.wire.inspect import Form, Unreadable, pieces, recognise, to_text
from tests.looped import looped

HELLO = encode(Hello(17, 5))
FRAMES = [HELLO, encode(SegmentCreated(9, "a/b/0")), encode(KeepAlive())]


@given(st.lists(st.sampled_from(FRAMES), min_size=1, max_size=9), st.sampled_from(["raw", "hex", "base64"]))
def test_what_is_written_is_recognised(frames: list[bytes], form: Form) -> None:
    assert recognise(b"".join(to_text(frame, form) for frame in frames)) == (form, b"".join(frames))


@looped(
    "text",
    [
        "ffffff81000000080000001100000005",
        "FFFFFF81 00000008\n00000011 00000005\n",
        "ff:ff:ff:81:00:00:00:08:00:00:00:11:00:00:00:05",
        "0xff 0xff 0xff 0x81 0x00 0x00 0x00 0x08 0x00 0x00 0x00 0x11 0x00 0x00 0x00 0x05",
    ],
)
def test_hex_is_recognised_as_people_write_it(text: str) -> None:
    assert recognise(text.encode()) == ("hex", HELLO)


def test_base64_is_recognised_wrapped_a_line_a_frame_and_in_either_alphabet() -> None:
    data = b"".join(FRAMES) * 9
    for text in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        assert recognise(text.encode()) == ("base64", data)
        assert recognise("\r\n".join(textwrap.wrap(text, 76)).encode()) == ("base64", data)
    assert recognise(b"\n".join(base64.b64encode(frame) for frame in FRAMES)) == ("base64", b"".join(FRAMES))


@looped(
    ("data", "says", "line"),
    [
        (b"", "no input", None),
        (b" \n", "the input is blank", None),
        (b"fff", "hex digits: 3", None),
        (b"not a frame, nor text of one", "line 1: .*neither hex nor base64", 1),
        (b"////gQAAAAg=\n!!!!", "line 2: '!!!!' is neither", 2),
    ],
)
def test_what_is_none_of_the_forms_is_refused(data: bytes, says: str, line: int | None) -> None:
    with pytest.raises(Unreadable, match=says) as caught:
        recognise(data)
    assert caught.value.line == line


@given(st.binary(min_size=1, max_size=60))
def test_any_input_is_recognised_or_refused(data: bytes) -> None:
    try:
        _, found = recognise(data)
    except Unreadable:
        return
    assert b"".join(piece.data for piece in pieces(found)) == found


def test_bytes_are_cut_into_frames_and_what_makes_none_is_left() -> None:
    data = b"".join(FRAMES)
    assert [(piece.offset, piece.data, piece.whole) for piece in pieces(data + data[:5])] == [
        (0, FRAMES[0], True),
        (16, FRAMES[1], True),
        (39, FRAMES[2], True),
        (47, data[:5], False),
    ]
    too_long = b"\0\0\0\x64\x7f\xff\xff\xff"
    assert [piece.whole for piece in pieces(HELLO + too_long + HELLO)] == [True, False]
    assert [piece.whole for piece in pieces(b"\0\0\0\x64\xff\xff\xff\xff")] == [False]
