"""What must hold of the codec for any input: both codecs agree, and nothing but `WireError` leaves it.

Used by the property tests and by the fuzzers. Every check raises AssertionError with the input in its text.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from segstore.wire import COMMANDS, WireError, decode, encode, encode_parts, schema
from segstore.wire.codec import DECODERS, HEADER_BYTES, VIEW_DECODERS
from segstore.wire.compiler import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire import Buffer, Command

__all__ = ["check_body", "check_encode", "check_frame", "outcome"]

_GENERATED = DECODERS["generated"]
_GENERATED_FOR_VIEWS = VIEW_DECODERS["generated"]


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """The result, or all that a WireError says; any other exception passes."""
    try:
        return ("is", call())
    except WireError as error:
        return ("raises", type(error), str(error), error.facts())


def check_body(code: int, body: bytes, before: bytes = b"", after: bytes = b"") -> Command | None:
    """Reads one body with both codecs, and with the generated functions inside a larger buffer.

    Returns the value, None where it is refused. The generated function may refuse too much (its caller then asks the
    schema), but what it returns is what the schema returns, whatever bytes lie before and behind the body.
    """
    cls = COMMANDS[code]
    expected = outcome(lambda: schema.parse(cls, body))
    frame = struct.pack(">ii", code, len(body)) + body
    for codec in ("generated", "construct"):
        for whole in (frame, bytearray(frame), memoryview(frame), memoryview(bytearray(frame))):
            found = outcome(lambda whole=whole, codec=codec: decode(whole, codec=codec))
            assert found == expected, f"{codec}, {type(whole).__name__}, {frame.hex()}: {found} is not {expected}"
    start, end = len(before), len(before) + len(body)
    around = before + body + after
    for table, buffer in (
        (_GENERATED, around),
        (_GENERATED, bytearray(around)),
        (_GENERATED_FOR_VIEWS, memoryview(around)),
    ):
        try:
            value = table[code](buffer, memoryview(buffer), start, end)
        except REFUSALS:
            continue
        assert ("is", value) == expected, f"{around.hex()}[{start}:{end}] of {code}: {value!r} is not {expected}"
    return expected[1] if expected[0] == "is" else None


def check_encode(value: Command) -> bytes | None:
    """Writes a value with both codecs and in parts. Returns the frame, None where it is refused."""
    expected = outcome(lambda: encode(value, codec="construct"))
    for write in (encode, lambda value: b"".join(encode_parts(value))):
        found = outcome(lambda write=write: write(value))
        assert found == expected, f"{value!r}: {found} is not {expected}"
    return expected[1] if expected[0] == "is" else None


def check_frame(frame: Buffer, before: bytes = b"", after: bytes = b"") -> Command | None:
    """All of the above for arbitrary bytes: as they are, with the header made to fit the body, and written back."""
    frame = bytes(frame)
    found = {codec: outcome(lambda codec=codec: decode(frame, codec=codec)) for codec in ("generated", "construct")}
    assert found["generated"] == found["construct"], f"{frame.hex()}: {found}"
    code = int.from_bytes(frame[:4], "big", signed=True)
    if len(frame) < HEADER_BYTES or code == 0 or code not in COMMANDS:
        assert found["generated"][0] == "raises", frame.hex()
        return None
    value = check_body(code, frame[HEADER_BYTES:], before, after)
    if value is not None:
        written = check_encode(value)
        if written is not None:
            again = decode(written)
            assert again == value, f"{frame.hex()}: {again!r} is not {value!r}"
            assert encode(again) == written, frame.hex()
    return value
