"""Reader groups and their readers."""

from segstore.client.groups.changes import (
    CheckpointTaken,
    GroupChange,
    GroupListener,
    SegmentEnded,
    SegmentsAcquired,
    SegmentsReleased,
)
from segstore.client.groups.group import Checkpoint, GroupEnd, GroupRetention, GroupStart, ReaderGroup
from segstore.client.groups.positions import GroupMetrics, SegmentLag
from segstore.client.groups.reader import GroupEvent, GroupReader, Position
from segstore.client.groups.shared import GroupForm

__all__ = [
    "Checkpoint",
    "CheckpointTaken",
    "GroupChange",
    "GroupEnd",
    "GroupEvent",
    "GroupForm",
    "GroupListener",
    "GroupMetrics",
    "GroupReader",
    "GroupRetention",
    "GroupStart",
    "Position",
    "ReaderGroup",
    "SegmentEnded",
    "SegmentLag",
    "SegmentsAcquired",
    "SegmentsReleased",
]
