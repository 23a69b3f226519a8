"""A listening segment store, and the mock for tests."""

from segstore.server.node.runner import MockSegmentStore, SegmentStoreServer
from segstore.server.node.snapshots import (
    NO_SNAPSHOTS,
    NoSuchSnapshot,
    SnapshotInfo,
    SnapshotRefused,
    Snapshots,
    WithSnapshots,
)

__all__ = [
    "NO_SNAPSHOTS",
    "MockSegmentStore",
    "NoSuchSnapshot",
    "SegmentStoreServer",
    "SnapshotInfo",
    "SnapshotRefused",
    "Snapshots",
    "WithSnapshots",
]
