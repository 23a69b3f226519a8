"""Index segments: 24-byte entries that record a segment's length over time.

An entry consists of three int64: length of the segment, count of its events, Unix time in ms. Entries are written in
order, so lengths never decrease; bytes that a client appends to an index are read as entries, too.

Follows `IndexEntry`, `IndexAppendProcessor` and `IndexRequestProcessor`. Deliberate difference: the search is a
bisection, while the reference interpolates; it may find a different entry among entries of equal length, which only
empty appends produce.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import Final

from segstore.server.store.errors import IndexTruncated
from segstore.server.store.segment import Segment

_ENTRY: Final = Struct(">qqq")
ENTRY_BYTES: Final = _ENTRY.size

INDEX_DELAY_MS: Final = 10
"""An entry is written this long after the first append that is not indexed; it covers all appends until then."""


pack_entry: Final = _ENTRY.pack
"""Returns the bytes of an entry: (length, event count, time)."""


def unpack_entry(data: bytes) -> tuple[int, int, int]:
    """Returns (length, event count, time) of one entry of exactly 24 bytes."""
    length, event_count, now_ms = _ENTRY.unpack(data)
    return length, event_count, now_ms


class _Lengths:
    """The lengths in all complete entries from number `first` on, as a sequence to bisect."""

    def __init__(self, segment: str, index: Segment) -> None:
        self._segment = segment
        self._index = index
        self.first = index.start_offset // ENTRY_BYTES

    def __len__(self) -> int:
        return max(0, self._index.length // ENTRY_BYTES - self.first)

    def __getitem__(self, number: int) -> int:
        offset = (self.first + number) * ENTRY_BYTES
        if offset < self._index.start_offset:
            raise IndexTruncated(self._segment)
        return unpack_entry(self._index.read_bytes(offset, ENTRY_BYTES))[0]


def locate(segment: str, index: Segment, target: int) -> int | None:
    """Returns the smallest indexed length of `segment` that is at least `target`, or None.

    Raises `IndexTruncated` if the first entry is incomplete.
    """
    lengths = _Lengths(segment, index)
    if not len(lengths):
        return None
    if target <= lengths[0]:
        return lengths[0]
    if target > lengths[len(lengths) - 1]:
        return None
    return lengths[bisect_left(lengths, target)]


def truncation_point(segment: str, index: Segment, offset: int) -> int:
    """Returns where to truncate the index if `segment` is truncated at `offset`: after the last entry up to it.

    Raises `IndexTruncated` if the first entry is incomplete.
    """
    lengths = _Lengths(segment, index)
    if not len(lengths):
        return index.start_offset
    if offset <= lengths[0]:
        number = 0
    elif offset >= lengths[len(lengths) - 1]:
        number = len(lengths) - 1
    else:
        number = bisect_left(lengths, offset)
        if lengths[number] > offset:
            number -= 1
    behind = 0 if offset < lengths[number] else 1
    return (lengths.first + number + behind) * ENTRY_BYTES
