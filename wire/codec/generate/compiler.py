"""Compiles the intermediate form into a decoder, an encoder and a scatter-gather encoder for each command.

What the generated code does that construct does not: neighbouring fields of a fixed width are read by one
`struct.Struct`, text is decoded as ASCII first, payloads are slices of a memoryview, an interpreter's loop runs only
where a count says so.

Invariant: a generated decoder accepts what the schema accepts and returns an equal value; for everything else it raises
one of `REFUSALS`, never a wrong value, and its caller asks the schema for the reason. It may look at bytes behind the
frame while it runs (they lie in the same buffer); lengths are unsigned or checked, so its position only grows, and one
comparison at the end refuses all that ran over. With SEGSTORE_CODEC=construct none of this runs, and behaviour is the
same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segstore.wire.codec.generate.decoder import Joined, decoder_source, frame_decoder_source, frames_source
from segstore.wire.codec.generate.encoder import encoder_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire.schema import Command


def _compiled(what: str, name: str, source: tuple[str, dict[str, Any]]) -> Callable[..., Any]:
    text, constants = source
    namespace = dict(constants)
    exec(compile(text, f"<{name} {what}>", "exec"), namespace)
    made: Callable[..., Any] = namespace[name]
    return made


def make_decoder(cls: type[Command], *, view: bool = False, most_elements: int | None = None) -> Callable[..., Any]:
    """`decode(buffer, view, start, end) -> cls` for a body between start and end.

    most_elements: the maximum number of elements of a list; None for as many as the bytes allow.
    """
    return _compiled(cls.type_name, "decode", decoder_source(cls, view=view, most_elements=most_elements))


def make_frame_decoder(cls: type[Command]) -> Callable[[Any], Any]:
    """`decode(frame) -> cls` for a whole frame, header included, in bytes or a bytearray."""
    return _compiled(cls.type_name, "decode", frame_decoder_source(cls))


def make_frames(
    often: tuple[type[Command], ...],
    *,
    joined: Joined | None = None,
    in_rows: type[Command] | None = None,
    view: bool = False,
) -> Callable[..., int]:
    """`frames(buffer, view, start, end, limit, decoders, slow, out, times, heavy) -> position`: see `frames_source`."""
    return _compiled("of a buffer", "frames", frames_source(often, joined=joined, in_rows=in_rows, view=view))


def make_encoder(cls: type[Command]) -> Callable[[Any], bytes]:
    """`encode(command) -> frame`."""
    return _compiled(cls.type_name, "encode", encoder_source(cls))


def make_packer(cls: type[Command]) -> Callable[..., bytes]:
    """`pack(*attributes) -> frame`, in the order of the class: for a frame that is sent often and never looked at.

    UUIDs are given as their 16 bytes. Raises one of `REFUSALS` for a value that does not fit.
    """
    return _compiled(cls.type_name, "encode", encoder_source(cls, unpacked=True))


def make_parts_encoder(cls: type[Command]) -> Callable[[Any], list[Any]]:
    """`encode(command) -> buffers of the frame`, payloads as the caller's own buffers."""
    return _compiled(cls.type_name, "encode", encoder_source(cls, parts=True))
