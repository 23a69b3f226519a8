"""Failure replies. Their stack traces are empty unless the store is configured to send them."""

import enum
from typing import Annotated

from segstore.wire.commands.segment import NO_OFFSET, Int64Tail, SegmentReply, StackTrace
from segstore.wire.schema import Command, Id, Int64, Text, command, types


class AuthTokenErrorCode(enum.IntEnum):
    UNSPECIFIED = -1
    TOKEN_CHECK_FAILED = 0
    TOKEN_EXPIRED = 1


class ErrorMessageCode(enum.IntEnum):
    UNSPECIFIED = -1
    ILLEGAL_ARGUMENT_EXCEPTION = 0


@command(50, "WRONG_HOST", failure=True)
class WrongHost(SegmentReply, frozen=True, gc=False):
    """This store does not own the segment's container; `correct_host` is "" if it does not know the owner."""

    correct_host: Text
    server_stack_trace: StackTrace = ""


@command(51, "SEGMENT_IS_SEALED", failure=True)
class SegmentIsSealed(SegmentReply, frozen=True, gc=False):
    """The segment is sealed; `offset`: the event number of a refused append, the offset of a waiting read, else -1."""

    server_stack_trace: StackTrace = ""
    offset: Int64Tail = NO_OFFSET


@command(52, "SEGMENT_ALREADY_EXISTS", failure=True)
class SegmentAlreadyExists(SegmentReply, frozen=True, gc=False):
    server_stack_trace: StackTrace = ""


@command(53, "NO_SUCH_SEGMENT", failure=True)
class NoSuchSegment(SegmentReply, frozen=True, gc=False):
    server_stack_trace: StackTrace = ""
    offset: Int64Tail = NO_OFFSET


@command(55, "INVALID_EVENT_NUMBER", failure=True)
class InvalidEventNumber(Command, frozen=True, gc=False):
    writer_id: Id
    request_id: Int64
    server_stack_trace: StackTrace = ""
    event_number: Int64Tail = -1


@command(56, "SEGMENT_IS_TRUNCATED", failure=True)
class SegmentIsTruncated(SegmentReply, frozen=True, gc=False):
    """The segment is truncated: it starts at `start_offset`; `offset` was requested."""

    start_offset: Int64
    server_stack_trace: StackTrace = ""
    offset: Int64Tail = NO_OFFSET


@command(57, "OPERATION_UNSUPPORTED", failure=True)
class OperationUnsupported(Command, frozen=True, gc=False):
    request_id: Int64
    operation_name: Text
    server_stack_trace: StackTrace = ""


@command(60, "AUTH_TOKEN_CHECK_FAILED", failure=True)
class AuthTokenCheckFailed(Command, frozen=True, gc=False):
    request_id: Int64
    server_stack_trace: StackTrace = ""
    error_code: Annotated[
        AuthTokenErrorCode,
        types.Tail(
            types.EnumCode(AuthTokenErrorCode, unknown=AuthTokenErrorCode.TOKEN_CHECK_FAILED),
            AuthTokenErrorCode.UNSPECIFIED,
            needs=4,
        ),
    ] = AuthTokenErrorCode.UNSPECIFIED


@command(61, "ERROR_MESSAGE", failure=True)
class ErrorMessage(SegmentReply, frozen=True, gc=False):
    """The operation refuses an argument; the message is the server's."""

    message: Text
    error_code: Annotated[ErrorMessageCode, types.EnumCode(ErrorMessageCode, unknown=ErrorMessageCode.UNSPECIFIED)]


@command(80, "TABLE_SEGMENT_NOT_EMPTY", failure=True)
class TableSegmentNotEmpty(SegmentReply, frozen=True, gc=False):
    server_stack_trace: Text = ""


@command(81, "TABLE_KEY_DOES_NOT_EXIST", failure=True)
class TableKeyDoesNotExist(SegmentReply, frozen=True, gc=False):
    server_stack_trace: Text = ""


@command(82, "TABLE_KEY_BAD_VERSION", failure=True)
class TableKeyBadVersion(SegmentReply, frozen=True, gc=False):
    server_stack_trace: Text = ""
