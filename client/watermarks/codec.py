"""The content of an entry in a stream of watermarks. Pure.

A versioned value of Pravega's serializers: format and version, the number of revisions, and for each revision its
number and size before its content. The content of revision 0 is two times, the number of segments, and for each a
versioned value (id and key range) and an offset.

Refused (`ValueError`): another format, lengths beyond the data, a time range or a key range that ends before it starts.
Later revisions are ignored, as in the reference. Follows `Watermark`, `SegmentWithRange`, `VersionedSerializer` and
`RevisionDataInputStream` (Pravega).
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Any, Final, NamedTuple

_HEADER: Final = Struct(">BBB")
_REVISION: Final = Struct(">Bi")
_TIMES: Final = Struct(">qq")
_SEGMENT: Final = Struct(">qdd")
_OFFSET: Final = Struct(">q")


class MarkedSegment(NamedTuple):
    """A segment in a watermark's cut, with its key range and an offset."""

    segment_id: int
    low: float
    high: float
    offset: int


class Mark(NamedTuple):
    """A watermark: the range of the writers' times when they were at most at a cut."""

    lower: int
    upper: int
    segments: tuple[MarkedSegment, ...]


class _Input:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unpack(self, form: Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def value(self) -> _Input:
        """Returns the content of revision 0 of the versioned value here, and goes behind the value."""
        form, version, revisions = self.unpack(_HEADER)
        if form != 0 or version != 0 or not revisions:
            raise ValueError(f"format {form}, version {version} with {revisions} revisions is not known")
        first: _Input | None = None
        for _ in range(revisions):
            _, size = self.unpack(_REVISION)
            if not 0 <= size <= len(self.data) - self.at:
                raise ValueError(f"{size} bytes expected at {self.at}, only {len(self.data) - self.at} left")
            first = first or _Input(self.data[self.at : self.at + size])
            self.at += size
        assert first is not None
        return first

    def count(self) -> int:
        """Returns a number of 1, 2 or 4 bytes; its first bits give the length."""
        if self.at >= len(self.data):
            raise ValueError(f"a number expected at {self.at}, where the data ends")
        first = self.data[self.at]
        size, bits = (1, 7) if first < 0x80 else (2, 14) if first < 0xC0 else (4, 30)
        number = int.from_bytes(self.data[self.at : self.at + size])
        self.at += size
        return number & (1 << bits) - 1


def decode_mark(data: bytes) -> Mark:
    """Returns the watermark in an entry. Raises ValueError."""
    try:
        content = _Input(data).value()
        lower, upper = content.unpack(_TIMES)
        segments = []
        for _ in range(content.count()):
            segment_id, low, high = content.value().unpack(_SEGMENT)
            if segment_id < 0 or not 0 <= low < high <= 1:
                raise ValueError(f"segment {segment_id} from {low} to {high} is no segment")
            segments.append(MarkedSegment(segment_id, low, high, *content.unpack(_OFFSET)))
    except struct.error as cause:
        raise ValueError(f"it ends too early: {cause}") from cause
    if upper < lower:
        raise ValueError(f"the times from {lower} to {upper} are no range")
    return Mark(lower, upper, tuple(segments))
