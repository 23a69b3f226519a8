"""Judges the states of reader groups: who holds which segment, and positions, against earlier ones and against reads.

Facts are `GroupUpdate`, `TableUpdate` and `Passed`, of all groups and segments of a scope. An update is stored only if
the state has not changed meanwhile, so the offsets of updates are their order, or in a table the versions that they
name; the times of their acknowledgements are not. Behind an update that was not recorded, or whose acknowledgement was
lost, the holders of segments are unknown. A connection does not tell for which reader it reads, and clients read ahead,
so bytes that any connection was given count as read by all groups.

Invariants: positions are judged from the first state of a group to the first update that was not recorded; bytes before
a start, or before the position of a reader that was taken offline, are not, since users choose these; nor are bytes
before the first or behind the last byte that was read, since the recording may lack a store. Bytes between reads of two
connections stay open: such a store may have had the segment meanwhile. Times decide nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from segstore.wire import NOT_EXISTS
from segstore.wire.history.facts import Broken, Fact, GroupUpdate, Key, Open, Place, TableUpdate
from segstore.wire.history.groups import Holders
from segstore.wire.reader_groups import (
    AcquireSegment,
    GroupState,
    InitialState,
    ReleaseSegment,
    RemoveReader,
    SegmentCompleted,
    Update,
    UpdateDistance,
)

UNRECORDED: Final = "updates of the group's state are missing in the recording"
RECREATED: Final = "the table of the group may have been created again"
ELSEWHERE: Final = "another store may have given the bytes"

_Ranges = dict[int, tuple[int, Place, Place]]
"""The end of bytes that were read in a row → their start, and the places of the first and last read."""


class _Claim(NamedTuple):
    """A position in a group's state: all bytes from `floor` to it were read."""

    rule: str
    segment: str
    floor: int
    position: int
    place: Place


class PositionsFold:
    """Follows the reader groups of one scope.

    Memory grows with the updates of their states, and with reads of any segment that do not continue other reads.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self._updates: dict[str, list[tuple[Place, GroupUpdate | TableUpdate]]] = defaultdict(list)
        self._ranges: dict[str, _Ranges] = defaultdict(dict)
        self._elsewhere: set[str] = set()
        """Segments that other stores may have had."""

    def see(self, fact: Fact) -> Iterable[Broken | Open]:
        """Takes the next fact; all are judged at the end."""
        _, place, value = fact
        if isinstance(value, GroupUpdate | TableUpdate):
            self._updates[value.group].append((place, value))
        elif value.end < 0:
            self._elsewhere.add(value.segment)
        elif value.start < value.end:
            ranges = self._ranges[value.segment]
            before = ranges.pop(value.start, (value.start, place, place))
            start, first, _ = min(before, ranges.get(value.end, before))
            ranges[value.end] = start, first, place
        return ()

    def end(self) -> Iterator[Broken | Open]:
        for group, updates in self._updates.items():
            updates.sort(key=lambda update: update[1].order)
            if any(
                first.order == second.order and isinstance(first, TableUpdate)
                for (_, first), (_, second) in pairwise(updates)
            ):
                yield Open("poll-skip", Key("group", group), RECREATED)
                continue
            positions = _Positions(Key("group", group))
            for place, update in updates:
                yield from positions.take(place, update)
            yield from self._unread(positions.key, positions.claims)

    def _unread(self, group: Key, claims: list[_Claim]) -> Iterator[Broken | Open]:
        """Judges claims; of claims over the same bytes, the first."""
        judged: dict[tuple[str, str], int] = {}
        """Rule and segment → where earlier claims end."""
        gaps = {segment: [*_gaps(self._ranges.get(segment, {}))] for segment in {claim.segment for claim in claims}}
        for rule, segment, floor, position, place in claims:
            low = max(floor, judged.get((rule, segment), 0))
            judged[rule, segment] = max(low, position)
            between = (bisect_left(gaps[segment], offset, key=itemgetter(0)) for offset in (low, position))
            for start, end, before, after in gaps[segment][slice(*between)]:
                is_one = (before.file, before.connection) == (after.file, after.connection)
                if segment in self._elsewhere or not is_one:
                    yield Open(rule, group, ELSEWHERE)
                    continue
                what = "reader" if rule == "poll-skip" else "complete checkpoint"
                text = f"a {what} is at {position} in {segment}, of which bytes {start} to {end} were never read"
                yield Broken(rule, group, (before, place), text, start, position)


def _gaps(ranges: _Ranges) -> Iterator[tuple[int, int, Place, Place]]:
    """Yields start and end of bytes that were not read, between bytes that were, and the places of these reads."""
    last: tuple[int, Place] | None = None
    for end, (start, first, place) in sorted(ranges.items(), key=itemgetter(1)):
        if last is not None and last[0] < start:
            yield last[0], start, last[1], first
        last = (end, place) if last is None or last[0] < end else last


class _Positions:
    """The positions of one group, update by update.

    Attributes:
        claims: in the order of the updates.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.claims: list[_Claim] = []
        self._holders = Holders(key)
        self._state: GroupState | None = None
        self._readers: dict[str, Mapping[str, int]] = {}
        """Of a group in a table: reader → segment → offset."""
        self._is_whole = False
        """Whether all updates of the table were recorded so far."""
        self._end = -1
        self._floors: dict[str, int] = {}
        self._last: dict[str, tuple[int, str, Place]] = {}
        """Segment → the position that was reported last, the first reader that reported it, and the place."""

    def take(self, place: Place, update: GroupUpdate | TableUpdate) -> Iterator[Broken | Open]:
        """Takes the next update of the group's state."""
        if update.order != self._end:
            if self._state is not None or self._is_whole:
                yield Open("poll-skip", self.key, UNRECORDED)
            if self._holders.forget():
                yield Open("held-twice", self.key, UNRECORDED)
            self._state, self._readers, self._is_whole, self._last = None, {}, False, {}
        self._end = update.end
        if isinstance(update, TableUpdate):
            yield from self._take_table(place, update)
            return
        for change in update.changes:
            yield from self._hold(place, change)
            if isinstance(change, InitialState):
                self._state, self._floors, self._last = GroupState(), dict(change.starts), {}
            state = self._state
            if state is None:
                continue
            yield from self._change(state, place, change)
            before = state.checkpoints.last
            try:
                state.apply(change)
            except ValueError:  # the segment has another reader, or the reader is not online: see `held-twice`
                self._state = None
                continue
            last = state.checkpoints.last
            if last is not None and last is not before:
                self._claim("unread-below-checkpoint", last, place)

    def _take_table(self, place: Place, update: TableUpdate) -> Iterator[Broken | Open]:
        """Takes the next update of a table: first the segments that readers gave up, then all that they have."""
        self._is_whole = self._is_whole or update.order == NOT_EXISTS
        for reader, segments in update.readers.items():
            for segment, offset in self._readers.get(reader, {}).items():
                if segments is None:
                    self._go_offline(place, reader, segment, update.released.get(segment, offset))
                elif segment not in segments and segment in update.released:
                    yield from self._report(place, reader, {segment: update.released[segment]})
                if segments is None or segment not in segments:
                    self._holders.release(reader, segment)
        for reader, segments in update.readers.items():
            known = self._readers.pop(reader, {})
            if segments is None:
                continue
            for segment, offset in segments.items():
                if segment not in known:
                    yield from self._holders.acquire(place, reader, segment)
                    self._floors.setdefault(segment, offset)
            yield from self._report(place, reader, segments)
            self._readers[reader] = segments

    def _hold(self, place: Place, change: Update) -> Iterator[Broken | Open]:
        match change:
            case AcquireSegment(reader, segment):
                yield from self._holders.acquire(place, reader, segment)
            case ReleaseSegment(reader, segment) | SegmentCompleted(reader, segment):
                self._holders.release(reader, segment)
            case RemoveReader(reader):
                self._holders.release(reader)
            case InitialState():
                self._holders.forget()

    def _change(self, state: GroupState, place: Place, change: Update) -> Iterator[Broken]:
        """Judges the positions that a change reports of a reader's own segments."""
        reader = getattr(change, "reader", "")
        mine = state.readers.get(reader, {})
        if isinstance(change, RemoveReader):
            for segment, offset in mine.items():
                self._go_offline(place, reader, segment, change.positions.get(segment, offset))
            return
        if isinstance(change, ReleaseSegment):
            reports: Mapping[str, int] = {change.segment: change.offset}
        elif isinstance(change, UpdateDistance):
            reports = change.positions
        else:
            return
        own = {name: offset for name, offset in reports.items() if name in mine and offset >= 0}  # -1 is any end
        yield from self._report(place, reader, own)

    def _go_offline(self, place: Place, reader: str, segment: str, offset: int) -> None:
        """Takes the offset at which the segment of a reader continues that was taken offline."""
        self._last[segment] = offset, reader, place
        self._floors[segment] = max(self._floors.get(segment, 0), offset)

    def _report(self, place: Place, reader: str, own: Mapping[str, int]) -> Iterator[Broken]:
        """Judges the positions of a reader's own segments."""
        for segment, offset in own.items():
            last, previous, where = self._last.get(segment, (offset, reader, place))
            if offset < last:
                rule = "nonmonotonic-poll" if reader == previous else "read-twice"
                text = f"reader {reader!r} is at {offset} in {segment}, of which reader {previous!r} was at {last}"
                yield Broken(rule, self.key, (where, place), text, last, offset)
            if offset != last or segment not in self._last:
                self._last[segment] = offset, reader, place
        if self._state is not None or self._is_whole:
            self._claim("poll-skip", own, place)

    def _claim(self, rule: str, positions: Mapping[str, int], place: Place) -> None:
        for segment, position in positions.items():
            self.claims.append(_Claim(rule, segment, self._floors.get(segment, 0), position, place))
