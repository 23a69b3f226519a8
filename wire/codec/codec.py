"""Bytes ↔ commands: `encode`, `encode_parts`, `decode`, and their dispatch tables.

There are two equivalent codecs: "generated" (the default, `segstore.wire.codec.generate.compiler`) and "construct" (the
schema itself, for comparison). The environment variable SEGSTORE_CODEC selects one for the process, the argument
`codec` for one call.

Functions are generated on first use. Input that they refuse is parsed again through the schema, which raises the error
with field and offset; so each error has a single source.
"""

from __future__ import annotations

import os
import struct
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.codec.generate import REFUSALS, TooLong, compiler
from segstore.wire.errors import BadField, FrameTooLarge, Truncated, UnknownCommand, WireError
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, BodyStream, Buffer, Command, Unknown, schema, types

if TYPE_CHECKING:
    from collections.abc import Callable

WIRE_VERSION: Final = 17
OLDEST_COMPATIBLE_VERSION: Final = 5
HEADER_BYTES: Final = 8

EVENT: Final = 0

Codec = Literal["generated", "construct"]
UnknownPolicy = Literal["refuse", "keep"]

_read_header = struct.Struct(">ii").unpack_from
_write_header = struct.Struct(">ii").pack


def _codec_of_process() -> Codec:
    name = os.environ.get("SEGSTORE_CODEC", "generated")
    if name not in ("generated", "construct"):
        raise ValueError(f"SEGSTORE_CODEC is {name!r}; it can be 'generated' or 'construct'")
    return "construct" if name == "construct" else "generated"


# --- decoding ---------------------------------------------------------------------------------------------------


class Decoders(dict[int, Any]):
    """Type code → `decode(buffer, view, start, end)`, created on first use. Raises KeyError for an unknown code.

    most_elements: the maximum number of elements of a list; None for as many as the bytes allow.
    """

    def __init__(self, codec: Codec, *, view: bool = False, most_elements: int | None = None) -> None:
        super().__init__()
        self.codec = codec
        self.view = view
        self.most_elements = most_elements

    def __missing__(self, code: int) -> Callable[[Any, memoryview, int, int], Command]:
        if code == EVENT:
            raise KeyError(code)
        cls = COMMANDS[code]
        made: Callable[..., Command]
        if self.codec == "construct":
            made = partial(self.by_schema, cls)
        else:
            made = compiler.make_decoder(cls, view=self.view, most_elements=self.most_elements)
        self[code] = made
        return made

    def by_schema(self, cls: type[Command], _: Any, view: memoryview, start: int, end: int) -> Command:
        """Decodes a body through the schema, which raises a precise error."""
        return schema.parse(cls, BodyStream(view[start:end], self.most_elements))


_BOTH: Final[tuple[Codec, ...]] = ("generated", "construct")
DECODERS: Final = {codec: Decoders(codec) for codec in _BOTH}
"""Decoders for frames in bytes or a bytearray."""
VIEW_DECODERS: Final = {codec: Decoders(codec, view=True) for codec in _BOTH}
"""Decoders for frames in a memoryview."""


@cache
def decoders_of(codec: Codec, most_elements: int | None) -> tuple[Decoders, Decoders]:
    """Returns decoders for frames in bytes or a bytearray, and in a memoryview; equal arguments share them."""
    if most_elements is None:
        return DECODERS[codec], VIEW_DECODERS[codec]
    return Decoders(codec, most_elements=most_elements), Decoders(codec, view=True, most_elements=most_elements)


DEFAULT_CODEC: Final[Codec] = _codec_of_process()


def decode(frame: Buffer, unknown: UnknownPolicy = "refuse", codec: Codec | None = None) -> Command:
    """Decodes one whole frame, header included.

    Payload attributes of the result are views of `frame`, valid as long as it is unchanged.
    unknown: "keep" returns `Unknown` for unknown type codes.
    Raises WireError: UnknownCommand for unknown codes and for EVENT (0).
    """
    if codec is None and type(frame) is not memoryview:
        try:
            return _FRAMES[frame[3]](frame)
        except REFUSALS:
            pass  # the slow path raises a precise error, or succeeds
    return _decode_carefully(frame, unknown, codec or DEFAULT_CODEC)


def _decode_carefully(frame: Buffer, unknown: UnknownPolicy, codec: Codec) -> Command:
    view = memoryview(frame)
    if view.nbytes < HEADER_BYTES:
        raise Truncated("a header has 8 bytes", offset=0, limit=view.nbytes, actual=HEADER_BYTES)
    if type(frame) is memoryview:
        if view.format != "B" or not view.c_contiguous or view.ndim != 1:
            view = view.cast("B")
        frame = view
    code, length = _read_header(frame)
    if length != view.nbytes - HEADER_BYTES:
        raise _length_error(code, length, view.nbytes - HEADER_BYTES)
    table = VIEW_DECODERS if type(frame) is memoryview else DECODERS
    return decode_body(table[codec], frame, view, code, HEADER_BYTES, view.nbytes, unknown)


def _frame_decoder(code: int) -> Callable[[Any], Command]:
    """Returns a placeholder for `_FRAMES` that replaces itself by the generated decoder on first use."""

    def decode_first(frame: Any) -> Command:
        made: Callable[[Any], Command] = compiler.make_frame_decoder(COMMANDS[code])
        _FRAMES[code & 0xFF] = made
        return made(frame)

    return decode_first


def _no_decoder(_: Any) -> Command:
    raise KeyError("no decoder for whole frames of this code")


_FRAMES: Final[list[Callable[[Any], Command]]] = [_no_decoder] * 256
"""Lowest byte of a type code → `decode(frame)`; a decoder refuses frames of another code than its own."""
if DEFAULT_CODEC == "generated":
    for _code in COMMANDS.keys() - {EVENT}:
        _FRAMES[_code & 0xFF] = _frame_decoder(_code)


def decode_body(
    decoders: Decoders, buffer: Any, view: memoryview, code: int, start: int, end: int, unknown: UnknownPolicy
) -> Command:
    """Decodes the body between `start` and `end` of `buffer`; view: a view of `buffer`. Raises WireError."""
    try:
        decoder = decoders[code]
    except KeyError:
        if unknown == "keep":
            return Unknown(code, view[start:end])
        raise UnknownCommand(
            "an event is part of data, never a frame" if code == EVENT else "no command has this type code",
            code=code,
            offset=0,
            actual=code,
        ) from None
    try:
        command: Command = decoder(buffer, view, start, end)
    except REFUSALS:
        return decoders.by_schema(COMMANDS[code], buffer, view, start, end)
    return command


def _length_error(code: int, length: int, present: int) -> WireError:
    name = COMMANDS[code].type_name if code in COMMANDS else None
    facts = {"code": code, "type_name": name, "field": "length", "offset": 4, "limit": present, "actual": length}
    if length < 0:
        return BadField(f"length {length} is negative", **facts)  # type: ignore[arg-type]
    if length > present:
        return Truncated(f"the header announces {length} bytes but {present} follow", **facts)  # type: ignore[arg-type]
    return BadField(f"the header announces {length} bytes but {present} follow", **facts)  # type: ignore[arg-type]


# --- encoding ---------------------------------------------------------------------------------------------------


class _Encoders(dict[type[Command], Any]):
    """Command class → the function that encodes it; generated on first use."""

    def __init__(
        self, make: Callable[[type[Command]], Callable[[Any], Any]], unknown: Callable[[Unknown], Any]
    ) -> None:
        super().__init__()
        self.make = make
        self.unknown = unknown

    def __missing__(self, cls: type[Any]) -> Callable[[Any], Any]:
        if not issubclass(cls, Command) or cls is Command:
            raise TypeError(f"encode takes a command, not {cls.__name__}")
        made = self.unknown if cls is Unknown else self.make(cls)
        self[cls] = made
        return made


def encode(command: Command, codec: Codec | None = None) -> bytes:
    """Encodes a command as a frame of the current wire version, header included.

    Raises BadField for a value that its field cannot hold, FrameTooLarge above MAX_FRAME_BYTES.
    """
    if codec is None:
        try:
            return _FRAME_ENCODERS[type(command)](command)
        except REFUSALS:
            pass  # the slow path raises a precise error
    return _encode_carefully(command, codec or DEFAULT_CODEC)


def _encode_carefully(command: Command, codec: Codec) -> bytes:
    cls = type(command)
    encoder: Callable[[Any], bytes] = _ENCODERS[codec][cls]
    try:
        frame = encoder(command)
    except TooLong as refused:
        raise _too_large(command, refused.args[0] + HEADER_BYTES) from None
    except REFUSALS:
        return _build(command)
    if codec == DEFAULT_CODEC:
        _FRAME_ENCODERS[cls] = encoder
    return frame


def encode_parts(command: Command, codec: Codec | None = None) -> list[Buffer]:
    """Encodes a command as a list of buffers, for `writelines` or `sendmsg`.

    Payloads are the caller's own buffers, not copies: they must not change until written. ("construct" builds the frame
    in one piece.) Raises as `encode`.
    """
    encoder = _PARTS[codec or DEFAULT_CODEC][type(command)]
    try:
        parts: list[Buffer] = encoder(command)
    except TooLong as refused:
        raise _too_large(command, refused.args[0] + HEADER_BYTES) from None
    except REFUSALS:
        return [_build(command)]
    return parts


def _build(command: Command) -> bytes:
    body = schema.build(command)
    if len(body) + HEADER_BYTES > MAX_FRAME_BYTES:
        raise _too_large(command, len(body) + HEADER_BYTES)
    return _write_header(command.code, len(body)) + body


def _unknown_parts(command: Unknown) -> list[Buffer]:
    code: Any = command.type_code
    data = command.data
    if not isinstance(code, int) or not -(1 << 31) <= code < 1 << 31:
        raise BadField(f"{code!r} is no type code", type_name=command.type_name, field="type_code", actual=code)
    size = memoryview(types.check_buffer(data, " -> data")).nbytes
    if size + HEADER_BYTES > MAX_FRAME_BYTES:
        raise _too_large(command, size + HEADER_BYTES)
    return [_write_header(code, size), data]


def _too_large(command: Command, size: int) -> FrameTooLarge:
    return FrameTooLarge(
        f"a frame of {size} bytes exceeds the {MAX_FRAME_BYTES} that one may have",
        code=command.code,
        type_name=command.type_name,
        limit=MAX_FRAME_BYTES,
        actual=size,
    )


def _unknown_frame(command: Unknown) -> bytes:
    return b"".join(_unknown_parts(command))


_ENCODERS: Final[dict[Codec, _Encoders]] = {
    "generated": _Encoders(compiler.make_encoder, _unknown_frame),
    "construct": _Encoders(lambda _: _build, _unknown_frame),
}
_FRAME_ENCODERS: Final[dict[type[Command], Callable[[Any], bytes]]] = {}
"""Encoders of this process's codec used so far: a plain dict, for fast lookup in `encode`."""
_PARTS: Final[dict[Codec, _Encoders]] = {
    "generated": _Encoders(compiler.make_parts_encoder, _unknown_parts),
    "construct": _Encoders(lambda _: lambda command: [_build(command)], _unknown_parts),
}
