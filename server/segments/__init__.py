"""Implementations of SegmentAdmin, the controller's requests to segment stores: local and remote."""

from segstore.server.segments.local import LocalSegments
from segstore.server.segments.remote import RemoteSegments

__all__ = ["LocalSegments", "RemoteSegments"]
