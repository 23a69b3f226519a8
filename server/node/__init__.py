"""A segment store that listens; the mock."""

from segstore.server.node.runner import (
    AddressInUse,
    CannotListen,
    LoopClock,
    MockSegmentStore,
    SegmentStoreServer,
)

__all__ = [
    "AddressInUse",
    "CannotListen",
    "LoopClock",
    "MockSegmentStore",
    "SegmentStoreServer",
]
