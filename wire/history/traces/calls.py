"""Follows the controller calls of a trace: makes facts of transactions.

A transaction's steps become facts of the transaction, and of each segment that it may write to. A call without an
answer, or whose answer does not say that it was not applied, may have been applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from segstore.wire.history.facts import Fact, Finding, Key, Place, Transaction
from segstore.wire.names import segment_name, split_segment_id
from segstore.wire.trace import Call, Direction, Record

_BEGIN: Final = "createTransaction"
_COMMIT: Final = "commitTransaction"
_ACCEPTED: Final = {_COMMIT: "committing", "abortTransaction": "aborting"}
_QUERIES: Final = ("checkTransactionState", "pingTransaction")
_REFUSED: Final = ("TRANSACTION_NOT_FOUND", "STREAM_NOT_FOUND")
_STATES: Final = {"COMMITTING": "committing", "COMMITTED": "committed", "ABORTING": "aborting", "ABORTED": "aborted"}


class CallsFold:
    """Follows the controller calls of one trace, in order. key: ("calls", FILE). findings: gets facts."""

    def __init__(self, key: Key, findings: list[Finding]) -> None:
        self.key = key
        self._findings = findings
        self._waiting: dict[int, tuple[Place, Call]] = {}
        self._segments: dict[str, tuple[str, ...]] = {}
        """Transaction → the segments of its stream, as far as its begin was recorded."""

    def see(self, place: Place, record: Record) -> None:
        """Takes the next CALL record."""
        self._findings += self._facts(place, record)

    def _facts(self, place: Place, record: Record) -> Iterator[Fact]:
        call = Call.unpack(record.data)
        if call is None:
            return
        if record.direction is Direction.REQUEST:
            if call.content is not None and call.rpc in (_BEGIN, *_ACCEPTED, *_QUERIES):
                self._waiting[call.number] = place, call
                if call.rpc == _COMMIT:
                    # Events may be readable from now on; it is an outcome only once the controller has accepted it.
                    yield from self._step(place, call.content, "committing", place)[1:]
            return
        asked, request = self._waiting.pop(call.number, (place, None))
        if request is None:
            return
        if request.rpc == _BEGIN:
            yield from self._begun(place, asked, call.content)
        elif what := _step_of(request.rpc, call):
            yield from self._step(place, request.content, what, asked, is_commit=request.rpc == _COMMIT)

    def end(self) -> None:
        """Makes facts of the calls without an answer."""
        for place, call in self._waiting.values():
            if what := _step_of(call.rpc, None):
                self._findings += self._step(place, call.content, what, place)

    def _begun(self, place: Place, asked: Place, answer: Any) -> Iterator[Fact]:
        if answer is None or not answer.HasField("txnId"):
            return
        segments = []
        for span in answer.activeSegments:
            epoch, number = split_segment_id(span.segmentId.segmentId)
            info = span.segmentId.streamInfo
            segments.append(segment_name(info.scope, info.stream, number, epoch))
        self._segments[_name(answer.txnId)] = tuple(segments)
        yield from self._step(place, answer, "begun", asked)

    def _step(self, place: Place, message: Any, what: str, asked: Place, *, is_commit: bool = False) -> list[Fact]:
        """Returns the facts of a step: the transaction's, then its segments'. message: has the transaction's id."""
        name = _name(message.txnId)
        step = Transaction(name, what, asked, message.writerId if is_commit and what == "committing" else "")
        keys = Key("transaction", name), *(Key("segment", segment) for segment in self._segments.get(name, ()))
        return [Fact(key, place, step) for key in keys]


def _step_of(rpc: str, answer: Call | None) -> str:
    """Returns the step of a transaction that an answer shows, or its absence; "" for none."""
    outcome = "" if answer is None else answer.outcome
    if rpc in _ACCEPTED:
        return "" if outcome in _REFUSED else _ACCEPTED[rpc] if outcome == "OK" else "unknown"
    is_state = answer is not None and answer.content is not None  # ABORTED is a status of gRPC, too
    return _STATES.get(outcome, "") if is_state else ""


def _name(transaction: Any) -> str:
    """Returns a transaction's id as 32 hexadecimal digits, as in the names of its segments."""
    mask = (1 << 64) - 1
    return UUID(int=(transaction.highBits & mask) << 64 | transaction.lowBits & mask).hex
