"""Tokens leave no trace in a frame, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import ReadSegment, SealSegment, WireError, decode, encode
from segstore.wire.schema import Command
from segstore.wire.trace import redact
from tests.strategies import FRAMED, command_of, framed, mutated
from tests.wire.trace.traces import frame

SECRET = [cls for cls in FRAMED.values() if cls.secrets]
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


@pytest.mark.parametrize("data", [b"", b"abc", frame(111, b"abc"), frame(0, b"abc"), frame(9)[:8]])
def test_what_has_no_fields_is_returned_as_it_is(data: bytes) -> None:
    assert redact(data) == data


def test_an_empty_token_stays_empty() -> None:
    before = encode(ReadSegment("a/b/0", 0, 1, "", 7))
    assert redact(before) == before


def test_the_rest_of_a_frame_whose_token_cannot_be_reached_is_overwritten() -> None:
    body = encode(SealSegment(1, "s", "secret"))[8:]
    too_long = framed(28, body.replace(b"\0\x01s", b"\x7f\xffs"))
    assert redact(too_long) == too_long[:18] + b"*" * (len(too_long) - 18)


def test_the_rest_of_a_frame_whose_token_is_too_long_is_overwritten() -> None:
    before = framed(28, bytes(8) + b"\0\x01s\0\x09secret")
    assert redact(before) == before[:21] + b"*" * 6
    assert b"secret" not in redact(before)


@pytest.mark.parametrize("data", [b"1234567", frame(111, b"12345678"), b"\0\0\0\x1c\xff\xff\xff\xffsecret"])
def test_bytes_that_are_no_half_frame_are_overwritten(data: bytes) -> None:
    assert redact(data, False) == b"*" * len(data)


def test_half_a_frame_without_a_token_stays() -> None:
    half = frame(3, bytes(100))[:50]
    assert redact(half, False) == half
