"""The state that the readers of a group share, and its records in the form of Java clients. Pure.

A group has a stream of records: initial states, and updates of the state before. Each client replays them, so all have
the same state, by the same rules. Invariant: a segment is assigned to one reader, unassigned, or waits until its
predecessors are read (`future`). Refused (`ValueError`): records of another form, updates that contradict the state,
after which it is undefined, and checkpoints with more than `_MOST_CHECKPOINTED` entries. Follows `ReaderGroupState` and
`CheckpointState` (Pravega's client), also in that a finished segment counts for segments of other streams that wait for
the same id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

from segstore.wire.names import MAX_INT64, SegmentName
from segstore.wire.reader_groups.updates import (
    COMPACT,
    AcquireSegment,
    AddReader,
    CheckpointPublished,
    CheckpointReader,
    ClearCheckpointsBefore,
    CreateCheckpoint,
    GroupConfig,
    InitialState,
    ReleaseSegment,
    RemoveOutstandingCheckpoints,
    RemoveReader,
    SegmentCompleted,
    Update,
    UpdateDistance,
    UpdatingConfig,
    decode_config,
    decode_kind,
    decode_update,
    encode_config,
)
from segstore.wire.revisioned import decode_record
from segstore.wire.versioned import Input, Output, Range, decode_object, encode_object

SILENT: Final = "_SILENT_"
"""Checkpoints with this in their names are taken without notice to the application, and do not move positions."""

_UNKNOWN_DISTANCE: Final = MAX_INT64
_LEAST_DISTANCE: Final = 30_000
_MOST_CHECKPOINTED: Final = 10_000_000


@dataclass
class Checkpoints:
    """The checkpoints of a group.

    Attributes:
        names: of all kept checkpoints, the oldest first.
        waiting: name → readers that have not taken it; without complete checkpoints.
        positions: name → segment → offset, so far.
        last: the positions of the last complete checkpoint that was not silent, or None.
        published: whether the controller knows them.
    """

    names: list[str] = field(default_factory=list)
    waiting: dict[str, list[str]] = field(default_factory=dict)
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    last: dict[str, int] | None = None
    published: bool = True

    def copy(self) -> Checkpoints:
        waiting = {name: list(readers) for name, readers in self.waiting.items()}
        positions = {name: dict(offsets) for name, offsets in self.positions.items()}
        return Checkpoints(list(self.names), waiting, positions, self.last, self.published)

    def awaited(self, reader: str) -> list[str]:
        """Returns the names of checkpoints that wait for a reader, the oldest first."""
        return [name for name in self.names if reader in self.waiting.get(name, ())]

    def outstanding(self) -> list[str]:
        """Returns the names of checkpoints in progress, without silent checkpoints."""
        return [name for name in self.names if name in self.waiting and SILENT not in name]

    def complete(self, name: str) -> dict[str, int] | None:
        """Returns the positions of a checkpoint that is complete; None if it is not, or is not kept."""
        return None if name in self.waiting else self.positions.get(name)

    def take(self, name: str, reader: str, positions: dict[str, int]) -> None:
        waiting = self.waiting.get(name)
        if waiting is None:
            return
        if reader not in waiting:
            raise ValueError(f"the reader {reader!r:.80} has taken the checkpoint {name!r:.80} already")
        waiting.remove(reader)
        self.positions.setdefault(name, {}).update(positions)
        if not waiting:
            del self.waiting[name]
            if SILENT not in name:
                self.last, self.published = self.positions[name], False

    def forget(self, names: list[str]) -> None:
        for name in names:
            self.waiting.pop(name, None)
            self.positions.pop(name, None)

    def encode(self) -> bytes:
        first = Output().texts(self.names)
        first.map(self.waiting, first.text, first.texts).map(self.positions, first.text, first.offsets)
        return encode_object([first.offsets(self.last or {}), Output().flag(self.published)])

    @classmethod
    def decode(cls, data: bytes) -> Checkpoints:
        read, *later = decode_object(Input(data))
        names, waiting = read.list(read.text), read.map(read.text, lambda: read.list(read.text))
        positions, last = read.map(read.text, read.offsets), read.offsets()
        return cls(names, waiting, positions, last or None, all(revision.flag() for revision in later[:1]))


def decode_updates(record: bytes) -> list[Update]:
    """Returns the updates in a record of the group's stream; whole states are left out. Raises ValueError."""
    initial, updates = decode_record(record)
    typed = map(decode_kind, updates if initial is None else [initial])
    return [decode_update(kind, revisions) for kind, revisions in typed if kind != COMPACT]


class GroupState:
    """The state of one group after the records applied so far.

    Attributes:
        config: None before the first record.
        readers: online reader → segment → offset from which another reader would continue it.
        unassigned: segment → offset, in the order in which they became free.
        future: segment → ids of the predecessors that must be read first.
        read: segment → offset up to which it was read, as a reader has reported last.
        ends: segment → offset at which the group ends there.
        distances: reader → lag that it has reported, by which Java readers balance.
        updating: whether the configuration is about to be replaced.
        ranges: segment → its key range, if known.
    """

    readers: dict[str, dict[str, int]]
    unassigned: dict[str, int]
    future: dict[str, set[int]]
    distances: dict[str, int]
    ranges: dict[str, Range]
    _followers: defaultdict[int, set[str]]
    """The segments of `future` by id of a predecessor; also segments that have left it."""

    def __init__(self, *, keeps_checkpoints: bool = True) -> None:
        """keeps_checkpoints: if False, the state takes less memory than its records."""
        self._keeps_checkpoints = keeps_checkpoints
        self._start(InitialState(GroupConfig({}), {}, {}))
        self.config: GroupConfig | None = None

    def copy(self) -> Self:
        """Returns an independent copy."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        made.checkpoints = self.checkpoints.copy()
        made.readers = {name: dict(segments) for name, segments in self.readers.items()}
        made.future = {name: set(before) for name, before in self.future.items()}
        for name in ("unassigned", "read", "distances", "ranges"):
            setattr(made, name, dict(getattr(self, name)))
        made._followers = defaultdict(set, {before: set(names) for before, names in self._followers.items()})
        return made

    def reported(self) -> dict[str, dict[str, int]]:
        """Returns the offset of each segment of each online reader, as it has reported last."""
        return {
            reader: {name: self.read.get(name, offset) for name, offset in segments.items()}
            for reader, segments in self.readers.items()
        }

    # --- records ----------------------------------------------------------------------------------------------------

    def apply_record(self, record: bytes) -> None:
        """Applies a record of the group's stream, without the event's header. Raises ValueError."""
        initial, updates = decode_record(record)
        for update in updates if initial is None else [initial]:
            self.apply_bytes(update)

    def apply_bytes(self, data: bytes) -> None:
        """Applies an initial state or an update. Raises ValueError."""
        kind, revisions = decode_kind(data)
        if kind == COMPACT:
            self._restore(revisions)
        else:
            self.apply(decode_update(kind, revisions))

    def encode(self) -> bytes:
        """Encodes the whole state, as an initial state that replaces all records before it."""
        if self.config is None:
            raise ValueError("a group without a configuration has no state")
        first = Output().array(encode_config(self.config)).array(self.checkpoints.encode())
        first.map(self.distances, first.text, first.long)
        first.map(self.future, first.text, lambda before: first.longs(sorted(before)))
        first.map(self.readers, first.text, first.offsets).offsets(self.unassigned).offsets(self.ends)
        second = Output().offsets(self.read)
        second.map({name: self.ranges.get(name) for name in self._segments()}, second.text, second.range)
        return encode_object([first, second, Output().flag(self.updating)], kind=COMPACT)

    def _segments(self) -> Iterator[str]:
        yield from self.future
        for segments in (*self.readers.values(), self.unassigned, self.read):
            yield from segments

    def _restore(self, revisions: list[Input]) -> None:
        read = revisions[0]
        self._start(InitialState(decode_config(read.array()), {}, {}))
        checkpoints = read.array()
        if self._keeps_checkpoints:
            self.checkpoints = Checkpoints.decode(checkpoints)
        self.distances = read.map(read.text, read.long)
        for segment, before in read.map(read.segment, lambda: read.list(read.long)).items():
            self._await(segment, set(before))
        self.readers = read.map(read.text, read.offsets)
        self.unassigned, self.ends = read.offsets(), read.offsets()
        for second in revisions[1:2]:
            self.read = second.offsets()
            self._learn(second.map(second.segment, second.range))
        self.updating = any(revision.flag() for revision in revisions[2:3])

    # --- updates ----------------------------------------------------------------------------------------------------

    def apply(self, update: Update) -> None:
        """Applies an update. Raises ValueError."""
        _RULES[type(update)](self, update)

    def _start(self, update: InitialState) -> None:
        self.config = update.config
        self.checkpoints = Checkpoints()
        self.readers = {}
        self.unassigned = dict(update.starts)
        self.future = {}
        self.read = dict(update.starts)
        self.ends = dict(update.ends)
        self.distances = {}
        self.updating = update.updating
        self.ranges = {}
        self._followers = defaultdict(set)

    def _add(self, update: AddReader) -> None:
        if update.reader in self.readers:
            raise ValueError(f"the reader {update.reader!r:.80} is online already")
        self.readers[update.reader] = {}
        self.distances.setdefault(update.reader, _UNKNOWN_DISTANCE)

    def _remove(self, update: RemoveReader) -> None:
        mine = self.readers.pop(update.reader, {})
        ended = {segment: update.positions.get(segment, offset) for segment, offset in mine.items()}
        self.unassigned |= ended
        self.distances.pop(update.reader, None)
        for name in self.checkpoints.awaited(update.reader):
            self.checkpoints.take(name, update.reader, ended)

    def _release(self, update: ReleaseSegment) -> None:
        self._take_from(update.reader, update.segment)
        self.unassigned[update.segment] = update.offset
        self._move(update.segment, update.offset)

    def _acquire(self, update: AcquireSegment) -> None:
        reader, segment = update
        if reader not in self.readers or segment not in self.unassigned:
            raise ValueError(f"the reader {reader!r:.80} cannot acquire {segment!r:.200}")
        self.readers[reader][segment] = self.unassigned.pop(segment)

    def _report(self, update: UpdateDistance) -> None:
        self.distances[update.reader] = max(_LEAST_DISTANCE, update.distance)
        for segment, offset in update.positions.items():
            self._move(segment, offset)

    def _complete(self, update: SegmentCompleted) -> None:
        self._take_from(update.reader, update.segment)
        self.read.pop(update.segment, None)
        self.ranges.pop(update.segment, None)
        new = {name: set(before) for name, before in update.following.items() if name not in self.future}
        self._learn({name: update.ranges.get(name) for name in new})
        for successor, before in new.items():
            self._await(successor, before)
        done = SegmentName.parse(update.segment).segment_id or 0
        for successor in sorted(self._waiting_for(update.segment) | update.following.keys()):
            left = self.future.get(successor)
            if left is None:
                continue
            left.discard(done)
            if not left:
                del self.future[successor]
                self.unassigned[successor] = 0
                self.read.setdefault(successor, 0)

    def _checkpointed(self, update: CheckpointReader) -> None:
        mine = self.readers.get(update.reader)
        if mine is None:
            raise ValueError(f"the reader {update.reader!r:.80} of a checkpoint is not online")
        self.checkpoints.take(update.checkpoint, update.reader, dict(update.positions))
        if SILENT not in update.checkpoint:
            mine.update((name, at) for name, at in update.positions.items() if name in mine)

    def _begin(self, update: CreateCheckpoint) -> None:
        name, found = update.checkpoint, self.checkpoints
        if self._keeps_checkpoints and name not in found.positions:
            if len(found.names) * (len(self.readers) + len(self.unassigned)) > _MOST_CHECKPOINTED:
                raise ValueError(f"{len(found.names)} checkpoints are too many")
            if self.readers:
                found.waiting[name] = list(self.readers)
            found.positions[name] = dict(self.unassigned)
            found.names.append(name)

    def _clear(self, update: ClearCheckpointsBefore) -> None:
        found = self.checkpoints
        if update.checkpoint in found.positions and update.checkpoint in found.names:
            at = found.names.index(update.checkpoint)
            found.forget(found.names[:at])
            del found.names[:at]

    def _publish(self, update: CheckpointPublished) -> None:
        self.checkpoints.published = update.published

    def _updating(self, update: UpdatingConfig) -> None:
        self.updating = update.updating

    def _cancel(self, _: RemoveOutstandingCheckpoints) -> None:
        self.checkpoints.forget(self.checkpoints.outstanding())

    # --- parts of updates -------------------------------------------------------------------------------------------

    def _move(self, segment: str, offset: int) -> None:
        """Notes how far a segment was read; ignores segments that the group has completed."""
        if segment in self.read:
            self.read[segment] = offset

    def _learn(self, ranges: dict[str, Range | None]) -> None:
        self.ranges |= {name: known for name, known in ranges.items() if known is not None}

    def _await(self, segment: str, before: set[int]) -> None:
        """A segment can be read once its predecessors are."""
        self.future[segment] = before
        for predecessor in before:
            self._followers[predecessor].add(segment)

    def _waiting_for(self, segment: str) -> set[str]:
        """Returns the segments that may wait for `segment`, which was read, and forgets that they do."""
        return self._followers.pop(SegmentName.parse(segment).segment_id or 0, set())

    def _take_from(self, reader: str, segment: str) -> None:
        if self.readers.get(reader, {}).pop(segment, None) is None:
            raise ValueError(f"the reader {reader!r:.80} has no segment {segment!r:.200}")


_RULES: Final[dict[type, Callable[[GroupState, Any], None]]] = {
    InitialState: GroupState._start,
    AddReader: GroupState._add,
    RemoveReader: GroupState._remove,
    ReleaseSegment: GroupState._release,
    AcquireSegment: GroupState._acquire,
    UpdateDistance: GroupState._report,
    SegmentCompleted: GroupState._complete,
    CheckpointReader: GroupState._checkpointed,
    CreateCheckpoint: GroupState._begin,
    ClearCheckpointsBefore: GroupState._clear,
    CheckpointPublished: GroupState._publish,
    UpdatingConfig: GroupState._updating,
    RemoveOutstandingCheckpoints: GroupState._cancel,
}
