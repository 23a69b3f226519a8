"""Records of a shared state and watermarks are as Pravega writes them; other bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.revisioned import (
    Mark,
    MarkedSegment,
    decode_mark,
    decode_record,
    encode_initial,
    encode_mark,
    encode_updates,
)
from tests.looped import looped

MADE_BY_JAVA = (
    "0000010000000061fffffffffffffffb00000000000111700200000100000000180000000100000003"
    "00000000000000003fe000000000000000000000075bcd1500000100000000180000000000000004"
    "3fe00000000000003ff0000000000000ffffffffffffffff"
)
"""Made by Pravega's `Watermark.toByteBuf`."""
JAVA_MARK = Mark(-5, 70_000, (MarkedSegment(1 << 32 | 3, 0.0, 0.5, 123456789), MarkedSegment(4, 0.5, 1.0, -1)))


def test_records_are_laid_out_as_the_reference_does() -> None:
    assert encode_initial(b"x") == bytes.fromhex("0000000178")
    assert encode_updates([b"a", b"", b"bc"]) == bytes.fromhex("00000002 00000001 61 00000000 00000002 6263")
    assert decode_record(encode_initial(b"x")) == (b"x", [])
    assert decode_record(encode_updates([b"a", b"", b"bc"])) == (None, [b"a", b"", b"bc"])


@looped(
    ("record", "text"),
    [
        ("000000", "only 3 left"),
        ("00000003", "kind 3"),
        ("00000002 0000", "4 bytes expected at 4, only 2 left"),
        ("00000002 00000002 61", "2 bytes expected at 8, only 1 left"),
        ("00000002 ffffffff", "-1 bytes expected"),
    ],
)
def test_a_record_that_is_none_is_refused_with_the_place(record: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode_record(bytes.fromhex(record))


def test_watermarks_are_as_pravega_writes_them() -> None:
    for text, mark in (
        (MADE_BY_JAVA, JAVA_MARK),
        ("00000100000000110000000000000001000000000000000200", Mark(1, 2, ())),
    ):
        assert encode_mark(mark).hex() == text
        assert decode_mark(bytes.fromhex(text)) == mark


def test_a_later_revision_is_ignored() -> None:
    first = bytes.fromhex(MADE_BY_JAVA)[3:]
    assert decode_mark(b"\0\0\2" + first + b"\1\0\0\0\2??") == JAVA_MARK


@looped(
    ("data", "says"),
    [
        ("010001", "version 1.0 with 1 revisions"),
        ("0000010000000011" + "00" * 16 + "05", "only 0 left"),
        ("0000010000000011" + "00" * 7 + "01" + "00" * 9, "the times from 1 to 0 are no range"),
        (MADE_BY_JAVA.replace("3fe00000000000003ff0", "3ff00000000000003fe0"), "segment 4 with the keys"),
        (MADE_BY_JAVA.replace("0000000100000003", "8000000100000003"), "is no segment"),
    ],
)
def test_bytes_that_are_no_watermark_are_refused(data: str, says: str) -> None:
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
