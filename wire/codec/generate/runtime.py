"""Run-time support for generated code: caches of recent UUIDs and names, and checks of buffers and lists.

Memory is bounded in entries and in the length of a name, whatever peers send.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import Any, Final

from segstore.wire.schema import MAX_FRAME_BYTES, Elements, encode_mutf8

REFUSALS: Final = (struct.error, ValueError, TypeError, AttributeError, KeyError, OverflowError, IndexError)
"""What generated code raises when it does not take its input; the schema then says why."""

MAX_BODY: Final = MAX_FRAME_BYTES - 8
MEMO_ENTRIES: Final = 4096
MEMO_CHARACTERS: Final = 512
_MAX_RUN: Final = 128
"""A look ahead of no more frames than this, so that a peer that breaks every run off makes little work."""


class _Uuid(uuid.UUID):
    """A UUID that stores its bytes. Tables of peers' ids use these bytes as keys, because Python's hash of bytes is
    seeded; the hash of a UUID is that of its number, so a peer could choose many ids with the same hash."""

    __slots__ = ("bytes",)

    def __repr__(self) -> str:
        return f"UUID({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return uuid.UUID, (self.hex,)


# Created without the checks of the constructor: any 16 bytes are a UUID. Its slots refuse assignment, not descriptors.
_new_uuid: Final = _Uuid.__new__
_set_int: Final = uuid.UUID.__dict__["int"].__set__
_set_safety: Final = uuid.UUID.__dict__["is_safe"].__set__
_set_bytes: Final = _Uuid.__dict__["bytes"].__set__
_UNKNOWN_SAFETY: Final = uuid.SafeUUID.unknown


class _Uuids(dict[bytes, uuid.UUID]):
    """16 bytes → UUID, remembering the writers seen last: making a UUID costs more than all else in a frame."""

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
    """Text → its length and its modified UTF-8, remembering the names that were sent last."""

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
    """How many frames of `size` bytes, all with this header, follow each other; looks at no more than `_MAX_RUN`."""
    count = min((end - start) // size, _MAX_RUN)
    heads = view[start : start + count * size].cast("Q")[:: size // 8].tolist()
    return count if heads.count(head) == count else next(at for at, each in enumerate(heads) if each != head)


class Rows:
    """Frames of one command that follow each other: `fields` yields those of each, as they are on the wire, once."""

    __slots__ = ("fields",)

    def __init__(self, fields: Iterator[tuple[Any, ...]]) -> None:
        self.fields = fields


class TooLong(ValueError):
    """The body that was about to be written is longer than one may be: `args` is its size."""


class Short(ValueError):
    """The frame ended before its fields did. Raised as a class: one instance would gather every traceback."""


UUIDS: Final = _Uuids()
TEXTS: Final = _Texts()
