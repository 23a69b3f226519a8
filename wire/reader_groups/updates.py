"""The updates of a reader group's state, in the form of Java clients.

Invariant: updates round-trip; unknown revisions are skipped. Refused (`ValueError`): updates of other types, and
truncated updates. Follows `ReaderGroupState` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from segstore.wire.reader_groups.config import GroupConfig, decode_config, encode_config
from segstore.wire.reader_groups.versioned import Input, Output, Range, decode_typed, encode_object

COMPACT: Final = 1
"""The type of a whole state, which replaces all before it."""

Ranges = Mapping[str, Range | None]
"""Key ranges by segment, None if unknown."""


class InitialState(NamedTuple):
    """A group without readers, whose configuration is new. starts: segment → offset. ends: segment → offset.

    updating: whether the configuration is about to be replaced.
    """

    config: GroupConfig
    starts: Mapping[str, int]
    ends: Mapping[str, int]
    updating: bool = False


class AddReader(NamedTuple):
    """A reader is online, without segments."""

    reader: str


class RemoveReader(NamedTuple):
    """A reader is offline. positions: segment → offset where its next reader continues; by default as in the state."""

    reader: str
    positions: Mapping[str, int]


class ReleaseSegment(NamedTuple):
    """A reader gives a segment up."""

    reader: str
    segment: str
    offset: int


class AcquireSegment(NamedTuple):
    """A reader takes an unassigned segment."""

    reader: str
    segment: str


class UpdateDistance(NamedTuple):
    """A reader reports its lag, in a measure by which Java readers balance, and its positions: segment → offset."""

    reader: str
    distance: int
    positions: Mapping[str, int]
    ranges: Ranges = {}  # noqa: RUF012 — never changed


class SegmentCompleted(NamedTuple):
    """A reader has read a segment to its end. following: its successors with the ids of their predecessors."""

    reader: str
    segment: str
    following: Mapping[str, Sequence[int]]
    ranges: Ranges = {}  # noqa: RUF012 — never changed


class CheckpointReader(NamedTuple):
    """A reader takes a checkpoint. positions: segment → offset."""

    checkpoint: str
    reader: str
    positions: Mapping[str, int]


class CreateCheckpoint(NamedTuple):
    """A checkpoint begins."""

    checkpoint: str


class ClearCheckpointsBefore(NamedTuple):
    """Older checkpoints than this are forgotten."""

    checkpoint: str


class CheckpointPublished(NamedTuple):
    """Whether the controller knows the last checkpoint, for retention."""

    published: bool


class UpdatingConfig(NamedTuple):
    """Whether the configuration is about to be replaced."""

    updating: bool


class RemoveOutstandingCheckpoints(NamedTuple):
    """All checkpoints in progress are cancelled."""


Update = (
    InitialState
    | AddReader
    | RemoveReader
    | ReleaseSegment
    | AcquireSegment
    | UpdateDistance
    | SegmentCompleted
    | CheckpointReader
    | CreateCheckpoint
    | ClearCheckpointsBefore
    | CheckpointPublished
    | UpdatingConfig
    | RemoveOutstandingCheckpoints
)

# --- encoding ---------------------------------------------------------------------------------------------------------


def _initial(update: InitialState) -> list[Output]:
    first, second = Output(), Output()
    first.array(encode_config(update.config)).offsets(update.starts).offsets(update.ends)
    second.map(update.starts, lambda name: second.text(name).range(None), second.long)
    return [first, second, Output().flag(update.updating)]


def _distance(update: UpdateDistance) -> list[Output]:
    second = Output()
    second.map(update.positions, lambda name: second.text(name).range(update.ranges.get(name)), second.long)
    return [Output().text(update.reader).long(update.distance), second]


def _completed(update: SegmentCompleted) -> list[Output]:
    first, second = Output().text(update.reader).text(update.segment), Output()
    first.map(update.following, first.text, first.longs)
    ranges = {name: update.ranges.get(name) for name in (update.segment, *update.following)}
    second.map(ranges, second.text, second.range)
    return [first, second]


_ENCODERS: Final[dict[type, tuple[int, Callable[..., list[Output]]]]] = {
    InitialState: (0, _initial),
    AddReader: (2, lambda update: [Output().text(update.reader)]),
    RemoveReader: (3, lambda update: [Output().text(update.reader).offsets(update.positions)]),
    ReleaseSegment: (4, lambda update: [Output().text(update.reader).text(update.segment).long(update.offset)]),
    AcquireSegment: (5, lambda update: [Output().text(update.reader).text(update.segment)]),
    UpdateDistance: (6, _distance),
    SegmentCompleted: (7, _completed),
    CheckpointReader: (
        8,
        lambda update: [Output().text(update.checkpoint).text(update.reader).offsets(update.positions)],
    ),
    CreateCheckpoint: (9, lambda update: [Output().text(update.checkpoint)]),
    ClearCheckpointsBefore: (10, lambda update: [Output().text(update.checkpoint)]),
    CheckpointPublished: (11, lambda update: [Output().flag(update.published)]),
    UpdatingConfig: (12, lambda update: [Output().flag(update.updating)]),
    RemoveOutstandingCheckpoints: (13, lambda update: [Output()]),
}


def encode_update(update: Update) -> bytes:
    """Encodes an update. Raises ValueError for names that are too long."""
    kind, encode = _ENCODERS[type(update)]
    return encode_object(encode(update), kind=kind)


# --- decoding ---------------------------------------------------------------------------------------------------------


def _read_initial(read: Input, later: list[Input]) -> InitialState:
    config, starts, ends = decode_config(read.array()), read.offsets(), read.offsets()
    return InitialState(config, starts, ends, updating=any(each.flag() for each in later[1:2]))


def _read_distance(read: Input, later: list[Input]) -> UpdateDistance:
    reader, distance = read.text(), read.long()
    positions: dict[str, int] = {}
    ranges: dict[str, Range | None] = {}
    for second in later[:1]:
        for _ in range(second.count()):
            name, ranges[name], positions[name] = second.segment(), second.range(), second.long()
    return UpdateDistance(reader, distance, positions, ranges)


def _read_completed(read: Input, later: list[Input]) -> SegmentCompleted:
    reader, segment = read.text(), read.segment()
    following = read.map(read.segment, lambda: read.list(read.long))
    ranges = [second.map(second.segment, second.range) for second in later[:1]]
    return SegmentCompleted(reader, segment, following, *ranges)


_DECODERS: Final[dict[int, Callable[[Input, list[Input]], Update]]] = {
    0: _read_initial,
    2: lambda read, _: AddReader(read.text()),
    3: lambda read, _: RemoveReader(read.text(), read.offsets()),
    4: lambda read, _: ReleaseSegment(read.text(), read.segment(), read.long()),
    5: lambda read, _: AcquireSegment(read.text(), read.segment()),
    6: _read_distance,
    7: _read_completed,
    8: lambda read, _: CheckpointReader(read.text(), read.text(), read.offsets()),
    9: lambda read, _: CreateCheckpoint(read.text()),
    10: lambda read, _: ClearCheckpointsBefore(read.text()),
    11: lambda read, _: CheckpointPublished(read.flag()),
    12: lambda read, _: UpdatingConfig(read.flag()),
    13: lambda read, _: RemoveOutstandingCheckpoints(),
}
LAST_TYPE: Final = max(_DECODERS)


def decode_update(kind: int, revisions: list[Input]) -> Update:
    """Returns an update of a type other than `COMPACT`. Raises ValueError."""
    return _DECODERS[kind](revisions[0], revisions[1:])


def decode_kind(data: bytes) -> tuple[int, list[Input]]:
    """Returns the type of a state or an update, and its revisions. Raises ValueError."""
    return decode_typed(Input(data), LAST_TYPE)
