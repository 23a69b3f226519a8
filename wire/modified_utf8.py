"""Java's modified UTF-8: bytes to text and back, and a quick way past long lists of texts.

Invariant: `pass_texts` passes exactly those texts that `decode_mutf8` takes. It decodes none of them: a frame may hold
four million, and whoever reads the frame may want none. Its time is bounded by the bytes, whatever the texts are.

Follows `DataInputStream.readUTF` and `DataOutputStream.writeUTF`.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_STRING_BYTES", "decode_mutf8", "encode_mutf8", "pass_texts", "well_formed"]

MAX_STRING_BYTES: Final = 0xFFFF

_starts_four: Final = re.compile(rb"[\xf0-\xff]").search

# --- texts ------------------------------------------------------------------------------------------------------


def decode_mutf8(data: bytes) -> str:
    """Decodes Java's modified UTF-8 as `DataInputStream.readUTF` does.

    Accepts a raw NUL byte, overlong forms and lone surrogates; a pair of 3-byte surrogates becomes one character.
    Raises ValueError with the position of the first byte that fits no form; four-byte UTF-8 is such a byte.
    """
    if data.isascii():
        return data.decode("ascii")
    if _starts_four(data):
        return _join_surrogates(_decode_overlong(data))
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return _join_surrogates(_decode_overlong(data))
    return _join_surrogates(text) if 0xED in data else text  # every surrogate begins with this byte


def _decode_overlong(data: bytes) -> str:
    """The plain reading of the rules, for what Python's strict decoder refuses."""
    units: list[int] = []
    position, end = 0, len(data)
    while position < end:
        first = data[position]
        if first < 0x80:
            units.append(first)
            position += 1
            continue
        width = 2 if first >> 5 == 0b110 else 3 if first >> 4 == 0b1110 else 0
        if not width:
            raise ValueError(f"byte {first:#04x} at {position} starts no modified UTF-8 character")
        if position + width > end:
            raise ValueError(f"character at {position} is cut off at the end of the string")
        unit = first & (0x1F if width == 2 else 0x0F)
        for at in range(position + 1, position + width):
            following = data[at]
            if following & 0xC0 != 0x80:
                raise ValueError(f"byte {following:#04x} at {at} does not continue a modified UTF-8 character")
            unit = unit << 6 | following & 0x3F
        units.append(unit)
        position += width
    return "".join(map(chr, units))


def _join_surrogates(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def encode_mutf8(text: str) -> bytes:
    """Encodes a string as `DataOutputStream.writeUTF` does, without the length. Lone surrogates are legal."""
    if text.isascii():
        return text.encode("ascii").replace(b"\0", b"\xc0\x80")
    if max(text) > "\uffff":
        wide = text.encode("utf-16-be", "surrogatepass")
        text = "".join(chr(wide[at] << 8 | wide[at + 1]) for at in range(0, len(wide), 2))
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


# --- lists of texts ---------------------------------------------------------------------------------------------

_ONE: Final = rb"[\x00-\x7f]"
_TWO: Final = rb"[\xc0-\xdf][\x80-\xbf]"
_THREE: Final = rb"[\xe0-\xef][\x80-\xbf][\x80-\xbf]"
well_formed: Final = re.compile(rb"(?:%s++|%s|%s)*+" % (_ONE, _TWO, _THREE)).fullmatch
"""(data, start, end) → truthy if `decode_mutf8` takes these bytes."""

_MIXED_BYTES: Final = 6
_ASCII_BYTES: Final = 32
_AT_ONCE: Final = (4096, 64)


def _texts_of(size: int) -> bytes:
    """A pattern for the texts of so many bytes."""
    if not size:
        return b""
    ways = [first + _texts_of(size - width) for first, width in ((_ONE, 1), (_TWO, 2), (_THREE, 3)) if width <= size]
    return b"(?:%s)" % b"|".join(ways)


def _short_texts() -> bytes:
    """A pattern for one short text behind its length."""
    sizes = [_texts_of(size) for size in range(_MIXED_BYTES + 1)]
    sizes += [_ONE + b"{%d}" % size for size in range(_MIXED_BYTES + 1, _ASCII_BYTES + 1)]
    return b"|".join(rb"\x00\x%02x" % size + texts for size, texts in enumerate(sizes))


_short: Final = [(count, re.compile(rb"(?:%s){%d}+" % (_short_texts(), count)).match) for count in _AT_ONCE]


def pass_texts(data: bytes | bytearray | memoryview, at: int, end: int, count: int) -> tuple[int, int]:
    """Past texts with their lengths, from `at` on: how many of `count` are well formed and end by `end`, and where the
    first stands that is or does not, or what follows them all.
    """
    passed = 0
    while passed < count:
        for many, short in _short:
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
