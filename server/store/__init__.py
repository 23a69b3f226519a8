"""The state of a segment store: segments, attributes, tables, indexes. Synchronous; its only I/O reads chunk files."""

from segstore.server.store.attributes import EVENT_COUNT, NULL_VALUE, AttributeUpdate
from segstore.server.store.chunks import Buffer, ChunkExtent, ChunkPool, FileChunk
from segstore.server.store.container import MAX_ATTRIBUTES, Container, ReadResult, read_length
from segstore.server.store.errors import (
    BadAttribute,
    BadOffset,
    DataDamaged,
    IllegalArgument,
    NoSuchSegment,
    NotOwner,
    SegmentExists,
    SegmentSealed,
    SegmentTruncated,
    StoreError,
    StoreFull,
    Unanswered,
    Unsupported,
)
from segstore.server.store.memory import SEGMENT_BYTES, MemoryAccount, name_bytes
from segstore.server.store.operations import (
    Appended,
    Operation,
    SegmentDeleted,
    SegmentMerged,
    Truncated,
    decode,
    encode,
    pack_name,
    unpack_name,
)
from segstore.server.store.segment import Kind, Segment
from segstore.server.store.store import IS_INDEX, SegmentStore
from segstore.server.store.tables import MAX_FIXED_KEY_BYTES
from segstore.server.store.waiting import WakeReason

__all__ = [
    "EVENT_COUNT",
    "IS_INDEX",
    "MAX_ATTRIBUTES",
    "MAX_FIXED_KEY_BYTES",
    "NULL_VALUE",
    "SEGMENT_BYTES",
    "Appended",
    "AttributeUpdate",
    "BadAttribute",
    "BadOffset",
    "Buffer",
    "ChunkExtent",
    "ChunkPool",
    "Container",
    "DataDamaged",
    "FileChunk",
    "IllegalArgument",
    "Kind",
    "MemoryAccount",
    "NoSuchSegment",
    "NotOwner",
    "Operation",
    "ReadResult",
    "Segment",
    "SegmentDeleted",
    "SegmentExists",
    "SegmentMerged",
    "SegmentSealed",
    "SegmentStore",
    "SegmentTruncated",
    "StoreError",
    "StoreFull",
    "Truncated",
    "Unanswered",
    "Unsupported",
    "WakeReason",
    "decode",
    "encode",
    "name_bytes",
    "pack_name",
    "read_length",
    "unpack_name",
]
