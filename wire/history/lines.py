"""Histories that users' own tests write: JSON lines of operations that begin and end, as Jepsen's.

    {"type": "invoke", "process": 0, "time": 17, "f": "send", "value": {"segment": "s/0", "event": "a"}}
    {"type": "ok", "process": 0, "time": 21, "f": "send", "value": {"offset": 0}}

type: invoke; then ok, fail (certainly without effect) or info (may or may not have had its effect, now or later).
process: a number or a name; it has one operation at a time. time: in ns, optional; the order of the lines decides. The
value at the end is added to the value at the beginning. `OPERATIONS` has the operations and their fields.

Refused, with line and field: lines that are no such object, unknown operations and fields, an end without a beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from segstore.wire.errors import WireError
from segstore.wire.history.facts import (
    Assignment,
    Checkpoint,
    Delivery,
    Fact,
    Key,
    KeyedEvent,
    LoggedEvent,
    Noted,
    Operation,
    Place,
    Transaction,
    Window,
)

_OUTCOMES: Final = {"ok": "ok", "fail": "failed", "info": "unknown"}


class HistoryError(WireError):
    """A line of a history is wrong. The text names the line, from 1, and the field."""


class Line(msgspec.Struct):
    """A line as it is written; further fields are ignored."""

    type: Literal["invoke", "ok", "fail", "info"]
    process: int | str
    f: str
    value: dict[str, Any] = {}
    time: int | None = None


_decode: Final = msgspec.json.Decoder(Line).decode


class Ended(NamedTuple):
    """An operation from its beginning to its end."""

    process: str
    value: dict[str, Any]
    outcome: str
    invoked: Place
    place: Place


class HistoryOperation(NamedTuple):
    """An operation of histories: its fields and its facts. optional: fields that may be absent. text: its meaning."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    text: str
    facts: Callable[[Ended], Iterator[Fact]]


def _events(ended: Ended) -> Iterator[tuple[int | None, Any]]:
    """Yields offset and identity of each event of a poll: [offset, event], or the event alone."""
    for event in ended.value.get("events", ()):
        if isinstance(event, list) and len(event) == 2 and isinstance(event[0], int):
            yield event[0], _identity(event[1])
        else:
            yield None, _identity(event)


def _identity(event: Any) -> Any:
    return event if isinstance(event, str | int) else json.dumps(event, sort_keys=True)


def _send(ended: Ended) -> Iterator[Fact]:
    value = ended.value
    who, event = str(value.get("writer", ended.process)), _identity(value["event"])
    transaction = str(value.get("transaction", ""))
    logged = LoggedEvent("sent", event, who, value.get("offset"), ended.outcome, transaction, ended.invoked)
    yield Fact(Key("log", str(value["segment"])), ended.place, logged)
    if "key" in value and ended.outcome == "ok":
        keyed = KeyedEvent("sent", str(value["key"]), event, who, ended.invoked)
        yield Fact(Key("stream", str(value.get("stream", ""))), ended.place, keyed)


def _poll(ended: Ended) -> Iterator[Fact]:
    value = ended.value
    who, segment = str(value.get("reader", ended.process)), str(value["segment"])
    outcome = "moved" if value.get("moved") else "ok"
    for number, (offset, event) in enumerate(_events(ended)):
        moved = outcome if number == 0 else "ok"
        logged = LoggedEvent("read", event, who, offset, moved, "", ended.invoked)
        yield Fact(Key("log", segment), ended.place, logged)
        if "group" in value:
            yield Fact(Key("group", str(value["group"])), ended.place, Delivery(who, segment, offset, event))
        if "key" in value:
            keyed = KeyedEvent("read", str(value["key"]), event, who, ended.invoked)
            yield Fact(Key("stream", str(value.get("stream", ""))), ended.place, keyed)


def _ending(what: str) -> Callable[[Ended], Iterator[Fact]]:
    def facts(ended: Ended) -> Iterator[Fact]:
        name = str(ended.value["transaction"])
        if ended.outcome != "failed":
            step = Transaction(name, "", what if ended.outcome == "ok" else "unknown", ended.invoked)
            for key in (Key("transaction", name), *(Key("log", str(each)) for each in ended.value["segments"])):
                yield Fact(key, ended.place, step)

    return facts


def _register(what: str) -> Callable[[Ended], Iterator[Fact]]:
    def facts(ended: Ended) -> Iterator[Fact]:
        value = ended.value
        if what == "read" and ended.outcome != "ok":
            return  # it has no effect and no result
        outcome = "refused" if ended.outcome == "failed" else ended.outcome
        if outcome == "refused" and "expected" not in value:
            return  # certainly without effect, for a reason that is not known
        operation = Operation(
            what, value.get("value"), value.get("expected"), value.get("version"), outcome, ended.invoked
        )
        yield Fact(Key("register", f"{value['table']} {value['key']}"), ended.place, operation)

    return facts


def _assignment(what: str) -> Callable[[Ended], Iterator[Fact]]:
    def facts(ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            value = ended.value
            reader = str(value.get("reader", ended.process))
            step = Assignment(what, reader, str(value.get("segment", "")))
            yield Fact(Key("group", str(value["group"])), ended.place, step)

    return facts


def _checkpoint(ended: Ended) -> Iterator[Fact]:
    if ended.outcome == "ok":
        positions = tuple((str(segment), int(offset)) for segment, offset in ended.value["positions"].items())
        step = Checkpoint(str(ended.value["name"]), positions)
        yield Fact(Key("group", str(ended.value["group"])), ended.place, step)


def _note(ended: Ended) -> Iterator[Fact]:
    if ended.outcome == "ok":
        step = Noted(str(ended.value.get("writer", ended.process)), ended.value["timestamp"])
        yield Fact(Key("stream", str(ended.value["stream"])), ended.place, step)


def _window(ended: Ended) -> Iterator[Fact]:
    if ended.outcome == "ok":
        yield Fact(Key("stream", str(ended.value["stream"])), ended.place, Window(ended.value["lower"]))


OPERATIONS: Final[dict[str, HistoryOperation]] = {
    "send": HistoryOperation(
        ("segment", "event"),
        ("offset", "writer", "transaction", "stream", "key"),
        "Writes an event. offset: where it is stored. transaction: it belongs to it. key: the routing key in `stream`.",
        _send,
    ),
    "poll": HistoryOperation(
        ("segment",),
        ("events", "reader", "group", "moved", "stream", "key"),
        "Reads events: a list of `[offset, event]`, or of events. group: the reader's. moved: the reader was moved to "
        "the first event.",
        _poll,
    ),
    "commit": HistoryOperation(("transaction", "segments"), (), "Commits a transaction.", _ending("committed")),
    "abort": HistoryOperation(("transaction", "segments"), (), "Aborts a transaction.", _ending("aborted")),
    "put": HistoryOperation(
        ("table", "key", "value"),
        ("expected", "version"),
        "Writes an entry of a table. expected: only if the entry has this version; -1: only if there is no entry. "
        "version: the new one.",
        _register("put"),
    ),
    "remove": HistoryOperation(("table", "key"), ("expected",), "Removes an entry of a table.", _register("remove")),
    "get": HistoryOperation(
        ("table", "key"),
        ("value", "version"),
        "Reads an entry of a table; without a value there is none.",
        _register("read"),
    ),
    "acquire": HistoryOperation(
        ("group", "segment"), ("reader",), "A reader takes a segment.", _assignment("acquired")
    ),
    "release": HistoryOperation(
        ("group", "segment"), ("reader",), "A reader gives a segment up.", _assignment("released")
    ),
    "leave": HistoryOperation(("group",), ("reader",), "A reader ends or is removed.", _assignment("gone")),
    "checkpoint": HistoryOperation(
        ("group", "name", "positions"), (), "A checkpoint is complete. positions: segment → offset.", _checkpoint
    ),
    "note-time": HistoryOperation(("stream", "timestamp"), ("writer",), "A writer notes a time.", _note),
    "window": HistoryOperation(("stream", "lower"), (), "A reader gets a time window of a stream.", _window),
}
"""The operations by name."""


def read_history(lines: Iterable[bytes | str], file: str = "") -> Iterator[Fact]:
    """Yields the facts of a history, in the order in which its operations end. Raises HistoryError."""
    running: dict[str, tuple[Line, Place]] = {}
    at, clock = 0, 0
    for number, text in enumerate(lines, 1):
        start, at = at, at + len(text)
        if not text.strip():
            continue
        try:
            line = _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HistoryError(f"line {number}: {error}") from error
        clock = max(clock + 1, line.time or 0)
        process = str(line.process)
        place = Place(file, start, number, 0, clock)
        if line.type == "invoke":
            running[process] = line, place
            continue
        if process not in running or running[process][0].f != line.f:
            raise HistoryError(f"line {number}: process {process} ends {line.f!r}, and has not begun it")
        begun, invoked = running.pop(process)
        yield from _facts(
            number, Ended(process, begun.value | line.value, _OUTCOMES[line.type], invoked, place), line.f
        )
    for process, (begun, invoked) in running.items():
        yield from _facts(
            number, Ended(process, begun.value, "unknown", invoked, invoked._replace(time_ns=clock + 1)), begun.f
        )


def _facts(number: int, ended: Ended, name: str) -> Iterator[Fact]:
    operation = OPERATIONS.get(name)
    if operation is None:
        raise HistoryError(f"line {number}: there is no operation {name!r}; there are {', '.join(OPERATIONS)}")
    known = {*operation.required, *operation.optional}
    for field in operation.required:
        if field not in ended.value:
            raise HistoryError(f"line {number}: value: {name} needs {field!r}")
    for field in ended.value:
        if field not in known:
            raise HistoryError(f"line {number}: value: {name} has no {field!r}; it has {', '.join(sorted(known))}")
    try:
        yield from operation.facts(ended)
    except (TypeError, ValueError, AttributeError) as error:
        raise HistoryError(f"line {number}: value: {error}") from error
