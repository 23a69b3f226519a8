"""Batch reads: the events between two positions of a stream, as ranges of segments that can be read in parallel."""

from segstore.client.batch.ranges import EventRange, event_ranges
from segstore.client.batch.reader import EventRangeReader

__all__ = ["EventRange", "EventRangeReader", "event_ranges"]
