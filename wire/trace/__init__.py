"""Traces: raw frames of recorded connections, with timestamps.

A trace has two forms, which convert to each other without loss. The capture (`.wtrace`) is for machines: its blocks are
appended while traffic runs and can be read after a crash. `TraceWriter` makes it from streams, `RecordWriter` from
records; `read_blocks` reads it. The fixture (`.jsonl`,
`segstore.wire.trace.fixture`) is for people: one record per line, with named fields.

Frames are kept as bytes, so a trace does not depend on the codec. Partial frames, bytes that form no frame, and the
start and end of connections are records too. There is no I/O and no clock: the caller opens files, writes the returned
bytes, and passes times. Standard library only, except for redaction, named fields and the search for frames, which has
an equal in C.
"""

from segstore.wire.trace.blocks import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    MARK_BYTES,
    MAX_BLOCK_BYTES,
    MAX_IN_VAIN,
    BlockHeader,
    BlockType,
    Columns,
    DamagedBlock,
    Direction,
    Metadata,
    Pending,
    Record,
    RecordKind,
    TraceError,
    TraceVersionError,
    find_header,
    read_body,
    read_header,
    read_metadata,
    unpack_data,
)
from segstore.wire.trace.call_fields import CallKey, fields_of, key_of_call, names_of_call_fields, translated_call
from segstore.wire.trace.calls import CONTROLLER, Call, redacted_call, with_fields
from segstore.wire.trace.diff import (
    VARYING_FIELDS,
    Difference,
    FieldDifference,
    Translation,
    compare_frames,
    differences,
    differing_fields,
)
from segstore.wire.trace.exchanges import Exchange, Exchanges, segments_of
from segstore.wire.trace.filters import MOST_TERMS, Filter, FilterError, Subject, language, parse_filter
from segstore.wire.trace.fixture import (
    LONGEST_LINE,
    FixtureError,
    FixtureHeader,
    decode_line,
    from_line,
    header_from_line,
    header_line,
    is_fixture,
    read_lines,
    to_line,
    write_lines,
)
from segstore.wire.trace.pairing import Pairing, put_ids, take_ids
from segstore.wire.trace.reader import Block, Damage, NotATrace, mark_of, read_blocks, read_records
from segstore.wire.trace.redaction import SECRET_CODES, redact
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
    "CONTROLLER",
    "FLUSH_AFTER_NS",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "LONGEST_LINE",
    "MAGIC",
    "MARK_BYTES",
    "MAX_BLOCK_BYTES",
    "MAX_IN_VAIN",
    "MOST_TERMS",
    "SECRET_CODES",
    "SPARE_BYTES",
    "VARYING_FIELDS",
    "Block",
    "BlockHeader",
    "BlockType",
    "Call",
    "CallKey",
    "Columns",
    "Damage",
    "DamagedBlock",
    "Difference",
    "Direction",
    "Exchange",
    "Exchanges",
    "FieldDifference",
    "Filter",
    "FilterError",
    "FixtureError",
    "FixtureHeader",
    "Metadata",
    "NotATrace",
    "Pairing",
    "Pending",
    "Record",
    "RecordKind",
    "RecordWriter",
    "Subject",
    "TraceError",
    "TraceVersionError",
    "TraceWriter",
    "Translation",
    "compare_frames",
    "decode_line",
    "differences",
    "differing_fields",
    "event_data",
    "fields_of",
    "find_header",
    "from_line",
    "header_from_line",
    "header_line",
    "is_fixture",
    "key_of_call",
    "language",
    "make_mark",
    "mark_of",
    "names_of_call_fields",
    "parse_filter",
    "put_ids",
    "read_blocks",
    "read_body",
    "read_header",
    "read_lines",
    "read_metadata",
    "read_records",
    "redact",
    "redacted_call",
    "segments_of",
    "take_ids",
    "to_line",
    "translated_call",
    "unpack_data",
    "with_fields",
    "write_lines",
]
