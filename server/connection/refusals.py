"""The table that maps a store's errors to replies on the wire, and the texts for bytes without a reply.

Pure. `None` means that the protocol has no reply for the error and the connection closes. Source: `handleException` of
`PravegaRequestProcessor` and `AppendProcessor`; seed 36.25.
"""

from __future__ import annotations

import traceback
from uuid import UUID

from segstore.server.auth import TokenExpired, TokenRefused
from segstore.server.store import errors
from segstore.wire import AuthTokenErrorCode, Command, ErrorMessageCode, WireError
from segstore.wire import commands as w

_MAX_TRACE_CHARACTERS = 20_000


def stack_trace(error: BaseException) -> str:
    """Returns the stack trace of an error, shortened to fit a reply."""
    return "".join(traceback.format_exception(error))[-_MAX_TRACE_CHARACTERS:]


def refusal(
    error: Exception,
    *,
    request_id: int,
    segment: str,
    operation: str,
    offset: int = -1,
    writer_id: UUID | None = None,
    with_trace: bool = False,
) -> Command | None:
    """Returns the reply for an error, or None.

    segment: the name in the reply, taken from the request and not from the error.
    offset: the offset of a read, the event number of an append, else -1.
    writer_id: set for appends and their set-up; a failed attribute update then means an invalid event number.
    """
    trace = stack_trace(error) if with_trace else ""
    match error:
        case errors.SegmentExists():
            return w.SegmentAlreadyExists(request_id, segment, trace)
        case errors.NoSuchSegment():
            return w.NoSuchSegment(request_id, segment, trace, -1 if writer_id is not None else offset)
        case errors.SegmentSealed():
            return w.SegmentIsSealed(request_id, segment, trace, offset)
        case errors.NotOwner():
            return w.WrongHost(request_id, segment, "", trace)
        case errors.SegmentTruncated():
            return w.SegmentIsTruncated(request_id, segment, error.start_offset, trace, offset)
        case errors.BadOffset():
            return w.SegmentIsTruncated(request_id, segment, error.actual, trace, offset)
        case errors.IndexTruncated():
            return w.SegmentTruncated(request_id, segment)
        case errors.BadAttribute() if writer_id is not None:
            return w.InvalidEventNumber(writer_id, request_id, trace, offset)
        case TokenExpired():
            return w.AuthTokenCheckFailed(request_id, trace, AuthTokenErrorCode.TOKEN_EXPIRED)
        case TokenRefused():
            return w.AuthTokenCheckFailed(request_id, trace, AuthTokenErrorCode.TOKEN_CHECK_FAILED)
        case errors.Unsupported():
            return w.OperationUnsupported(request_id, operation, trace)
        case errors.TableNotEmpty():
            return w.TableSegmentNotEmpty(request_id, segment, trace)
        case errors.KeyMissing():
            return w.TableKeyDoesNotExist(request_id, segment, trace)
        case errors.KeyBadVersion():
            return w.TableKeyBadVersion(request_id, segment, trace)
        case errors.IllegalArgument():
            return w.ErrorMessage(request_id, segment, error.message, ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION)
    return None


def broken_protocol(problem: WireError) -> str:
    """Returns why a connection ends whose peer broke the protocol."""
    code = problem.code
    first = b"" if code is None else code.to_bytes(4, "big", signed=True)
    said = f"it broke the protocol: {problem}"
    if first == b"PRI ":
        return f"{said}; it seems to speak HTTP/2, as to a controller, which has a port of its own"
    return f"{said}; it seems to speak HTTP" if first in (b"GET ", b"POST", b"PUT ") else said
