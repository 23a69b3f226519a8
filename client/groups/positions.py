"""The positions of a group as cuts, and the unread data behind them.

Invariant: a cut covers all keys: a segment whose successor waits for other predecessors is in it with its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from segstore.client.connection import SegmentRequests
from segstore.client.controller import Cluster, StreamCut, name_of, parts_of
from segstore.client.errors import SegmentMissing
from segstore.client.groups.state import recorded
from segstore.client.lifecycle import all_of
from segstore.client.stream import check_progress, tail_of
from segstore.wire import StreamSegmentInfo
from segstore.wire.names import MAX_INT64, split_segment_id
from segstore.wire.reader_groups import GroupState


class SegmentLag(NamedTuple):
    """How far a group is behind in a segment.

    reader: None if it is assigned to no reader, or not started. offset: the recorded position. end: the segment's end,
    or the group's if that comes first.
    """

    segment: str
    reader: str | None
    offset: int
    end: int

    @property
    def unread_bytes(self) -> int:
        """Number of bytes behind the recorded position, with the events' headers."""
        return self.end - self.offset


class GroupMetrics(NamedTuple):
    """A group's lag. readers: online readers and their numbers of segments."""

    segments: tuple[SegmentLag, ...]
    readers: Mapping[str, int]

    @property
    def unread_bytes(self) -> int:
        """Number of bytes between the recorded positions and the ends of the streams, or of the group."""
        return sum(segment.unread_bytes for segment in self.segments)


def cuts_of(positions: Mapping[str, int]) -> dict[str, StreamCut]:
    """Sorts positions, qualified segment name → offset, into cuts by "scope/stream"."""
    cuts: dict[tuple[str, str], dict[int, int]] = {}
    for segment, offset in sorted(positions.items()):
        scope, stream, number = parts_of(segment)
        cuts.setdefault((scope, stream), {})[number] = offset
    return {f"{scope}/{stream}": StreamCut(scope, stream, cut) for (scope, stream), cut in cuts.items()}


async def finished_positions(cluster: Cluster, future: Mapping[str, set[int]]) -> dict[str, int]:
    """Returns the ends of the finished predecessors of waiting segments: segment → offset.

    future: segment → ids of the predecessors that are not finished.
    """
    ends: dict[str, int] = {}
    async with SegmentRequests(cluster.pool, cluster.locations) as requests:
        for segment, waiting in future.items():
            scope, stream, _ = parts_of(segment)
            for successor in await cluster.controller.successors(scope, stream, min(waiting)):
                finished = set(successor.predecessors) - waiting if successor.segment.name == segment else set()
                for name in [name_of(scope, stream, number) for number in finished]:
                    with suppress(SegmentMissing):  # truncated meanwhile
                        ends[name] = (await requests.info(name)).write_offset
    return ends


async def read_before(cluster: Cluster, positions: Iterable[str], ends: Mapping[str, int]) -> dict[str, int]:
    """Returns the segments that were read to an end before `positions`: segment → the group's end in it, or -1 for its
    own.

    These are the segments that successors of the positions wait for, and segments of `ends`, where the group ends, that
    do not follow the positions.
    """
    seen, before = set(positions), set[str]()
    ahead, began_s = list(seen), time.monotonic()
    while ahead:
        check_progress(cluster.pool.settings, ahead[0], began_s)
        continued = [segment for segment in ahead if segment not in ends]
        successors = await all_of(cluster.controller.successors(*parts_of(segment)) for segment in continued)
        ahead = []
        for segment, following in zip(continued, successors, strict=True):
            scope, stream, _ = parts_of(segment)
            for successor in following:
                before |= {name_of(scope, stream, number) for number in successor.predecessors}
                if successor.segment.name not in seen:
                    seen.add(successor.segment.name)
                    ahead.append(successor.segment.name)
    known = {segment: -1 if at == MAX_INT64 else at for segment, at in ends.items()}
    return {segment: known.get(segment, -1) for segment in (before | known.keys()) - seen}


async def covering(cluster: Cluster, positions: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
    """Returns positions as `resolved`, with the ends of the group in segments that it has read to them."""
    before = await read_before(cluster, positions, ends) if ends else {}
    return await resolved(cluster, {**before, **positions})


async def resolved(cluster: Cluster, positions: Mapping[str, int]) -> dict[str, int]:
    """Returns positions with the ends of segments in place of -1, by which readers in Java mean them."""
    offsets = {segment: offset for segment, offset in positions.items() if offset >= 0}
    async with SegmentRequests(cluster.pool, cluster.locations) as requests:
        for segment in positions.keys() - offsets.keys():
            info = await _info(requests, segment)
            if info is not None:
                offsets[segment] = info.write_offset
    return offsets


async def end_of(cluster: Cluster, scope: str, stream: str) -> dict[int, int]:
    """Returns the end of a stream as a cut of its last segments, also if it is sealed. Raises NoSuchStream."""
    controller = cluster.controller
    tail = await tail_of(cluster, scope, stream)
    head = {} if tail else await controller.head(scope, stream)
    between = await controller.segments_between(scope, stream, head, {}) if head else ()
    if not between:
        return tail
    last, _ = split_segment_id(max(between))
    names = {segment.name: segment.segment_id for segment in await controller.epoch_segments(scope, stream, last)}
    ends = await resolved(cluster, dict.fromkeys(names, -1))
    return {names[name]: offset for name, offset in ends.items()}


async def lag_of(cluster: Cluster, state: GroupState) -> GroupMetrics:
    """Returns a group's lag: its segments, and the successors of sealed segments, unread from their start."""
    readers = {segment: name for name, segments in state.readers.items() for segment in segments}
    reported = {segment: at for segments in state.reported().values() for segment, at in segments.items()}
    offsets = dict.fromkeys(state.future, 0) | await resolved(cluster, recorded(state) | reported)
    lags: list[SegmentLag] = []
    async with SegmentRequests(cluster.pool, cluster.locations) as requests:
        seen, idle_since_s = set(offsets), time.monotonic()
        while offsets:
            check_progress(cluster.pool.settings, next(iter(offsets)), idle_since_s)
            infos = await all_of(_info(requests, segment) for segment in offsets)
            continued: list[str] = []
            for (segment, offset), info in zip(offsets.items(), infos, strict=True):
                if segment not in state.ends and (info is None or info.is_sealed):
                    continued.append(segment)
                if info is not None:
                    start = max(offset, info.start_offset)
                    end = min(info.write_offset, state.ends.get(segment, MAX_INT64))
                    lags.append(SegmentLag(segment, readers.get(segment), start, max(start, end)))
                    if end > start or not info.is_sealed:
                        idle_since_s = time.monotonic()
            following = await all_of(cluster.controller.successors(*parts_of(segment)) for segment in continued)
            names = [successor.segment.name for successor in chain(*following)]
            offsets = {name: 0 for name in names if name not in seen}
            seen.update(offsets)
    return GroupMetrics(tuple(sorted(lags)), {name: len(segments) for name, segments in state.readers.items()})


async def _info(requests: SegmentRequests, segment: str) -> StreamSegmentInfo | None:
    try:
        return await requests.info(segment)
    except SegmentMissing:
        return None
