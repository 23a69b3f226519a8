"""Maps routing keys to segments by Pravega's rule, without I/O.

A key hashes to a position in [0, 1) (`segstore.wire.hashing`); the open segments of a stream divide that range. When a
segment is sealed, only its part of the range goes to its successors; all other keys keep their segments, so each key's
events stay in order.

Invariant: the pieces cover [0, 1) without gap or overlap. Follows `StreamSegments` and
`StreamSegmentsWithPredecessors` (Pravega's client).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from segstore.client.errors import ProtocolViolation


class SegmentRange(NamedTuple):
    """A segment and its key range, or a part of that, from `low` (inclusive) to `high` (exclusive)."""

    segment_id: int
    name: str
    low: float
    high: float


class RangeRouter:
    """Assigns positions to segments.

    Attributes:
        version: increases with each change.
    """

    def __init__(self, segments: Iterable[SegmentRange]) -> None:
        """Raises ProtocolViolation if they do not cover [0, 1) exactly."""
        self.version = 0
        self._set(list(segments))

    def _set(self, pieces: list[SegmentRange]) -> None:
        pieces.sort(key=lambda piece: piece.low)
        at = 0.0
        for piece in pieces:
            if piece.low != at or piece.high <= piece.low:
                text = f"the segments leave a gap or overlap at {at}: {piece.name} is next"
                raise ProtocolViolation(text, segment=piece.name)
            at = piece.high
        if at != 1.0:
            raise ProtocolViolation(f"the segments end at {at}")
        self._pieces = pieces
        self._lows = [piece.low for piece in pieces]
        self.version += 1

    @property
    def segments(self) -> list[SegmentRange]:
        """The segments that parts of the range are assigned to, each with one of its parts."""
        return list({piece.segment_id: piece for piece in self._pieces}.values())

    @property
    def pieces(self) -> list[SegmentRange]:
        """The parts of the range, in order."""
        return list(self._pieces)

    def route(self, position: float) -> SegmentRange:
        """The segment of a position in [0, 1), with the part that has the position."""
        return self._pieces[bisect_right(self._lows, position) - 1]

    def replace(self, segment_id: int, successors: Iterable[SegmentRange]) -> None:
        """Reassigns a segment's part of the range to its successors.

        A segment without any part is a no-op. Raises ProtocolViolation, and changes nothing, if they do not cover its
        part.
        """
        following = list(successors)
        pieces: list[SegmentRange] = []
        for piece in self._pieces:
            if piece.segment_id != segment_id:
                pieces.append(piece)
                continue
            for successor in following:
                low, high = max(successor.low, piece.low), min(successor.high, piece.high)
                if low < high:
                    pieces.append(successor._replace(low=low, high=high))
        self._set(pieces)
