"""A listening segment store, and the mock for tests."""

from segstore.server.node.runner import LoopClock, MockSegmentStore, SegmentStoreServer

__all__ = ["LoopClock", "MockSegmentStore", "SegmentStoreServer"]
