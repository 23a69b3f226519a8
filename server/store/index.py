"""Index segments: 24-byte entries that record a segment's length over time.

An entry consists of three int64: length of the segment, count of its events, Unix time in ms. Entries are written in
order, so lengths never decrease; bytes that a client appends to an index are read as entries, too.

Follows `IndexEntry`, `IndexAppendProcessor` and `IndexRequestProcessor`. Deliberate difference: the search is a
bisection, while the reference interpolates; it may find a different entry among entries of equal length, which only
empty appends produce.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
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


unpack_entry: Final = _ENTRY.unpack
"""Returns (length, event count, time) of one entry of exactly 24 bytes."""


def _entries(segment: str, index: Segment) -> tuple[range, Callable[[int], int]]:
    """Returns the numbers of all complete entries, and a function that returns the length in an entry.

    Raises `IndexTruncated` if the first entry is incomplete.
    """
    first = index.start_offset // ENTRY_BYTES
    numbers = range(first, max(first, index.length // ENTRY_BYTES))
    if numbers and first * ENTRY_BYTES < index.start_offset:
        raise IndexTruncated(segment)
    return numbers, lambda number: unpack_entry(index.read_bytes(number * ENTRY_BYTES, ENTRY_BYTES))[0]


def locate(segment: str, index: Segment, target: int) -> int | None:
    """Returns the smallest indexed length of `segment` that is at least `target`, or None.

    Raises `IndexTruncated` if the first entry is incomplete.
    """
    numbers, length_in = _entries(segment, index)
    at = bisect_left(numbers, target, key=length_in)
    return length_in(numbers[at]) if at < len(numbers) else None


def truncation_point(segment: str, index: Segment, offset: int) -> int:
    """Returns where to truncate the index if `segment` is truncated at `offset`: after the last entry up to it.

    Raises `IndexTruncated` if the first entry is incomplete.
    """
    numbers, length_in = _entries(segment, index)
    if not numbers:
        return index.start_offset
    return (numbers[0] + bisect_right(numbers, offset, key=length_in)) * ENTRY_BYTES
