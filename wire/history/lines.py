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
from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from segstore.wire.errors import WireError
from segstore.wire.history.facts import Fact, Key, LoggedEvent, Operation, Place, Transaction

_OUTCOMES: Final = {"ok": "ok", "fail": "failed", "info": "unknown"}


class HistoryError(WireError):
    """A line of a history is wrong. The text names the line, from 1, and the field."""


class Line(msgspec.Struct):
    """A line as it is written; further fields are ignored."""

    type: Literal["invoke", "ok", "fail", "info"]
    process: int | str
    f: str
    value: dict[str, Any] | None = None
    time: int | None = None


_decode: Final = msgspec.json.Decoder(Line).decode


class Ended(NamedTuple):
    """The beginning and the end of an operation.

    who: the reader or writer, by default the process. outcome: ok, failed or unknown. is_restarted: of a poll, whether
    the reader may have another position than its last poll left.
    """

    who: str
    outcome: str
    invoked: Place
    place: Place
    is_restarted: bool = False


class _Operation(msgspec.Struct, forbid_unknown_fields=True):
    """The value of an operation. The docstring of each class is its line in the reference."""

    def facts(self, ended: Ended) -> Iterator[Fact]:
        """Yields the facts of the operation."""
        raise NotImplementedError


class Send(_Operation):
    """Writes an event. offset: where it is stored; not judged of an event in a transaction. transaction: it belongs to
    it. key: the routing key in `stream`.
    """

    segment: str
    event: Any
    offset: int | None = None
    writer: str | int | None = None
    transaction: str = ""
    stream: str = ""
    key: str | None = None

    def facts(self, ended: Ended) -> Iterator[Fact]:
        facts = self.offset, ended.outcome, self.transaction, ended.invoked, self.segment, self.key
        sent = LoggedEvent("sent", _identity(self.event), ended.who, *facts)
        yield Fact(Key("log", self.segment), ended.place, sent)
        if self.key is not None and ended.outcome != "failed" and not self.transaction:
            yield Fact(Key("stream", self.stream), ended.place, sent)


class Poll(_Operation):
    """Reads events: a list of events, and their `offsets` if they are known. Without `offsets`, `[offset, event]` is
    an event with its offset if the event is no list and no object. group: the reader's. moved: the reader was moved to
    the first event.
    """

    segment: str
    events: list[Any] = []
    offsets: list[int | None] | None = None
    reader: str | int | None = None
    group: str | None = None
    moved: bool = False
    stream: str = ""
    key: str | None = None

    def __post_init__(self) -> None:
        if self.offsets is not None and len(self.offsets) != len(self.events):
            raise ValueError(f"{len(self.offsets)} offsets of {len(self.events)} events")

    def facts(self, ended: Ended) -> Iterator[Fact]:
        is_moved = self.moved
        who = ended.who if self.group is None else f"{self.group}/{ended.who}"
        is_first = is_moved or ended.is_restarted
        pairs = map(_placed, self.events) if self.offsets is None else zip(self.offsets, self.events, strict=True)
        for offset, event in pairs:
            facts = offset, "moved" if is_first else "ok", "", ended.invoked, self.segment, self.key
            read = LoggedEvent("read", _identity(event), who, *facts)
            yield Fact(Key("log", self.segment), ended.place, read)
            if self.group is not None:
                delivery = read._replace(who=ended.who, outcome="moved" if is_moved else "ok")
                yield Fact(Key("group", self.group), ended.place, delivery)
            if self.key is not None:
                yield Fact(Key("stream", self.stream), ended.place, read)
            is_moved = is_first = False


class Commit(_Operation):
    """Commits a transaction."""

    transaction: str
    segments: list[str]
    what: ClassVar[str] = "committed"

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome != "failed":
            what = self.what if ended.outcome == "ok" else "unknown"
            step = Transaction(self.transaction, what, ended.invoked)
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
    refused: bool = False
    what: ClassVar[str] = ""

    def facts(self, ended: Ended) -> Iterator[Fact]:
        is_refused = self.refused and self.expected is not None
        if ended.outcome != "ok" and (self.what == "read" or (ended.outcome == "failed" and not is_refused)):
            return  # without effect and result
        outcome = "refused" if ended.outcome == "failed" else ended.outcome
        value = None if self.value is None else _identity(self.value)
        operation = Operation(self.what, outcome, ended.invoked, value, self.expected, self.version)
        yield Fact(Key("register", f"{self.table} {self.key}"), ended.place, operation)


class Put(_OfTable):
    """Writes an entry of a table. expected: only if the entry has this version; -1: only if the entry is new.
    version: the new one. refused: it failed because the entry has another version.
    """

    what: ClassVar[str] = "put"


class Remove(_OfTable):
    """Removes an entry of a table. expected: only if the entry has this version. refused: as in `put`."""

    what: ClassVar[str] = "remove"


class Get(_OfTable):
    """Reads an entry of a table; without a value, the entry does not exist."""

    what: ClassVar[str] = "read"


class Acquire(_Operation):
    """A reader takes a segment."""

    group: str
    segment: str = ""
    reader: str | int | None = None

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            yield Fact(Key("group", self.group), ended.place, ReportedOperation(self, ended))


class Release(Acquire):
    """A reader gives a segment up: it may have done so when the operation begins. Without a segment: all."""

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome != "failed":
            yield Fact(Key("group", self.group), ended.invoked, ReportedOperation(self, ended))


class Leave(Release):
    """A reader ends or is removed."""


class Complete(_Operation):
    """A checkpoint is complete. positions: segment → offset."""

    group: str
    name: str
    positions: dict[str, int]

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            yield Fact(Key("group", self.group), ended.place, ReportedOperation(self, ended))


class NoteTime(_Operation):
    """A writer notes a time; without a timestamp, the writer ends."""

    stream: str
    timestamp: int | None = None
    writer: str | int | None = None

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome != "failed":
            yield Fact(Key("stream", self.stream), ended.place, ReportedOperation(self, ended))


class TimeWindow(_Operation):
    """A reader gets a time window of a stream."""

    stream: str
    lower: int

    def facts(self, ended: Ended) -> Iterator[Fact]:
        if ended.outcome == "ok":
            yield Fact(Key("stream", self.stream), ended.place, ReportedOperation(self, ended))


class ReportedOperation(NamedTuple):
    """The value of a fact: an operation as the history has it, and how it ended."""

    operation: Any
    ended: Ended


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


def _who(value: _Operation, process: str) -> str:
    name = getattr(value, "reader", getattr(value, "writer", None))
    return process if name is None else str(name)


def _identity(event: Any) -> Any:
    return event if isinstance(event, str | int) else json.dumps(event, sort_keys=True)


def _placed(read: Any) -> tuple[int | None, Any]:
    """Returns the offset and the event of an element of `events`."""
    is_pair = (
        isinstance(read, list) and len(read) == 2 and type(read[0]) is int and not isinstance(read[1], list | dict)
    )
    return (read[0], read[1]) if is_pair else (None, read)


class _Sequence:
    """Completes the facts of a poll by earlier operations: of its reader, and sends of its events."""

    def __init__(self) -> None:
        self._polls: dict[tuple[str, str, str], float] = {}
        """Group, reader and segment → the time of its last poll; infinite if its position may be another since."""
        self._moved: set[tuple[str, ...]] = set()
        """Groups, or readers without a group, with segments: moved, and without an event since."""
        self._sends: Counter[tuple[str, Any]] = Counter()
        """Segment and event → its sends that may have been stored."""

    def begins(self, line: Line) -> None:
        if line.f == "send" and line.type == "invoke":
            self._sends[_send_of(line.value or {})] += 1

    def ends(self, value: _Operation, begun: dict[str, Any], ended: Ended) -> Iterator[Fact]:
        if isinstance(value, Send):
            self._sends[_send_of(begun)] -= 1
            self._sends[value.segment, _identity(value.event)] += ended.outcome != "failed"
        elif isinstance(value, Poll):
            reader = value.group or "", ended.who, value.segment
            last = self._polls.get(reader, 0)
            ended = ended._replace(is_restarted=ended.invoked.time_ns < last)
            is_undecided = ended.outcome == "unknown" or ended.invoked.time_ns < last < inf  # or two at the same time
            self._polls[reader] = inf if is_undecided else ended.place.time_ns
            moved = (value.group, value.segment) if value.group is not None else reader
            value.moved = value.moved or moved in self._moved
            if value.moved and not value.events:
                self._moved.add(moved)
            else:
                self._moved.discard(moved)
        for fact in value.facts(ended):
            step = fact.value
            if isinstance(value, Acquire):
                for group, who, segment in self._polls:
                    if group in ("", value.group) and who == ended.who and value.segment in ("", segment):
                        self._polls[group, who, segment] = inf
            elif fact.key.kind == "group" and isinstance(step, LoggedEvent) and not self._is_known(step):
                fact = fact._replace(value=step._replace(event=None))
            yield fact

    def _is_known(self, read: LoggedEvent) -> bool:
        """Whether a read tells its event: equal events without offsets are the same event only if it was sent once."""
        return read.offset is not None or self._sends[read.segment, read.event] == 1


def _send_of(value: dict[str, Any]) -> tuple[str, Any]:
    return str(value.get("segment")), _identity(value.get("event"))


def read_history(lines: Iterable[bytes | str], file: str = "", skipped: list[str] | None = None) -> Iterator[Fact]:
    """Yields the facts of a history, in the order in which its operations end. Raises HistoryError.

    skipped: gets a sentence if the last line is incomplete, which else is refused.
    """
    running: dict[str, tuple[Line, Place]] = {}
    sequence = _Sequence()
    at, clock, where = 0, 0, f"{file}: line 0"
    for number, text in enumerate(lines, 1):
        start, at, where = at, at + len(text), f"{file}: line {number}".removeprefix(": ")
        if not text.strip():
            continue
        try:
            line = _decode(text)
            sequence.begins(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if skipped is not None and number > 1 and text[-1:] not in ("\n", b"\n"):
                skipped.append(f"{where}: it is incomplete")
                continue
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
        ended = Ended(process, _OUTCOMES[line.type], invoked, place)
        yield from _facts(where, begun, line.value or {}, ended, sequence)
    for process, (begun, invoked) in running.items():
        place = invoked._replace(time_ns=clock + 1)
        yield from _facts(where, begun, {}, Ended(process, "unknown", invoked, place), sequence)


def _facts(where: str, begun: Line, more: dict[str, Any], ended: Ended, sequence: _Sequence) -> Iterator[Fact]:
    decode = _DECODE.get(begun.f)
    if decode is None:
        raise HistoryError(f"{where}: there is no operation {begun.f!r}; there are {', '.join(OPERATIONS)}")
    first = begun.value or {}
    try:
        value = decode(_encode(first | more))
        facts = list(sequence.ends(value, first, ended._replace(who=_who(value, ended.who))))
    except (msgspec.ValidationError, RecursionError) as error:
        raise HistoryError(f"{where}: value of {begun.f}: {error}") from error
    yield from facts
