"""Run-time support for generated code: UUIDs, texts, and checks of buffers and lists."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from segstore.wire.schema import MAX_FRAME_BYTES, encode_mutf8

REFUSALS: Final = (struct.error, ValueError, TypeError, AttributeError, KeyError, OverflowError, IndexError)
"""The exceptions with which generated code refuses its input; the schema then gives the reason."""

MAX_BODY: Final = MAX_FRAME_BYTES - 8
MAX_RUN: Final = 128
"""Maximum look-ahead in frames, which bounds the wasted work if a peer breaks off every run."""


class _Uuid(uuid.UUID):
    """A UUID that stores its bytes. Tables keyed by peers' ids use the bytes, because Python's hash of bytes is seeded;
    a UUID hashes as its integer, so a peer could choose many ids with the same hash."""

    __slots__ = ("bytes",)

    def __repr__(self) -> str:
        return f"UUID({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return uuid.UUID, (self.hex,)


# Bypasses the constructor's checks: any 16 bytes are a UUID. Its slots refuse assignment, but descriptors work.
_new_uuid: Final = _Uuid.__new__
_set_int: Final = uuid.UUID.__dict__["int"].__set__
_set_safety: Final = uuid.UUID.__dict__["is_safe"].__set__
_set_bytes: Final = _Uuid.__dict__["bytes"].__set__
_UNKNOWN_SAFETY: Final = uuid.SafeUUID.unknown


def uuid_of(data: bytes) -> uuid.UUID:
    """Returns the UUID of 16 bytes."""
    made = _new_uuid(_Uuid)
    _set_int(made, int.from_bytes(data, "big"))
    _set_safety(made, _UNKNOWN_SAFETY)
    _set_bytes(made, data)
    return made


def text_bytes(text: str) -> bytes:
    """Returns a text's length and modified UTF-8."""
    data = text.encode() if text.isascii() and "\0" not in text else encode_mutf8(text)
    return len(data).to_bytes(2, "big") + data


def size_of(data: Any) -> int:
    if type(data) is memoryview and data.c_contiguous:
        return data.nbytes
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("not in one piece")
    return view.nbytes


def check_list(value: Any) -> None:
    if not isinstance(value, (tuple, list)):
        raise TypeError("not a tuple")


class FrameRows:
    """Consecutive frames of one command and one length.

    frames: their bytes. unpack: yields the values that such frames have, in wire order.
    """

    __slots__ = ("frames", "unpack")

    def __init__(self, frames: memoryview, unpack: Callable[[memoryview], Iterator[tuple[Any, ...]]]) -> None:
        self.frames: Final = frames
        self.unpack: Final = unpack

    @property
    def fields(self) -> Iterator[tuple[Any, ...]]:
        """Yields each frame's raw field values."""
        return self.unpack(self.frames)


class TooLong(ValueError):
    """The body to be written exceeds the limit; `args` is its size."""


class Short(ValueError):
    """The frame ended before its fields did. Raised as a class: a shared instance would accumulate tracebacks."""
