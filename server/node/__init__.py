"""A listening segment store, and the mock for tests."""

from segstore.server.node.runner import MockSegmentStore, SegmentStoreServer

__all__ = ["MockSegmentStore", "SegmentStoreServer"]
