"""Reads frames given as raw bytes, hex or base64, and detects which of these it is.

Invariant: `recognise` reads back what `to_text` writes. Input is text if it is all printable ASCII, also behind a
byte-order mark; a raw frame never is, because its first byte is 0 or 255. Hex may contain spaces, colons, line ends and
`0x`; base64 may be wrapped at any width or hold one frame per line, in either alphabet. Refused with `Unreadable`:
other text, and empty input.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from segstore.wire.codec import HEADER_BYTES
from segstore.wire.schema import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

Form = Literal["raw", "hex", "base64"]

_TEXT: Final = frozenset(b"\t\n\v\f\r" + bytes(range(0x20, 0x7F)))
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_HEX_BETWEEN: Final = re.compile(r"0[xX]|[\s:]")
_SHOWN: Final = 24


class Unreadable(ValueError):
    """The input has no supported form.

    Attributes: line (from 1) and found, the refused text; both None for empty input.
    """

    def __init__(self, message: str, *, line: int | None = None, found: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.found = found


class Piece(msgspec.Struct, frozen=True):
    """The bytes of one frame, or the rest of the input if no whole frame follows. offset: from the input's start."""

    offset: int
    data: bytes
    whole: bool


def recognise(data: bytes) -> tuple[Form, bytes]:
    """Detects the form of the input; returns it with the decoded bytes. Raises Unreadable."""
    if not data:
        raise Unreadable("there is no input")
    characters = data.removeprefix(BOM_UTF8)
    if not _TEXT.issuperset(characters):
        return "raw", data
    text = characters.decode("ascii")
    digits = _HEX_BETWEEN.sub("", text)
    if not digits:
        raise Unreadable("the input is blank")
    if _HEX.fullmatch(digits):
        if len(digits) % 2:
            raise Unreadable(f"an odd number of hex digits: {len(digits)}", found=digits[-_SHOWN:])
        return "hex", bytes.fromhex(digits)
    return "base64", _base64(text)


def _base64(text: str) -> bytes:
    rows = [(number, row) for number, line in enumerate(text.splitlines(), 1) if (row := "".join(line.split()))]
    joined = "".join(row for _, row in rows)
    if "=" not in joined.rstrip("="):
        return _base64_row(joined, rows[0][0])
    return b"".join(_base64_row(row, number) for number, row in rows)


def _base64_row(row: str, number: int) -> bytes:
    try:
        return base64.b64decode(row.translate(str.maketrans("-_", "+/")), validate=True)
    except binascii.Error as cause:
        shown = row if len(row) <= _SHOWN else row[:_SHOWN] + "…"
        raise Unreadable(f"line {number}: {shown!r} is neither hex nor base64", line=number, found=row) from cause


def pieces(data: bytes) -> Iterator[Piece]:
    """Splits bytes into frames by their headers. The last piece is incomplete if its frame is cut off or too long."""
    at, end = 0, len(data)
    while at < end:
        stop = end
        if end - at >= HEADER_BYTES:
            (length,) = struct.unpack_from(">i", data, at + 4)
            if 0 <= length <= min(end - at, MAX_FRAME_BYTES) - HEADER_BYTES:
                stop = at + HEADER_BYTES + length
                yield Piece(at, data[at:stop], whole=True)
                at = stop
                continue
        yield Piece(at, data[at:], whole=False)
        at = stop


def to_text(frame: bytes, form: Form) -> bytes:
    """Converts a frame to a form, with a line end for text forms."""
    if form == "raw":
        return frame
    return (frame.hex().encode() if form == "hex" else base64.b64encode(frame)) + b"\n"
