"""Watermarks are read as Pravega writes them; other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.client.watermarks import Mark, MarkedSegment, decode_mark
from tests.looped import looped

MADE_BY_JAVA = (
    "0000010000000061fffffffffffffffb00000000000111700200000100000000180000000100000003"
    "00000000000000003fe000000000000000000000075bcd1500000100000000180000000000000004"
    "3fe00000000000003ff0000000000000ffffffffffffffff"
)
"""Made by Pravega's `Watermark.toByteBuf`."""
MARK = Mark(-5, 70_000, (MarkedSegment(1 << 32 | 3, 0.0, 0.5, 123456789), MarkedSegment(4, 0.5, 1.0, -1)))


def test_what_pravega_writes_is_read() -> None:
    assert decode_mark(bytes.fromhex(MADE_BY_JAVA)) == MARK
    assert decode_mark(bytes.fromhex("00000100000000110000000000000001000000000000000200")) == Mark(1, 2, ())


def test_a_later_revision_is_ignored() -> None:
    first = bytes.fromhex(MADE_BY_JAVA)[3:]
    assert decode_mark(b"\0\0\2" + first + b"\1\0\0\0\2??") == MARK


@looped("count", [1, 127, 128, 300, 17_000])
def test_numbers_of_segments_have_one_two_or_four_bytes(count: int) -> None:
    number = count.to_bytes(1) if count < 128 else (count | 0x8000).to_bytes(2) if count < 1 << 14 else b""
    number = number or (count | 0xC000_0000).to_bytes(4)
    one = bytes.fromhex("00000100000000180000000100000003" + "00000000000000003fe0000000000000" + "00" * 8)
    content = bytes(16) + number + one * count
    assert len(decode_mark(b"\0\0\1\0" + len(content).to_bytes(4) + content).segments) == count


@looped(
    ("data", "says"),
    [
        ("", "ends too early"),
        ("010001", "format 1, version 0 with 1 revisions"),
        ("000000", "with 0 revisions"),
        ("0000010000000011", "17 bytes expected at 8, only 0 left"),
        ("00000100ffffffff", "-1 bytes expected"),
        ("0000010000000010" + "00" * 16, "a number expected at 16"),
        ("0000010000000011" + "00" * 16 + "05", "ends too early"),
        ("0000010000000011" + "00" * 7 + "01" + "00" * 9, "the times from 1 to 0 are no range"),
        (MADE_BY_JAVA.replace("3fe00000000000003ff0", "3ff00000000000003fe0"), "segment 4 from 1.0 to 0.5"),
    ],
)
def test_what_is_no_watermark_is_refused(data: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_mark(bytes.fromhex(data))


@given(st.binary(max_size=80), st.integers(0, 121), st.integers(0, 255))
def test_any_bytes_are_read_or_refused(data: bytes, at: int, byte: int) -> None:
    damaged = bytearray.fromhex(MADE_BY_JAVA)
    damaged[at % len(damaged)] = byte
    for each in (data, bytes(damaged), bytes(damaged[:at])):
        try:
            decode_mark(each)
        except ValueError:
            continue
