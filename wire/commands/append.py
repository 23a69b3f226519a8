"""Append commands: set-up, blocks, conditional appends and acknowledgements.

`segstore.wire.blocks` describes how the commands of a block belong together.
"""

from typing import Annotated

from segstore.wire.commands.segment import NO_OFFSET, NO_REQUEST, Int64Tail, SegmentReply
from segstore.wire.schema import Buffer, Command, Id, Int32, Int64, Nested, Text, Token, command, types

BlockData = Annotated[Buffer, types.Blob(negative_is_empty=True)]
RestOfBody = Annotated[Buffer, types.Rest()]


@command(-1, "PADDING")
class Padding(Command, frozen=True, gc=False):
    """Fills the end of an append block with `length` zero bytes."""

    length: Annotated[int, types.Zeros()]


@command(-2, "PARTIAL_EVENT")
class PartialEvent(Command, frozen=True, gc=False):
    """The first bytes of an event that crosses the end of its append block."""

    data: RestOfBody


@command(0, "EVENT")
class Event(Command, frozen=True, gc=False):
    """One event with its header. It occurs inside data only: a frame of this type is refused."""

    data: RestOfBody


FramesOfBlock = Annotated[Buffer, types.Rest(frames=(Padding.code, PartialEvent.code, Event.code))]


@command(1, "SETUP_APPEND", request=True)
class SetupAppend(Command, frozen=True, gc=False):
    """Announces a writer of a segment on this connection."""

    request_id: Int64
    writer_id: Id
    segment: Text
    delegation_token: Token


@command(2, "APPEND_SETUP", reply=True)
class AppendSetup(SegmentReply, frozen=True, gc=False):
    """The writer may append; `last_event_number` is the last number stored from it, or -2^63."""

    writer_id: Id
    last_event_number: Int64


@command(3, "APPEND_BLOCK")
class AppendBlock(Command, frozen=True, gc=False):
    """Opens a block; its frame length covers the whole block, which is in `data` once read."""

    writer_id: Id
    data: FramesOfBlock


@command(4, "APPEND_BLOCK_END")
class AppendBlockEnd(Command, frozen=True, gc=False):
    """Closes a block: gives the size of its whole events, and the rest of an event that crossed its end."""

    writer_id: Id
    size_of_whole_events: Int32
    data: BlockData
    num_events: Int32
    last_event_number: Int64
    request_id: Int64Tail = NO_REQUEST


NestedEvent = Annotated[Event, Nested(Event, (types.Marker(0).named("type_code"), types.Blob().named("data")))]


@command(5, "CONDITIONAL_APPEND", request=True)
class ConditionalAppend(Command, frozen=True, gc=False):
    """Appends one event, header included, if the segment's length is `expected_offset`."""

    writer_id: Id
    event_number: Int64
    expected_offset: Int64
    event: NestedEvent
    request_id: Int64Tail = NO_REQUEST


@command(
    7,
    "DATA_APPENDED",
    reply=True,
    wire_order=("writer_id", "event_number", "previous_event_number", "request_id", "current_segment_write_offset"),
)
class DataAppended(Command, frozen=True, gc=False):
    """All events of the writer up to `event_number` are stored; the previous ack covered `previous_event_number`."""

    request_id: Int64Tail
    writer_id: Id
    event_number: Int64
    previous_event_number: Int64Tail = -1
    current_segment_write_offset: Int64Tail = NO_OFFSET


@command(8, "CONDITIONAL_CHECK_FAILED", reply=True)
class ConditionalCheckFailed(Command, frozen=True, gc=False):
    """The segment's length was not the expected offset; nothing was stored."""

    writer_id: Id
    event_number: Int64
    request_id: Int64Tail = NO_REQUEST


@command(89, "CONDITIONAL_BLOCK_END", request=True)
class ConditionalBlockEnd(Command, frozen=True, gc=False):
    """Appends raw data if the segment's length is `expected_offset`."""

    writer_id: Id
    event_number: Int64
    expected_offset: Int64
    data: BlockData
    request_id: Int64
