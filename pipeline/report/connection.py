"""Follows one life of a connection, record by record: pairs requests with replies and acks, and checks the protocol.

This is the analysis; `segstore.pipeline.report.reference` runs it over whole traces in one process, and
`segstore.pipeline.report.analysis` on Spark, connection by connection. Questions about several connections are left to
the caller: whether a later set-up of a writer covers an append without an ack (`uncovered`, `set_ups`). So are the
bytes at the end of append blocks, if the rows have no frames (`tails`).

Invariant: an exchange is added as soon as no later record can change it; if an ack finishes it while its request is on
disk, at the end. Memory grows with the writers and flows of the connection, and with the set-ups that follow unfinished
appends on their flow; `segstore.pipeline.report.pending` bounds the memory of requests. No Spark, no Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from segstore.pipeline.report.analysis_rules import APPENDING, APPENDS, KEYS, REPLIES, VIOLATION_COLUMNS, WRITING, Rule
from segstore.pipeline.report.exchange import Request, Row
from segstore.pipeline.report.pending import UnfinishedRequests
from segstore.wire.protocol import ANSWERS

ROWS_AT_ONCE: Final = 10_000
_DATA_AT: Final = 24
"""Offset of an AppendBlock's data in its frame: after header and writer id."""
_REPLIES: Final = frozenset(REPLIES)
_ASKING: Final = frozenset(ANSWERS) | {"APPEND_BLOCK"}
_ONE_WAY: Final = {**dict.fromkeys(_ASKING - KEYS.keys(), "request"), **dict.fromkeys(_REPLIES - KEYS.keys(), "reply")}
"""Command → its direction, for commands that go one way."""
_WRITING: Final = {(name, "reply" if name in ("APPEND_SETUP", "DATA_APPENDED") else "request") for name in WRITING}
"""Commands that carry a writer's events or acknowledgements."""


class SetUp(NamedTuple):
    """The highest event number that the store reported of a writer after a set-up at (block, record)."""

    file: str
    block: int
    record: int
    writer_id: str
    segment: str
    known: int


TAIL_COLUMNS: Final = (
    *VIOLATION_COLUMNS[1:-2], "opened_block", "opened_record", "block_bytes", "whole_bytes", "own_bytes",
)  # fmt: skip
"""An append block's end: the columns of its violation, where the block was opened, and three sizes."""


@dataclass(slots=True)
class Found:
    """The findings, as rows. The caller may remove rows between records.

    exchanges: final. uncovered: exchanges of appends without an ack whose writer was set up. tails: ends of append
    blocks that have bytes after their whole events, which were not among the rows.
    """

    exchanges: list[tuple[Any, ...]] = field(default_factory=list)
    uncovered: list[tuple[Any, ...]] = field(default_factory=list)
    set_ups: list[SetUp] = field(default_factory=list)
    violations: list[tuple[Any, ...]] = field(default_factory=list)
    tails: list[tuple[Any, ...]] = field(default_factory=list)


@dataclass(slots=True)
class _Epoch:
    """A writer since it was set up; without a set-up in the trace, `since` and `segment` are None."""

    number: int
    segment: str | None
    since: Row | None
    highest: int | None = None
    ack: int | None = None
    known: int | None = None


@dataclass(slots=True)
class _Tenure:
    """A flow since a writer was set up on it. done: place of the latest answer to its appends."""

    number: int
    writer_id: str
    waits: int = 0
    done: tuple[int, int] = (-1, -1)
    next: Row | None = None


class Life:
    """One life of a connection. life: its number, from 1. found: where results are added."""

    def __init__(self, life: int, found: Found) -> None:
        self.life = life
        self._found = found
        self._opened = False
        self._closed: str | None = None  # the direction of the first close
        self._directions: set[str] = set()
        self._last: Row | None = None
        self._pending = UnfinishedRequests()
        self._count = 0
        self._epochs: dict[str, _Epoch] = {}
        self._flows: dict[int, _Tenure] = {}
        self._tenures: dict[int, _Tenure] = {}

    def continues(self, row: Row) -> bool:
        """Whether a record of the connection belongs to this life; a second opening begins the next life."""
        return row.kind != "open" or not self._opened

    def see(self, row: Row) -> None:
        """Takes the next record."""
        if row.kind == "open":
            self._opened = True
        elif row.kind == "close":
            self._closed = self._closed or row.direction
        else:
            self._sent(row)

    def end(self) -> Iterator[None]:
        """Adds the remaining exchanges, after the last record; pauses every `ROWS_AT_ONCE` exchanges."""
        for number, request in enumerate(self._pending.rest(), 1):
            self._finish(request)
            if number % ROWS_AT_ONCE == 0:
                yield
        for tenure in self._tenures.values():
            self._check_reuse(tenure)
        for writer_id, epoch in self._epochs.items():
            self._report(writer_id, epoch)
        yield

    def _broken(self, rule: Rule, row: Row, expected: int | None = None, actual: int | None = None) -> None:
        self._found.violations.append((rule.name, *self._where(row), expected, actual))

    def _where(self, row: Row) -> tuple[Any, ...]:
        segment = row.segment
        if segment is None and row.error is None and (row.command, row.direction) in _WRITING:
            epoch = self._epochs.get(row.writer_id)
            segment = None if epoch is None else epoch.segment
        return (
            row.file, row.connection, self.life, row.block, row.record, row.ts_ns, row.direction, row.command, segment,
            row.writer_id, row.request_id,
        )  # fmt: skip

    def _sent(self, row: Row) -> None:
        if self._closed:
            self._broken(Rule.AFTER_CLOSE, row)
        if row.kind == "bytes":
            self._broken(Rule.FRAMES_ONLY, row)
            return
        command, direction = row.command, row.direction
        if direction not in self._directions:
            self._directions.add(direction)
            if self._opened and command is not None and command != "HELLO":
                self._broken(Rule.HELLO_FIRST, row)
        if command == "UNKNOWN":
            self._broken(Rule.KNOWN_COMMAND, row, None, row.code)
        if _ONE_WAY.get(command, direction) != direction:
            self._broken(Rule.DIRECTION, row)
        if row.error is not None:
            self._broken(Rule.DECODES, row)
        elif direction == "request":
            self._request(row)
        elif command in _REPLIES:
            self._reply(row)

    # --- requests -------------------------------------------------------------------------------------------------

    def _request(self, row: Row) -> None:
        command, opened = row.command, None
        if command in APPENDING:
            if self._last is not None and self._last.command == "APPEND_BLOCK":
                opened = self._last
                if command != "APPEND_BLOCK_END":
                    self._broken(Rule.BLOCK_OPEN, row)
            self._last = row
        if command == "SETUP_APPEND":
            self._set_up(row)
        elif self._opened and (command == "APPEND_BLOCK" or command in APPENDS):
            epoch = self._epochs.get(row.writer_id)
            if epoch is None or epoch.since is None:
                self._broken(Rule.WRITER_UNKNOWN, row)
        if command not in ANSWERS:
            return
        self._count += 1
        request = Request(row, self._count)
        append = command in APPENDS
        if append:
            self._append(request, opened)
        if self._pending.add(request, append=append) and not append and command not in KEYS:
            self._broken(Rule.REQUEST_ID_REUSE, row)

    def _set_up(self, row: Row) -> None:
        before = self._epochs.get(row.writer_id)
        if before is not None:
            self._report(row.writer_id, before)
            self._pending.close(before.number)
        self._count += 1
        self._epochs[row.writer_id] = _Epoch(self._count, row.segment, row)
        if row.flow > 0:
            held = self._flows.get(row.flow)
            self._flows[row.flow] = self._tenures[self._count] = _Tenure(self._count, row.writer_id)
            if held is not None:
                held.next = row
                if not held.waits:
                    self._check_reuse(self._tenures.pop(held.number))

    def _report(self, writer_id: str, epoch: _Epoch) -> None:
        known = _highest(epoch.known, epoch.ack)
        if epoch.since is not None and epoch.segment is not None and known is not None:
            since = epoch.since
            self._found.set_ups.append(SetUp(since.file, *since.place, writer_id, epoch.segment, known))

    def _append(self, request: Request, opened: Row | None) -> None:
        row = request.row
        epoch = self._epoch(row.writer_id)
        request.epoch, request.writer_segment = epoch.number, epoch.segment
        if row.command == "APPEND_BLOCK_END":
            if opened is not None:
                request.block_bytes = opened.data_bytes
                self._block(row, opened, set_up=epoch.since is not None)
            if row.num_events <= 0:
                self._broken(Rule.NO_EVENTS, row, 1, row.num_events)
        tenure = self._flows.get(row.flow) if row.flow is not None else None
        if tenure is not None:
            request.tenure = tenure.number
            tenure.waits += 1
        floor = 0 if epoch.highest is None or epoch.highest < 0 else epoch.highest
        if epoch.since is not None and row.event_number < floor:
            self._broken(Rule.NUMBER_BACKWARDS, row, floor, row.event_number)
        if epoch.highest is None or row.event_number > epoch.highest:
            epoch.highest = row.event_number
        request.repeated = epoch.ack is not None and row.event_number <= epoch.ack

    def _epoch(self, writer_id: str) -> _Epoch:
        """Returns the writer's epoch, which begins here if its set-up is not in the trace."""
        epoch = self._epochs.get(writer_id)
        if epoch is None:
            self._count += 1
            epoch = self._epochs[writer_id] = _Epoch(self._count, None, None)
        return epoch

    def _block(self, row: Row, opened: Row, *, set_up: bool) -> None:
        if opened.writer_id != row.writer_id:
            self._broken(Rule.WRITER_MISMATCH, row)
            return
        size, whole = opened.data_bytes, row.size_of_whole_events
        if not 0 <= whole <= size:
            self._broken(Rule.WHOLE_SIZE, row, size, whole)
        elif whole < size and set_up and opened.frame is None:
            self._found.tails.append((*self._where(row), *opened.place, size, whole, row.data_bytes))
        elif whole < size and set_up:
            head = opened.frame[_DATA_AT + whole : _DATA_AT + whole + 8]
            if (broken := tail_broken(head, size - whole, row.data_bytes)) is not None:
                rule, expected, actual = broken
                self._broken(rule, row, expected, actual)

    # --- replies --------------------------------------------------------------------------------------------------

    def _reply(self, row: Row) -> None:
        request = self._pending.answer(row)
        if request is None:
            self._broken(Rule.REPLY_WITHOUT_REQUEST, row)
            self._found.exchanges.append(Request(row, orphan=True).exchange(self.life, closed=None))
        elif not row.failure and row.command not in ANSWERS[request.row.command]:
            self._broken(Rule.REPLY_KIND, row)
        if row.refuses:
            self._pending.fail(row)
        if row.command == "DATA_APPENDED":
            self._acknowledge(row, self._epoch(row.writer_id))
        elif row.command == "APPEND_SETUP":
            epoch = self._epochs.get(row.writer_id)
            if epoch is not None and (epoch.known is None or row.event_number > epoch.known):
                epoch.known = row.event_number
        if request is not None and request.finished:
            self._done(request)

    def _acknowledge(self, row: Row, epoch: _Epoch) -> None:
        number = row.event_number
        if epoch.ack is not None and number < epoch.ack:
            self._broken(Rule.ACK_BACKWARDS, row, epoch.ack, number)
        highest = _highest(epoch.highest, epoch.known)
        if epoch.since is not None and (highest is None or number > highest):
            self._broken(Rule.ACK_BEYOND, row, highest, number)
        if epoch.ack is None or number > epoch.ack:
            epoch.ack = number
            for request in self._pending.acknowledge(epoch.number, row):
                if request.finished:
                    self._done(request)

    def _done(self, request: Request) -> None:
        if self._pending.finish(request):
            self._finish(request)

    def _finish(self, request: Request) -> None:
        append = request.row.command in APPENDS
        by = (request.refusal or request.ack) if append else None
        waits = append and by is None and not request.repeated
        uncovered = waits and request.writer_segment is not None
        rows = self._found.uncovered if uncovered else self._found.exchanges
        rows.append(request.exchange(self.life, closed=self._closed))
        if request.tenure:
            tenure = self._tenures[request.tenure]
            tenure.waits -= not waits
            if by is not None and by.place > tenure.done:
                tenure.done = by.place

    def _check_reuse(self, tenure: _Tenure) -> None:
        """Checks the set-up that followed on the flow."""
        row = tenure.next
        if row is not None and row.writer_id != tenure.writer_id and (tenure.waits or tenure.done > row.place):
            self._broken(Rule.FLOW_REUSE, row, None, row.flow)


def _highest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def tail_broken(head: bytes, size: int, own_bytes: int) -> tuple[Rule, int | None, int | None] | None:
    """Returns the rule that the bytes after an append block's whole events break, with expected and actual number.

    head: the first eight of these `size` bytes. own_bytes: of the block's end.
    """
    kind = int.from_bytes(head[:4], "big", signed=True)
    if len(head) < 8 or kind not in (-1, -2) or int.from_bytes(head[4:], "big") > size - 8:
        return Rule.BLOCK_TAIL, None, None
    return (Rule.PADDED_DATA, 0, own_bytes) if kind == -1 and own_bytes else None
