"""Index segments: 24-byte entries that record a segment's length over time.

An entry is int64 length of the segment, int64 count of its events, int64 Unix milliseconds. Entries are written in
order, so their lengths never fall; bytes that a client wrote to an index itself are read as entries like any others.

Follows ``IndexEntry``, ``IndexAppendProcessor`` and ``IndexRequestProcessor``. Deliberate difference: the reference
guesses its way through the entries, here they are bisected; among entries of equal length, which only appends without
bytes make, another one may be found.
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
"""An entry is written this long after the first append that is not in the index yet, for all appends until then."""


def pack_entry(length: int, event_count: int, now_ms: int) -> bytes:
    """One entry."""
    return _ENTRY.pack(length, event_count, now_ms)


def unpack_entry(data: bytes) -> tuple[int, int, int]:
    """(length, event count, time) of one entry, exactly 24 bytes."""
    length, event_count, now_ms = _ENTRY.unpack(data)
    return length, event_count, now_ms


class _Lengths:
    """The lengths in whole entries from number ``first`` on, as a sequence to bisect."""

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
    """The smallest indexed length of ``segment`` that is at least ``target``, or None if the index has none.

    Raises ``IndexTruncated`` if the first entry is not whole.
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
    """Where to truncate the index when ``segment`` is truncated at ``offset``: behind the last entry not above it.

    Raises ``IndexTruncated`` if the first entry is not whole.
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
