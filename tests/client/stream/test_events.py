"""Events come out of a segment whole, however its bytes are cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.errors import EventTooLarge, ProtocolViolation
from segstore.client.stream import EventDecoder, frame_event
from segstore.wire import Event, decode, encode
from tests.looped import looped


def test_an_event_is_framed_as_the_wire_has_it() -> None:
    assert frame_event(b"abc") == encode(Event(b"abc"))
    with pytest.raises(Exception, match="an event is part of data"):
        decode(frame_event(b"abc"))


@given(st.lists(st.binary(max_size=40), max_size=20), st.lists(st.integers(1, 30)), st.integers(0, 1 << 40))
def test_any_events_in_any_pieces_come_out_as_they_were_with_their_offsets(
    events: list[bytes], pieces: list[int], start: int
) -> None:
    data = b"".join(frame_event(event) for event in events)
    decoder = EventDecoder("s", start)
    out = []
    at = 0
    for size in [*pieces, len(data)]:
        out += decoder.feed(data[at : at + size])
        at += size
    assert [each.data for each in out] == events
    expected = start
    for each in out:
        assert each.offset == expected
        expected += 8 + len(each.data)
    assert decoder.offset == expected
    assert not decoder.partial


@given(
    st.lists(st.sampled_from([1, 3, 8, 100, 70_000, 200_000]), max_size=40),
    st.integers(0, 400_000),
    st.sampled_from((bytes, memoryview)),
)
def test_a_large_event_is_assembled_of_small_and_large_pieces(sizes: list[int], length: int, kind: Any) -> None:
    data = kind(frame_event(b"ab" * (length // 2)) + frame_event(b"next"))
    decoder = EventDecoder("s", 0)
    out, at = [], 0
    for size in [*sizes, len(data)]:
        out += decoder.feed(data[at : at + size])
        at += size
    assert [each.data for each in out] == [b"ab" * (length // 2), b"next"]
    assert not decoder.partial


def test_a_piece_that_is_held_is_not_changed() -> None:
    decoder, piece = EventDecoder("s", 0), bytearray(70_000)
    decoder.feed(frame_event(bytes(70_001))[:8])
    decoder.feed(piece)
    assert [each.data for each in decoder.feed(b"\0")] == [bytes(70_001)]
    decoder.feed(frame_event(bytes(70_002))[:8])
    decoder.feed(piece)
    decoder.feed(b"\1")
    assert piece == bytearray(70_000)
    assert [each.data for each in decoder.feed(b"\2")] == [bytes(70_000) + b"\1\2"]


def test_what_is_no_event_behind_a_run_of_one_length_is_refused_with_its_place() -> None:
    decoder = EventDecoder("s", 0)
    with pytest.raises(ProtocolViolation, match="no event at 900: type 1"):
        decoder.feed(frame_event(b"x") * 100 + b"\0\0\0\1\0\0\0\1x")


def test_the_start_of_an_event_is_partial() -> None:
    decoder = EventDecoder("s", 0)
    assert decoder.feed(frame_event(b"abc")[:-1]) == []
    assert decoder.partial
    assert decoder.offset == 0


@looped(
    ("data", "error"),
    [
        (b"\0\0\0\1\0\0\0\1x", ProtocolViolation),
        (b"\0\0\0\0\xff\xff\xff\xffx", ProtocolViolation),
        (b"\0\0\0\0\0\0\1\0x", EventTooLarge),
    ],
)
def test_what_is_no_event_or_too_large_is_refused_with_its_place(data: bytes, error: type[Exception]) -> None:
    decoder = EventDecoder("s", 100, limit_bytes=255)
    with pytest.raises(error) as caught:
        decoder.feed(frame_event(b"ok") + data)
    assert caught.value.details["offset"] == 110  # type: ignore[attr-defined]
