"""Generated functions: what they take without asking the schema, what they refuse, and what they never do."""

import copy
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import HEADER_BYTES, Command, ConditionalAppend, Event, WireError, encode
from segstore.wire.codec.generate import REFUSALS, make_decoder, make_encoder
from segstore.wire.schema import schema
from tests.looped import looped
from tests.strategies import FRAMED, as_read, command_of, examples, refused_of

CLASSES = looped("cls", FRAMED.values())


def decoders(cls: type[Command]) -> list[Callable[[bytes], Any]]:
    """The generated way to read the body of a frame, in bytes and in a bytearray."""
    decode = make_decoder(cls)
    return [
        lambda frame: decode(memoryview(frame), HEADER_BYTES, len(frame)),
        lambda frame: decode(memoryview(bytearray(frame)), HEADER_BYTES, len(frame)),
    ]


@CLASSES
def test_generated_functions_take_every_good_value_themselves(cls: type[Command]) -> None:
    """Falling back to the schema would be right, and twenty times as slow."""
    read, write = decoders(cls), make_encoder(cls, parts=True)

    @examples(15)
    @given(command_of(cls))
    def holds(value: Command) -> None:
        with mock.patch.object(schema, "parse"), mock.patch.object(schema, "build"):
            frame = b"".join(write(value))
            for decode in read:
                assert decode(frame) == as_read(value)

    holds()


@CLASSES
def test_frames_that_end_early_in_their_tails_are_read_by_generated_functions_too(cls: type[Command]) -> None:
    read = decoders(cls)

    @examples(4)
    @given(command_of(cls).filter(lambda value: len(encode(value)) < 300))
    def holds(value: Command) -> None:
        frame = encode(value)
        for cut in range(HEADER_BYTES, len(frame)):
            body = frame[HEADER_BYTES:cut]
            try:
                expected = schema.parse(cls, body)
            except WireError:
                continue
            short = frame[:4] + len(body).to_bytes(4, "big") + body
            for decode in read:
                assert decode(short) == expected

    holds()


@CLASSES
def test_generated_encoders_refuse_with_the_errors_that_their_callers_know(cls: type[Command]) -> None:
    if refused_of(cls).is_empty:
        return
    write = make_encoder(cls, parts=True)

    @examples(15)
    @given(refused_of(cls))
    def holds(value: Command) -> None:
        with pytest.raises(REFUSALS):
            write(value)

    holds()


@given(st.lists(st.uuids(), min_size=1, max_size=5))
def test_writer_ids_are_what_uuid_makes(ids: list[UUID]) -> None:
    decode = make_decoder(ConditionalAppend)
    for writer in ids:
        body = encode(ConditionalAppend(writer, 1, 1, Event(b"x")))[HEADER_BYTES:]
        found = decode(memoryview(body), 0, len(body)).writer_id
        assert (found, hash(found), repr(found), found.bytes) == (writer, hash(writer), repr(writer), writer.bytes)
        assert found.is_safe == UUID(bytes=writer.bytes).is_safe
        assert [type(each) for each in (copy.copy(found), pickle.loads(pickle.dumps(found)))] == [UUID, UUID]
        assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == writer
