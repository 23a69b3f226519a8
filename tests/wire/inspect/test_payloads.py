"""Payloads are shown as what they are, on one line, and bounded unless all of them is asked for."""

import struct
import uuid

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import encode
from segstore.wire.commands import AppendBlock, AppendBlockEnd, ConditionalAppend, Event, SegmentRead
from segstore.wire.inspect import describe, lines, payload_parts, summary
from segstore.wire.inspect.payloads import SHOWN_BYTES, SHOWN_PARTS, payload_text
from tests.looped import looped

WRITER = uuid.UUID(int=7)


def event(data: bytes, code: int = 0) -> bytes:
    return struct.pack(">ii", code, len(data)) + data


@looped(
    ("data", "text"),
    [
        (b"", '""'),
        (b"order 7", '"order 7"'),
        ("größer 😀".encode(), '"größer 😀"'),
        (b'{"order": 7}', '{"order": 7}'),
        (b'[1,\n "\x1b"]', "0x5b312c0a20221b225d"),
        (b"[1,\n 2]", "[1,\\n 2]"),
        (b'a"b\tc', r'"a\"b\tc"'),
        (b"\xac\xed\x00\x05", "0xaced0005"),
        (b"caf\xc3", "0x636166c3"),
        (event(b"one") + event(b'{"a": 1}'), '[event "one" event {"a": 1}]'),
        (event(b"one") + event(b""), '[event "one" event ""]'),
        (event(b"") + event(b"one"), '[event "" event "one"]'),
        (event(b"one") + event(b"tw", -2), '[event "one" partial event "tw"]'),
        (event(b"one") + event(bytes(9), -1), '[event "one" padding of 9 bytes]'),
        (event(b"one")[:-1], '[event "on" (2 of 3 bytes)]'),
        (event(b"one") + b"\0\0", '[event "one" data 0x0000]'),
        (event(b"one") + b"rest of it", '[event "one" data "rest of it"]'),
        (bytes(16), f"0x{bytes(16).hex()}"),
        (struct.pack(">ii", 0, -1), "0x00000000ffffffff"),
    ],
)
def test_a_payload_is_shown_as_what_it_is(data: bytes, text: str) -> None:
    assert payload_text(data) == text
    assert payload_text(memoryview(bytearray(data)), full=True) == text


def test_long_payloads_are_shortened_unless_asked() -> None:
    text = "é" * 200
    assert payload_text(b"a" + text.encode()) == f'"a{"é" * 47}"… (401 bytes)'  # not cut within a character
    assert payload_text(text.encode(), full=True) == f'"{text}"'
    assert payload_text(b"\xff" * 300) == f"0x{'ff' * SHOWN_BYTES}… (300 bytes)"
    several = event(b"x") * 9
    assert payload_text(several) == "[" + 'event "x" ' * SHOWN_PARTS + "…]"
    assert payload_text(several, full=True).count("event") == 9
    assert not payload_text(event(b"x") * SHOWN_PARTS).endswith("…]")


@given(st.binary(max_size=300))
def test_any_bytes_are_one_line_and_all_of_them_are_in_parts(data: bytes) -> None:
    for full in (False, True):
        assert payload_text(data, full=full).isprintable()
    parts = list(payload_parts(data))
    framed = sum(len(part.data) + 8 * (part.kind != "data") for part in parts)
    assert framed == len(data)
    assert [part.kind for part in parts[:-1]].count("data") == 0


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=9).filter(lambda events: events[0]))
def test_events_are_found_as_they_were_framed(events: list[bytes]) -> None:
    parts = list(payload_parts(b"".join(map(event, events))))
    assert [(part.kind, bytes(part.data), part.size) for part in parts] == [
        ("event", each, len(each)) for each in events
    ]


def test_commands_show_their_events() -> None:
    assert 'data=[event "one" padding of 4 bytes]' in summary(AppendBlock(WRITER, event(b"one") + event(bytes(4), -1)))
    assert 'data=[event {"a": 1}]' in summary(AppendBlockEnd(WRITER, 16, event(b'{"a": 1}'), 1, 1, 1))
    assert 'event={data="one"}' in summary(ConditionalAppend(WRITER, 1, 0, Event(b"one"), 1))
    read = SegmentRead("s", 0, True, False, event(b"one")[:-1], 1)
    assert 'data=[event "on" (2 of 3 bytes)]' in summary(read)
    shown = list(lines(describe(encode(read))))
    assert any(line.endswith('10 bytes [event "on" (2 of 3 bytes)]') for line in shown)
    long = SegmentRead("s", 0, True, False, b"x" * 500, 1)
    assert f'data="{"x" * 500}"' in summary(long, full=True)
    assert "(500 bytes)" in summary(long)
