"""Result types of store operations that return more than one value.

Ownership of buffers: the views in a `ReadResult` are read-only and stay valid and unchanged as long as they are held,
whatever happens to the segment (see `chunks`).
"""

from __future__ import annotations

import msgspec

MAX_READ_BYTES = 2 * 1024 * 1024
MIN_READ_BYTES = 8


def read_length(suggested: int) -> int:
    """Returns the maximum length of a reply to ReadSegment, given the suggested length of the request."""
    return min(MAX_READ_BYTES, max(MIN_READ_BYTES, suggested))


class ReadResult(msgspec.Struct, frozen=True):
    """`length` bytes of a segment from `offset`, in pieces.

    If the read reached the end of the data, `at_tail` is set for an open segment, else
    `end_of_segment`.
    """

    offset: int
    data: list[memoryview]
    length: int
    at_tail: bool
    end_of_segment: bool


class StoredChunk(msgspec.Struct, frozen=True):
    """A piece of a segment as a unit of storage."""

    segment: str
    start_offset: int
    length: int
