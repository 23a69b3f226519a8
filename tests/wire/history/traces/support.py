"""Records of one connection or of calls, and the facts that folds make of them."""

from __future__ import annotations

from typing import Any

from segstore.wire import Command, encode
from segstore.wire.history import Fact, Finding, Key, first_fold, placed
from segstore.wire.trace import Call, Direction, Record, RecordKind
from segstore.wire.trace.calls import message_of


def facts_of(*commands: Command, opened: bool = True) -> list[Fact]:
    """Returns the facts of a connection; the commands' own direction is taken."""
    records = [Record(0, 1, Direction.REQUEST, RecordKind.OPEN, b'{"store": "a:1"}')] if opened else []
    for number, command in enumerate(commands, 1):
        way = Direction.REPLY if command.is_reply or command.is_failure else Direction.REQUEST
        records.append(Record(number, 1, way, RecordKind.FRAME, encode(command)))
    return _facts(records)


def facts_of_calls(*calls: tuple[str, dict[str, Any], dict[str, Any] | None]) -> list[Fact]:
    """Returns the facts of calls: method, fields of the request, fields of the answer or None."""
    records = []
    for number, (rpc, request, answer) in enumerate(calls, 1):
        data = Call(number, rpc, message_of(rpc, Direction.REQUEST, request)).pack()
        records.append(Record(2 * number, 0, Direction.REQUEST, RecordKind.CALL, data))
        if answer is not None:
            data = Call(number, rpc, message_of(rpc, Direction.REPLY, answer), status="OK").pack()
            records.append(Record(2 * number + 1, 0, Direction.REPLY, RecordKind.CALL, data))
    return _facts(records)


def _facts(records: list[Record]) -> list[Fact]:
    is_call = records[-1].kind is RecordKind.CALL
    findings: list[Finding] = []
    fold = first_fold(Key("calls", "") if is_call else Key("connection", ":1"), findings)
    for place, record in placed(records):
        fold.see(place, record)
    fold.end()
    return [finding for finding in findings if isinstance(finding, Fact)]
