"""Modified UTF-8: what Java reads is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.schema import decode_mutf8, encode_mutf8
from segstore.wire.schema.modified_utf8 import MAX_STRING_BYTES
from tests.looped import looped
from tests.strategies import HARD_TEXTS, LONGEST_TEXTS, TOO_LONG_TEXTS

TEXTS = st.text(st.characters(), max_size=40)


def joined(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def plainly_decoded(data: bytes) -> list[int]:
    """UTF-16 units, read one byte after another as the Java documentation of DataInput says."""
    out, at = [], 0
    while at < len(data):
        first = data[at]
        width = 1 if first < 0x80 else 2 if 0xC0 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 0
        rest = data[at + 1 : at + width] if width else b""
        if not width or len(rest) < width - 1 or any(byte >> 6 != 2 for byte in rest):
            raise ValueError
        unit = first & (0x7F, 0x1F, 0x0F)[width - 1]
        for byte in rest:
            unit = unit << 6 | byte & 0x3F
        out.append(unit)
        at += width
    return out


@given(TEXTS)
def test_a_text_comes_back_with_its_surrogates_joined(text: str) -> None:
    data = encode_mutf8(text)
    assert b"\0" not in data
    assert not data or max(data) < 0xF0, "no four-byte characters"
    assert decode_mutf8(data) == joined(text)
    assert plainly_decoded(data) == units(text)


@given(st.one_of(st.binary(max_size=30), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_are_read_as_the_rules_say_or_refused(data: bytes) -> None:
    try:
        expected = plainly_decoded(data)
    except ValueError:
        with pytest.raises(ValueError, match=r"modified UTF-8|cut off"):
            decode_mutf8(data)
    else:
        assert units(decode_mutf8(data)) == expected


@looped(
    ("data", "text"),
    [
        (b"", ""),
        (b"\0", "\0"),
        (b"\xc0\x80", "\0"),
        (b"\xe0\x80\x80", "\0"),
        (b"\xc1\x81", "A"),
        (b"\xe0\x81\x81", "A"),
        (b"\xed\xa0\x80", "\ud800"),
        (b"\xed\xb0\x80\xed\xa0\x80", "\udc00\ud800"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "😀"),
        (b"\xed\xa0\xbd\xc0\x80\xed\xb8\x80", "\ud83d\0\ude00"),
    ],
)
def test_what_java_reads_is_read(data: bytes, text: str) -> None:
    assert decode_mutf8(data) == text


@looped(
    ("data", "said"),
    [
        (b"\xf0\x9f\x98\x80", "byte 0xf0 at 0 starts no"),
        (b"ab\x80", "byte 0x80 at 2 starts no"),
        (b"ab\xff", "byte 0xff at 2 starts no"),
        (b"a\xc3", "character at 1 is cut off"),
        (b"a\xe0\x80", "character at 1 is cut off"),
        (b"\xc3A", "byte 0x41 at 1 does not continue"),
        (b"\xe0\x80A", "byte 0x41 at 2 does not continue"),
    ],
)
def test_what_java_refuses_is_refused_and_the_place_is_named(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_mutf8(data)


def test_the_texts_of_the_strategies_lie_on_their_side_of_the_limit() -> None:
    assert {len(encode_mutf8(text)) for text in LONGEST_TEXTS} == {MAX_STRING_BYTES}
    assert min(len(encode_mutf8(text)) for text in TOO_LONG_TEXTS) == MAX_STRING_BYTES + 1
    assert all(decode_mutf8(encode_mutf8(text)) == joined(text) for text in (*HARD_TEXTS, *LONGEST_TEXTS))
