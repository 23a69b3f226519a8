"""Segment commands: create, read, describe, seal, truncate, merge, delete.

The annotations of optional trailing fields follow the two rules of the reference. Most numeric tails are read only if
all their bytes are left; a partial number is ignored. Texts, and a few numbers, are read if any byte is left; a partial
value is refused. Source: the `readFrom`s of `WireCommands.java`.
"""

from collections.abc import Sequence
from typing import Annotated

from segstore.wire.schema import (
    Command,
    Data,
    Flag,
    Id,
    Int8,
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

NO_REQUEST = -1
NO_OFFSET = -1

Int64Tail = Annotated[int, types.Tail(types.Int64, -1, needs=8)]
ZeroTail = Annotated[int, types.Tail(types.Int64, 0, needs=8)]
Int32Tail = Annotated[int, types.Tail(types.Int32, 0, needs=4)]
FlagTail = Annotated[bool, types.Tail(types.Bool, False, needs=1)]
EagerInt64 = Annotated[int, types.Tail(types.Int64, -1, needs=1)]
StackTrace = Annotated[str, types.Tail(types.JavaUTF, "", needs=1)]


class SegmentRequest(Command, frozen=True, gc=False):
    """The first fields of requests about one segment."""

    request_id: Int64
    segment: Text
    delegation_token: Token


class SegmentReply(Command, frozen=True, gc=False):
    """The first fields of replies about one segment."""

    request_id: Int64
    segment: Text


@command(9, "READ_SEGMENT", request=True)
class ReadSegment(Command, frozen=True, gc=False):
    """Requests bytes from `offset`; `suggested_length` is a hint."""

    segment: Text
    offset: Int64
    suggested_length: Int32
    delegation_token: Token
    request_id: Int64Tail = NO_REQUEST


@command(10, "SEGMENT_READ", reply=True)
class SegmentRead(Command, frozen=True, gc=False):
    """Bytes of a segment; `at_tail`: no more yet, `end_of_segment`: the segment is sealed and ends here."""

    segment: Text
    offset: Int64
    at_tail: Flag
    end_of_segment: Flag
    data: Data
    request_id: Int64Tail = NO_REQUEST


@command(11, "GET_STREAM_SEGMENT_INFO", request=True)
class GetStreamSegmentInfo(Command, frozen=True, gc=False):
    request_id: Int64
    segment_name: Text
    delegation_token: Token


@command(12, "STREAM_SEGMENT_INFO", reply=True)
class StreamSegmentInfo(Command, frozen=True, gc=False):
    """`write_offset`: the segment's length; `start_offset`: its truncation point; `last_modified`: ms since 1970."""

    request_id: Int64
    segment_name: Text
    exists: Flag
    is_sealed: Flag
    is_deleted: Flag
    last_modified: Int64
    write_offset: Int64
    start_offset: ZeroTail = 0


@command(
    20,
    "CREATE_SEGMENT",
    request=True,
    wire_order=("request_id", "segment", "target_rate", "scale_type", "delegation_token", "rollover_size_bytes"),
)
class CreateSegment(Command, frozen=True, gc=False):
    """`scale_type`: 0 fixed, 1 by KB per second, 2 by events per second; `target_rate` is in that unit."""

    request_id: Int64
    segment: Text
    scale_type: Int8
    target_rate: Int32
    delegation_token: Token
    rollover_size_bytes: ZeroTail = 0


@command(21, "SEGMENT_CREATED", reply=True)
class SegmentCreated(SegmentReply, frozen=True, gc=False):
    pass


@command(28, "SEAL_SEGMENT", request=True)
class SealSegment(SegmentRequest, frozen=True, gc=False):
    pass


@command(29, "SEGMENT_SEALED", reply=True)
class SegmentSealed(SegmentReply, frozen=True, gc=False):
    pass


@command(30, "DELETE_SEGMENT", request=True)
class DeleteSegment(SegmentRequest, frozen=True, gc=False):
    pass


@command(31, "SEGMENT_DELETED", reply=True)
class SegmentDeleted(SegmentReply, frozen=True, gc=False):
    pass


@command(
    32,
    "UPDATE_SEGMENT_POLICY",
    request=True,
    wire_order=("request_id", "segment", "target_rate", "scale_type", "delegation_token"),
)
class UpdateSegmentPolicy(Command, frozen=True, gc=False):
    request_id: Int64
    segment: Text
    scale_type: Int8
    target_rate: Int32
    delegation_token: Token


@command(33, "SEGMENT_POLICY_UPDATED", reply=True)
class SegmentPolicyUpdated(SegmentReply, frozen=True, gc=False):
    pass


@command(38, "TRUNCATE_SEGMENT", request=True)
class TruncateSegment(Command, frozen=True, gc=False):
    request_id: Int64
    segment: Text
    truncation_offset: Int64
    delegation_token: Token


@command(39, "SEGMENT_TRUNCATED", reply=True)
class SegmentTruncated(SegmentReply, frozen=True, gc=False):
    pass


@command(40, "CREATE_TRANSIENT_SEGMENT", request=True)
class CreateTransientSegment(Command, frozen=True, gc=False):
    """Requests a segment that lives as long as the connection, to be merged into its parent; the store names it."""

    request_id: Int64
    writer_id: Id
    parent_segment: Text
    delegation_token: Token


@command(41, "LOCATE_OFFSET", request=True)
class LocateOffset(Command, frozen=True, gc=False):
    request_id: Int64
    segment: Text
    target_offset: Int64
    delegation_token: Token


@command(42, "OFFSET_LOCATED", reply=True)
class OffsetLocated(SegmentReply, frozen=True, gc=False):
    offset: Int64


@record
class ConditionalAttributeUpdate(WireStruct, frozen=True, gc=False):
    """A conditional attribute update of a merge; update types follow the reference's `AttributeUpdateType`."""

    attribute_id: Id
    attribute_update_type: Int8
    new_value: Int64
    old_value: Int64


AttributeUpdates = Annotated[
    Sequence[ConditionalAttributeUpdate],
    types.Tail(types.Counted(Nested(ConditionalAttributeUpdate), smallest=33, negative_is_empty=True), (), needs=1),
]


@command(58, "MERGE_SEGMENTS", request=True)
class MergeSegments(Command, frozen=True, gc=False):
    """Atomically appends the whole of `source` to `target` and updates attributes of the target."""

    request_id: Int64
    target: Text
    source: Text
    delegation_token: Token
    attribute_updates: AttributeUpdates = ()


@command(59, "SEGMENTS_MERGED", reply=True)
class SegmentsMerged(Command, frozen=True, gc=False):
    request_id: Int64
    target: Text
    source: Text
    new_target_write_offset: EagerInt64 = NO_OFFSET


@command(90, "MERGE_SEGMENTS_BATCH", request=True)
class MergeSegmentsBatch(Command, frozen=True, gc=False):
    request_id: Int64
    target_segment_id: Text
    source_segment_ids: Annotated[Sequence[str], types.Counted(types.JavaUTF, smallest=2)]
    delegation_token: Token


@command(91, "SEGMENTS_BATCH_MERGED", reply=True)
class SegmentsBatchMerged(Command, frozen=True, gc=False):
    """The target's length after each source; both tuples have one entry per source."""

    request_id: Int64
    target: Text
    sources: Annotated[Sequence[str], types.Column(types.JavaUTF, smallest=2)]
    new_target_write_offset: Annotated[Sequence[int], types.Column(types.Int64, smallest=8)]
