"""The client's error tree, sorted by the caller's next step.

    ClientError
    ├── Retriable              try again: the same call may succeed later or elsewhere
    │   ├── ConnectFailed      no connection to an endpoint (ConnectTimedOut: not within the set-up timeout)
    │   ├── ConnectionLost     an established connection ended; requests in flight may or may not have happened
    │   ├── WrongStore         the segment's container is not owned there
    │   ├── RequestTimedOut    no reply within the deadline
    │   ├── PeerRefused        the peer could not serve the request; the message is the peer's
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
        ├── RetriesExhausted   too many Retriable failures; the last is its cause
        ├── OutcomeUnknown     a lost call to the controller may or may not have been applied
        ├── SegmentTruncated, SegmentExists, NotSupported
        ├── ConditionFailed    an expectation did not hold (BadKeyVersion, NoSuchKey, TransactionOver)
        ├── EventTooLarge, EntryRefused
        ├── WriterFenced       another writer uses this writer's id
        ├── ReaderExists, ReaderOffline
        └── NoSuchStream (NoSuchTable, NoSuchReaderGroup), StreamSealed, RequestRejected

The message of an error is one sentence in which text from peers is escaped and shortened. Its facts are also
attributes, unchanged. `advice` suggests the caller's next step; a traceback shows it, with the facts, as a note. Causes
are chained.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from segstore.wire import (
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    Buffer,
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
from segstore.wire.printable import printable

_LONGEST = 600


class ClientError(Exception):
    """Root of all errors of the client.

    Attributes (None where they do not apply):
        endpoint: "host:port" of the peer.
        segment: name of the segment; stream: "scope/stream".
        request_id: of the request that failed.
        limit, actual: the allowed and the actual value, in the same unit.
        details: further facts, by name.
        advice: the caller's next step; a class attribute.
    """

    advice: ClassVar[str] = "see the cause"

    def __init_subclass__(cls, *, advice: str | None = None) -> None:
        super().__init_subclass__()
        if advice is not None:
            cls.advice = advice

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
        lines = filter(None, map(str.strip, message.split("\n")))  # of a peer: its reason, then details
        self.message = printable("; ".join(lines), _LONGEST)
        super().__init__(self.message)
        self.endpoint = endpoint
        self.segment = segment
        self.stream = stream
        self.request_id = request_id
        self.limit = limit
        self.actual = actual
        self.details = details
        self.__notes__: list[str] = [self._note()]

    def _note(self) -> str:
        facts = ", ".join(f"{name} {printable(str(value), _LONGEST)}" for name, value in self.facts().items())
        return f"{self.advice} ({facts})" if facts else self.advice

    def located(self, **facts: Any) -> Self:
        """Returns this error after adding attributes that were unknown where it was raised, such as `endpoint`."""
        for name, value in facts.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.__notes__[0] = self._note()
        return self

    def caused_by(self, cause: BaseException | None) -> Self:
        """Returns this error with its cause set, to be handed to a waiter and not raised."""
        self.__cause__ = cause
        return self

    def again(self) -> Self:
        """Returns a copy: several waiters must not share one traceback."""
        return type(self)(self.message, **self.facts()).caused_by(self.__cause__)

    def facts(self) -> dict[str, Any]:
        """The attributes that are set, for logs and for JSON."""
        names = ("endpoint", "segment", "stream", "request_id", "limit", "actual")
        return {name: value for name in names if (value := getattr(self, name)) is not None} | self.details


class Retriable(ClientError, advice="try again: the same call may succeed later"):
    """The same call may succeed later or elsewhere."""


class ConnectFailed(Retriable, advice="check that a segment store listens at the endpoint, then try again"):
    """No connection to the endpoint could be set up."""


class ConnectTimedOut(ConnectFailed):
    """Connection set-up took longer than ``limit`` milliseconds; it was cancelled and its socket closed."""


class ConnectionLost(Retriable, advice="try again; requests in flight may have been applied"):
    """A connection ended; requests in flight on it may or may not have been applied."""


class WrongStore(Retriable, advice="try again: the controller says where the segment lives now"):
    """The store does not own the segment's container; ``details["correct_host"]`` is "" if the owner is unknown."""


class RequestTimedOut(
    Retriable, advice="try again, with a longer timeout if the peer is slow; the request may have been applied"
):
    """No reply came within ``limit`` milliseconds; the request may or may not have been applied."""


class PeerRefused(Retriable):
    """The peer could not serve the request; the message is the peer's."""


class NoNodeAvailable(Retriable, advice="check the address of the controller and that it runs, then try again"):
    """No controller could be reached in time: ``details["attempts"]`` were made in ``details["elapsed_ms"]``.

    ``details["refused"]``: whether all of them refused connections, in which case a call gives up early.
    """


class Unauthenticated(ClientError, advice="authenticate again"):
    """Another token or other credentials are needed."""


class TokenExpired(Unauthenticated, advice="ask for a fresh token"):
    """The delegation token has expired; a fresh one will do."""


class TokenRefused(Unauthenticated, advice="use credentials that allow it, or have them allowed"):
    """The token or the credentials do not allow it."""


class SegmentOver(ClientError, advice="go to the segment's successors"):
    """The segment accepts no more appends: continue with its successors."""


class SegmentSealed(SegmentOver):
    """The segment is sealed; ``details["offset"]`` is the offset or event number at which this was detected."""


class SegmentMissing(SegmentOver):
    """The segment does not exist, or no longer does."""


class Final(ClientError, advice="do not repeat the call unchanged"):
    """The same call will fail again."""


class IncompatibleVersion(Final, advice="use a client or a server of another version"):
    """The peer and this client have no wire version in common; ``details`` has both ranges."""


class ProtocolViolation(Final, advice="check what listens at the endpoint: it violates the protocol"):
    """The peer violated the protocol; its connection was closed."""


class Closed(Final, advice="open it, or another if it was closed"):
    """The object was closed, or never opened."""


class RetriesExhausted(
    Final,
    advice="check that the cluster runs and is reachable, then try again; to retry longer, raise the limit it hit",
):
    """The operation failed ``actual`` times in ``details["elapsed_ms"]``; the last failure is the cause.

    ``details["bounded_by"]`` names the setting that stopped the retries, if it was a setting.
    """


class OutcomeUnknown(Final, advice="check whether the call was applied before repeating it"):
    """A call to the controller was lost in flight: it may or may not have been applied, and is not safe to repeat.

    ``details["method"]`` names the method.
    """


class SegmentTruncated(Final, advice="read from the start offset onwards"):
    """The segment starts at ``details["start_offset"]`` now."""


class SegmentExists(Final, advice="use it, or another name"):
    """A segment of this name exists."""


class ConditionFailed(Final, advice="read the current state and decide again"):
    """An expectation about the segment, its attribute or its key did not hold; nothing was changed."""


class BadKeyVersion(ConditionFailed):
    """A table key does not have the expected version; no part of the update was applied.

    ``details["retried"]`` is the number of earlier tries of the request, if any: an earlier try may have applied this
    very update and so changed the version.
    """


class NoSuchKey(ConditionFailed):
    """A key that should have a version does not exist; no part of the update was applied.

    Raised for tables with variable-length keys; for fixed-length keys stores report BadKeyVersion.
    """


class TransactionOver(
    ConditionFailed, advice="check its status; if it is not committed, begin another and write again"
):
    """The transaction is not open, or no longer; ``details["status"]`` is its status, if known."""


class NotSupported(Final, advice="use another operation or a server that supports it"):
    """The peer does not serve this operation."""


class EventTooLarge(Final, advice="make it smaller or raise the limit"):
    """The event has ``actual`` bytes; the limit is ``limit``."""

    @classmethod
    def check(cls, data: Buffer, limit: int, **target: Any) -> None:
        """Raises `EventTooLarge` if the data is above the limit. target: its `segment` or `stream`."""
        if len(data) > limit:
            (name,) = target.values()
            raise cls(f"{len(data)} bytes for {name}, the limit is {limit}", limit=limit, actual=len(data), **target)


class BadEvent(Final, advice="skip it, or read it with the serializer that wrote it"):
    """The serializer cannot read the event, which has ``actual`` bytes; ``details["offset"]`` is its header's."""


class WriterFenced(Final, advice="give each writer its own name or id, and write the failed events again"):
    """Another writer appends to the segment under this writer's id, ``details["writer_id"]``, and has used its numbers.

    Events that fail with this error are not stored. After a lost connection this is not certain, because the store does
    not know whose events it has.
    """


class EntryRefused(Final, advice="use keys of the table's length and smaller values or batches"):
    """The table cannot hold this key or value, or a batch is too large: ``actual`` bytes or entries."""


class NoSuchStream(Final, advice="create it or correct the name"):
    """The stream or its scope does not exist, or no longer does."""


class NoSuchTable(NoSuchStream):
    """The key-value table or its scope does not exist, or no longer does."""


class NoSuchReaderGroup(NoSuchStream):
    """The reader group does not exist, or no longer does."""


class ReaderExists(Final, advice="use another name, or call reader_offline first if that reader is gone"):
    """A reader of this name is online in its group; ``details["reader"]`` is the name."""


class ReaderOffline(Final, advice="open another reader of the group"):
    """The reader is not online in its group, or no longer is; ``details["reader"]`` is its name."""


class StreamSealed(Final, advice="write to another stream"):
    """The stream is sealed: it accepts no more events."""


class RequestRejected(Final, advice="correct the request"):
    """The controller rejected the request; ``details["status"]`` is the status it gave."""


def failure(reply: Command, *, endpoint: str | None = None, segment: str | None = None) -> ClientError:
    """Converts a store's failure reply to an error; any other reply becomes a ProtocolViolation."""
    request_id: int | None = getattr(reply, "request_id", None)
    segment = getattr(reply, "segment", None) or segment
    facts: dict[str, Any] = {"endpoint": endpoint, "segment": segment, "request_id": request_id}
    match reply:
        case WrongHost(correct_host=host):
            known = f", {host} does" if host else ""
            return WrongStore(f"{endpoint} does not own {segment}{known}", correct_host=host, **facts)
        case SegmentIsSealed(offset=offset):
            return SegmentSealed(f"{segment} is sealed, according to {endpoint}", offset=offset, **facts)
        case NoSuchSegment():
            return SegmentMissing(f"segment {segment} does not exist, according to {endpoint}", **facts)
        case SegmentIsTruncated(start_offset=start, offset=offset):
            return SegmentTruncated(
                f"{segment} starts at {start}, requested was {offset}", start_offset=start, offset=offset, **facts
            )
        case SegmentAlreadyExists():
            return SegmentExists(f"{segment} exists", **facts)
        case AuthTokenCheckFailed(error_code=AuthTokenErrorCode.TOKEN_EXPIRED):
            return TokenExpired(f"the token for {segment} has expired, according to {endpoint}", **facts)
        case AuthTokenCheckFailed():
            return TokenRefused(f"{endpoint} refuses the token for {segment}", **facts)
        case OperationUnsupported(operation_name=name):
            return NotSupported(f"{endpoint} does not serve {name}", operation=name, **facts)
        case InvalidEventNumber(event_number=number):
            return PeerRefused(f"{endpoint} refuses event number {number} on {segment}", event_number=number, **facts)
        case ErrorMessage(message=text, error_code=code):
            return PeerRefused(f"{endpoint} reports for {segment}: {text}", error_code=code.name, **facts)
        case ConditionalCheckFailed():
            return ConditionFailed(f"{segment} does not have the expected length", **facts)
        case TableKeyBadVersion():
            return BadKeyVersion(f"a key of {segment} does not have the expected version", **facts)
        case TableKeyDoesNotExist():
            return NoSuchKey(f"a key of {segment} that should exist does not", **facts)
        case TableSegmentNotEmpty():
            return ConditionFailed(f"{segment} is not empty", **facts)
        case _:
            return ProtocolViolation(f"{endpoint} answers with {reply.type_name}, which answers no request", **facts)
