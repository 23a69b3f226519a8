"""Tokens leave no trace in a frame, and nothing else changes."""

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from segstore.wire import (
    CreateSegment,
    CreateTableSegment,
    MergeSegments,
    MergeSegmentsBatch,
    ReadSegment,
    SealSegment,
    TruncateSegment,
    UpdateTableEntries,
    WireError,
    decode,
    encode,
)
from segstore.wire.commands import ConditionalAttributeUpdate, TableEntries, TableEntry, TableKey, TableValue
from segstore.wire.inspect import describe
from segstore.wire.schema import Command
from segstore.wire.trace import redact
from tests.looped import looped
from tests.strategies import FRAMED, command_of, framed, mutated
from tests.wire.trace.traces import frame

NUMBERS = (".length", ".count")
SECRET = [cls for cls in FRAMED.values() if cls.secrets]
WRITER = UUID(int=1)
TOKEN = "SeCrEt~ToKeN"


@st.composite
def with_token(draw: st.DrawFn, token: str = TOKEN) -> Command:
    cls = draw(st.sampled_from(SECRET))
    value = draw(command_of(cls))
    fields: dict[str, Any] = {name: getattr(value, name) for name in cls.__struct_fields__}
    return cls(**{**fields, "delegation_token": token})


def test_the_schema_says_what_is_secret() -> None:
    assert len(SECRET) > 20
    assert all(cls.secrets == {"delegation_token"} for cls in SECRET)


@given(with_token())
def test_a_token_becomes_asterisks_and_all_else_stays(value: Command) -> None:
    before = encode(value)
    after = redact(before)
    assert len(after) == len(before)
    assert decode(after).to_dict() == {**decode(before).to_dict(), "delegation_token": "*" * len(TOKEN)}


@given(with_token(), st.data())
def test_no_half_frame_shows_a_part_of_its_token(value: Command, data: st.DataObject) -> None:
    whole = encode(value)
    at = whole.index(TOKEN.encode())
    cut = data.draw(st.integers(at + 1, len(whole) - 1))
    after = redact(whole[:cut], False)
    assert len(after) == cut
    assert set(after[at : min(cut, at + len(TOKEN))]) == {ord("*")}
    assert after[:8] == whole[:8]


@given(with_token().map(encode).flatmap(mutated), st.booleans())
def test_any_bytes_are_taken_and_keep_their_length(data: bytes, whole: bool) -> None:
    after = redact(data, whole)
    assert len(after) == len(data)
    assert redact(after, whole) == after or not whole
    try:
        token = getattr(decode(data), "delegation_token", "")
    except WireError:
        return
    if whole and token:
        assert set(decode(after).to_dict()["delegation_token"]) == {"*"}


@given(st.sampled_from([cls for cls in FRAMED.values() if not cls.secrets]).flatmap(command_of))
def test_a_frame_without_a_token_is_returned_as_it_is(value: Command) -> None:
    before = encode(value)
    assert redact(before) is before


def at_token(frame: bytes) -> int:
    return frame.index(TOKEN.encode())


def with_number(frame: bytes, at: int, size: int, change: int) -> bytes:
    """The frame with a number in it changed."""
    number = int.from_bytes(frame[at : at + size], "big") + change
    return frame[:at] + (number % (1 << 8 * size)).to_bytes(size, "big") + frame[at + size :]


def longer(frame: bytes, more: bytes) -> bytes:
    """The frame with more bytes behind its last field, as a newer version may have."""
    return framed(int.from_bytes(frame[:4], "big", signed=True), frame[8:] + more)


def fills(frame: bytes) -> bool:
    """Whether a frame decodes, and its fields reach to its end."""
    found = describe(frame)
    return found.error is None and found.spans[-1].field != ""


@given(with_token(), st.integers(1, len(TOKEN)))
def test_a_token_longer_than_its_length_says_is_overwritten_to_its_end(value: Command, missing: int) -> None:
    whole = encode(value)
    at = at_token(whole)
    before = with_number(whole, at - 2, 2, -missing)
    after = redact(before)
    assert len(after) == len(before)
    assert set(after[at : at + len(TOKEN)]) == {ord("*")} or fills(before)
    assert redact(after) == after


@given(with_token(), st.integers(-40, 40), st.binary(max_size=12), st.data())
def test_a_wrong_length_or_count_before_a_token_hides_no_part_of_it_in_another_field(
    value: Command, change: int, more: bytes, data: st.DataObject
) -> None:
    whole = longer(encode(value), more)
    at = at_token(whole)
    numbers = [span for span in describe(whole).spans[2:] if span.offset < at and span.field.endswith(NUMBERS)]
    chosen = data.draw(st.sampled_from(numbers))
    before = with_number(whole, chosen.offset, chosen.length, change)
    after = redact(before)
    assert len(after) == len(before)
    assert set(after[at : at + len(TOKEN)]) == {ord("*")} or fills(before)
    assert redact(after) == after


@given(with_token(), st.binary(min_size=1, max_size=12))
def test_a_frame_with_bytes_behind_its_last_field_still_decodes_without_them(value: Command, more: bytes) -> None:
    whole = longer(encode(value), more)
    after = redact(whole)
    assert len(after) == len(whole)
    assert getattr(decode(after), "delegation_token", "") == "*" * len(TOKEN)
    assert set(after[-len(more) :]) == {ord("*")}


@looped("token", ["", TOKEN])
@looped(
    "value",
    [
        SealSegment(1, "a/b/0", ""),
        TruncateSegment(1 << 32, "a/b/0", 5, ""),
        ReadSegment("a/b/0", 5, 6, "", (7 << 32) + 8),
        CreateSegment(1, "a/b/0", 1, 5, "", 64),
        CreateTableSegment(1, "a/b", True, 4, "", 64),
        MergeSegments(1, "a/b/0", "a/b/1", "", (ConditionalAttributeUpdate(WRITER, 1, 2, 3),)),
        UpdateTableEntries(1, "a/b", "", TableEntries((TableEntry(TableKey(b"\1\2", 3), TableValue(b"\0")),)), 9),
    ],
)
def test_fields_of_a_newer_version_that_cannot_be_a_token_stay(value: Command, token: str) -> None:
    value = replace(value, delegation_token=token)
    after = redact(longer(encode(value), b"\0\4more"))
    assert after[-6:] == b"******"
    assert decode(after) == replace(value, delegation_token="*" * len(token))


def test_text_behind_a_token_is_overwritten_if_the_frame_has_more_than_its_fields() -> None:
    """It may be the rest of a token, so a table's keys are not kept; their lengths are."""
    entries = TableEntries((TableEntry(TableKey(b"the key", 3), TableValue(b"a value")),))
    after: Any = decode(redact(longer(encode(UpdateTableEntries(1, "a/b", TOKEN, entries)), b"more")))
    (entry,) = after.table_entries.entries
    assert (after.segment, bytes(entry.key.data), bytes(entry.value.data)) == ("a/b", b"*" * 7, b"*" * 7)


@looped("size", [10, 3_000])
def test_of_a_frame_of_an_older_version_only_the_token_is_overwritten(size: int) -> None:
    """As long as it may be: it has no offset of the table segment."""
    entries = TableEntries(tuple(TableEntry(TableKey(b"key", 3), TableValue(bytes(size))) for _ in range(100)))
    whole = encode(UpdateTableEntries(1, "a/b", TOKEN, entries))
    older = whole[:4] + (len(whole) - 16).to_bytes(4, "big") + whole[8:-8]
    assert redact(older) == older.replace(TOKEN.encode(), b"*" * len(TOKEN))


def test_a_list_with_more_elements_than_a_store_takes_is_overwritten_at_once() -> None:
    for count in (16_385, 1 << 30):
        body = bytes(8) + b"\0\5a/b/0" + count.to_bytes(4, "big") + bytes(2 * 16_385) + b"\0\x0c" + TOKEN.encode()
        frame = framed(MergeSegmentsBatch.code, body)
        after = redact(frame)
        assert after[:23] == frame[:23]
        assert after[27:] == b"*" * (len(frame) - 27)


def test_a_token_that_is_read_as_an_element_of_a_list_is_overwritten() -> None:
    before = encode(MergeSegmentsBatch(1, "a/b/0", ("a/b/1",), TOKEN))
    count = before.rindex(b"\0\0\0\1\0\5")
    for more in (b"", bytes(3), bytes(20)):
        after = redact(longer(with_number(before, count, 4, 1), more))
        assert after[8:count] == before[8:count]
        assert TOKEN[:1].encode() not in after


def test_a_long_malformed_frame_is_overwritten_to_its_end() -> None:
    whole = encode(SealSegment(1, "a/b/0", TOKEN))
    after = redact(longer(with_number(whole, at_token(whole) - 2, 2, -4), TOKEN.encode() * 30_000))
    assert after[: at_token(whole) - 2] == whole[:4] + after[4:8] + whole[8 : at_token(whole) - 2]
    assert set(after[at_token(whole) :]) == {ord("*")}


def test_the_rest_of_a_frame_whose_token_cannot_be_reached_is_overwritten() -> None:
    body = encode(SealSegment(1, "s", "secret"))[8:]
    too_long = framed(28, body.replace(b"\0\x01s", b"\x7f\xffs"))
    assert redact(too_long) == too_long[:18] + b"*" * (len(too_long) - 18)


@looped("data", [b"1234567", frame(111, b"12345678"), b"\0\0\0\x1c\xff\xff\xff\xffsecret"])
def test_bytes_that_are_no_half_frame_are_overwritten(data: bytes) -> None:
    assert redact(data, False) == b"*" * len(data)
