"""Run-time support for generated code: caches of recent UUIDs and names, and checks of buffers and lists.

The caches are bounded in entries and in the length of a name, whatever peers send.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import Any, Final

from segstore.wire.schema import MAX_FRAME_BYTES, Elements, encode_mutf8

REFUSALS: Final = (struct.error, ValueError, TypeError, AttributeError, KeyError, OverflowError, IndexError)
"""The exceptions with which generated code refuses its input; the schema then gives the reason."""

MAX_BODY: Final = MAX_FRAME_BYTES - 8
MEMO_ENTRIES: Final = 4096
MEMO_CHARACTERS: Final = 512
_MAX_RUN: Final = 128
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


class _Uuids(dict[bytes, uuid.UUID]):
    """16 bytes → UUID, a cache of recent writers: making a UUID costs more than the rest of a frame."""

    def __missing__(self, data: bytes) -> uuid.UUID:
        made = _new_uuid(_Uuid)
        _set_int(made, int.from_bytes(data, "big"))
        _set_safety(made, _UNKNOWN_SAFETY)
        _set_bytes(made, data)
        if len(self) >= MEMO_ENTRIES:
            self.clear()
        self[data] = made
        return made


class _Texts(dict[str, bytes]):
    """Text → its length and modified UTF-8, a cache of recently sent names."""

    def __missing__(self, text: str) -> bytes:
        data = text.encode() if text.isascii() and "\0" not in text else encode_mutf8(text)
        data = len(data).to_bytes(2, "big") + data
        if len(text) <= MEMO_CHARACTERS:
            if len(self) >= MEMO_ENTRIES:
                self.clear()
            self[text] = data
        return data


def size_of(data: Any) -> int:
    if type(data) is memoryview and data.c_contiguous:
        return data.nbytes
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("not in one piece")
    return view.nbytes


def check_list(value: Any) -> None:
    if not isinstance(value, (tuple, list, Elements)):
        raise TypeError("not a tuple")


def run_length(view: memoryview, start: int, end: int, size: int, head: int) -> int:
    """Returns the number of consecutive frames of `size` bytes with this header, at most `_MAX_RUN`."""
    count = min((end - start) // size, _MAX_RUN)
    heads = view[start : start + count * size].cast("Q")[:: size // 8].tolist()
    return count if heads.count(head) == count else next(at for at, each in enumerate(heads) if each != head)


class Rows:
    """Consecutive frames of one command; `fields` yields each frame's raw field values, once."""

    __slots__ = ("fields",)

    def __init__(self, fields: Iterator[tuple[Any, ...]]) -> None:
        self.fields = fields


class TooLong(ValueError):
    """The body to be written exceeds the limit; `args` is its size."""


class Short(ValueError):
    """The frame ended before its fields did. Raised as a class: a shared instance would accumulate tracebacks."""


UUIDS: Final = _Uuids()
TEXTS: Final = _Texts()
