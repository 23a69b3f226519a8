"""The configuration of a reader group, and the stream cuts in it, in the form of Java clients.

Invariant: configurations round-trip. Refused (`ValueError`): encodings that the Java client never writes. Follows
`ReaderGroupConfig` and `StreamCutImpl` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from segstore.wire.reader_groups.versioned import Input, Output, decode_object, encode_object

NO_ID: Final = UUID(int=0)
RETENTIONS: Final = ("none", "manual", "automatic")
"""Retentions in the order of their numbers."""

_CUT_VERSION: Final = 1
"""Version 0 has no negative offsets."""

Cuts = Mapping[str, Mapping[int, int]]
"""Cuts by "scope/stream"; an empty cut is unbounded."""


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


def encode_config(config: GroupConfig) -> bytes:
    first, second, third = Output(), Output(), Output()
    for each in (first, second):  # each revision repeats the one before
        each.long(config.checkpoint_ms).long(config.refresh_ms)
        for cuts in (config.starts, config.ends):
            each.count(len(cuts))
            for stream, cut in cuts.items():
                each.text(stream).array(_encode_cut(stream, cut) if cut else b"")
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
