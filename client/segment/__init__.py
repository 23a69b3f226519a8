"""Access to a single segment: writer, reader and conditional appends."""

from segstore.client.segment.conditional import ConditionalWriter
from segstore.client.segment.reader import Chunk, SegmentReader
from segstore.client.segment.states import WriterState
from segstore.client.segment.writer import SegmentWriter, SegmentWriterStats, WriterStats, add_up

__all__ = [
    "Chunk",
    "ConditionalWriter",
    "SegmentReader",
    "SegmentWriter",
    "SegmentWriterStats",
    "WriterState",
    "WriterStats",
    "add_up",
]
