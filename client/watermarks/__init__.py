"""Watermarks: the times that a stream's writers note, as its readers see them."""

from segstore.client.watermarks.codec import Mark, MarkedSegment, decode_mark
from segstore.client.watermarks.windows import TimeWindow, TimeWindows

__all__ = ["Mark", "MarkedSegment", "TimeWindow", "TimeWindows", "decode_mark"]
