"""A segment store that listens; the mock."""

from segstore.server.node.runner import (
    LoopClock,
    MockSegmentStore,
    SegmentStoreServer,
)

__all__ = [
    "LoopClock",
    "MockSegmentStore",
    "SegmentStoreServer",
]
