"""Overwrites delegation tokens in frames; every length stays the same.

`redact` is a pure function of a frame, derived from the schema: fields declared secret are overwritten with asterisks,
so the frame still decodes, keeps its length, and can be compared with others.

Invariants: the result contains no byte of a token that the schema declares; a frame without tokens is returned
unchanged. If a frame becomes unreadable before its token, the rest is overwritten, because the token may be there. A
frame with an unknown type code is returned unchanged, because its fields are unknown.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from segstore.wire.codec import HEADER_BYTES
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES
from segstore.wire.schema import lowering as low

_STAR: Final = b"*"
_HEADER: Final = struct.Struct(">ii").unpack_from
_INT32: Final = struct.Struct(">i").unpack_from
_UINT16: Final = struct.Struct(">H").unpack_from


SECRET_CODES: Final = frozenset(code for code, cls in COMMANDS.items() if cls.secrets)
"""Type codes of the commands that carry a token."""


class _Stop(Exception):
    """The frame ends or becomes unreadable at byte `args[0]`; never leaves this module."""


def redact(frame: bytes, whole: bool = True) -> bytes:
    """Returns the frame with its delegation tokens overwritten; the length stays the same.

    whole: False for bytes that form no frame. If they start like a partial frame they are treated as one, else all of
    them are overwritten.
    """
    if len(frame) < HEADER_BYTES:
        return frame if whole else _STAR * len(frame)
    code, length = _HEADER(frame)
    if not whole and not (code in COMMANDS and len(frame) - HEADER_BYTES <= length <= MAX_FRAME_BYTES):
        return _STAR * len(frame)
    nodes = _secret_nodes(code)
    if not nodes:
        return frame
    out, at, end = bytearray(frame), HEADER_BYTES, min(len(frame), HEADER_BYTES + max(length, 0))
    try:
        for node, secret in nodes:
            after = _skip(node, frame, at, end)
            if secret:
                out[at + 2 : after] = _STAR * (after - at - 2)
            at = after
    except _Stop as stop:
        at = stop.args[0]
        out[at:] = _STAR * (len(frame) - at)
    return bytes(out)


@cache
def _secret_nodes(code: int) -> tuple[tuple[low.Node, bool], ...]:
    """Returns a command's fields up to its last secret, each with whether it is secret; () without secrets."""
    cls = COMMANDS.get(code)
    if cls is None or not cls.secrets:
        return ()
    nodes = low.lower(cls.parts)
    last = max(index for index, node in enumerate(nodes) if node.name in cls.secrets)
    for node in nodes[: last + 1]:
        if node.name in cls.secrets and not isinstance(node, low.Text):
            raise TypeError(f"{cls.__name__}.{node.name}: only a text can be redacted")
    return tuple((node, node.name in cls.secrets) for node in nodes[: last + 1])


def _skip(node: low.Node, frame: bytes, at: int, end: int) -> int:
    """Returns the position where a field ends."""
    match node:
        case low.Fixed(format=code):
            return _within(at, at + struct.calcsize(">" + code), end)
        case low.Text():
            start = _within(at, at + 2, end)
            return _within(start, start + _UINT16(frame, at)[0], end)
        case low.Data():
            start = _within(at, at + 4, end)
            return _within(start, start + max(_INT32(frame, at)[0], 0), end)
        case low.Structure():
            for each in node.nodes:
                at = _skip(each, frame, at, end)
            return at
        case low.Many():
            start = _within(at, at + 4, end)
            for _ in range(_INT32(frame, at)[0]):
                start = _skip(node.element, frame, start, end)
            return start
        case low.Number() | low.Constant():
            return _within(at, at + 4, end)
    raise TypeError(f"{node.name}: redaction does not know how long a {type(node).__name__} is")


def _within(at: int, after: int, end: int) -> int:
    if after > end:
        raise _Stop(at)
    return after
