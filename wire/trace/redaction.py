"""Overwrites delegation tokens in frames; every length stays the same.

`redact` is a pure function of a frame, derived from the schema: fields declared secret are overwritten with asterisks,
so the frame still decodes, keeps its length, and can be compared with other frames.

Invariants: the result contains no byte of a token that the schema declares; a frame without tokens is returned
unchanged. There are four cases:

1. The fields fill the frame, in today's or an older version: only the token is overwritten. A frame of more than 256
   KiB that may have a list is not checked, and counts as such.
2. The frame decodes, and bytes follow its last field, of a newer version or because a length is wrong: they are
   overwritten, too. If another field may have a part of the token, so are all values from it on. Lengths and counts
   stay, so the frame still decodes.
3. The frame does not decode: all is overwritten from its token on, or from where the token may be.
4. The type code is unknown: the frame is returned unchanged, because its fields are unknown. A token in it stays.

A frame whose fields fill it although a length is wrong counts as well-formed.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.codec import HEADER_BYTES, decode, encode
from segstore.wire.errors import WireError
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, FieldType, Nested, types
from segstore.wire.trace.blocks import Direction, RecordKind
from segstore.wire.trace.calls import Call, redacted_call

if TYPE_CHECKING:
    from segstore.wire.trace.blocks import Record

    _Fields = tuple[tuple[FieldType, bool], ...]

_STAR: Final = b"*"
_HEADER: Final = struct.Struct(">ii").unpack_from
_INT32: Final = struct.Struct(">i").unpack_from
_UINT16: Final = struct.Struct(">H").unpack_from
_CHECKED_BYTES: Final = 256 * 1024
_MOST_ELEMENTS: Final = 16_384
"""Most elements of a list, as in a store."""
_CONTROL: Final = re.compile(rb"[\0-\x1f]").search
"""Bytes that no name has: the length of a token, within a name whose length is wrong."""
_TEXT: Final = re.compile(rb"^[!-)+-~]|[!-)+-~]{4}").search
"""Bytes that may be the rest of a token; not asterisks, so that redacting twice is redacting once."""


SECRET_CODES: Final = frozenset(code for code, cls in COMMANDS.items() if cls.secrets)
"""Type codes of the commands that carry a token."""


class _Stop(Exception):
    """The frame ends or becomes unreadable at byte `args[0]`; never leaves this module."""


def redact(frame: bytes, whole: bool = True) -> bytes:
    """Returns the frame with its delegation tokens overwritten; the length stays the same.

    whole: False for bytes of requests that form no frame. If they start like a partial frame they are treated like a
    frame, else all of them are overwritten. True for bytes of replies, too, which have no tokens: they are overwritten
    only if they start like a request with a token, because a capture may have taken one side for the other.
    """
    if len(frame) < HEADER_BYTES:
        return frame if whole else _STAR * len(frame)
    code, length = _HEADER(frame)
    if not whole and not (code in COMMANDS and len(frame) - HEADER_BYTES <= length <= MAX_FRAME_BYTES):
        return _STAR * len(frame)
    if code not in SECRET_CODES:
        return frame
    out, end = bytearray(frame), min(len(frame), HEADER_BYTES + max(length, 0))
    fields, has_list = _fields_of(code)
    if has_list and len(frame) > _CHECKED_BYTES:
        _overwrite_token(out, frame, end, fields)
    else:
        command = _decoded(frame)
        has_token = command is None or any(getattr(command, name) for name in COMMANDS[code].secrets)
        if not has_token and encode(command) == frame:
            return frame  # as without authentication
        _overwrite_parts(out, frame, end, fields, command is not None)
    return bytes(out)


def redacted_data(record: Record) -> bytes:
    """Returns a record's bytes without secrets; the lengths of frames stay the same."""
    match record.kind:
        case RecordKind.FRAME | RecordKind.BYTES:
            return redact(record.data, record.kind is RecordKind.FRAME or record.direction is Direction.REPLY)
        case RecordKind.CALL if (call := Call.unpack(record.data)) is not None:
            return redacted_call(call).pack()
    return record.data


def _decoded(frame: bytes) -> Any:
    try:
        return decode(frame)
    except WireError:
        return None


def _overwrite_token(out: bytearray, frame: bytes, end: int, fields: _Fields) -> None:
    """Overwrites the token of a frame that counts as well-formed, as far as it can be read."""
    at = HEADER_BYTES
    try:
        for node, is_secret in fields:
            after = _skip(node, frame, at, end, [])
            if is_secret:
                at, end = at + 2, after
                break
            at = after
    except _Stop as stop:
        at, end = stop.args[0], len(frame)
    out[at:end] = _STAR * (end - at)


def _overwrite_parts(out: bytearray, frame: bytes, end: int, fields: _Fields, decodes: bool) -> None:
    """Overwrites the token, and values that may be a part of it because a length is wrong.

    Before the token, these are a name that covers the token's length, or a list whose count may cover the token; in a
    frame that does not decode, all between the first name and the token. Behind the token, they are text.
    """
    at, doubtful, behind, values = HEADER_BYTES, len(frame), 0, list[tuple[int, int]]()
    try:
        for index, (node, is_secret) in enumerate(fields):
            after = _skip(node, frame, at, end, values)
            if is_secret:
                out[at + 2 : after] = _STAR * (after - at - 2)
                behind = after
            elif not behind and isinstance(node, types.Counted) and after > at + 4:
                doubtful = min(doubtful, at + 4)
            elif not behind and isinstance(node, types.Text):
                if _CONTROL(frame, at + 2, after):
                    doubtful = min(doubtful, at + 2)
                if not decodes and not fields[index + 1][1]:
                    doubtful = min(doubtful, after)
            at = after
    except _Stop as stop:
        decodes, at = False, stop.args[0]
    if not decodes:
        doubtful = min(doubtful, behind or at)
        out[doubtful:] = _STAR * (len(frame) - doubtful)
    elif at < len(frame):
        if _TEXT(frame[behind : at + 3]):
            doubtful = min(doubtful, behind)
        for start, stop_at in values:
            if start >= doubtful:
                out[start:stop_at] = _STAR * (stop_at - start)
        out[at:] = _STAR * (len(frame) - at)


@cache
def _fields_of(code: int) -> tuple[_Fields, bool]:
    """Returns a command's fields, each with whether it is the token, and whether it may have a list."""
    cls = COMMANDS[code]
    fields = tuple((node, node.name in cls.secrets) for node in cls.parts)
    for node, is_secret in fields:
        if is_secret and not isinstance(node, types.Text):
            raise TypeError(f"{cls.__name__}.{node.name}: only a text can be redacted")
    return fields, any(_has_list(node) for node, _ in fields)


def _has_list(node: FieldType) -> bool:
    inner = node.parts if isinstance(node, Nested) else (node.inner,) if isinstance(node, types.Tail) else ()
    return isinstance(node, types.Counted) or any(_has_list(child) for child in inner)


def _skip(node: FieldType, frame: bytes, at: int, end: int, values: list[tuple[int, int]]) -> int:
    """Returns the position where a field ends, and adds the ranges of its values."""
    match node:
        case types.Fixed():
            start, after = at, _within(at, at + node.size, end)
        case types.Text():
            start = _within(at, at + 2, end)
            after = _within(start, start + _UINT16(frame, at)[0], end)
        case types.Blob():
            start = _within(at, at + 4, end)
            after = _within(start, start + max(_INT32(frame, at)[0], 0), end)
        case types.SizedData():
            start = _within(at, at + 8, end)
            size = max(_INT32(frame, at + 4)[0], 0)
            after = _within(start, start + size + (node.width if size else 0), end)
        case Nested():
            for inner in node.parts:
                at = _skip(inner, frame, at, end, values)
            return at
        case types.Tail():
            return _skip(node.inner, frame, at, end, values) if end - at >= node.needs else at
        case types.Counted():
            start = _within(at, at + 4, end)
            if _INT32(frame, at)[0] > _MOST_ELEMENTS:
                raise _Stop(start)
            for _ in range(_INT32(frame, at)[0]):
                start = _skip(node.element, frame, start, end, values)
            return start
        case types.EnumCode() | types.Marker():
            return _within(at, at + 4, end)
        case _:
            raise TypeError(f"{node.name}: redaction does not know how long a {type(node).__name__} is")
    values.append((start, after))
    return after


def _within(at: int, after: int, end: int) -> int:
    if after > end:
        raise _Stop(at)
    return after
