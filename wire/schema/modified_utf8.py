"""Java's modified UTF-8: encodes and decodes texts, in time that is linear in their bytes.

Follows `DataInputStream.readUTF` and `DataOutputStream.writeUTF`.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

MAX_STRING_BYTES: Final = 0xFFFF

_ONE: Final = rb"[\x00-\x7f]"
_TWO: Final = rb"[\xc0-\xdf][\x80-\xbf]"
_THREE: Final = rb"[\xe0-\xef][\x80-\xbf][\x80-\xbf]"
_find_four_byte_lead: Final = re.compile(rb"[\xf0-\xff]").search
_well_formed: Final = re.compile(rb"(?:%s++|%s|%s)*+" % (_ONE, _TWO, _THREE))
well_formed: Final = _well_formed.fullmatch
"""(data, start, end) → truthy if `decode_mutf8` accepts these bytes."""
_OVERLONG: Final = re.compile(rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]")


def decode_mutf8(data: bytes) -> str:
    """Decodes Java's modified UTF-8 as `DataInputStream.readUTF` does.

    Accepts a raw NUL byte, overlong forms and lone surrogates; a pair of 3-byte surrogates becomes one character.
    Raises ValueError with the position of the first malformed byte; four-byte UTF-8 is malformed.
    """
    if data.isascii():
        return data.decode("ascii")
    if not _find_four_byte_lead(data):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            pass  # surrogates, overlong forms, or invalid bytes
    good = _well_formed.match(data)
    if good is None or good.end() < len(data):
        raise _malformed(data, 0 if good is None else good.end())
    text = _OVERLONG.sub(_shortest, data.replace(b"\xc0\x80", b"\0")).decode("utf-8", "surrogatepass")
    return utf16(text).decode("utf-16-le", "surrogatepass")


def _shortest(overlong: re.Match[bytes]) -> bytes:
    """Encodes a character of an overlong form in UTF-8."""
    high, low = overlong[0][-2:]
    return chr((high & 0x1F) << 6 | low & 0x3F).encode()


def _malformed(data: bytes, position: int) -> ValueError:
    """Returns the error for the malformed character at a position."""
    first = data[position]
    width = 2 if first >> 5 == 0b110 else 3 if first >> 4 == 0b1110 else 0
    if not width:
        return ValueError(f"byte {first:#04x} at {position} starts no modified UTF-8 character")
    if position + width > len(data):
        return ValueError(f"character at {position} is cut off at the end of the string")
    at = next(at for at in range(position + 1, position + width) if data[at] & 0xC0 != 0x80)
    return ValueError(f"byte {data[at]:#04x} at {at} does not continue a modified UTF-8 character")


def utf16(text: str) -> bytes:
    """Encodes a text as little-endian UTF-16, lone surrogates included, as Java stores it."""
    return text.encode("utf-16-le", "surrogatepass")


def encode_mutf8(text: str) -> bytes:
    """Encodes a string as `DataOutputStream.writeUTF` does, without the length. Lone surrogates are legal."""
    if text.isascii():
        return text.encode("ascii").replace(b"\0", b"\xc0\x80")
    if max(text) > "\uffff":
        units = utf16(text)
        text = "".join(map(chr, Struct(f"<{len(units) // 2}H").unpack(units)))
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
