"""Table segment commands: versioned keys and their values. Only the Rust client knows codes 72 and 73.

Versions: NO_VERSION is unconditional, NOT_EXISTS requires that the key is missing, any other value must match.
"""

from collections.abc import Sequence
from typing import Annotated, Final

from segstore.wire.commands.segment import (
    NO_OFFSET,
    EagerInt64,
    FlagTail,
    Int32Tail,
    SegmentReply,
    SegmentRequest,
    ZeroTail,
)
from segstore.wire.schema import (
    WITH_PREVIOUS,
    Buffer,
    Command,
    Data,
    Flag,
    Int32,
    Int64,
    Nested,
    Text,
    Token,
    WireStruct,
    command,
    record,
    types,
)

NO_VERSION: Final = -(1 << 63)
NOT_EXISTS: Final = -1


@record
class TableKey(WireStruct, frozen=True, gc=False):
    """A key and a version. An empty key loses its version on the wire, as in the reference."""

    data: Annotated[Buffer, types.SizedData(types.Int64, NO_VERSION)]
    key_version: Annotated[int, WITH_PREVIOUS] = NO_VERSION


@record
class TableValue(WireStruct, frozen=True, gc=False):
    data: Annotated[Buffer, types.SizedData()]


@record
class TableEntry(WireStruct, frozen=True, gc=False):
    key: Annotated[TableKey, Nested(TableKey)]
    value: Annotated[TableValue, Nested(TableValue)]


@record
class TableEntries(WireStruct, frozen=True, gc=False):
    entries: Annotated[Sequence[TableEntry], types.Counted(Nested(TableEntry), smallest=16, negative_is_empty=True)]


Entries = Annotated[TableEntries, Nested(TableEntries)]
Keys = Annotated[Sequence[TableKey], types.Counted(Nested(TableKey), smallest=8)]
OptionalData = Annotated[Buffer, types.Blob(optional=True)]


@record
class TableIteratorArgs(WireStruct, frozen=True, gc=False):
    """The continuation token and bounds of an iteration; older peers send fewer. The prefix filter is never written."""

    continuation_token: OptionalData
    prefix_filter: Annotated[Buffer, types.Blob(optional=True, written=False)]
    from_key: OptionalData
    to_key: OptionalData


IteratorArgs = Annotated[TableIteratorArgs, Nested(TableIteratorArgs)]


@command(68, "GET_TABLE_SEGMENT_INFO", request=True)
class GetTableSegmentInfo(Command, frozen=True, gc=False):
    request_id: Int64
    segment_name: Text
    delegation_token: Token


@command(69, "TABLE_SEGMENT_INFO", reply=True)
class TableSegmentInfo(Command, frozen=True, gc=False):
    """Table properties; `key_length` is 0 for a hash table."""

    request_id: Int64
    segment_name: Text
    start_offset: Int64
    length: Int64
    entry_count: Int64
    key_length: Int32


@command(
    70,
    "CREATE_TABLE_SEGMENT",
    request=True,
    wire_order=("request_id", "segment", "delegation_token", "sorted_deprecated", "key_length", "rollover_size_bytes"),
)
class CreateTableSegment(Command, frozen=True, gc=False):
    """Creates a table: with `key_length` > 0 a fixed-key table, which is sorted, else a hash table."""

    request_id: Int64
    segment: Text
    sorted_deprecated: FlagTail
    key_length: Int32Tail
    delegation_token: Token
    rollover_size_bytes: ZeroTail = 0


@command(71, "DELETE_TABLE_SEGMENT", request=True)
class DeleteTableSegment(Command, frozen=True, gc=False):
    request_id: Int64
    segment: Text
    must_be_empty: Flag
    delegation_token: Token


@command(72, "MERGE_TABLE_SEGMENTS", request=True)
class MergeTableSegments(Command, frozen=True, gc=False):
    """Legacy, of the Rust client; the Java reference refuses it."""

    request_id: Int64
    target: Text
    source: Text
    delegation_token: Token


@command(73, "SEAL_TABLE_SEGMENT", request=True)
class SealTableSegment(SegmentRequest, frozen=True, gc=False):
    """Legacy, of the Rust client; the Java reference refuses it."""


@command(74, "UPDATE_TABLE_ENTRIES", request=True)
class UpdateTableEntries(SegmentRequest, frozen=True, gc=False):
    """Updates entries; `table_segment_offset` is the length that the table must have, -1 for any."""

    table_entries: Entries
    table_segment_offset: EagerInt64 = NO_OFFSET


@command(75, "TABLE_ENTRIES_UPDATED", reply=True)
class TableEntriesUpdated(Command, frozen=True, gc=False):
    request_id: Int64
    updated_versions: Annotated[Sequence[int], types.Counted(types.Int64, smallest=8)]


@command(76, "REMOVE_TABLE_KEYS", request=True)
class RemoveTableKeys(SegmentRequest, frozen=True, gc=False):
    keys: Keys
    table_segment_offset: EagerInt64 = NO_OFFSET


@command(77, "TABLE_KEYS_REMOVED", reply=True)
class TableKeysRemoved(SegmentReply, frozen=True, gc=False):
    pass


@command(78, "READ_TABLE", request=True)
class ReadTable(SegmentRequest, frozen=True, gc=False):
    keys: Keys


@command(79, "TABLE_READ", reply=True)
class TableRead(SegmentReply, frozen=True, gc=False):
    entries: Entries


@command(83, "READ_TABLE_KEYS", request=True)
class ReadTableKeys(SegmentRequest, frozen=True, gc=False):
    suggested_key_count: Int32
    args: IteratorArgs


@command(84, "TABLE_KEYS_READ", reply=True)
class TableKeysRead(SegmentReply, frozen=True, gc=False):
    keys: Keys
    continuation_token: Data


@command(85, "READ_TABLE_ENTRIES", request=True)
class ReadTableEntries(SegmentRequest, frozen=True, gc=False):
    suggested_entry_count: Int32
    args: IteratorArgs


@command(86, "TABLE_ENTRIES_READ", reply=True)
class TableEntriesRead(SegmentReply, frozen=True, gc=False):
    entries: Entries
    continuation_token: Data


@command(87, "TABLE_ENTRIES_DELTA_READ", reply=True)
class TableEntriesDeltaRead(SegmentReply, frozen=True, gc=False):
    """Changed entries; continue from `last_position`."""

    entries: Entries
    should_clear: Flag
    reached_end: Flag
    last_position: Int64


@command(88, "READ_TABLE_ENTRIES_DELTA", request=True)
class ReadTableEntriesDelta(SegmentRequest, frozen=True, gc=False):
    from_position: Int64
    suggested_entry_count: Int32
