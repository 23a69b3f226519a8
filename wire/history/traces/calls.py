"""Follows the controller calls of a trace: makes facts of transactions.

A transaction's steps become facts of the transaction, and of each segment that it may write to. A call without an
answer, or whose answer does not say that it was not applied, may have been applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

from segstore.wire.history.facts import Fact, Finding, Key, Place, Transaction
from segstore.wire.names import segment_name, split_segment_id
from segstore.wire.trace import Call, Direction, Record

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
            if call.rpc in _ANSWERED:
                self._waiting[call.number] = place, call
                if call.rpc == "commitTransaction" and call.content is not None:
                    # Events may be readable from now on; it is an outcome only once the controller has accepted it.
                    yield from self._of_segments(self._transaction(call.content, "committing", place), place)
            return
        asked, request = self._waiting.pop(call.number, (place, None))
        if request is not None and request.content is not None:
            yield from _ANSWERED[request.rpc](self, place, asked, request.content, call)

    def end(self) -> None:
        """Makes facts of the calls without an answer."""
        for place, call in self._waiting.values():
            if call.rpc in ("commitTransaction", "abortTransaction") and call.content is not None:
                self._findings += self._step(place, call.content, "unknown", place)

    def _begun(self, place: Place, asked: Place, request: Any, answer: Call) -> Iterator[Fact]:
        content: Any = answer.content
        if content is None or not content.HasField("txnId"):
            return
        name = _name(content.txnId)
        segments = []
        for span in content.activeSegments:
            epoch, number = split_segment_id(span.segmentId.segmentId)
            info = span.segmentId.streamInfo
            segments.append(segment_name(info.scope, info.stream, number, epoch))
        self._segments[name] = tuple(segments)
        step = Transaction(name, _stream(request), "begun", asked, tuple(segments))
        yield Fact(Key("transaction", name), place, step)
        yield from self._of_segments(step, place)

    def _committed(self, place: Place, asked: Place, request: Any, answer: Call) -> Iterator[Fact]:
        if answer.outcome == "OK":
            yield from self._step(place, request, "committing", asked, request.writerId)
        elif answer.outcome not in _REFUSED:
            yield from self._step(place, request, "unknown", asked)

    def _aborted(self, place: Place, asked: Place, request: Any, answer: Call) -> Iterator[Fact]:
        if answer.outcome not in _REFUSED:
            yield from self._step(place, request, "aborting" if answer.outcome == "OK" else "unknown", asked)

    def _described(self, place: Place, asked: Place, request: Any, answer: Call) -> Iterator[Fact]:
        if answer.content is not None and answer.outcome in _STATES:  # ABORTED is a status of gRPC, too
            yield from self._step(place, request, _STATES[answer.outcome], asked)

    def _step(self, place: Place, request: Any, what: str, asked: Place, writer: str = "") -> Iterator[Fact]:
        step = self._transaction(request, what, asked, writer)
        yield Fact(Key("transaction", step.name), place, step)
        yield from self._of_segments(step, place)

    def _transaction(self, request: Any, what: str, asked: Place, writer: str = "") -> Transaction:
        name = _name(request.txnId)
        return Transaction(name, _stream(request), what, asked, self._segments.get(name, ()), writer)

    @staticmethod
    def _of_segments(step: Transaction, place: Place) -> Iterator[Fact]:
        for segment in step.segments:
            yield Fact(Key("segment", segment), place, step)


_ANSWERED: Final[dict[str, Callable[..., Iterator[Fact]]]] = {
    "createTransaction": CallsFold._begun,
    "commitTransaction": CallsFold._committed,
    "abortTransaction": CallsFold._aborted,
    "checkTransactionState": CallsFold._described,
    "pingTransaction": CallsFold._described,
}


def _name(transaction: Any) -> str:
    """Returns a transaction's id as 32 hexadecimal digits, as in the names of its segments."""
    mask = (1 << 64) - 1
    return UUID(int=(transaction.highBits & mask) << 64 | transaction.lowBits & mask).hex


def _stream(request: Any) -> str:
    return f"{request.streamInfo.scope}/{request.streamInfo.stream}"
