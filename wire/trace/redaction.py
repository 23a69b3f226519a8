"""Overwrites delegation tokens in frames; every length stays the same.

`redact` is a pure function of a frame, derived from the schema: fields declared secret are overwritten with asterisks,
so the frame still decodes, keeps its length, and can be compared with others.

Invariants: the result contains no byte of a token that the schema declares, also if lengths in the frame are wrong; a
frame without tokens is returned unchanged. There are four cases:

1. The fields fill the frame, in the current version or an older one: only the token is overwritten.
2. The frame decodes, and bytes follow its last field, of a newer version or because a length is wrong: they are
   overwritten, too. If another field may hold a part of the token, so are all contents from it on. Lengths and counts
   stay, so the frame still decodes.
3. The frame does not decode: everything is overwritten from its token on, or from where the token may be.
4. The type code is unknown: the frame is returned unchanged, because its fields are unknown. A token in it stays.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from segstore.wire.codec import HEADER_BYTES, decode, encode
from segstore.wire.errors import WireError
from segstore.wire.inspect import describe
from segstore.wire.schema import COMMANDS, MAX_FRAME_BYTES, encode_mutf8

if TYPE_CHECKING:
    from segstore.wire.inspect import Description

_STAR: Final = b"*"
_HEADER: Final = struct.Struct(">ii").unpack_from
_DESCRIBED_BYTES: Final = 256 * 1024
"""The beginning of a malformed frame that is looked at; longer ones count as not decoding."""
_CONTROL: Final = re.compile(rb"[\0-\x1f]").search
"""What no name contains, but the length of a token that a name's wrong length covers."""
_TEXT: Final = re.compile(rb"^[!-)+-~]|[!-)+-~]{4}").search
"""What may be a token or its rest; not asterisks, so that redacting twice is redacting once."""
_STRUCTURE: Final = (".length", ".count", ".total")
_LENGTH: Final = "delegation_token.length"
_UNREAD: Final = ""


SECRET_CODES: Final = frozenset(code for code, cls in COMMANDS.items() if cls.secrets)
"""Type codes of the commands that carry a token."""


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
    if code not in SECRET_CODES:
        return frame
    try:
        command: Any = decode(frame)
        if encode(command) == frame:
            return encode(replace(command, delegation_token="*" * len(encode_mutf8(command.delegation_token))))
    except WireError:
        pass  # it does not decode, or is too long in the current version
    return _without_doubtful(frame)


def _without_doubtful(frame: bytes) -> bytes:
    """Redacts a frame that is malformed, incomplete, or of another version."""
    described = describe(frame[:_DESCRIBED_BYTES])
    out = bytearray(frame)
    doubtful = _doubtful_from(described)
    for span in described.spans:
        if described.error is not None and (span.secret or span.offset >= doubtful):
            out[span.offset :] = _STAR * (len(frame) - span.offset)
            break
        if span.secret or (span.offset >= doubtful and not span.field.endswith(_STRUCTURE)):
            out[span.offset : span.offset + span.length] = _STAR * span.length
    return bytes(out)


def _doubtful_from(described: Description) -> int:
    """Returns the position from which fields may hold a part of the token, because a length is wrong.

    Before the token, they are a name that covers the token's length, and a list, whose count may cover the token; in a
    frame that does not decode, all between the first name and the token. Behind the token, they are text.
    """
    frame, spans = described.frame, described.spans
    last = spans[-1]
    if described.error is None and last.field != _UNREAD:
        return len(frame)  # the fields fill it
    for span, following in zip(spans, (*spans[1:], last), strict=True):
        end = span.offset + span.length
        if span.secret:
            return end if _TEXT(frame[end : last.offset + 3]) else len(frame)
        if "[" in span.field or (span.kind == "text" and _CONTROL(frame, span.offset, end)):
            return span.offset
        if span.kind == "text" and described.error is not None and following.field != _LENGTH:
            return end
    return len(frame)
