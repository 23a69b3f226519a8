"""Changes of the state that the readers of a group share. Pure.

A draft is a copy of the state; each method makes one change that the group agrees on, and adds the updates for it.

Invariants: an offline reader changes nothing; while a checkpoint waits for a reader, it neither gets, gives up nor
finishes segments, so a checkpoint has each segment once, and the ends of the predecessors of each segment that was
read. Follows `ReaderGroupStateManager` (Pravega's client). Deliberate differences: a reader takes unassigned segments
at once, and releases some if another reader has at least two fewer, between any two events; Java's readers do so in
turns, and release only at checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from segstore.client.controller import Successor
from segstore.client.errors import ConditionFailed, ReaderExists, ReaderOffline
from segstore.wire.names import MAX_INT64
from segstore.wire.reader_groups import (
    AcquireSegment,
    AddReader,
    CheckpointReader,
    ClearCheckpointsBefore,
    CreateCheckpoint,
    GroupState,
    ReleaseSegment,
    RemoveOutstandingCheckpoints,
    RemoveReader,
    SegmentCompleted,
    Update,
    UpdateDistance,
)

_RECORD: Final = "recorded"
"""No checkpoint in progress has this name. Taking one moves a reader's positions, and does nothing else."""


class Share(NamedTuple):
    """How many unassigned segments a reader should acquire, and how many of its own it should release."""

    acquire: int
    release: int


class Draft:
    """A change of a group's state.

    Attributes:
        state: the state with the change. updates: the updates that lead to it.
    """

    def __init__(self, group: str, state: GroupState) -> None:
        """group: "scope/name", for errors."""
        self.group = group
        self.state = state.copy()
        self.updates: list[Update] = []

    def add(self, update: Update) -> None:
        self.state.apply(update)
        self.updates.append(update)

    # --- readers ----------------------------------------------------------------------------------------------------

    def segments_of(self, reader: str) -> dict[str, int]:
        """Returns a reader's segments and offsets. Raises ReaderOffline."""
        return segments_of(self.group, self.state, reader)

    def join(self, reader: str) -> None:
        """Adds an online reader without segments. Raises ReaderExists."""
        if reader in self.state.readers:
            raise ReaderExists(f"the reader {reader} of {self.group} is already online", reader=reader)
        self.add(AddReader(reader))

    def quit(self, reader: str, positions: Mapping[str, int]) -> None:
        """Removes a reader and unassigns its segments, at `positions` or else where they were last recorded.

        Raises ReaderOffline.
        """
        mine = self.segments_of(reader)
        self.add(RemoveReader(reader, {segment: at for segment, at in positions.items() if segment in mine}))

    def record(self, reader: str, positions: Mapping[str, int]) -> None:
        """Records a reader's positions, where other readers continue if it fails; ignores their segments.

        Raises ReaderOffline.
        """
        mine = self.segments_of(reader)
        moved = {segment: positions.get(segment, at) for segment, at in mine.items()}
        if moved != mine:
            name = _RECORD
            while name in self.state.checkpoints.waiting:
                name += "'"
            self.add(CheckpointReader(name, reader, moved))

    def report(self, reader: str, distance: int) -> None:
        """Adds a reader's positions and lag, for readers in Java, to a change."""
        mine, ranges = self.segments_of(reader), self.state.ranges
        if self.updates:
            self.add(UpdateDistance(reader, distance, dict(mine), {name: ranges.get(name) for name in mine}))

    def acquire(self, reader: str, count: int) -> None:
        """Assigns up to `count` unassigned segments to a reader, the oldest first. Raises ReaderOffline."""
        self.segments_of(reader)
        if not self.awaited(reader):
            for segment in list(self.state.unassigned)[:count]:
                self.add(AcquireSegment(reader, segment))

    def release(self, reader: str, segments: Mapping[str, int]) -> None:
        """Unassigns segments of a reader, at the given offsets. Raises ReaderOffline."""
        mine = self.segments_of(reader)
        for segment, offset in segments.items():
            if segment in mine:
                self.add(ReleaseSegment(reader, segment, offset))

    def end(self, reader: str, segment: str, following: Iterable[Successor]) -> None:
        """Records that a reader has read a segment to its end. following: its successors. Raises ReaderOffline."""
        if segment in self.segments_of(reader):
            before = {successor.segment.name: successor.predecessors for successor in following}
            ranges = {range_.name: (range_.low, range_.high) for range_, _ in following}
            self.add(SegmentCompleted(reader, segment, before, self.state.ranges | ranges))

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def awaited(self, reader: str) -> list[str]:
        """Returns the names of the checkpoints that wait for a reader, the oldest first."""
        return self.state.checkpoints.awaited(reader)

    def begin_checkpoint(self, name: str) -> None:
        """Begins a checkpoint that each online reader takes.

        Raises ConditionFailed if a checkpoint of this name is kept, or if too many are in progress.
        """
        checkpoints, config = self.state.checkpoints, self.state.config
        if name in checkpoints.positions:
            how = "is in progress" if name in checkpoints.waiting else "was taken before"
            raise ConditionFailed(f"a checkpoint {name} of {self.group} {how}", checkpoint=name)
        outstanding = checkpoints.outstanding()
        if config is not None and len(outstanding) >= config.most_checkpoints:
            names = ", ".join(outstanding)
            raise ConditionFailed(
                f"the checkpoints {names} of {self.group} are in progress, as many as its configuration allows",
                checkpoint=name,
                limit=config.most_checkpoints,
            )
        self.add(CreateCheckpoint(name))

    def begin_automatic_checkpoint(self, name: UUID) -> None:
        """Begins a checkpoint unless one is in progress, and forgets earlier checkpoints."""
        if not self.state.checkpoints.waiting:
            self.add(CreateCheckpoint(str(name)))
            self.add(ClearCheckpointsBefore(str(name)))

    def take_checkpoint(self, name: str, reader: str, positions: Mapping[str, int]) -> None:
        """Records a reader's positions in a checkpoint; a no-op if that does not wait for the reader."""
        if name in self.awaited(reader):
            mine = self.segments_of(reader)
            taken = {segment: positions.get(segment, at) for segment, at in mine.items()}
            self.add(CheckpointReader(name, reader, taken))

    def end_checkpoint(self, name: str) -> None:
        """Forgets the checkpoints before `name`, which is complete."""
        if name in self.state.checkpoints.positions and self.state.checkpoints.names[:1] != [name]:
            self.add(ClearCheckpointsBefore(name))

    def cancel_checkpoint(self, name: str) -> None:
        """Cancels a checkpoint if it alone is in progress, because all are cancelled together."""
        if self.state.checkpoints.outstanding() == [name]:
            self.add(RemoveOutstandingCheckpoints())


# --- queries ----------------------------------------------------------------------------------------------------------


def segments_of(group: str, state: GroupState, reader: str) -> dict[str, int]:
    """Returns a reader's segments and offsets. Raises ReaderOffline."""
    if reader not in state.readers:
        raise ReaderOffline(f"the reader {reader} of {group} is not online", reader=reader)
    return state.readers[reader]


def is_over(state: GroupState, reader: str) -> bool:
    """Whether all segments of all streams were read to their ends, and `reader` has no segment.

    Readers in Java keep a segment that they have read to the group's end in it.
    """
    if state.unassigned or state.future or state.readers.get(reader):
        return False
    return all(state.ends.get(segment, MAX_INT64) <= at for segment, at in recorded(state).items())


def recorded(state: GroupState) -> dict[str, int]:
    """Returns where each assigned or unassigned segment would be continued: segment → offset, -1 for its end."""
    positions = dict(state.unassigned)
    for segments in state.readers.values():
        positions.update(segments)
    return positions


def share(state: GroupState, reader: str) -> Share:
    """Returns what an online reader should do so that readers differ by at most one segment."""
    mine = len(state.readers[reader])
    others = sorted(len(segments) for name, segments in state.readers.items() if name != reader)
    acquired = 0
    for _ in state.unassigned:
        if not others or mine + acquired <= others[0]:
            acquired += 1
        else:
            others[0] += 1
            others.sort()
    release = 0
    while others and mine + acquired - release >= others[0] + 2 and release < mine:
        release += 1
        others[0] += 1
        others.sort()
    return Share(acquired, 0 if acquired else release)
