"""Each failure reply becomes the error that says what the caller can do, with its facts as attributes."""

import traceback
from uuid import UUID

from segstore.client import errors
from segstore.wire import (
    COMMANDS,
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    Command,
    ConditionalCheckFailed,
    ErrorMessage,
    ErrorMessageCode,
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
from tests.looped import looped

REPLIES: list[tuple[Command, type[errors.ClientError], type[errors.ClientError]]] = [
    (WrongHost(7, "s", "host:1"), errors.WrongStore, errors.Retriable),
    (SegmentIsSealed(7, "s", "", 5), errors.SegmentSealed, errors.SegmentOver),
    (NoSuchSegment(7, "s"), errors.SegmentMissing, errors.SegmentOver),
    (SegmentIsTruncated(7, "s", 9, "", 3), errors.SegmentTruncated, errors.Final),
    (SegmentAlreadyExists(7, "s"), errors.SegmentExists, errors.Final),
    (AuthTokenCheckFailed(7, "", AuthTokenErrorCode.TOKEN_EXPIRED), errors.TokenExpired, errors.Unauthenticated),
    (AuthTokenCheckFailed(7), errors.TokenRefused, errors.Unauthenticated),
    (OperationUnsupported(7, "fly"), errors.NotSupported, errors.Final),
    (InvalidEventNumber(UUID(int=1), 7), errors.PeerRefused, errors.Retriable),
    (ErrorMessage(7, "s", "no", ErrorMessageCode.UNSPECIFIED), errors.PeerRefused, errors.Retriable),
    (ConditionalCheckFailed(UUID(int=1), 3, 7), errors.ConditionFailed, errors.Final),
    (TableKeyBadVersion(7, "s"), errors.BadKeyVersion, errors.ConditionFailed),
    (TableKeyDoesNotExist(7, "s"), errors.NoSuchKey, errors.ConditionFailed),
    (TableSegmentNotEmpty(7, "s"), errors.ConditionFailed, errors.Final),
]


@looped(("reply", "kind", "branch"), REPLIES)
def test_a_failure_reply_is_the_error_of_its_branch(
    reply: Command, kind: type[errors.ClientError], branch: type[errors.ClientError]
) -> None:
    error = errors.failure(reply, endpoint="h:1", segment="s")
    assert type(error) is kind
    assert isinstance(error, branch)
    assert error.facts()["request_id"] == 7
    assert error.facts()["endpoint"] == "h:1"
    assert error.segment == "s"
    assert str(error) == error.message


def test_the_lines_of_a_peers_reason_are_one_sentence() -> None:
    reply = ErrorMessage(7, "s", "it is not in the trace\n  near: request 3\n", ErrorMessageCode.UNSPECIFIED)
    error = errors.failure(reply, endpoint="h:1", segment="s")
    assert str(error) == "h:1 reports for s: it is not in the trace; near: request 3"
    assert str(error.again()) == str(error)


def test_every_failure_reply_of_the_protocol_is_known() -> None:
    # ConditionalCheckFailed is no failure in the reference's eyes.
    known = {type(reply) for reply, *_ in REPLIES} - {ConditionalCheckFailed}
    assert known == {command for command in COMMANDS.values() if command.is_failure}


def test_a_reply_that_answers_nothing_is_a_violation() -> None:
    assert isinstance(errors.failure(COMMANDS[100]()), errors.ProtocolViolation)


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]


def test_each_error_has_one_branch() -> None:
    branches = (errors.Retriable, errors.Unauthenticated, errors.SegmentOver, errors.Final)
    for kind in KINDS:
        if kind is not errors.ClientError:
            assert sum(issubclass(kind, branch) for branch in branches) == 1, kind


@looped("kind", [kind for kind in KINDS if kind is not errors.ClientError])
def test_every_error_says_what_can_be_done_and_where_it_was(kind: type[errors.ClientError]) -> None:
    assert kind.advice != errors.ClientError.advice
    error = kind("it failed", endpoint="h:1", request_id=7, status="BAD")
    assert "".join(traceback.format_exception_only(error)).endswith(
        f"it failed\n{kind.advice} (endpoint h:1, request_id 7, status BAD)\n"
    )


def test_what_was_not_known_where_it_was_raised_can_be_added_and_what_was_is_kept() -> None:
    error = errors.RequestTimedOut("no answer", endpoint="h:1").located(endpoint="h:2", segment="s", request_id=0)
    assert error.facts() == {"endpoint": "h:1", "segment": "s", "request_id": 0}
    assert error.__notes__ == [f"{error.advice} (endpoint h:1, segment s, request_id 0)"]
