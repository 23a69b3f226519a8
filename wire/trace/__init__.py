"""Traces: the frames of connections, raw, with their times, as they were on the wire.

A trace has two forms, losslessly converted. The capture (`.wtrace`) is for machines: blocks that are appended while
traffic runs and can be read after a crash; `TraceWriter` makes it of streams, `RecordWriter` of records, `read_blocks`
reads it, `splits` plans for several readers. The fixture (`.jsonl`, `segstore.wire.trace.fixture`) is for people: one
record a line, with the names of its fields.

Frames are kept as bytes, so that a trace outlives the codec. Half frames, bytes that make no frame, and the beginning
and end of connections are records too. No I/O and no clock: the caller opens files, writes what it is given, and
passes times. Standard library only, but for what redacts or names fields.
"""

from segstore.wire.trace.blocks import (
    FORMAT_VERSION,
    MAGIC,
    Columns,
    Direction,
    Metadata,
    Record,
    RecordKind,
    TraceError,
    TraceVersionError,
    unpack_data,
)
from segstore.wire.trace.reader import (
    Block,
    Damage,
    NotATrace,
    Split,
    mark_of,
    read_blocks,
    read_records,
    splits,
)
from segstore.wire.trace.writer import (
    BLOCK_BYTES,
    FLUSH_AFTER_NS,
    SPARE_BYTES,
    RecordWriter,
    TraceWriter,
    event_data,
    make_mark,
)

__all__ = [
    "BLOCK_BYTES",
    "FLUSH_AFTER_NS",
    "FORMAT_VERSION",
    "MAGIC",
    "SPARE_BYTES",
    "Block",
    "Columns",
    "Damage",
    "Direction",
    "Metadata",
    "NotATrace",
    "Record",
    "RecordKind",
    "RecordWriter",
    "Split",
    "TraceError",
    "TraceVersionError",
    "TraceWriter",
    "event_data",
    "make_mark",
    "mark_of",
    "read_blocks",
    "read_records",
    "splits",
    "unpack_data",
]
