"""The failures that the explorer injects, and the points at which each can be injected.

A failure is the action of a fault rule, a change of the world (`segstore.explore.world`) that is complete before the
request passes, or both. `failures_at` lists the failures of a point, with the reasons for impossible failures.

Sources: `PravegaRequestProcessor.handleException` and `AppendProcessor.handleException` for the failures of commands;
`controller.proto` for the statuses of calls; `ControllerImpl` and `SegmentOutputStreamImpl` for what the reference's
client tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from segstore.explore.options import ExplorerSetting
from segstore.explore.points import Point, kind_of
from segstore.explore.world import CHANGES, STREAMS, Change
from segstore.wire.controller_api import METHODS, STATUSES

_LATE_MS: Final = 500
"""How late a late reply is, for each second after which a client has hung."""
_WITHIN_BYTES: Final = 11
_READ_BYTES: Final = 48
"""Bytes of a SegmentRead before its data, without the name of the segment, and the header and start of an event."""


class Failure(NamedTuple):
    """A failure that can be injected at a point.

    Args:
        name: What `--failures` selects, such as "cut after".
        action: The action of a fault rule; None if the request passes.
        change: A change of the world before the request passes.
        is_lasting: Whether all later requests of the type fail, too.
        may_wait: Whether a client may then wait longer than a run: the failure lasts, the events are gone, the reply
            contradicts the controller, or TCP would have reported the loss at some time. Such a run is unknown.
        is_retried: Whether the reference's client continues: a client that gives up has given up too early.
        may_lose: Whether data may then be gone although the client is right.
        why_not: Why it cannot be injected at the point, if it cannot.
    """

    name: str
    action: Mapping[str, Any] | None = None
    change: Change | None = None
    is_lasting: bool = False
    may_wait: bool = False
    is_retried: bool = False
    may_lose: bool = False
    why_not: str = ""

    @property
    def kind(self) -> str:
        """Its name; for a status of a call, only whether the call was executed."""
        return self.name.rpartition(", ")[2]

    @property
    def only_waits(self) -> bool:
        """Whether most clients wait until the run ends, so that its result is unknown."""
        return self.may_wait and (self.is_lasting or self.action == {"drop": "reply"})


_CUTS: Final = tuple(
    Failure(name, action, is_retried=True)
    for name, action in (
        ("cut before", {"close": "before"}),
        ("cut after", {"close": "after"}),
        ("cut within", {"close": "after", "reply_bytes": _WITHIN_BYTES}),
        ("reset before", {"close": "before", "reset": True}),
        ("reset after", {"close": "after", "reset": True}),
    )
)
_TWICE: Final = Failure("reply twice", {"duplicate": "reply"}, is_retried=True)
_LOST: Final = Failure("reply lost", {"drop": "reply"}, may_wait=True)
_WRONG_HOST: Final = (
    Failure("WrongHost", {"error": "WrongHost"}, is_retried=True),
    Failure("WrongHost for ever", {"error": "WrongHost"}, is_lasting=True, may_wait=True),
)
APPENDS: Final = frozenset({"APPEND_BLOCK_END", "CONDITIONAL_APPEND", "CONDITIONAL_BLOCK_END"})
_WRITES: Final = APPENDS | {"SETUP_APPEND", "MERGE_SEGMENTS", "TRUNCATE_SEGMENT"}
_KEYS: Final = frozenset({"UPDATE_TABLE_ENTRIES", "REMOVE_TABLE_KEYS"})
_COMMON: Final[dict[str, Callable[[str], bool]]] = {
    "NoSuchSegment": lambda name: not name.startswith("CREATE_"),
    "SegmentAlreadyExists": lambda name: name.startswith("CREATE_"),
    "SegmentIsSealed": lambda name: name in _WRITES or name in _KEYS,
    "SegmentIsTruncated": lambda name: name in ("READ_SEGMENT", "TRUNCATE_SEGMENT"),
    "InvalidEventNumber": lambda name: name in APPENDS,
    "ConditionalCheckFailed": lambda name: name == "CONDITIONAL_APPEND",
    "TableKeyBadVersion": lambda name: name in _KEYS,
    "TableKeyDoesNotExist": lambda name: name in _KEYS,
    "TableSegmentNotEmpty": lambda name: name == "DELETE_TABLE_SEGMENT",
    "OperationUnsupported": lambda name: True,
}
"""Failure reply → the requests that it may answer, besides WrongHost and AuthTokenCheckFailed, which any may get."""
_CONFLICTS: Final = frozenset({"ConditionalCheckFailed", "TableKeyBadVersion"})
"""Another client was faster: a reader of a group tries again, other clients report it."""
_CONTRADICTIONS: Final = frozenset({"NoSuchSegment", "SegmentAlreadyExists", "SegmentIsSealed"})
_TOKENS: Final = (
    Failure(
        "token expired", {"error": "AuthTokenCheckFailed", "fields": {"error_code": "TOKEN_EXPIRED"}}, is_retried=True
    ),
    Failure("token refused", {"error": "AuthTokenCheckFailed", "fields": {"error_code": "TOKEN_CHECK_FAILED"}}),
)
_RETRIED_STATUSES: Final = frozenset(
    {"ABORTED", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INTERNAL"}
    | {"RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN"}
)
"""The statuses after which `ControllerImpl` calls again; a call that may not be repeated may fail with them."""
_SUCCESSES: Final = frozenset({"SUCCESS", "OK", "STARTED", "IN_PROGRESS", "OPEN", "COMMITTING", "COMMITTED"})
"""States that a controller reports only if they are true."""
_NO_CUT: Final = Failure("cut", why_not="gRPC owns the controller's sockets")
_REPLY_GONE: Final = frozenset({"cut after", "cut within", "reset after", "half-open", "store restarts"})
"""The request is executed and not answered: a conditional update of a table that is repeated conflicts with itself."""


def failures_at(point: Point, setting: ExplorerSetting) -> Iterator[Failure]:
    """Yields the failures of a point, including impossible failures."""
    late = Failure("reply late", {"delay_ms": setting.timeout_s * _LATE_MS, "at": "after"})
    if point.is_call:
        # Late replies first: a budget may end before the many statuses.
        failures = [late, _LOST, *_of_call(point.type_name, point.reply), _NO_CUT]
    else:
        failures = [*_of_request(point), late]
    for failure in (*failures, *_of_world(point, setting)):
        if failure.name in _REPLY_GONE and point.type_name in _KEYS:
            yield failure._replace(is_retried=False)
        else:
            yield failure


def _of_request(point: Point) -> Iterator[Failure]:
    name = point.type_name
    yield from _CUTS
    if name == "READ_SEGMENT":
        yield Failure(
            "cut in an event", {"close": "after", "reply_bytes": _READ_BYTES + len(point.segment)}, is_retried=True
        )
    yield _TWICE
    yield _LOST
    if name == "HELLO":
        return
    yield from _WRONG_HOST
    yield from _TOKENS
    for reply, may_answer in _COMMON.items():
        if may_answer(name) and reply.casefold() != point.reply.replace("_", "").casefold():
            is_retried = reply in _CONFLICTS and kind_of(point.segment) == "reader group"
            may_lose = reply in _CONFLICTS and not is_retried
            waits = reply in _CONTRADICTIONS
            yield Failure(reply, {"error": reply}, may_wait=waits, is_retried=is_retried, may_lose=may_lose)


@lru_cache(maxsize=256)
def _of_call(rpc: str, good: str) -> tuple[Failure, ...]:
    """Returns the failures of a controller call: each status of gRPC and of its answer, executed or not."""
    failures = []
    for at, executed in (("before", "not executed"), ("after", "executed")):
        for status in STATUSES:
            is_retried = status in _RETRIED_STATUSES and METHODS[rpc].repeatable
            failures.append(Failure(f"{status}, {executed}", {"status": status, "at": at}, is_retried=is_retried))
        for field in METHODS[rpc].response.DESCRIPTOR.fields:
            for value in () if field.enum_type is None else field.enum_type.values_by_name:
                if value != good and value not in _SUCCESSES:
                    answer = {"answer": {field.name: value}, "at": at}
                    failures.append(Failure(f"{field.name} {value}, {executed}", answer))
    return tuple(failures)


def _of_world(point: Point, setting: ExplorerSetting) -> Iterator[Failure]:
    kind = kind_of(point.segment) if point.segment else "none"
    for name, change in CHANGES.items():
        if (change.needs and kind not in change.needs) or change.tokens > setting.tokens:
            continue
        loses = change.may_lose
        if change.stores > setting.stores:
            yield Failure(name, why_not=f"it takes {change.stores} stores")
        elif change.needs and change.needs <= STREAMS and not setting.streams:
            yield Failure(name, why_not="the client has called no controller")
        else:
            yield Failure(name, change=change, is_retried=not loses, may_lose=loses, may_wait=loses)
    if point.type_name in _WRITES | _KEYS:
        restart = CHANGES["store restarts"]
        yield Failure("store restarts, tail lost", {"close": "before", "reset": True}, restart, is_retried=True)
