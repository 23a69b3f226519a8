"""Where the frames in a stretch of bytes end, found without decoding any.

A recorder sees the same few commands over and over: runs of acknowledgements, of append blocks with their ends. Such
runs, of frames of one length or of two lengths in turn, are found together, at a fraction of what it costs to read one
length after another. Invariant: the ends are those that hopping from header to header gives. Standard library only.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

__all__ = ["whole_frames"]

_HEADER_BYTES: Final = 8
_RUN: Final = 8
"""Pairs of frames for which a run is worth being looked for."""
_RUN_AGAIN: Final = 32
"""Frames that are read one by one after a run was not there."""

_read_length = struct.Struct(">i").unpack_from


def whole_frames(
    data: bytes | bytearray, start: int, stop: int, ends: array[int], shift: int, max_body: int
) -> tuple[int, int]:
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


def _run(data: bytes | bytearray, first: int, second: int, at: int, stop: int, ends: array[int], shift: int) -> int:
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
            column = data[start + both + place : at + count * both : both][:count]
            count = len(column) - len(column.lstrip(data[start + place : start + place + 1]))
            if not count:
                return at
    after = at + count * both
    block = array("q", bytes(16 * count))
    pack = struct.Struct(f"={count}q").pack  # the quickest way from a range to an array
    block[::2] = array("q", pack(*range(at + one + shift, after + shift, both)))
    block[1::2] = array("q", pack(*range(at + both + shift, after + shift + 1, both)))
    ends += block
    return after
