"""Compiles the intermediate form into a decoder, an encoder and a scatter-gather encoder for each command.

Generated code is faster than construct: it reads adjacent fixed-width fields with one `struct.Struct`, tries ASCII
first for text, slices payloads from a memoryview, and only loops over counted elements.

Invariant: a generated decoder accepts exactly the bytes that the schema accepts and returns an equal value; for all
other bytes it raises an error of `REFUSALS`, and its caller gets the reason from the schema. While running it may read
bytes after the frame (in the same buffer); lengths are unsigned or checked, so its position only grows, and one
comparison at the end detects overruns. With SEGSTORE_CODEC=construct no generated code runs, and behaviour is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segstore.wire.codec.generate.decoder import decoder_source
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


def make_decoder(cls: type[Command], most_elements: int | None = None) -> Callable[[memoryview, int, int], Any]:
    """`decode(view, start, end) -> cls` for a body between start and end of a view of bytes.

    most_elements: the maximum number of elements of a list; None for as many as the bytes allow.
    """
    return _compiled(cls.type_name, "decode", decoder_source(cls, most_elements))


def make_encoder(cls: type[Command], *, parts: bool = False) -> Callable[[Any], Any]:
    """`encode(command) -> frame`; with `parts`, the buffers of the frame, payloads as the caller's own buffers."""
    return _compiled(cls.type_name, "encode", encoder_source(cls, parts=parts))
