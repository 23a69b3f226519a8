"""Statistics of writers, aggregated by writer name (seed 79.8).

Each writer has a name and, by segment, the statistics of the segment writers that it has started. Writers with the same
name may have started different segment writers, so statistics are matched by name and segment, never by position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class SegmentWriterStats(msgspec.Struct, frozen=True):
    """Statistics for one segment: writers currently set up, set-ups so far, unacknowledged appends and bytes, and the
    highest event number known to be stored, or -1."""

    connected: int
    set_ups: int
    unsettled: int
    held_bytes: int
    last_sequence: int


class WriterStats(msgspec.Struct, frozen=True):
    """Statistics for one name: accepted events and bytes, and statistics by segment."""

    name: str
    events: int
    bytes: int
    segments: Mapping[str, SegmentWriterStats]

    @property
    def connected(self) -> int:
        """Number of segment writers currently set up."""
        return sum(segment.connected for segment in self.segments.values())

    @property
    def unsettled(self) -> int:
        """Number of unacknowledged appends."""
        return sum(segment.unsettled for segment in self.segments.values())

    @property
    def last_sequence(self) -> int:
        """The highest stored event number over all segments, or -1."""
        return max((segment.last_sequence for segment in self.segments.values()), default=-1)


def add_up(stats: Iterable[WriterStats]) -> dict[str, WriterStats]:
    """Aggregates statistics by name: adds counts and takes the maximum of event numbers."""
    found: dict[str, WriterStats] = {}
    for stat in stats:
        before = found.get(stat.name)
        found[stat.name] = stat if before is None else _both(before, stat)
    return found


def _both(one: WriterStats, other: WriterStats) -> WriterStats:
    segments = dict(one.segments)
    for name, more in other.segments.items():
        known = segments.get(name)
        segments[name] = (
            more
            if known is None
            else SegmentWriterStats(
                known.connected + more.connected,
                known.set_ups + more.set_ups,
                known.unsettled + more.unsettled,
                known.held_bytes + more.held_bytes,
                max(known.last_sequence, more.last_sequence),
            )
        )
    return WriterStats(one.name, one.events + other.events, one.bytes + other.bytes, segments)
