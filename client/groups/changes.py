"""The changes reported to a group reader's listener: acquired, released and finished segments, and checkpoints.

    match change:
        case SegmentsAcquired(positions): ...
        case SegmentsReleased(positions): ...
        case SegmentEnded(segment, successors): ...
        case CheckpointTaken(name, positions): ...

The reader calls its listener inside `read`, between two events: every event that it returned before counts as handled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class SegmentsAcquired(NamedTuple):
    """The reader reads these segments from now on. positions: qualified segment name → offset."""

    positions: Mapping[str, int]


class SegmentsReleased(NamedTuple):
    """The reader has given up these segments, for another reader. positions: segment → offset after its last event."""

    positions: Mapping[str, int]


class SegmentEnded(NamedTuple):
    """The reader has read a segment to its end. successors: their names; () if the stream, or the group, ends here."""

    segment: str
    successors: tuple[str, ...]


class CheckpointTaken(NamedTuple):
    """The reader has taken a checkpoint, which is complete when all readers have. positions: segment → offset."""

    name: str
    positions: Mapping[str, int]


GroupChange = SegmentsAcquired | SegmentsReleased | SegmentEnded | CheckpointTaken
GroupListener = Callable[[GroupChange], None]
