"""Judges segments: what writers sent, what stores acknowledged, and what readers read."""

from segstore.wire.history.segments.fold import SegmentFold

__all__ = ["SegmentFold"]
