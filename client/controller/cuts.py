"""Stream cuts, and Pravega's text form of them.

The text is base64 of gzip of `0:SCOPE/STREAM:NUMBERS:EPOCHS:OFFSETS`, with comma-separated lists; `StreamCut.from` and
`asText` of Pravega's Java client read and write it.

Invariant: cuts round-trip. Refused, with `CutError`: other text, and more than 16 MiB of it when unpacked; a cut
without segments; a segment twice. Follows `StreamCutImpl` and `ToStringUtils` (Pravega's client).
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, Self

from segstore.wire.names import segment_id, split_segment_id

_UNBOUNDED: Final = "UNBOUNDED"
_NOT_STARTED: Final = -1
_VERSION: Final = "0"
_MOST_TEXT: Final = 16 << 20


class CutError(ValueError):
    """The text is not a stream cut. Attribute: actual, its start."""

    def __init__(self, message: str, actual: str) -> None:
        super().__init__(message)
        self.actual = actual[:200]


class StreamCut(Mapping[int, int]):
    """A position in a stream: a mapping of segment id → offset. Equal to any mapping with the same items.

    Attributes:
        scope, stream: the stream's scope and name.
    """

    __slots__ = ("_offsets", "scope", "stream")

    def __init__(self, scope: str, stream: str, offsets: Mapping[int, int]) -> None:
        self.scope = scope
        self.stream = stream
        self._offsets = dict(offsets)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parses what `to_text` or Java's `asText` returned. Raises CutError."""
        text = text.strip()
        if text == _UNBOUNDED:
            raise CutError('"UNBOUNDED" names no position: use "head" or "tail"', text)
        plain = _unpacked(text)
        parts = plain.split(":", 4)
        if len(parts) != 5 or parts[0] != _VERSION:
            raise CutError(f"{plain[:80]!r} is not a stream cut", text)
        scope, _, stream = parts[1].partition("/")
        if not scope or not stream or "/" in stream:
            raise CutError(f"{parts[1][:80]!r} in a stream cut is not SCOPE/STREAM", text)
        try:
            numbers, epochs, offsets = ([int(number) for number in part.split(",")] for part in parts[2:])
            rows = list(zip(numbers, epochs, offsets, strict=True))
            cut = {segment_id(epoch, number): _offset(offset) for number, epoch, offset in rows}
        except ValueError as cause:
            raise CutError(f"{plain[:80]!r} is not a stream cut: {cause}", text) from cause
        if len(cut) != len(rows):
            raise CutError(f"{plain[:80]!r} names a segment twice", text)
        return cls(scope, stream, cut)

    def to_text(self) -> str:
        """Returns the text that `from_text` and Java's `StreamCut.from` parse. Raises ValueError for an empty cut."""
        if not self._offsets:
            raise ValueError(f"a cut of {self.scope}/{self.stream} without segments has no text: the stream is sealed")
        rows = [(*reversed(split_segment_id(segment)), self._offsets[segment]) for segment in sorted(self._offsets)]
        numbers, epochs, offsets = (",".join(map(str, column)) for column in zip(*rows, strict=True))
        plain = f"{_VERSION}:{self.scope}/{self.stream}:{numbers}:{epochs}:{offsets}"
        return base64.b64encode(zlib.compress(plain.encode(), wbits=31)).decode()

    def check(self, scope: str, stream: str) -> None:
        """Raises CutError unless this is a cut of the stream."""
        if (self.scope, self.stream) != (scope, stream):
            own = f"{self.scope}/{self.stream}"
            raise CutError(f"this is a cut of {own}, not of {scope}/{stream}", own)

    def __getitem__(self, segment: int) -> int:
        return self._offsets[segment]

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __repr__(self) -> str:
        return f"StreamCut({self.scope!r}, {self.stream!r}, {self._offsets!r})"


def checked_cut(scope: str, stream: str, cut: Mapping[int, int]) -> dict[int, int]:
    """Returns the offsets of a cut. Raises CutError for a `StreamCut` of another stream."""
    if isinstance(cut, StreamCut):
        cut.check(scope, stream)
    return dict(cut)


def _unpacked(text: str) -> str:
    try:
        packed = base64.b64decode(text, validate=True)
        unpacker = zlib.decompressobj(wbits=31)
        plain = unpacker.decompress(packed, _MOST_TEXT).decode()
        if not unpacker.eof:
            raise ValueError("it does not end")
    except (binascii.Error, zlib.error, ValueError) as cause:
        raise CutError(f"{text[:40]!r} is not the text of a stream cut: {cause}", text) from cause
    return plain


def _offset(offset: int) -> int:
    if offset == _NOT_STARTED:  # a segment that a reader has not started
        return 0
    if not 0 <= offset < 1 << 63:
        raise ValueError(f"{offset} is not an offset")
    return offset
