"""Bytes ↔ commands: `encode`, `encode_parts`, `decode`, and their dispatch tables.

There are three equivalent codecs: "c" (`segstore.wire.codec.speed`, the default where its extension is built), "python"
(`segstore.wire.codec.generate`) and "construct" (the schema itself, for comparison). The environment variable
SEGSTORE_CODEC selects one for the process, the argument `codec` for one call. The code here is the codec in Python:
with C, it gets the input that C declines, and calls that name a codec.

Functions are generated on first use. Input that they refuse is parsed again through the schema, which raises the error
with field and offset; so each error has a single source.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from segstore.wire import commands as _commands  # noqa: F401 — completes the registry
from segstore.wire.codec.generate import REFUSALS, TooLong, make_decoder, make_encoder
from segstore.wire.codec.speed import load
from segstore.wire.errors import BadField, FrameTooLarge, Truncated, UnknownCommand, WireError
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, BodyStream, Buffer, Command, Nested, Unknown, schema, types

if TYPE_CHECKING:
    from collections.abc import Callable

WIRE_VERSION: Final = 17
OLDEST_COMPATIBLE_VERSION: Final = 5
HEADER_BYTES: Final = 8

EVENT: Final = 0

Codec = Literal["c", "python", "construct"]
UnknownPolicy = Literal["refuse", "keep"]
F = TypeVar("F", bound="Callable[..., Any]")

_read_header = struct.Struct(">ii").unpack_from
_write_header = struct.Struct(">ii").pack


SPEED: Final = load(cls for code, cls in COMMANDS.items() if code != EVENT)
"""The accelerator; None where its extension is not built."""
CODECS: Final[tuple[Codec, ...]] = ("python", "construct") if SPEED is None else ("c", "python", "construct")
"""The codecs that can be used here, the default first."""


def checked_codec(name: str, where: str = "codec") -> Codec:
    """Returns the name of a codec that can be used here. where: the source of the name. Raises ValueError."""
    for known in CODECS:
        if name == known:
            return known
    if name == "c":
        raise ValueError(
            f"{where} is 'c', but the extension segstore._speed is not built here: install segstore where there is a C "
            "compiler, or use 'python'"
        )
    raise ValueError(f"{where} is {name!r}; it can be 'c', 'python' or 'construct'")


DEFAULT_CODEC: Final = checked_codec(os.environ.get("SEGSTORE_CODEC") or CODECS[0], "SEGSTORE_CODEC")
codec_backend: Final[Codec] = DEFAULT_CODEC
"""The codec of this process: "c", "python" or "construct"."""


ACCELERATOR: Final = SPEED if codec_backend == "c" else None
"""The accelerator if C is this process's codec, else None."""


def or_in_c(function: F) -> F:
    """Decorates a function that has an equal in C, which is asked first if C is this process's codec."""
    return function if ACCELERATOR is None else ACCELERATOR.shortcut(function)


@cache
def _in_c(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that asks C first, in any process. Raises ValueError without the extension."""
    checked_codec("c")
    assert SPEED is not None
    asked: Callable[..., Any] = SPEED.shortcut(getattr(function, "__wrapped__", function))
    return asked


# --- decoding ---------------------------------------------------------------------------------------------------


@cache
def decoder_of(code: int, most_elements: int | None) -> Callable[[memoryview, int, int], Command]:
    """Returns the generated decoder of a command's body, compiled on first use."""
    return make_decoder(COMMANDS[code], most_elements)


@or_in_c
def decode(frame: Buffer, unknown: UnknownPolicy = "refuse", codec: Codec | None = None) -> Command:
    """Decodes one whole frame, header included.

    Payload attributes of the result are views of `frame`, valid as long as it is unchanged.
    unknown: "keep" returns `Unknown` for unknown type codes.
    Raises WireError: UnknownCommand for unknown codes and for EVENT (0).
    """
    if codec == "c":
        read: Command = _in_c(decode)(frame, unknown=unknown)
        return read
    view = memoryview(frame)
    if view.format != "B" or not view.c_contiguous or view.ndim != 1:
        view = view.cast("B")
    if view.nbytes < HEADER_BYTES:
        raise Truncated("a header has 8 bytes", offset=0, limit=view.nbytes, actual=HEADER_BYTES)
    code, length = _read_header(view)
    if length != view.nbytes - HEADER_BYTES:
        raise _length_error(code, length, view.nbytes - HEADER_BYTES)
    used = DEFAULT_CODEC if codec is None else checked_codec(codec)
    return decode_body(view, code, HEADER_BYTES, view.nbytes, unknown, used, None)


def decode_body(
    view: memoryview, code: int, start: int, end: int, unknown: UnknownPolicy, codec: Codec, most_elements: int | None
) -> Command:
    """Decodes the body between `start` and `end` of a view of bytes. Raises WireError.

    most_elements: the maximum number of elements of a list; None for as many as the bytes allow.
    """
    if code == EVENT or code not in COMMANDS:
        if unknown == "keep":
            return Unknown(code, view[start:end])
        raise UnknownCommand(
            "an event is part of data, never a frame" if code == EVENT else "no command has this type code",
            code=code,
            offset=0,
            actual=code,
        )
    if codec == "construct":
        return _parse(code, view[start:end], most_elements)
    try:
        return decoder_of(code, most_elements)(view, start, end)
    except REFUSALS:
        return _parse(code, view[start:end], most_elements)


def _parse(code: int, body: memoryview, most_elements: int | None) -> Command:
    """Decodes a body through the schema, which raises a precise error."""
    return schema.parse(COMMANDS[code], BodyStream(body, most_elements))


def _length_error(code: int, length: int, present: int) -> WireError:
    refused = Truncated if length > present else BadField
    announced = f"the header announces {length} bytes but {present} follow"
    return refused(
        f"length {length} is negative" if length < 0 else announced,
        code=code,
        type_name=COMMANDS[code].type_name if code in COMMANDS else None,
        field="length",
        offset=4,
        limit=present,
        actual=length,
    )


# --- encoding ---------------------------------------------------------------------------------------------------


@cache
def _encoder_of(cls: type[Any], codec: Codec | None, parts: bool) -> Callable[[Any], Any]:
    """Returns the encoder of a class of commands, compiled on first use. Raises TypeError for another class."""
    if not issubclass(cls, Command) or cls is Command:
        raise TypeError(f"encode takes a command, not {cls.__name__}")
    if cls is Unknown:
        return _unknown_parts if parts else lambda command: b"".join(_unknown_parts(command))
    if (DEFAULT_CODEC if codec is None else checked_codec(codec)) == "construct":
        return lambda command: [build_frame(command)] if parts else build_frame(command)
    return make_encoder(cls, parts=parts)


@or_in_c
def encode(command: Command, codec: Codec | None = None) -> bytes:
    """Encodes a command as a frame of the current wire version, header included.

    Raises BadField for a value that its field cannot hold, FrameTooLarge above MAX_FRAME_BYTES.
    """
    if codec == "c":
        whole: bytes = _in_c(encode)(command)
        return whole
    encoder = _encoder_of(type(command), codec, False)
    try:
        frame: bytes = encoder(command)
    except TooLong as refused:
        raise too_large(command, refused.args[0] + HEADER_BYTES) from None
    except REFUSALS:
        return build_frame(command)
    return frame


@or_in_c
def encode_parts(command: Command, codec: Codec | None = None) -> list[Buffer]:
    """Encodes a command as a list of buffers, for `writelines` or `sendmsg`.

    Payloads are the caller's own buffers, not copies: they must not change until written. ("construct" builds the frame
    in one piece.) Raises as `encode`.
    """
    if codec == "c":
        buffers: list[Buffer] = _in_c(encode_parts)(command)
        return buffers
    encoder = _encoder_of(type(command), codec, True)
    try:
        parts: list[Buffer] = encoder(command)
    except TooLong as refused:
        raise too_large(command, refused.args[0] + HEADER_BYTES) from None
    except REFUSALS:
        return [build_frame(command)]
    return parts


def build_frame(command: Command, form: Nested | None = None, limit: int = MAX_FRAME_BYTES, where: str = "") -> bytes:
    """Encodes a command through the schema. Raises BadField, FrameTooLarge.

    form: another form of its body, as of an older version. limit, where: of frames, as for `too_large`.
    """
    body = schema.build(command, form)
    if len(body) + HEADER_BYTES > limit:
        raise too_large(command, len(body) + HEADER_BYTES, limit, where)
    return _write_header(command.code, len(body)) + body


def _unknown_parts(command: Unknown) -> list[Buffer]:
    code: Any = command.type_code
    data = command.data
    if not isinstance(code, int) or not -(1 << 31) <= code < 1 << 31:
        raise BadField(
            f"{types.shown(code)} is no type code", type_name=command.type_name, field="type_code", actual=code
        )
    size = memoryview(types.check_buffer(data, " -> data")).nbytes
    if size + HEADER_BYTES > MAX_FRAME_BYTES:
        raise too_large(command, size + HEADER_BYTES)
    return [_write_header(code, size), data]


def too_large(command: Command, size: int, limit: int = MAX_FRAME_BYTES, where: str = "") -> FrameTooLarge:
    """Returns the error for a frame that exceeds a limit. where: whose limit it is, such as " in wire version 5"."""
    return FrameTooLarge(
        f"a frame of {size} bytes exceeds the {limit} that one may have{where}",
        code=command.code,
        type_name=command.type_name,
        limit=limit,
        actual=size,
    )
