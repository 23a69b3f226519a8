"""Finds frame boundaries in a buffer without decoding frames.

Recorded traffic is repetitive: runs of acknowledgements, or of append blocks and their ends. Runs of frames with one
length, or two alternating lengths, are found together, at a fraction of the cost of reading each length. Invariant: the
ends are the same as found by hopping from header to header. Standard library only.
"""

from __future__ import annotations

import struct
import sys
from array import array
from functools import lru_cache
from typing import Any, Final

Memory = Any
"""bytes, a bytearray or a memory map: types whose slices with a step are bytes or a bytearray."""

_HEADER_BYTES: Final = 8
_RUN: Final = 8
"""Minimum number of frame pairs for which searching a run pays off."""
_RUN_AGAIN: Final = 32
"""Number of frames read one by one after no run was found."""

_CHUNK: Final = 32
"""Number of pairs whose ends are computed at a time."""
_ONES: Final = sum(1 << (64 * index) for index in range(2 * _CHUNK))
_read_length = struct.Struct(">i").unpack_from


def whole_frames(data: Memory, start: int, stop: int, ends: array[int], shift: int, max_body: int) -> tuple[int, int]:
    """Appends the end of each whole frame between start and stop, plus `shift`, to `ends`.

    Returns the start of the first incomplete frame and the number of its bytes needed to continue; 0 if its header has
    an impossible length.
    """
    at = before = last = start
    look_at = len(ends) + 2
    while stop - at >= _HEADER_BYTES:
        length = _read_length(data, at + 4)[0]
        if not 0 <= length <= max_body:
            return at, 0
        after = at + _HEADER_BYTES + length
        if after > stop:
            return at, after - at
        ends.append(after + shift)
        before, last, at = last, at, after
        if len(ends) == look_at:
            at = _run(data, before, last, at, stop, ends, shift)
            look_at = len(ends) + _RUN_AGAIN
    return at, _HEADER_BYTES


def _run(data: Memory, first: int, second: int, at: int, stop: int, ends: array[int], shift: int) -> int:
    """Appends the ends of the frames from `at` that alternate between the lengths of the two frames before it.

    Compares each byte of the lengths across all these frames at once, which is much cheaper than reading each length.
    Returns the end of the run.
    """
    one, both = second - first, at - first
    count = (stop - at) // both
    if count < _RUN:
        return at
    for start in (first, second):
        for place in (7, 6, 5, 4):
            column = data[start + both + place : at + count * both : both]
            wanted = data[start + place]
            if column.count(wanted, 0, count) != count:
                column = column[:count]
                count -= len(column.lstrip(bytes((wanted,))))
                if not count:
                    return at
    base, left = at + shift, count
    numbers = _ends_of_chunk(one, both)
    while left > 0:
        chunk = array("q", (numbers + base * _ONES).to_bytes(16 * _CHUNK, "little"))
        if sys.byteorder == "big":
            chunk.byteswap()
        ends += chunk if left >= _CHUNK else chunk[: 2 * left]
        base += _CHUNK * both
        left -= _CHUNK
    return at + count * both


@lru_cache(maxsize=64)
def _ends_of_chunk(one: int, both: int) -> int:
    """Returns the ends of a chunk of pairs that starts at 0, as 64-bit lanes of one number, so that moving them is one
    multiplication.
    """
    ends = (end for pair in range(_CHUNK) for end in (pair * both + one, pair * both + both))
    return sum(end << (64 * index) for index, end in enumerate(ends))
