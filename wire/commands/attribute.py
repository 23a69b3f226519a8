"""Segment attribute commands: 64-bit values keyed by UUID; -2^63 means "no value"."""

from segstore.wire.schema import Command, Flag, Id, Int64, Text, Token, command


@command(34, "GET_SEGMENT_ATTRIBUTE", request=True)
class GetSegmentAttribute(Command, frozen=True, gc=False):
    request_id: Int64
    segment_name: Text
    attribute_id: Id
    delegation_token: Token


@command(35, "SEGMENT_ATTRIBUTE", reply=True)
class SegmentAttribute(Command, frozen=True, gc=False):
    request_id: Int64
    value: Int64


@command(36, "UPDATE_SEGMENT_ATTRIBUTE", request=True)
class UpdateSegmentAttribute(Command, frozen=True, gc=False):
    """Sets the attribute to `new_value` if it has `expected_value`."""

    request_id: Int64
    segment_name: Text
    attribute_id: Id
    new_value: Int64
    expected_value: Int64
    delegation_token: Token


@command(37, "SEGMENT_ATTRIBUTE_UPDATED", reply=True)
class SegmentAttributeUpdated(Command, frozen=True, gc=False):
    request_id: Int64
    success: Flag
