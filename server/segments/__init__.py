"""Implementations of SegmentAdmin, the controller's requests to segment stores: local, remote, recorded."""

from segstore.server.segments.local import LocalSegments
from segstore.server.segments.recorded import RecordedSegments
from segstore.server.segments.remote import RemoteSegments

__all__ = ["LocalSegments", "RecordedSegments", "RemoteSegments"]
