"""The shared state of a reader group: segment assignments, offsets and successors. Pure.

A group is a few maps in one table, which the official client reads and writes as well: the readers that are online with
the segments of each and their offsets, the segments that nobody reads, and successors with the predecessors that still
have to end. Each method makes one change that the group agrees on; `changes` says what has to be written for it.

Invariants: a segment is with one reader, with nobody, or waits for its predecessors, never two of these; a reader that
is not online changes nothing. What is removed becomes a tombstone and stays: the official client remembers the versions
of tombstones and could not write a key again that is truly gone. Follows `ReaderGroupState` (pravega-client-rust).
Deliberate difference: a reader also gives up a segment when another has two fewer, where the official client does only
above the average, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from segstore.client.errors import ReaderExists, ReaderOffline
from segstore.client.groups.codec import (
    TOMBSTONE,
    GroupConfig,
    cbor_encode,
    check_segment,
    decode_config,
    decode_offset,
    decode_offsets,
    decode_predecessors,
    decode_value,
    encode_config,
    encode_offset,
    encode_offsets,
    encode_predecessors,
    encode_value,
)
from segstore.wire.names import SegmentName

CONFIG: Final = "config"
ASSIGNED: Final = "assigned_segments"
UNASSIGNED: Final = "unassigned_segments"
FUTURE: Final = "future_segments"
DISTANCE: Final = "distance_to_tail"
"""Kept by the official client for each reader, and not used by it."""

_ONLY: Final = "default"
_GONE: Final = encode_value(TOMBSTONE, cbor_encode({}))
_UNKNOWN_DISTANCE: Final = encode_value("u64", cbor_encode((1 << 64) - 1))


class Share(NamedTuple):
    """How many segments a reader should take of those that nobody reads, and how many it should give up."""

    acquire: int
    release: int


class GroupState:
    """The state of one group.

    Attributes:
        group: "scope/name", for errors.
        config: None before the group was made.
        readers: who is online → segment → offset.
        unassigned: segment → offset.
        future: segment → ids of the segments that must end first.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.config: GroupConfig | None = None
        self.readers: dict[str, dict[str, int]] = {}
        self.unassigned: dict[str, int] = {}
        self.future: dict[str, set[int]] = {}
        self._distances: set[str] = set()
        self._touched: dict[tuple[str, str], None] = {}

    def copy(self) -> Self:
        """A copy to change, with no changes yet."""
        made = type(self)(self.group)
        made.config = self.config
        made.readers = {name: dict(segments) for name, segments in self.readers.items()}
        made.unassigned = dict(self.unassigned)
        made.future = {name: set(before) for name, before in self.future.items()}
        made._distances = set(self._distances)
        return made

    # --- to and from the table --------------------------------------------------------------------------------------

    def take(self, outer: str, inner: str, value: bytes | None) -> None:
        """An entry of the table as it is now, None if it is gone. Maps that are not known are left be.

        Raises ValueError for a value that is none, and for what is to be a segment and is none.
        """
        kind, data = (TOMBSTONE, b"") if value is None else decode_value(value)
        gone = kind == TOMBSTONE
        if outer in (UNASSIGNED, FUTURE) and not gone:
            check_segment(inner)
        if outer == CONFIG and inner == _ONLY:
            self.config = None if gone else decode_config(data)
        elif outer == ASSIGNED:
            _put(self.readers, inner, None if gone else decode_offsets(data))
        elif outer == UNASSIGNED:
            _put(self.unassigned, inner, None if gone else decode_offset(data))
        elif outer == FUTURE:
            _put(self.future, inner, None if gone else set(decode_predecessors(data)))
        elif outer == DISTANCE:
            (self._distances.discard if gone else self._distances.add)(inner)

    def changes(self) -> list[tuple[str, str, bytes]]:
        """What was changed since `copy`: map, key and value."""
        return [(outer, inner, self._value(outer, inner)) for outer, inner in self._touched]

    def _value(self, outer: str, inner: str) -> bytes:
        if outer == CONFIG and self.config is not None:
            return encode_value("ReaderGroupConfigVersioned", encode_config(self.config))
        if outer == ASSIGNED and inner in self.readers:
            return encode_value("HashMap<ScopedSegment, Offset>", encode_offsets(self.readers[inner]))
        if outer == UNASSIGNED and inner in self.unassigned:
            return encode_value("Offset", encode_offset(self.unassigned[inner]))
        if outer == FUTURE and inner in self.future:
            return encode_value("HashSet<i64>", encode_predecessors(sorted(self.future[inner])))
        if outer == DISTANCE and inner in self._distances:
            return _UNKNOWN_DISTANCE
        return _GONE

    def _touch(self, outer: str, inner: str) -> None:
        self._touched[outer, inner] = None

    # --- changes ----------------------------------------------------------------------------------------------------

    def create(self, config: GroupConfig, start: Mapping[str, int]) -> bool:
        """Makes the group if it is not there; returns whether it was made. start: segment → offset."""
        if self.config is not None:
            return False
        self.config = config
        self._touch(CONFIG, _ONLY)
        for segment, offset in start.items():
            self._leave(segment, offset)
        return True

    def join(self, reader: str) -> None:
        """A reader comes online, without segments. Raises ReaderExists."""
        if reader in self.readers:
            raise ReaderExists(f"the reader {reader} of {self.group} is online already", reader=reader)
        self.readers[reader] = {}
        self._distances.add(reader)
        self._touch(ASSIGNED, reader)
        self._touch(DISTANCE, reader)

    def quit(self, reader: str, positions: Mapping[str, int]) -> None:
        """A reader goes offline; its segments are for others, at these positions or at the last recorded ones.

        Raises ReaderOffline.
        """
        for segment, offset in self.segments_of(reader).items():
            self._leave(segment, positions.get(segment, offset))
        del self.readers[reader]
        self._touch(ASSIGNED, reader)
        if reader in self._distances:
            self._distances.discard(reader)
            self._touch(DISTANCE, reader)

    def record(self, reader: str, positions: Mapping[str, int]) -> None:
        """Where a reader is. Positions of segments that are not its own are passed over. Raises ReaderOffline."""
        mine = self.segments_of(reader)
        moved = {segment: at for segment, at in positions.items() if mine.get(segment, at) != at}
        if moved:
            mine.update(moved)
            self._touch(ASSIGNED, reader)

    def acquire(self, reader: str, count: int) -> dict[str, int]:
        """Gives a reader so many of the segments that nobody reads; returns them. Raises ReaderOffline."""
        mine = self.segments_of(reader)
        taken = dict(sorted(self.unassigned.items())[:count])
        for segment, offset in taken.items():
            del self.unassigned[segment]
            mine[segment] = offset
            self._touch(UNASSIGNED, segment)
        if taken:
            self._touch(ASSIGNED, reader)
        return taken

    def release(self, reader: str, segments: Mapping[str, int]) -> None:
        """Takes segments from a reader, for others to read from these offsets on. Raises ReaderOffline."""
        mine = self.segments_of(reader)
        for segment, offset in segments.items():
            if mine.pop(segment, None) is not None:
                self._leave(segment, offset)
                self._touch(ASSIGNED, reader)

    def end(self, reader: str, segment: str, following: Iterable[tuple[str, Sequence[int]]]) -> None:
        """A reader has read a segment to its end.

        following: its successors, each with the ids of its predecessors; each can be read when all of these have ended.
        Raises ReaderOffline.
        """
        mine = self.segments_of(reader)
        if mine.pop(segment, None) is None:
            return
        self._touch(ASSIGNED, reader)
        parsed = SegmentName.parse(segment)
        for successor, predecessors in following:
            if successor not in self.future:
                self.future[successor] = set(predecessors)
                self._touch(FUTURE, successor)
        for successor, before in list(self.future.items()):
            of = SegmentName.parse(successor)
            if (of.scope, of.stream) == (parsed.scope, parsed.stream) and parsed.segment_id in before:
                before.remove(parsed.segment_id)
                self._touch(FUTURE, successor)
            if not before:
                del self.future[successor]
                self._touch(FUTURE, successor)
                self._leave(successor, 0)

    def _leave(self, segment: str, offset: int) -> None:
        self.unassigned[segment] = offset
        self._touch(UNASSIGNED, segment)

    # --- what is known ----------------------------------------------------------------------------------------------

    def segments_of(self, reader: str) -> dict[str, int]:
        """Raises ReaderOffline."""
        if reader not in self.readers:
            raise ReaderOffline(f"the reader {reader} of {self.group} is not online", reader=reader)
        return self.readers[reader]

    @property
    def over(self) -> bool:
        """Whether all segments of all streams were read to their ends."""
        return self.config is not None and not (self.unassigned or self.future or any(self.readers.values()))

    def positions(self) -> dict[str, int]:
        """Where the group is: each segment that is read or can be → offset."""
        found = dict(self.unassigned)
        for segments in self.readers.values():
            found.update(segments)
        return found

    def share(self, reader: str) -> Share:
        """What a reader should do so that no two readers are two segments apart. Raises ReaderOffline."""
        mine = len(self.segments_of(reader))
        others = sorted(len(segments) for name, segments in self.readers.items() if name != reader)
        got = 0
        for _ in self.unassigned:
            if not others or mine + got <= others[0]:
                got += 1
            else:
                others[0] += 1
                others.sort()
        release = 0
        while others and mine + got - release >= others[0] + 2 and release < mine:
            release += 1
            others[0] += 1
            others.sort()
        return Share(got, 0 if got else release)


V = TypeVar("V")


def _put(entries: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
