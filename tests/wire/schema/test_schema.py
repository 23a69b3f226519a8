"""A class is its schema: declarations, the registry, and what holds for every value."""

from typing import Annotated
from uuid import UUID

import construct
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    COMMANDS,
    BadField,
    Command,
    ConditionalAppend,
    Event,
    PartialEvent,
    SealSegment,
    Unknown,
    decode,
    encode,
)
from segstore.wire.codec import CODECS
from segstore.wire.schema import Text, command, schema, types
from tests.looped import looped
from tests.strategies import as_read, command_of, commands, framed
from tests.wire.agreement import refusal

CLASSES = looped("cls", COMMANDS.values())
TOKEN = "a secret token"


@CLASSES
def test_the_registry_and_the_class_agree(cls: type[Command]) -> None:
    assert COMMANDS[cls.code] is cls
    assert [command for command in COMMANDS.values() if command.type_name == cls.type_name] == [cls]
    assert not cls.is_failure or cls.is_reply
    assert isinstance(cls.schema, construct.Struct)


@CLASSES
def test_every_delegation_token_is_a_secret(cls: type[Command]) -> None:
    assert cls.secrets == {name for name in cls.__struct_fields__ if "token" in name and name != "continuation_token"}


@given(commands(), st.data())
def test_values_with_hashable_payloads_can_be_hashed_and_compared(value: Command, data: st.DataObject) -> None:
    value = as_read(value)
    again = as_read(decode(encode(value))) if value.code else value
    assert (again == value, hash(again) == hash(value)) == (True, True)
    assert hash(decode(encode(value))) == hash(value), "views of bytes hash as the bytes do"
    other = as_read(data.draw(command_of(type(value))))
    assert (other == value) == (encode(other) == encode(value))


@given(commands())
def test_a_representation_is_short_about_payloads_and_silent_about_tokens(value: Command) -> None:
    said = repr(value)
    assert said.startswith(type(value).__name__ + "(")
    for name in value.__struct_fields__:
        assert f"{name}=" in said
    for name in value.secrets:
        token = getattr(value, name)
        assert f"{name}=<{len(token)} characters>" in said if token else f"{name}=''" in said


@looped("token", [TOKEN, TOKEN.encode(), [TOKEN], 5, None, ""])
def test_a_token_of_any_type_is_not_shown(token: object) -> None:
    for value in (SealSegment(1, "s", token), SealSegment(1, "s", token)):  # type: ignore[arg-type]
        assert "secret" not in repr(value)
        assert "delegation_token=" in str(value)


@looped("token", [TOKEN.encode(), [TOKEN], TOKEN * 5000])
def test_an_error_about_a_token_does_not_show_it(token: object) -> None:
    for codec in CODECS:
        with pytest.raises(BadField) as caught:
            encode(SealSegment(1, "s", token), codec=codec)  # type: ignore[arg-type]
        assert caught.value.field == "delegation_token"
        assert "secret" not in f"{caught.value} {caught.value.facts()}"
    with pytest.raises(BadField) as caught:
        SealSegment.from_dict({"request_id": 1, "segment": "s", "delegation_token": [TOKEN]})
    assert "secret" not in f"{caught.value} {caught.value.facts()}"


def test_an_error_about_a_malformed_token_does_not_show_it() -> None:
    good = encode(SealSegment(1, "s", TOKEN))
    bad = good.replace(b"secret", b"secre\xff")
    with pytest.raises(BadField) as caught:
        decode(bad)
    assert (caught.value.field, caught.value.actual) == ("delegation_token", None)
    assert b"secre".hex() not in str(caught.value.facts())


@looped("kind", [bytes, bytearray, memoryview])
def test_a_payload_is_shown_by_its_head_and_size(kind: type) -> None:
    assert repr(PartialEvent(kind(b"x" * 24))) == f"PartialEvent(data={b'x' * 24!r})"
    assert repr(PartialEvent(kind(b"x" * 25))) == f"PartialEvent(data=<25 bytes {b'x' * 24!r}…>)"
    assert len(repr(PartialEvent(kind(bytes(1 << 20))))) < 150
    assert "1048576 bytes" in repr(ConditionalAppend(UUID(int=1), 1, 1, Event(kind(bytes(1 << 20)))))


def test_an_unknown_has_the_code_of_its_frame_and_a_plain_form() -> None:
    value = Unknown(4711, b"\x01\x02")
    assert (value.code, value.type_name) == (4711, "UNKNOWN")
    assert value.to_dict() == {"type_code": 4711, "data": "0102"}
    assert Unknown.from_dict(value.to_dict()) == value
    with pytest.raises(BadField) as caught:
        Unknown.from_dict({"type_code": "x", "data": ""})
    assert (caught.value.field, caught.value.code) == ("type_code", None)


@pytest.fixture
def registry() -> object:
    before = dict(COMMANDS)
    yield COMMANDS
    COMMANDS.clear()
    COMMANDS.update(before)


class Novelty(Command, frozen=True, gc=False):
    """Declared for the tests alone: what the schema's own commands do not combine."""

    flags: Annotated[tuple[bool, ...], types.Counted(types.Bool, smallest=1)]
    ids: Annotated[tuple[UUID, ...], types.Counted(types.Uuid, smallest=16)]
    name: Text
    left: Annotated[int, types.Zeros()]


@pytest.mark.usefixtures("registry")
@given(st.data())
def test_a_new_command_follows_from_its_declaration_alone(data: st.DataObject) -> None:
    COMMANDS.pop(4711, None)
    cls = command(4711, "NOVELTY", request=True)(Novelty)
    value = data.draw(command_of(cls))
    frame = encode(value, codec="construct")
    assert encode(value) == frame
    assert decode(frame) == decode(frame, codec="construct") == as_read(value)
    assert as_read(cls.from_dict(value.to_dict())) == as_read(value)


@given(st.sampled_from([cls for code, cls in COMMANDS.items() if code]), st.binary(max_size=60))
def test_parse_raises_wire_errors_with_the_frame_and_place(cls: type[Command], body: bytes) -> None:
    error = refusal(lambda: schema.parse(cls, body))
    if error is not None:
        assert (error.code, error.type_name) == (cls.code, cls.type_name)
        assert error.offset is not None
        assert 8 <= error.offset <= 8 + len(body)
        assert error.field
    else:
        assert decode(framed(cls.code, body), codec="construct") == schema.parse(cls, body)
