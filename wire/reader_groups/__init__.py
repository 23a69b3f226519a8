"""The state of a reader group: updates in a stream (Java clients), or entries of a table (Rust, Python)."""

from segstore.wire.reader_groups.config import NO_ID, RETENTIONS, Cuts, GroupConfig
from segstore.wire.reader_groups.state import SILENT, Checkpoints, GroupState
from segstore.wire.reader_groups.table import VERSION_VALUE, StoredGroup, decode_key, encode_key
from segstore.wire.reader_groups.updates import (
    AcquireSegment,
    AddReader,
    CheckpointPublished,
    CheckpointReader,
    ClearCheckpointsBefore,
    CreateCheckpoint,
    InitialState,
    ReleaseSegment,
    RemoveOutstandingCheckpoints,
    RemoveReader,
    SegmentCompleted,
    Update,
    UpdateDistance,
    UpdatingConfig,
    encode_update,
)

__all__ = [
    "NO_ID",
    "RETENTIONS",
    "SILENT",
    "VERSION_VALUE",
    "AcquireSegment",
    "AddReader",
    "CheckpointPublished",
    "CheckpointReader",
    "Checkpoints",
    "ClearCheckpointsBefore",
    "CreateCheckpoint",
    "Cuts",
    "GroupConfig",
    "GroupState",
    "InitialState",
    "ReleaseSegment",
    "RemoveOutstandingCheckpoints",
    "RemoveReader",
    "SegmentCompleted",
    "StoredGroup",
    "Update",
    "UpdateDistance",
    "UpdatingConfig",
    "decode_key",
    "encode_key",
    "encode_update",
]
