"""The errors of the controller. Their facts are attributes.

`answers` has the table that maps them to enum values and gRPC status codes.
"""

from __future__ import annotations

from typing import Final

_MESSAGE_MAX: Final = 500


class ControllerError(Exception):
    """Root of the controller's errors; `message` is one sentence with the facts, truncated if it is too long."""

    def __init__(self, message: str) -> None:
        # A name in it may be as long as a gRPC message, but a status must be short.
        self.message = message if len(message) <= _MESSAGE_MAX else f"{message[:_MESSAGE_MAX]}…"
        super().__init__(self.message)


class NotFound(ControllerError):
    """The named object does not exist. `kind`: its kind ("scope", "stream", …). `name`: its name."""

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(f"{kind} {name} does not exist")
        self.kind = kind
        self.name = str(name)


class AlreadyExists(ControllerError):
    def __init__(self, kind: str, name: object) -> None:
        super().__init__(f"{kind} {name} exists already")
        self.kind = kind
        self.name = str(name)


class InvalidName(ControllerError):
    """The name breaks the rules for its kind; the text shows only its beginning."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{name[:80]!r} ({len(name)} characters) cannot be the name of a {kind}")
        self.kind = kind
        self.name = name


class ScopeNotEmpty(ControllerError):
    """The scope still holds `held` streams, reader groups and key-value tables."""

    def __init__(self, scope: str, held: int) -> None:
        super().__init__(f"scope {scope} is not empty: it holds {held} of streams, reader groups and tables")
        self.scope = scope
        self.held = held


class StreamIsSealed(ControllerError):
    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream} is sealed")
        self.stream = stream


class StreamNotSealed(ControllerError):
    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream} must be sealed before it is deleted")
        self.stream = stream


class IllegalState(ControllerError):
    """The request is not possible in the object's current state."""


class TooMany(ControllerError):
    """A request names `given` of `what`, or would lead to that number, but at most `limit` are allowed."""

    def __init__(self, what: str, given: int, limit: int) -> None:
        super().__init__(f"{given} {what} exceed the limit of {limit}")
        self.what = what
        self.given = given
        self.limit = limit


class InvalidArgument(ControllerError):
    """An argument is invalid in this request."""


class EmptyName(InvalidArgument):
    def __init__(self, kind: str) -> None:
        super().__init__(f"the name of the {kind} is empty")
        self.kind = kind


class Malformed(InvalidArgument):
    """The message is invalid in any state; refused before the state is read."""


class InvalidStreamCut(ControllerError):
    def __init__(self, stream: str, why: str) -> None:
        super().__init__(f"this is no stream cut of {stream} that can be used here: {why}")
        self.stream = stream
        self.why = why


class BrokenStreamCut(InvalidStreamCut):
    """The stream cut names unknown segments, or has reached no segment."""


class ScaleRefused(ControllerError):
    """A precondition of scaling does not hold; the caller's view of the stream may be old."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(f"stream {stream} cannot be scaled in this way: {why}")
        self.stream = stream
        self.why = why


class GenerationMismatch(ControllerError):
    """The generation `given` is not the `current` generation of the reader group's configuration."""

    def __init__(self, reader_group: str, given: int, current: int) -> None:
        super().__init__(f"the configuration of reader group {reader_group} is at generation {current}, not {given}")
        self.reader_group = reader_group
        self.given = given
        self.current = current


class LeaseTooLarge(ControllerError):
    """The lease exceeds the maximum. Both are in ms."""

    def __init__(self, lease_ms: int, max_ms: int) -> None:
        super().__init__(f"a lease of {lease_ms} ms is too large, the maximum is {max_ms} ms")
        self.lease_ms = lease_ms
        self.max_ms = max_ms


class ExecutionTimeExceeded(ControllerError):
    """The lease would end after the transaction must end. Both times are in ms since 1970."""

    def __init__(self, transaction: object, lease_until_ms: int, must_end_ms: int) -> None:
        super().__init__(f"transaction {transaction} must end by {must_end_ms}, before a lease to {lease_until_ms}")
        self.lease_until_ms = lease_until_ms
        self.must_end_ms = must_end_ms


class Unauthenticated(ControllerError):
    """The call has no valid credentials."""


class PermissionDenied(ControllerError):
    """`principal` does not have `permission` for `resource`."""

    def __init__(self, principal: str, permission: str, resource: str) -> None:
        super().__init__(f"{principal} has no {permission} permission for {resource}")
        self.principal = principal
        self.permission = permission
        self.resource = resource


class UnusableEntry(ControllerError):
    def __init__(self, resource: str) -> None:
        super().__init__(f"an access-control entry that decides about {resource} cannot be matched")
        self.resource = resource


class MemoryFull(ControllerError):
    """The memory limit is reached: `used` of `limit` bytes. Deleting streams frees memory."""

    def __init__(self, used: int, limit: int) -> None:
        super().__init__(f"memory is full: {used} of {limit} bytes are used")
        self.used = used
        self.limit = limit


class ControllerClosed(ControllerError):
    """The controller was closed before it started the call; a retry may succeed."""

    def __init__(self) -> None:
        super().__init__("the controller is closed")


class Interrupted(ControllerError):
    """The controller was closed before it finished the call, whose outcome is unknown."""

    def __init__(self) -> None:
        super().__init__("this controller was stopped or reset before it finished the call")


class RequestsTooLarge(ControllerError):
    def __init__(self) -> None:
        super().__init__("the requests in flight are too large together")


class SegmentStoreFailed(ControllerError):
    """The segment store could not be reached, or refused; the cause is chained. why: the reason, if known."""

    def __init__(self, segment: str, did: str, why: str = "") -> None:
        super().__init__(f"the segment store failed to {did} {segment}{why and ': '}{why}")
        self.segment = segment
        self.did = did


class NobodyOwns(SegmentStoreFailed):
    """The segment's container has no owner at the moment; a retry may succeed."""
