"""Result types of store operations that return more than one value.

Ownership of buffers: the views in a ``ReadResult`` are read-only and stay valid and unchanged for as long as anybody
holds them, whatever happens to the segment (see ``chunks``).
"""

from __future__ import annotations

import msgspec

MAX_READ_BYTES = 2 * 1024 * 1024
MIN_READ_BYTES = 8


def read_length(suggested: int) -> int:
    """How much a reply to ReadSegment may carry, for the length that the request suggests."""
    return min(MAX_READ_BYTES, max(MIN_READ_BYTES, suggested))


class ReadResult(msgspec.Struct, frozen=True):
    """Bytes of a segment.

    Attributes:
        offset: where they start.
        data: the bytes, in pieces.
        length: how many they are.
        at_tail: the read asked for more than there is and the segment is open.
        end_of_segment: the read asked for more than there is and the segment is sealed.
    """

    offset: int
    data: list[memoryview]
    length: int
    at_tail: bool
    end_of_segment: bool


class ChunkInfo(msgspec.Struct, frozen=True):
    """A piece of a segment as a unit of storage."""

    segment: str
    start_offset: int
    length: int
