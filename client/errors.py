"""The error tree of the client, sorted by what the caller can do.

    ClientError
    ├── Retriable              try again: the same call may succeed later or elsewhere
    │   ├── ConnectFailed      no connection to an endpoint (ConnectTimedOut: not within the set-up timeout)
    │   ├── ConnectionLost     an established connection ended; what was in flight may or may not have happened
    │   ├── WrongStore         the segment's container is not owned there
    │   ├── RequestTimedOut    no reply within the deadline
    │   ├── PeerRefused        the peer could not serve it and said so in its own words
    │   └── NoNodeAvailable    no controller could be reached
    ├── Unauthenticated        authenticate again: another token or other credentials
    │   ├── TokenExpired
    │   └── TokenRefused
    ├── SegmentOver            go to the successors
    │   ├── SegmentSealed
    │   └── SegmentMissing
    └── Final                  give up: the same call will fail again
        ├── IncompatibleVersion, ProtocolViolation
        ├── Closed             a flow, pool, writer or reader that was closed
        ├── RetriesExhausted   a Retriable happened too often; the last is its cause
        ├── SegmentTruncated, SegmentExists, ConditionFailed, NotSupported
        ├── EventTooLarge
        └── NoSuchStream, StreamSealed, RequestRejected

The text of an error is one sentence; the facts in it are attributes as well. Causes are chained.
"""

from __future__ import annotations

from typing import Any

from segstore.wire import (
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    Command,
    ConditionalCheckFailed,
    ErrorMessage,
    InvalidEventNumber,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableSegmentNotEmpty,
    WrongHost,
)

__all__ = [
    "ClientError",
    "Closed",
    "ConditionFailed",
    "ConnectFailed",
    "ConnectTimedOut",
    "ConnectionLost",
    "EventTooLarge",
    "Final",
    "IncompatibleVersion",
    "NoNodeAvailable",
    "NoSuchStream",
    "NotSupported",
    "PeerRefused",
    "ProtocolViolation",
    "RequestRejected",
    "RequestTimedOut",
    "Retriable",
    "RetriesExhausted",
    "SegmentExists",
    "SegmentMissing",
    "SegmentOver",
    "SegmentSealed",
    "SegmentTruncated",
    "StreamSealed",
    "TokenExpired",
    "TokenRefused",
    "Unauthenticated",
    "WrongStore",
    "failure",
]


class ClientError(Exception):
    """Root of all errors of the client.

    Attributes (None where they do not apply):
        endpoint: "host:port" of the peer.
        segment: name of the segment; stream: "scope/stream".
        request_id: of the request that failed.
        limit, actual: what was allowed and what was found, in one unit.
        details: what else is known, by name.
    """

    def __init__(
        self,
        message: str,
        *,
        endpoint: str | None = None,
        segment: str | None = None,
        stream: str | None = None,
        request_id: int | None = None,
        limit: float | None = None,
        actual: float | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.endpoint = endpoint
        self.segment = segment
        self.stream = stream
        self.request_id = request_id
        self.limit = limit
        self.actual = actual
        self.details = details

    def facts(self) -> dict[str, Any]:
        """The attributes that are set, for logs and for JSON."""
        names = ("endpoint", "segment", "stream", "request_id", "limit", "actual")
        return {name: value for name in names if (value := getattr(self, name)) is not None} | self.details


class Retriable(ClientError):
    """The same call may succeed later or elsewhere."""


class ConnectFailed(Retriable):
    """No connection to the endpoint could be set up."""


class ConnectTimedOut(ConnectFailed):
    """The set-up of a connection took longer than ``limit`` milliseconds; it was cancelled and its socket closed."""


class ConnectionLost(Retriable):
    """A connection ended; what was in flight on it may or may not have been carried out."""


class WrongStore(Retriable):
    """The store does not own the segment's container; ``details["correct_host"]`` is "" where it does not know who."""


class RequestTimedOut(Retriable):
    """No reply came within ``limit`` milliseconds; the request may or may not have been carried out."""


class PeerRefused(Retriable):
    """The peer could not serve the request; the sentence is the peer's."""


class NoNodeAvailable(Retriable):
    """No controller could be reached before the deadline."""


class Unauthenticated(ClientError):
    """Another token or other credentials are needed."""


class TokenExpired(Unauthenticated):
    """The delegation token's time is over: a fresh one will do."""


class TokenRefused(Unauthenticated):
    """The token or the credentials do not allow it."""


class SegmentOver(ClientError):
    """The segment takes no more: go to its successors."""


class SegmentSealed(SegmentOver):
    """The segment is sealed; ``details["offset"]`` is where or at which event number that was seen."""


class SegmentMissing(SegmentOver):
    """There is no such segment (any more)."""


class Final(ClientError):
    """The same call will fail again."""


class IncompatibleVersion(Final):
    """The peer and this client have no wire version in common; ``details`` has both ranges."""


class ProtocolViolation(Final):
    """The peer sent what the protocol does not allow; its connection was closed."""


class Closed(Final):
    """It was closed before."""


class RetriesExhausted(Final):
    """It failed ``actual`` times; the last failure is the cause."""


class SegmentTruncated(Final):
    """The segment starts at ``details["start_offset"]`` now."""


class SegmentExists(Final):
    """A segment of this name exists."""


class ConditionFailed(Final):
    """What was expected of the segment, its attribute or its key is not so; nothing was changed."""


class NotSupported(Final):
    """The peer does not serve this operation."""


class EventTooLarge(Final):
    """The event has ``actual`` bytes where ``limit`` are allowed."""


class NoSuchStream(Final):
    """The stream, or its scope, does not exist (any more)."""


class StreamSealed(Final):
    """The stream is sealed: it takes no more events."""


class RequestRejected(Final):
    """The controller refuses the request as such; ``details["status"]`` is its word for why."""


def failure(reply: Command, *, endpoint: str | None = None, segment: str | None = None) -> ClientError:
    """The error that a store's failure reply stands for; a reply that is no failure is a ProtocolViolation."""
    request_id: int | None = getattr(reply, "request_id", None)
    segment = getattr(reply, "segment", None) or segment
    facts: dict[str, Any] = {"endpoint": endpoint, "segment": segment, "request_id": request_id}
    match reply:
        case WrongHost(correct_host=host):
            known = f", {host} does" if host else ""
            return WrongStore(f"{endpoint} does not own {segment}{known}", correct_host=host, **facts)
        case SegmentIsSealed(offset=offset):
            return SegmentSealed(f"{segment} is sealed", offset=offset, **facts)
        case NoSuchSegment():
            return SegmentMissing(f"there is no segment {segment}", **facts)
        case SegmentIsTruncated(start_offset=start, offset=offset):
            return SegmentTruncated(
                f"{segment} starts at {start}, asked was {offset}", start_offset=start, offset=offset, **facts
            )
        case SegmentAlreadyExists():
            return SegmentExists(f"{segment} exists", **facts)
        case AuthTokenCheckFailed(error_code=AuthTokenErrorCode.TOKEN_EXPIRED):
            return TokenExpired(f"the token for {segment} has expired", **facts)
        case AuthTokenCheckFailed():
            return TokenRefused(f"the token does not allow this on {segment}", **facts)
        case OperationUnsupported(operation_name=name):
            return NotSupported(f"{endpoint} does not serve {name}", operation=name, **facts)
        case InvalidEventNumber(event_number=number):
            return PeerRefused(f"{endpoint} refuses event number {number} on {segment}", event_number=number, **facts)
        case ErrorMessage(message=text, error_code=code):
            return PeerRefused(f"{endpoint} says of {segment}: {text}", error_code=code.name, **facts)
        case ConditionalCheckFailed():
            return ConditionFailed(f"{segment} does not have the expected length", **facts)
        case TableKeyBadVersion():
            return ConditionFailed(f"a key of {segment} does not have the expected version", **facts)
        case TableKeyDoesNotExist():
            return ConditionFailed(f"a key of {segment} that should exist does not", **facts)
        case TableSegmentNotEmpty():
            return ConditionFailed(f"{segment} is not empty", **facts)
        case _:
            return ProtocolViolation(f"{endpoint} answers with {reply.type_name}, which fits no request", **facts)
