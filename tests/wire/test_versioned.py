"""Numbers, texts and revisions of Pravega's serializer: round trips, sizes, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.versioned import Input, Output, decode_object, decode_typed, encode_object
from tests.looped import looped


@looped(("value", "size"), [(0, 1), (0x7F, 1), (0x80, 2), (0x3FFF, 2), (0x4000, 4), ((1 << 30) - 2, 4)])
def test_a_count_has_as_many_bytes_as_it_needs(value: int, size: int) -> None:
    data = bytes(Output().count(value).data)
    assert (len(data), Input(data).count()) == (size, value)


def test_a_larger_count_is_refused() -> None:
    with pytest.raises(ValueError, match="elements are too many"):
        Output().count((1 << 30) - 1)


@given(st.integers(0, (1 << 62) - 1), st.integers(-(1 << 61), (1 << 61) - 1))
def test_compact_numbers_survive(value: int, signed: int) -> None:
    data = Input(bytes(Output().compact_long(value).compact_signed_long(signed).data))
    assert (data.compact_long(), data.compact_signed_long(), len(data.data) - data.at) == (value, signed, 0)


def test_a_larger_compact_number_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit a compact number"):
        Output().compact_long(1 << 62)
    with pytest.raises(ValueError, match="does not fit a compact number"):
        Output().compact_signed_long(-(1 << 61) - 1)


@given(st.text(max_size=50), st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_texts_and_ranges_survive(text: str, known: tuple[float, float] | None) -> None:
    data = Input(bytes(Output().text(text).range(known).data))
    assert (data.text(), data.range()) == (text, known)


def test_a_longer_text_is_refused() -> None:
    with pytest.raises(ValueError, match="a text of 65536 bytes is too long"):
        Output().text("x" * 65536)


def test_revisions_are_read_in_order_and_others_refused() -> None:
    written = encode_object([Output().long(1), Output(), Output().flag(True)], version=1)
    first, second, third = decode_object(Input(written), version=1)
    assert (first.long(), second.data, third.flag()) == (1, b"", True)
    with pytest.raises(ValueError, match=r"an object in version 0\.1 with 3 revisions is not known"):
        decode_object(Input(written))
    kind, revisions = decode_typed(Input(encode_object([Output()], kind=5)), 5)
    assert (kind, len(revisions)) == (5, 1)
    with pytest.raises(ValueError, match=r"type 5 in version 0\.0 with 1 revisions is not known"):
        decode_typed(Input(encode_object([Output()], kind=5)), 4)
    with pytest.raises(ValueError, match="revision 7 where 0 is expected, at 5"):
        decode_typed(Input(b"\0\2\0\1\7\0\0\0\0"), 5)
    with pytest.raises(ValueError, match="5 bytes expected at 9, only 0 left"):
        decode_typed(Input(b"\0\2\0\1\0\0\0\0\5"), 5)
