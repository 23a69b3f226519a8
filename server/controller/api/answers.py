"""The table that maps the controller's errors to response enums and gRPC status codes.

If a method's response has an enum value for an error, the call succeeds with that value; else it fails with a gRPC
status. Both are as in Pravega's controller (`ControllerService`, `StreamMetadataTasks`,
`ControllerServiceImpl.getStatusFromException`), even if surprising: an empty name is INTERNAL, a lease out of bounds is
UNKNOWN, committing an unknown transaction is FAILURE. An invalid message is INTERNAL.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf.message import Message
from grpc import StatusCode

from segstore.server.controller import errors
from segstore.server.controller.api.calls import end_call
from segstore.wire.controller_api import METHODS

_STATUS_FIELDS: Final = ("status", "result", "state")
"""Names of a response's enum field."""


class CallResult(NamedTuple):
    """A value of the method's enum, or a status code."""

    value: str | None
    code: StatusCode = StatusCode.OK


class _Rule(NamedTuple):
    error: type[errors.ControllerError]
    value: str
    kind: str | None = None


_FAILURE: Final = (
    _Rule(errors.SegmentStoreFailed, "FAILURE"),
    _Rule(errors.IllegalState, "FAILURE"),
    _Rule(errors.TooMany, "FAILURE"),
)
_NO_SCOPE: Final = (_Rule(errors.NotFound, "SCOPE_NOT_FOUND", "scope"),)
_NO_STREAM: Final = (_Rule(errors.NotFound, "STREAM_NOT_FOUND", "stream"),)
_CHANGE_OF_STREAM: Final = (
    *_NO_STREAM,
    _Rule(errors.NotFound, "STREAM_NOT_FOUND", "epoch"),
    _Rule(errors.StreamIsSealed, "STREAM_SEALED"),
    _Rule(errors.InvalidStreamCut, "FAILURE"),
    _Rule(errors.InvalidArgument, "FAILURE"),
    *_FAILURE,
)
_END_OF_TRANSACTION: Final = (_Rule(errors.NotFound, "FAILURE"), *_FAILURE)

_RULES: Final[dict[str, tuple[_Rule, ...]]] = {
    "createScope": (_Rule(errors.AlreadyExists, "SCOPE_EXISTS"), _Rule(errors.InvalidName, "INVALID_SCOPE_NAME")),
    "deleteScope": (*_NO_SCOPE, _Rule(errors.ScopeNotEmpty, "SCOPE_NOT_EMPTY")),
    "deleteScopeRecursive": (*_NO_SCOPE, *_FAILURE),
    "createStream": (
        _Rule(errors.AlreadyExists, "STREAM_EXISTS"),
        *_NO_SCOPE,
        _Rule(errors.InvalidName, "INVALID_STREAM_NAME"),
        _Rule(errors.InvalidArgument, "FAILURE"),
        *_FAILURE,
    ),
    "updateStream": _CHANGE_OF_STREAM,
    "truncateStream": _CHANGE_OF_STREAM,
    "sealStream": (*_NO_STREAM, *_FAILURE),
    "deleteStream": (*_NO_STREAM, _Rule(errors.StreamNotSealed, "STREAM_NOT_SEALED"), *_FAILURE),
    "listStreamsInScope": _NO_SCOPE,
    "listStreamsInScopeForTag": _NO_SCOPE,
    "scale": (
        _Rule(errors.ScaleRefused, "PRECONDITION_FAILED"),
        _Rule(errors.InvalidArgument, "FAILURE"),
        _Rule(errors.NotFound, "FAILURE"),
        *_FAILURE,
    ),
    "checkScale": (_Rule(errors.NotFound, "INVALID_INPUT"),),
    "pingTransaction": (
        _Rule(errors.LeaseTooLarge, "LEASE_TOO_LARGE"),
        _Rule(errors.ExecutionTimeExceeded, "MAX_EXECUTION_TIME_EXCEEDED"),
    ),
    "commitTransaction": _END_OF_TRANSACTION,
    "abortTransaction": _END_OF_TRANSACTION,
    "removeWriter": (_Rule(errors.NotFound, "UNKNOWN_WRITER"),),
    "createReaderGroup": (
        *_NO_SCOPE,
        _Rule(errors.InvalidName, "INVALID_RG_NAME"),
        _Rule(errors.NotFound, "FAILURE"),
        *_FAILURE,
    ),
    "deleteReaderGroup": (_Rule(errors.NotFound, "RG_NOT_FOUND", "reader group"), *_FAILURE),
    "listSubscribers": _NO_STREAM,
    "updateSubscriberStreamCut": (
        *_NO_STREAM,
        _Rule(errors.NotFound, "SUBSCRIBER_NOT_FOUND", "subscriber"),
        _Rule(errors.NotFound, "SUBSCRIBER_NOT_FOUND", "reader group"),
        _Rule(errors.NotFound, "FAILURE", "epoch"),
        _Rule(errors.BrokenStreamCut, "FAILURE"),
        _Rule(errors.InvalidStreamCut, "STREAM_CUT_NOT_VALID"),
        _Rule(errors.GenerationMismatch, "GENERATION_MISMATCH"),
    ),
    "createKeyValueTable": (
        _Rule(errors.AlreadyExists, "TABLE_EXISTS"),
        *_NO_SCOPE,
        _Rule(errors.InvalidName, "INVALID_TABLE_NAME"),
        *_FAILURE,
    ),
    "getKeyValueTableConfiguration": (_Rule(errors.NotFound, "TABLE_NOT_FOUND"),),
    "listKeyValueTablesInScope": _NO_SCOPE,
    "deleteKeyValueTable": (_Rule(errors.NotFound, "TABLE_NOT_FOUND"), *_FAILURE),
}
"""Rules by method; the first that matches decides."""

_CODES: Final[tuple[tuple[type[errors.ControllerError], StatusCode], ...]] = (
    (errors.NotFound, StatusCode.NOT_FOUND),
    (errors.AlreadyExists, StatusCode.ALREADY_EXISTS),
    (errors.ScopeNotEmpty, StatusCode.FAILED_PRECONDITION),
    (errors.Unauthenticated, StatusCode.UNAUTHENTICATED),
    (errors.PermissionDenied, StatusCode.PERMISSION_DENIED),
    (errors.UnusableEntry, StatusCode.INTERNAL),
    (errors.MemoryFull, StatusCode.RESOURCE_EXHAUSTED),
    (errors.RequestsTooLarge, StatusCode.RESOURCE_EXHAUSTED),
    (errors.ControllerClosed, StatusCode.UNAVAILABLE),
    (errors.Interrupted, StatusCode.UNAVAILABLE),
    (errors.TooMany, StatusCode.INVALID_ARGUMENT),  # clients do not retry this
    (errors.IllegalState, StatusCode.INTERNAL),
    (errors.InvalidArgument, StatusCode.INTERNAL),
    (errors.SegmentStoreFailed, StatusCode.INTERNAL),
)
"""Codes of errors without a matching rule. Other errors are UNKNOWN, like unexpected exceptions in Pravega."""

_UNKNOWN_ARGUMENT: Final = {"createTransaction", "deleteReaderGroup", "updateSubscriberStreamCut"}
"""Methods in which Pravega reports an invalid argument as an unexpected exception."""

_UNKNOWN_NAMES: Final = {"getCurrentSegments", "getReaderGroupConfig", "updateReaderGroup", "deleteReaderGroup"}
"""Methods in which that applies to an empty name: in `getCurrentSegments` to any name, elsewhere to a reader group's
name."""


def answer(method: str, error: errors.ControllerError) -> CallResult:
    if isinstance(error, errors.EmptyName):
        unexpected = method in _UNKNOWN_NAMES and (error.kind == "reader_group" or method == "getCurrentSegments")
        return CallResult(None, StatusCode.UNKNOWN if unexpected else StatusCode.INTERNAL)
    if isinstance(error, errors.Malformed):
        return CallResult(None, StatusCode.INTERNAL)
    if isinstance(error, errors.NobodyOwns):  # clients retry
        return CallResult(None, StatusCode.UNAVAILABLE)
    for rule in _RULES.get(method, ()):
        if isinstance(error, rule.error) and rule.kind in (None, getattr(error, "kind", None)):
            return CallResult(rule.value)
    if method in _UNKNOWN_ARGUMENT and isinstance(error, errors.InvalidArgument):
        return CallResult(None, StatusCode.UNKNOWN)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CallResult(None, code)
    return CallResult(None, StatusCode.UNKNOWN)


async def end_refused(method: str, error: errors.ControllerError, context: Any) -> bytes:
    """Returns the answer to a call that the controller has refused, or ends the call with a status code."""
    value, code = answer(method, error)
    if value is None:
        await end_call(context, code, error.message)
    return with_status(METHODS[method].response, value).SerializeToString()


def with_status(response: type[Message], value: str) -> Message:
    """Returns a response that contains only the status."""
    for field in _STATUS_FIELDS:
        described = response.DESCRIPTOR.fields_by_name.get(field)
        if described is not None and described.enum_type is not None:
            return response(**{field: described.enum_type.values_by_name[value].number})
    raise AssertionError(f"{response.DESCRIPTOR.name} has no enum for {value}")
