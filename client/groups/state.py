"""The shared state of a reader group: segment assignments, offsets and successors. Pure.

A group consists of maps in one table, shared with the official client: online readers with their segments and offsets,
unassigned segments, and future segments with the predecessors that must be read first. Each method makes one change
that the group agrees on; `changes` returns the entries to write for it. Checkpoints are a map that only this client
knows; the official one ignores it.

Invariants: a segment is assigned to one reader, unassigned, or waiting for predecessors, never two of these; an offline
reader changes nothing; the positions of a checkpoint are such that no segment was read whose predecessors they do not
include up to their ends. Removed entries become tombstones: the official client remembers their versions and could not
write a key again that was really deleted. Follows `ReaderGroupState` (pravega-client-rust). Deliberate difference: a
reader also releases a segment if another reader has at least two fewer; the official client does so only above the
average, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self

from segstore.client.errors import ConditionFailed, ReaderExists, ReaderOffline
from segstore.wire.names import SegmentName
from segstore.wire.reader_groups import (
    ASSIGNED,
    CHECKPOINTS,
    CONFIG,
    DISTANCE,
    FUTURE,
    ONLY,
    TOMBSTONE,
    UNASSIGNED,
    CheckpointEntry,
    GroupConfig,
    StoredGroup,
    cbor_encode,
    encode_checkpoint,
    encode_config,
    encode_offset,
    encode_offsets,
    encode_predecessors,
    encode_value,
)

_GONE: Final = encode_value(TOMBSTONE, cbor_encode({}))
_UNKNOWN_DISTANCE: Final = encode_value("u64", cbor_encode((1 << 64) - 1))


class Share(NamedTuple):
    """How many unassigned segments a reader should acquire, and how many of its own it should release."""

    acquire: int
    release: int


class GroupState(StoredGroup):
    """The state of one group, with the changes made to it. group: "scope/name", for errors."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self._touched: dict[tuple[str, str], None] = {}

    def copy(self) -> Self:
        """Returns a copy for making changes, with none recorded yet."""
        made = type(self)(self.group)
        made.config = self.config
        made.readers = {name: dict(segments) for name, segments in self.readers.items()}
        made.unassigned = dict(self.unassigned)
        made.future = {name: set(before) for name, before in self.future.items()}
        made.checkpoints = dict(self.checkpoints)
        made.distances = set(self.distances)
        return made

    # --- to the table --------------------------------------------------------------------------------------

    def changes(self) -> list[tuple[str, str, bytes]]:
        """Returns the changes since `copy`: map, key and value."""
        return [(outer, inner, self._value(outer, inner)) for outer, inner in self._touched]

    def _value(self, outer: str, inner: str) -> bytes:
        if outer == CONFIG and self.config is not None:
            return encode_value("ReaderGroupConfigVersioned", encode_config(self.config))
        if outer == ASSIGNED and inner in self.readers:
            return encode_value("HashMap<ScopedSegment, Offset>", encode_offsets(self.readers[inner]))
        if outer == UNASSIGNED and inner in self.unassigned:
            return encode_value("Offset", encode_offset(self.unassigned[inner]))
        if outer == CHECKPOINTS and inner in self.checkpoints:
            return encode_value("Checkpoint", encode_checkpoint(self.checkpoints[inner]))
        if outer == FUTURE and inner in self.future:
            return encode_value("HashSet<i64>", encode_predecessors(sorted(self.future[inner])))
        if outer == DISTANCE and inner in self.distances:
            return _UNKNOWN_DISTANCE
        return _GONE

    def _touch(self, outer: str, inner: str) -> None:
        self._touched[outer, inner] = None

    # --- changes ----------------------------------------------------------------------------------------------------

    def create(self, config: GroupConfig, start: Mapping[str, int]) -> bool:
        """Creates the group unless it exists; returns whether it was created. start: segment → offset."""
        if self.config is not None:
            return False
        self.config = config
        self._touch(CONFIG, ONLY)
        for segment, offset in start.items():
            self._leave(segment, offset)
        return True

    def join(self, reader: str) -> None:
        """Adds an online reader without segments. Raises ReaderExists."""
        if reader in self.readers:
            raise ReaderExists(f"the reader {reader} of {self.group} is already online", reader=reader)
        self.readers[reader] = {}
        self.distances.add(reader)
        self._touch(ASSIGNED, reader)
        self._touch(DISTANCE, reader)

    def quit(self, reader: str, positions: Mapping[str, int]) -> None:
        """Removes a reader and unassigns its segments, at `positions` or else the last recorded ones.

        Raises ReaderOffline.
        """
        ended = {segment: positions.get(segment, offset) for segment, offset in self.segments_of(reader).items()}
        for segment, offset in ended.items():
            self._leave(segment, offset)
        for name in self.awaited(reader):
            self.take_checkpoint(name, reader, ended)
        del self.readers[reader]
        self._touch(ASSIGNED, reader)
        if reader in self.distances:
            self.distances.discard(reader)
            self._touch(DISTANCE, reader)

    def record(self, reader: str, positions: Mapping[str, int]) -> None:
        """Records a reader's positions; ignores segments of others. Raises ReaderOffline."""
        mine = self.segments_of(reader)
        moved = {segment: at for segment, at in positions.items() if mine.get(segment, at) != at}
        if moved:
            mine.update(moved)
            self._touch(ASSIGNED, reader)

    def acquire(self, reader: str, count: int) -> dict[str, int]:
        """Assigns up to `count` unassigned segments to a reader; returns them. Raises ReaderOffline.

        A reader that a checkpoint waits for gets none: the segment's position in the checkpoint is already recorded.
        """
        mine = self.segments_of(reader)
        if self.awaited(reader):
            return {}
        taken = dict(sorted(self.unassigned.items())[:count])
        for segment, offset in taken.items():
            del self.unassigned[segment]
            mine[segment] = offset
            self._touch(UNASSIGNED, segment)
        if taken:
            self._touch(ASSIGNED, reader)
        return taken

    def release(self, reader: str, segments: Mapping[str, int]) -> None:
        """Unassigns segments of a reader, at the given offsets. Raises ReaderOffline."""
        mine = self.segments_of(reader)
        for segment, offset in segments.items():
            if mine.pop(segment, None) is not None:
                self._leave(segment, offset)
                self._leaves_reader(reader, segment, offset)
                self._touch(ASSIGNED, reader)

    def end(self, reader: str, segment: str, following: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Records that a reader has read a segment to its end, which must be its recorded position.

        following: its successors, each with the ids of its predecessors, all of which must be read first.
        Raises ReaderOffline.
        """
        mine = self.segments_of(reader)
        offset = mine.pop(segment, None)
        if offset is None:
            return
        self._leaves_reader(reader, segment, offset)
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

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def begin_checkpoint(self, name: str) -> None:
        """Begins a checkpoint that each online reader takes. Raises ConditionFailed if it is in progress."""
        if (found := self.checkpoints.get(name)) is not None and found.waiting:
            raise ConditionFailed(f"a checkpoint {name} of {self.group} is in progress", checkpoint=name)
        self._checkpoint(name, frozenset() if self.over else frozenset(self.readers), self.unassigned)

    def take_checkpoint(self, name: str, reader: str, positions: Mapping[str, int]) -> None:
        """Records a reader's positions in a checkpoint; a no-op if that does not wait for the reader."""
        found = self.checkpoints.get(name)
        if found is not None and reader in found.waiting:
            self._checkpoint(name, found.waiting - {reader}, {**found.positions, **positions})

    def end_checkpoint(self, name: str) -> CheckpointEntry | None:
        """Removes a checkpoint and returns it; None if there is none."""
        found = self.checkpoints.pop(name, None)
        if found is not None:
            self._touch(CHECKPOINTS, name)
        return found

    def awaited(self, reader: str) -> list[str]:
        """Returns the names of the checkpoints that wait for a reader, in order."""
        return sorted(name for name, found in self.checkpoints.items() if reader in found.waiting)

    def _checkpoint(self, name: str, waiting: frozenset[str], positions: Mapping[str, int]) -> None:
        self.checkpoints[name] = CheckpointEntry(waiting, dict(positions))
        self._touch(CHECKPOINTS, name)

    def _leaves_reader(self, reader: str, segment: str, offset: int) -> None:
        """Records a segment that a reader has no longer in the checkpoints that the reader has not taken."""
        for name in self.awaited(reader):
            found = self.checkpoints[name]
            self._checkpoint(name, found.waiting, {**found.positions, segment: offset})

    # --- queries ----------------------------------------------------------------------------------------------------

    def segments_of(self, reader: str) -> dict[str, int]:
        """Returns a reader's segments and offsets. Raises ReaderOffline."""
        if reader not in self.readers:
            raise ReaderOffline(f"the reader {reader} of {self.group} is not online", reader=reader)
        return self.readers[reader]

    @property
    def over(self) -> bool:
        """Whether all segments of all streams were read to their ends."""
        return self.config is not None and not (self.unassigned or self.future or any(self.readers.values()))

    def positions(self) -> dict[str, int]:
        """Returns the group's positions: each assigned or unassigned segment → offset."""
        found = dict(self.unassigned)
        for segments in self.readers.values():
            found.update(segments)
        return found

    def share(self, reader: str) -> Share:
        """Returns what a reader should do so that readers differ by at most one segment. Raises ReaderOffline."""
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
