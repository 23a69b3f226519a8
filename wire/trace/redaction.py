"""Overwrites delegation tokens in frames; every length stays the same.

`redact` is a pure function of a frame, derived from the schema: fields declared secret are overwritten with asterisks,
so the frame still decodes, keeps its length, and can be compared with other frames.

Invariants: the result contains no byte of a token that the schema declares; a frame without tokens is returned
unchanged. There are three cases:

1. The frame is as its command is written today, or ends before fields that an older version lacks: only the token is
   overwritten. A frame whose fields fill it although a length is wrong counts as such.
2. Any other frame of a command with a token: everything behind the header is overwritten, because a part of the token
   may be anywhere. It does not decode, has bytes behind its last field, or is long and has a list with more elements
   than a store takes.
3. The type code is unknown: the frame is returned unchanged, because its fields are unknown. A token in it stays.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from segstore.wire.codec import HEADER_BYTES, FrameDecoder, decode, encode
from segstore.wire.errors import WireError
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, Command, encode_mutf8

_STAR: Final = b"*"
_HEADER: Final = struct.Struct(">ii").unpack_from
_LONG_BYTES: Final = 256 * 1024
_MOST_ELEMENTS: Final = 16_384
"""Most elements of a list, as in a store."""

SECRET_CODES: Final = frozenset(code for code, cls in COMMANDS.items() if cls.secrets)
"""Type codes of the commands that carry a token."""


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
    head, body = frame[:HEADER_BYTES], frame[HEADER_BYTES:]
    command = _decoded(frame)
    if command is None or not encode(command).startswith(body, HEADER_BYTES):
        return head + _STAR * len(body)
    tokens = {name: token for name in command.secrets if (token := getattr(command, name))}
    if not tokens:
        return frame  # as without authentication
    hidden = {name: "*" * len(encode_mutf8(token)) for name, token in tokens.items()}
    return head + encode(msgspec.structs.replace(command, **hidden))[HEADER_BYTES : len(frame)]


def _decoded(frame: bytes) -> Command | None:
    """Returns the command of a frame, or None. A long frame with a very long list would take much memory."""
    try:
        if len(frame) <= _LONG_BYTES:
            return decode(frame)
        (command,) = FrameDecoder(most_elements=_MOST_ELEMENTS).feed(frame)
    except (WireError, ValueError):  # ValueError if a long frame is not whole, or has bytes behind it
        return None
    return command
