"""What must hold of the codec for any input: both codecs agree, and nothing but `WireError` leaves it.

Used by the property tests and by the fuzzers. Every check raises AssertionError with the input in its text.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore.wire import COMMANDS, MAX_FRAME_BYTES, FrameTooLarge, WireError, decode, encode, encode_parts
from segstore.wire.codec import CODECS, HEADER_BYTES
from segstore.wire.codec.codec import decoder_of
from segstore.wire.codec.generate import REFUSALS
from segstore.wire.schema import schema
from tests.strategies import as_read

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire import Buffer, Command
    from segstore.wire.codec import Codec

__all__ = ["EACH", "check_body", "check_encode", "check_frame", "outcome", "read_by_schema", "refusal"]

EACH: tuple[Codec | None, ...] = (None, *CODECS)
"""None is the quickest way of the codec that the process uses."""


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """The result, or all that a WireError says; any other exception passes."""
    try:
        return ("is", call())
    except WireError as error:
        return ("raises", type(error), str(error), error.facts())


def refusal(call: Callable[[], Any]) -> WireError | None:
    """The WireError that a call raises, None if it returns."""
    try:
        call()
    except WireError as error:
        return error
    return None


def check_body(code: int, body: bytes, before: bytes = b"", after: bytes = b"") -> Command | None:
    """Reads one body with both codecs, and with the generated functions inside a larger buffer.

    Returns the value, None where it is refused. The generated function may refuse too much (its caller then asks the
    schema), but what it returns is what the schema returns, whatever bytes lie before and behind the body.
    """
    cls = COMMANDS[code]
    expected = outcome(lambda: schema.parse(cls, body))
    frame = struct.pack(">ii", code, len(body)) + body
    kinds = (frame, bytearray(frame), memoryview(frame), memoryview(bytearray(frame)))
    for codec in EACH:
        for whole in kinds if codec != "construct" else kinds[:1]:  # which is slow, and is `schema.parse`
            found = outcome(lambda whole=whole, codec=codec: decode(whole, codec=codec))
            assert found == expected, f"{codec}, {type(whole).__name__}, {frame.hex()}: {found} is not {expected}"
    start, end = len(before), len(before) + len(body)
    around = before + body + after
    for buffer in (around, bytearray(around)):
        read = partial(decoder_of(code, None), memoryview(buffer), start, end)
        _refuses_or_agrees(expected, read, f"{around.hex()}[{start}:{end}] of {code}")
    return expected[1] if expected[0] == "is" else None


def _refuses_or_agrees(expected: tuple[Any, ...], read: Callable[[], Any], what: str) -> None:
    try:
        value = read()
    except REFUSALS:
        return
    assert ("is", value) == expected, f"{what}: {value!r} is not {expected}"


def check_encode(value: Command) -> bytes | None:
    """Writes a value with both codecs and in parts. Returns the frame, None where it is refused."""
    expected = outcome(lambda: encode(value, codec="construct"))
    quick = [codec for codec in EACH if codec != "construct"]
    in_parts = [lambda value, codec=codec: b"".join(encode_parts(value, codec=codec)) for codec in quick]
    for write in (*(partial(encode, codec=codec) for codec in quick), *in_parts):
        found = outcome(partial(write, value))
        assert found == expected, f"{value!r}: {found} is not {expected}"
    return expected[1] if expected[0] == "is" else None


def check_frame(frame: Buffer, before: bytes = b"", after: bytes = b"") -> Command | None:
    """All of the above for arbitrary bytes: as they are, with the header made to fit the body, and written back."""
    frame = bytes(frame)
    found = {codec: outcome(lambda codec=codec: decode(frame, codec=codec)) for codec in EACH}
    assert all(each == found["construct"] for each in found.values()), f"{frame.hex()}: {found}"
    code = int.from_bytes(frame[:4], "big", signed=True)
    if len(frame) < HEADER_BYTES or code == 0 or code not in COMMANDS:
        assert found["construct"][0] == "raises", frame.hex()
        return None
    value = check_body(code, frame[HEADER_BYTES:], before, after)
    if value is not None:
        written = check_encode(value)
        if written is not None:
            again = decode(written)
            assert again == as_read(value), f"{frame.hex()}: {again!r} is not {value!r}"
            assert encode(again) == written, frame.hex()
    return value


def read_by_schema(stream: bytes, limit: int = MAX_FRAME_BYTES) -> tuple[list[Command], tuple[Any, ...] | None, int]:
    """A stream of frames read one by one: its commands, the error that ends it, the bytes of the last frame if cut off.

    The error is (type, text, facts), or (FrameTooLarge, code).
    """
    found: list[Command] = []
    at = 0
    while len(stream) - at >= HEADER_BYTES:
        code, length = struct.unpack_from(">iI", stream, at)
        if length + HEADER_BYTES > limit:
            return found, (FrameTooLarge, code), 0
        stop = at + HEADER_BYTES + length
        if stop > len(stream):
            break
        result = outcome(partial(decode, stream[at:stop], codec="construct"))
        if result[0] == "raises":
            return found, result[1:], 0
        found.append(result[1])
        at = stop
    return found, None, len(stream) - at
