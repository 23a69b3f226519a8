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
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final, Literal, NamedTuple

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
    """An operation from its beginning to its end. value: an instance of a class of `OPERATIONS`."""

    process: str
    value: Any
    outcome: str
    invoked: Place
    place: Place


class _Operation(msgspec.Struct, forbid_unknown_fields=True):
    """The value of an operation. The docstring of each class is its line in the reference."""

    def facts(self, ended: Ended) -> Iterator[Fact]:
        """Yields the facts of the operation."""
        raise NotImplementedError


class Send(_Operation):
    """Writes an event. offset: where it is stored. transaction: it belongs to it. key: the routing key in `stream`."""

    segment: str
    event: Any
    offset: int | None = None
    writer: str | int | None = None
    transaction: str = ""
    stream: str = ""
    key: str | None = None

    def facts(self, ended: Ended) -> Iterator[Fact]:
        who, event = _name(self.writer, ended), _identity(self.event)
        logged = LoggedEvent("sent", event, who, self.offset, ended.outcome, self.transaction, ended.invoked)
        yield Fact(Key("log", self.segment), ended.place, logged)
        if self.key is not None and ended.outcome == "ok":
            keyed = KeyedEvent("sent", self.key, event, who, ended.invoked)
            yield Fact(Key("stream", self.stream), ended.place, keyed)


class Poll(_Operation):
    """Reads events: a list of `[offset, event]`, or of events. group: the reader's. moved: the reader was moved to the
    first event.
    """

    segment: str
    events: list[Any] = []
    reader: str | int | None = None
    group: str | None = None
    moved: bool = False
    stream: str = ""
    key: str | None = None

    def facts(self, ended: Ended) -> Iterator[Fact]:
        who, is_moved = _name(self.reader, ended), self.moved
        for read in self.events:
            pair = read if isinstance(read, list) and len(read) == 2 and type(read[0]) is int else (None, read)
            offset, event = pair[0], _identity(pair[1])
            logged = LoggedEvent("read", event, who, offset, "moved" if is_moved else "ok", "", ended.invoked)
            is_moved = False
            yield Fact(Key("log", self.segment), ended.place, logged)
            if self.group is not None:
                yield Fact(Key("group", self.group), ended.place, Delivery(who, self.segment, offset, event))
            if self.key is not None:
                keyed = KeyedEvent("read", self.key, event, who, ended.invoked)
                yield Fact(Key("stream", self.stream), ended.place, keyed)


class Commit(_Operation):
    """Commits a transaction."""

    transaction: str
    segments: list[str]
    what: ClassVar[str] = "committed"

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome != "failed":
            what = self.what if ended.outcome == "ok" else "unknown"
            step = Transaction(self.transaction, "", what, ended.invoked)
            for key in (Key("transaction", self.transaction), *(Key("log", segment) for segment in self.segments)):
                yield Fact(key, ended.place, step)


class Abort(Commit):
    """Aborts a transaction."""

    what: ClassVar[str] = "aborted"


class _OfTable(_Operation):
    table: str
    key: str
    value: Any = None
    expected: int | None = None
    version: int | None = None
    what: ClassVar[str] = ""

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome != "ok" and (self.what == "read" or (ended.outcome == "failed" and self.expected is None)):
            return  # without effect and result
        outcome = "refused" if ended.outcome == "failed" else ended.outcome
        value = None if self.value is None else _identity(self.value)
        operation = Operation(self.what, value, self.expected, self.version, outcome, ended.invoked)
        yield Fact(Key("register", f"{self.table} {self.key}"), ended.place, operation)


class Put(_OfTable):
    """Writes an entry of a table. expected: only if the entry has this version; -1: only if the entry is new.
    version: the new one.
    """

    what: ClassVar[str] = "put"


class Remove(_OfTable):
    """Removes an entry of a table. expected: only if the entry has this version."""

    what: ClassVar[str] = "remove"


class Get(_OfTable):
    """Reads an entry of a table; without a value, the entry does not exist."""

    what: ClassVar[str] = "read"


class Acquire(_Operation):
    """A reader takes a segment."""

    group: str
    segment: str = ""
    reader: str | int | None = None
    what: ClassVar[str] = "acquired"

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            step = Assignment(self.what, _name(self.reader, ended), self.segment)
            yield Fact(Key("group", self.group), ended.place, step)


class Release(Acquire):
    """A reader gives a segment up."""

    what: ClassVar[str] = "released"


class Leave(Acquire):
    """A reader ends or is removed."""

    what: ClassVar[str] = "gone"


class Complete(_Operation):
    """A checkpoint is complete. positions: segment → offset."""

    group: str
    name: str
    positions: dict[str, int]

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            yield Fact(Key("group", self.group), ended.place, Checkpoint(self.name, tuple(self.positions.items())))


class NoteTime(_Operation):
    """A writer notes a time."""

    stream: str
    timestamp: int
    writer: str | int | None = None

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            yield Fact(Key("stream", self.stream), ended.place, Noted(_name(self.writer, ended), self.timestamp))


class TimeWindow(_Operation):
    """A reader gets a time window of a stream."""

    stream: str
    lower: int

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            yield Fact(Key("stream", self.stream), ended.place, Window(self.lower))


OPERATIONS: Final[dict[str, type[_Operation]]] = {
    "send": Send,
    "poll": Poll,
    "commit": Commit,
    "abort": Abort,
    "put": Put,
    "remove": Remove,
    "get": Get,
    "acquire": Acquire,
    "release": Release,
    "leave": Leave,
    "checkpoint": Complete,
    "note-time": NoteTime,
    "window": TimeWindow,
}
"""The operations by name; the fields of each class are the fields of its value."""


_DECODE: Final = {name: msgspec.json.Decoder(operation).decode for name, operation in OPERATIONS.items()}
_encode: Final = msgspec.json.Encoder().encode


def _name(name: str | int | None, ended: Ended) -> str:
    return ended.process if name is None else str(name)


def _identity(event: Any) -> Any:
    return event if isinstance(event, str | int) else json.dumps(event, sort_keys=True)


def read_history(lines: Iterable[bytes | str], file: str = "") -> Iterator[Fact]:
    """Yields the facts of a history, in the order in which its operations end. Raises HistoryError."""
    running: dict[str, tuple[Line, Place]] = {}
    at, clock, where = 0, 0, f"{file}: line 0"
    for number, text in enumerate(lines, 1):
        start, at, where = at, at + len(text), f"{file}: line {number}".removeprefix(": ")
        if not text.strip():
            continue
        try:
            line = _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HistoryError(f"{where}: {error}") from error
        clock = max(clock + 1, line.time or 0)
        process, place = str(line.process), Place(file, start, number, 0, clock)
        if line.type == "invoke":
            if process in running:
                raise HistoryError(f"{where}: process {process} begins {line.f!r}, and has not ended another operation")
            running[process] = line, place
            continue
        if process not in running or running[process][0].f != line.f:
            raise HistoryError(f"{where}: process {process} ends {line.f!r}, and has not begun it")
        begun, invoked = running.pop(process)
        yield from _facts(where, begun, line.value, Ended(process, None, _OUTCOMES[line.type], invoked, place))
    for process, (begun, invoked) in running.items():
        place = invoked._replace(time_ns=clock + 1)
        yield from _facts(where, begun, {}, Ended(process, None, "unknown", invoked, place))


def _facts(where: str, begun: Line, more: dict[str, Any], ended: Ended) -> Iterator[Fact]:
    decode = _DECODE.get(begun.f)
    if decode is None:
        raise HistoryError(f"{where}: there is no operation {begun.f!r}; there are {', '.join(OPERATIONS)}")
    try:
        value = decode(_encode(begun.value | more))
    except msgspec.ValidationError as error:
        raise HistoryError(f"{where}: value of {begun.f}: {error}") from error
    yield from value.facts(ended._replace(value=value))
