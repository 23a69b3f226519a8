"""The segments between two positions of a stream, each with the range of its bytes between them.

Ranges can be read in any order and in other processes: they are plain values. Events of one routing key are in order
within a range; a successor's range continues its predecessors' ranges.

Refused: an end before the start. Follows `BatchClientFactoryImpl` (Pravega's client). Deliberate differences: all
offsets are checked against the segments; empty ranges are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from segstore.client.cluster import Cluster
from segstore.client.connection import SegmentRequests
from segstore.client.controller import CutError, checked_cut, name_of
from segstore.client.lifecycle import all_of
from segstore.client.stream import From, check_cut, tail_of


class EventRange(NamedTuple):
    """The bytes of one segment from `start` (inclusive) to `end` (exclusive), which are boundaries of events."""

    scope: str
    stream: str
    segment_id: int
    start: int
    end: int

    @property
    def segment(self) -> str:
        """The qualified name of the segment."""
        return name_of(self.scope, self.stream, self.segment_id)

    @property
    def size(self) -> int:
        """Number of bytes, with the events' headers."""
        return self.end - self.start


async def event_ranges(cluster: Cluster, scope: str, stream: str, from_: From, to: From) -> list[EventRange]:
    """Returns the ranges between two positions, predecessors before their successors; [] if nothing lies between.

    Raises CutError for an end that is not behind the start or not in the stream, ValueError for other words than "head"
    and "tail", NoSuchStream, SegmentMissing, and the errors of controller calls and requests.
    """
    controller = cluster.controller
    start, end = await all_of(_offsets(cluster, scope, stream, each) for each in (from_, to))
    if not start:  # the stream is sealed and read from its tail
        return []
    between = sorted(await controller.segments_between(scope, stream, start, end))
    names = [name_of(scope, stream, each) for each in between]
    async with SegmentRequests(cluster.pool, cluster.locations) as requests:
        infos = await all_of(requests.info(name) for name in names)
    found = []
    for segment_id, name, info in zip(between, names, infos, strict=True):
        first = start.get(segment_id, info.start_offset)
        last = end.get(segment_id, info.write_offset)
        if first > last:
            raise CutError(f"{name} has no range from {first} to {last}", name)
        if first < last:
            found.append(EventRange(scope, stream, segment_id, first, last))
    return found


async def _offsets(cluster: Cluster, scope: str, stream: str, place: From) -> dict[int, int]:
    """Returns a position's offsets; {} for the tail of a sealed stream. Raises CutError."""
    if isinstance(place, Mapping):
        cut = checked_cut(scope, stream, place)
        await check_cut(cluster, scope, stream, cut)
        return cut
    if place == "head":
        return await cluster.controller.head(scope, stream)
    if place == "tail":
        return await tail_of(cluster, scope, stream)
    raise ValueError(f"a range of {scope}/{stream} begins and ends at 'head', 'tail' or a cut, not {place!r}")
