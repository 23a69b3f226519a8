"""Java's modified UTF-8: encodes, decodes, and skips long lists of texts without decoding them.

Invariant: `pass_texts` accepts exactly the texts that `decode_mutf8` accepts, without decoding them: a frame may hold
four million texts that its reader may not need. Its time is linear in the bytes, whatever the texts.

Follows `DataInputStream.readUTF` and `DataOutputStream.writeUTF`.
"""

from __future__ import annotations

import re
from codecs import charmap_decode
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STRING_BYTES: Final = 0xFFFF

_ONE: Final = rb"[\x00-\x7f]"
_TWO: Final = rb"[\xc0-\xdf][\x80-\xbf]"
_THREE: Final = rb"[\xe0-\xef][\x80-\xbf][\x80-\xbf]"
_find_four_byte_lead: Final = re.compile(rb"[\xf0-\xff]").search
_well_formed: Final = re.compile(rb"(?:%s++|%s|%s)*+" % (_ONE, _TWO, _THREE))
well_formed: Final = _well_formed.fullmatch
"""(data, start, end) → truthy if `decode_mutf8` accepts these bytes."""


_WIDE: Final[dict[int, str | int]] = {
    byte: f"\xe0{chr(0x80 | byte >> 6)}{chr(0x80 | byte & 0x3F)}" if byte < 0x80 else byte for byte in range(256)
} | {byte: f"\xe0{chr(0x80 | byte & 0x1F)}" for byte in range(0xC0, 0xE0)}
"""Expands each character to three bytes."""
# The contributions of the bytes of such a character to the upper and the lower half of its UTF-16 unit.
_UPPER_OF_FIRST: Final = bytes(byte << 4 & 0xFF for byte in range(256))
_UPPER_OF_SECOND: Final = bytes(byte >> 2 & 0x0F for byte in range(256))
_LOWER_OF_SECOND: Final = bytes(byte << 6 & 0xFF for byte in range(256))
_LOWER_OF_THIRD: Final = bytes(byte & 0x3F for byte in range(256))

# --- texts ------------------------------------------------------------------------------------------------------


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
    return _units(data).decode("utf-16-le", "surrogatepass")


def _units(data: bytes) -> bytes:
    """Converts well-formed bytes to little-endian UTF-16, without a loop over characters, because a name may have
    twenty thousand of them.
    """
    wide = charmap_decode(data, "strict", _WIDE)[0].encode("latin-1")
    first, second, third = wide[::3], wide[1::3], wide[2::3]
    units = bytearray(2 * len(first))
    units[::2] = _or(second.translate(_LOWER_OF_SECOND), third.translate(_LOWER_OF_THIRD))
    units[1::2] = _or(first.translate(_UPPER_OF_FIRST), second.translate(_UPPER_OF_SECOND))
    return bytes(units)


def _or(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left) | int.from_bytes(right)).to_bytes(len(left))


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


# --- lists of texts ---------------------------------------------------------------------------------------------

_MIXED_BYTES: Final = 6
_ASCII_BYTES: Final = 32
_AT_ONCE: Final = (4096, 64)


def _texts_of(size: int) -> bytes:
    """Returns a pattern for texts of `size` bytes."""
    if not size:
        return b""
    ways = [first + _texts_of(size - width) for first, width in ((_ONE, 1), (_TWO, 2), (_THREE, 3)) if width <= size]
    return b"(?:%s)" % b"|".join(ways)


def _short_texts() -> bytes:
    """Returns a pattern for one short text after its length."""
    sizes = [_texts_of(size) for size in range(_MIXED_BYTES + 1)]
    sizes += [_ONE + b"{%d}" % size for size in range(_MIXED_BYTES + 1, _ASCII_BYTES + 1)]
    return b"|".join(rb"\x00\x%02x" % size + texts for size, texts in enumerate(sizes))


@cache
def _short() -> tuple[tuple[int, Callable[..., re.Match[bytes] | None]], ...]:
    """Returns (count, match) for runs of short texts. Compiled on first use: most programs never skip texts."""
    return tuple((count, re.compile(rb"(?:%s){%d}+" % (_short_texts(), count)).match) for count in _AT_ONCE)


def pass_texts(data: bytes | bytearray | memoryview, at: int, end: int, count: int) -> tuple[int, int]:
    """Skips texts with their lengths, starting at `at`. Returns how many of `count` are well formed and end by `end`,
    and the position behind them.
    """
    passed, runs = 0, _short()
    while passed < count:
        for many, short in runs:
            while passed + many <= count and (found := short(data, at, end)):
                passed += many
                at = found.end()
        for _ in range(min(_AT_ONCE[-1], count - passed)):
            if at + 2 > end:
                return passed, at
            stop = at + 2 + (data[at] << 8 | data[at + 1])
            if stop > end or not well_formed(data, at + 2, stop):
                return passed, at
            at = stop
            passed += 1
    return passed, at
