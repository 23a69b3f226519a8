"""The configuration of a reader group, the stream cuts in it, and the updates of its state, as Java clients write them.

Invariant: configurations and updates round-trip; unknown revisions are skipped. Refused (`ValueError`): updates of
other types, and encodings that the Java client never writes. Follows `ReaderGroupConfig`, `StreamCutImpl` and
`ReaderGroupState` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from segstore.wire.versioned import Input, Output, Range, decode_object, decode_typed, encode_object

NO_ID: Final = UUID(int=0)
RETENTIONS: Final = ("none", "manual", "automatic")
"""Retentions in the order of their numbers."""

_CUT_VERSION: Final = 1
"""Version 0 has no negative offsets."""

Cuts = Mapping[str, Mapping[int, int]]
"""Cuts by "scope/stream"; an empty cut is unbounded."""

COMPACT: Final = 1
"""The type of a whole state, which replaces all before it."""

Ranges = Mapping[str, Range | None]
"""Key ranges by segment, None if unknown."""


class GroupConfig(NamedTuple):
    """A reader group's configuration.

    starts, ends: where each stream begins and ends; an offset of -1 is the end of its segment. refresh_ms: how often
    readers fetch the group's state. checkpoint_ms: interval of automatic checkpoints; off if not positive.
    most_checkpoints: how many may be in progress. retention: whether the group's position delays the retention of its
    streams (`RETENTIONS`). generation, id: from the controller.
    """

    starts: Cuts
    ends: Cuts = {}  # noqa: RUF012 — never changed
    refresh_ms: int = 3000
    checkpoint_ms: int = 30_000
    most_checkpoints: int = 3
    retention: str = "none"
    generation: int = -1
    id: UUID = NO_ID


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


def encode_update(update: Update) -> bytes:
    """Encodes an update. Raises ValueError for names that are too long."""
    cls = type(update)
    if cls in _WITH_REVISIONS:
        kind, encode, _ = _WITH_REVISIONS[cls]
        return encode_object(encode(update), kind=kind)
    kind, fields = _PLAIN[cls]
    output = Output()
    for write, value in zip(fields, update, strict=True):
        getattr(output, write)(value)
    return encode_object([output], kind=kind)


# --- decoding ---------------------------------------------------------------------------------------------------------


def _read_initial(read: Input, later: list[Input]) -> InitialState:
    config, starts, ends = decode_config(read.array()), read.offsets(), read.offsets()
    return InitialState(config, starts, ends, updating=any(revision.flag() for revision in later[1:2]))


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


_WITH_REVISIONS: Final[
    dict[type, tuple[int, Callable[[Any], list[Output]], Callable[[Input, list[Input]], Update]]]
] = {
    InitialState: (0, _initial, _read_initial),
    UpdateDistance: (6, _distance, _read_distance),
    SegmentCompleted: (7, _completed, _read_completed),
}
"""Updates of several revisions, with their types, and how they are written and read."""
_PLAIN: Final[dict[type, tuple[int, tuple[str, ...]]]] = {
    AddReader: (2, ("text",)),
    RemoveReader: (3, ("text", "offsets")),
    ReleaseSegment: (4, ("text", "segment", "long")),
    AcquireSegment: (5, ("text", "segment")),
    CheckpointReader: (8, ("text", "text", "offsets")),
    CreateCheckpoint: (9, ("text",)),
    ClearCheckpointsBefore: (10, ("text",)),
    CheckpointPublished: (11, ("flag",)),
    UpdatingConfig: (12, ("flag",)),
    RemoveOutstandingCheckpoints: (13, ()),
}
"""Updates of one revision, with their types and the methods of `Input` and `Output` for their fields."""
_BY_TYPE: Final[dict[int, type]] = {
    **{kind: cls for cls, (kind, _, _) in _WITH_REVISIONS.items()},
    **{kind: cls for cls, (kind, _) in _PLAIN.items()},
}
LAST_TYPE: Final = max(_BY_TYPE)


def decode_update(kind: int, revisions: list[Input]) -> Update:
    """Returns an update of a type other than `COMPACT`. Raises ValueError."""
    cls, read = _BY_TYPE[kind], revisions[0]
    if cls in _WITH_REVISIONS:
        return _WITH_REVISIONS[cls][2](read, revisions[1:])
    update: Update = cls(*(getattr(read, method)() for method in _PLAIN[cls][1]))
    return update


def decode_kind(data: bytes) -> tuple[int, list[Input]]:
    """Returns the type of a state or an update, and its revisions. Raises ValueError."""
    return decode_typed(Input(data), LAST_TYPE)


# --- configurations ---------------------------------------------------------------------------------------------------


def encode_config(config: GroupConfig) -> bytes:
    first, second, third = Output(), Output(), Output()
    for revision in (first, second):  # each revision repeats the one before
        revision.long(config.checkpoint_ms).long(config.refresh_ms)
        for cuts in (config.starts, config.ends):
            revision.count(len(cuts))
            for stream, cut in cuts.items():
                revision.text(stream).array(_encode_cut(stream, cut) if cut else b"")
    second.integer(config.most_checkpoints)
    third.count(RETENTIONS.index(config.retention)).long(config.generation).uuid(config.id)
    return encode_object([first, second, third])


def decode_config(data: bytes) -> GroupConfig:
    """Raises ValueError."""
    revisions = decode_object(Input(data))
    read = revisions[1] if len(revisions) > 1 else revisions[0]
    checkpoint_ms, refresh_ms = read.long(), read.long()
    config = GroupConfig(_decode_cuts(read), _decode_cuts(read), refresh_ms, checkpoint_ms)
    if len(revisions) > 1:
        config = config._replace(most_checkpoints=read.integer())
    for last in revisions[2:3]:
        number = last.count()
        if number >= len(RETENTIONS):
            raise ValueError(f"{number} is no type of retention")
        config = config._replace(retention=RETENTIONS[number], generation=last.long(), id=last.uuid())
    return config


def _encode_cut(stream: str, cut: Mapping[int, int]) -> bytes:
    made = Output().text(stream)
    return encode_object([made.map(cut, made.compact_long, made.compact_signed_long)], version=_CUT_VERSION)


def _decode_cuts(read: Input) -> dict[str, dict[int, int]]:
    return {stream: _decode_cut(cut) for stream, cut in read.map(read.text, read.array).items()}


def _decode_cut(data: bytes) -> dict[int, int]:
    if not data:
        return {}
    old = data[1:2] == b"\0"
    (read, *_) = decode_object(Input(data), version=0 if old else _CUT_VERSION)
    read.text()  # the stream
    return read.map(read.compact_long, read.compact_long if old else read.compact_signed_long)
