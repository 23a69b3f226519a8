"""Statistics of writers, aggregated by writer name (seed 79.8).

Each has a name and, by segment, what is known of those segment writers that have started. Writers of one name may have
started different ones: what is added is found by name and by segment, never by its place in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class SegmentWriterStats(msgspec.Struct, frozen=True):
    """Of one segment: how many writers are set up there now, how often that was done, appends and bytes that are not
    acknowledged, and the highest number that the segment is known to have stored, -1 if none."""

    connected: int
    set_ups: int
    unsettled: int
    held_bytes: int
    last_sequence: int


class WriterStats(msgspec.Struct, frozen=True):
    """Of one name: events and their bytes that were accepted for writing, and what is known by segment."""

    name: str
    events: int
    bytes: int
    segments: Mapping[str, SegmentWriterStats]

    @property
    def connected(self) -> int:
        """Segment writers that are set up now."""
        return sum(each.connected for each in self.segments.values())

    @property
    def unsettled(self) -> int:
        """Appends that are not acknowledged."""
        return sum(each.unsettled for each in self.segments.values())

    @property
    def last_sequence(self) -> int:
        """The highest over all segments, -1 if none."""
        return max((each.last_sequence for each in self.segments.values()), default=-1)


def add_up(stats: Iterable[WriterStats]) -> dict[str, WriterStats]:
    """One for each name: counts are added, the highest number stays the highest."""
    found: dict[str, WriterStats] = {}
    for each in stats:
        before = found.get(each.name)
        found[each.name] = each if before is None else _both(before, each)
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
