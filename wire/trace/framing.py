"""Finds frame boundaries in a buffer without decoding frames.

A recorder sees the same few commands over and over: runs of acknowledgements, of append blocks with their ends. Such
runs, of frames of one length or of two lengths in turn, are found together, at a fraction of what it costs to read one
length after another. Invariant: the ends are those that hopping from header to header gives. Standard library only.
"""

from __future__ import annotations

import struct
import sys
from array import array
from functools import lru_cache
from typing import Any, Final

Memory = Any
"""bytes, a bytearray or a memory map: what has slices with a step, which are bytes or a bytearray."""

_HEADER_BYTES: Final = 8
_RUN: Final = 8
"""Pairs of frames for which a run is worth being looked for."""
_RUN_AGAIN: Final = 32
"""Frames that are read one by one after a run was not there."""

_CHUNK: Final = 32
"""Pairs whose ends are made at a time."""
_ONES: Final = sum(1 << (64 * index) for index in range(2 * _CHUNK))
_read_length = struct.Struct(">i").unpack_from


def whole_frames(data: Memory, start: int, stop: int, ends: array[int], shift: int, max_body: int) -> tuple[int, int]:
    """Appends where each whole frame between start and stop ends, moved by `shift`.

    Returns where the first one that is not whole starts, and how many bytes of it are needed to go on; 0 if its header
    announces what cannot be.
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
    """Appends the ends of the frames from `at` on that have the lengths of the two before it, in turn.

    Each byte of the lengths is looked at in all of these frames at once, so that one costs far less than to read it by
    itself. Returns where the run ends.
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
    """The ends of a chunk of pairs that starts at 0, 64 bits each in one number: to move them is one multiplication."""
    ends = (end for pair in range(_CHUNK) for end in (pair * both + one, pair * both + both))
    return sum(end << (64 * index) for index, end in enumerate(ends))
