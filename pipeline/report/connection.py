"""Follows one life of a connection, record by record: pairs requests with replies and acks.

This is the analysis; `segstore.pipeline.report.reference` runs it over whole traces in one process, and
`segstore.pipeline.report.analysis` on Spark, connection by connection. Questions about several connections are left to
the caller: whether a later set-up of a writer covers an append without an ack (`uncovered`, `set_ups`).

Invariant: an exchange is added as soon as no later record can change it; if an ack finishes it while its request is on
disk, at the end. Memory grows with the writers of the connection; `segstore.pipeline.report.pending` bounds the memory
of requests. No Spark, no Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from segstore.pipeline.report.analysis_rules import APPENDING, APPENDS, REPLIES
from segstore.pipeline.report.exchange import Request, Row
from segstore.pipeline.report.pending import UnfinishedRequests
from segstore.wire.protocol import ANSWERS

ROWS_AT_ONCE: Final = 10_000
_REPLIES: Final = frozenset(REPLIES)


class SetUp(NamedTuple):
    """The highest event number that the store reported of a writer after a set-up at (block, record)."""

    file: str
    block: int
    record: int
    writer_id: str
    segment: str
    known: int


@dataclass(slots=True)
class Found:
    """The findings, as rows. The caller may remove rows between records.

    exchanges: final. uncovered: exchanges of appends without an ack whose writer was set up.
    """

    exchanges: list[tuple[Any, ...]] = field(default_factory=list)
    uncovered: list[tuple[Any, ...]] = field(default_factory=list)
    set_ups: list[SetUp] = field(default_factory=list)


@dataclass(slots=True)
class _Epoch:
    """A writer since it was set up; without a set-up in the trace, `since` and `segment` are None."""

    number: int
    segment: str | None
    since: Row | None
    ack: int | None = None
    known: int | None = None


class Life:
    """One life of a connection. life: its number, from 1. found: where results are added."""

    def __init__(self, life: int, found: Found) -> None:
        self.life = life
        self._found = found
        self._opened = False
        self._closed: str | None = None  # the direction of the first close
        self._last: Row | None = None
        self._pending = UnfinishedRequests()
        self._count = 0
        self._epochs: dict[str, _Epoch] = {}

    def continues(self, row: Row) -> bool:
        """Whether a record of the connection belongs to this life; a second opening begins the next life."""
        return row.kind != "open" or not self._opened

    def see(self, row: Row) -> None:
        """Takes the next record."""
        if row.kind == "open":
            self._opened = True
        elif row.kind == "close":
            self._closed = self._closed or row.direction
        elif row.kind == "frame" and row.error is None:
            if row.direction == "request":
                self._request(row)
            elif row.command in _REPLIES:
                self._reply(row)

    def end(self) -> Iterator[None]:
        """Adds the remaining exchanges, after the last record; pauses every `ROWS_AT_ONCE` exchanges."""
        for number, request in enumerate(self._pending.rest(), 1):
            self._finish(request)
            if number % ROWS_AT_ONCE == 0:
                yield
        for writer_id, epoch in self._epochs.items():
            self._report(writer_id, epoch)
        yield

    # --- requests -------------------------------------------------------------------------------------------------

    def _request(self, row: Row) -> None:
        command, opened = row.command, None
        if command in APPENDING:
            if self._last is not None and self._last.command == "APPEND_BLOCK":
                opened = self._last
            self._last = row
        if command == "SETUP_APPEND":
            self._set_up(row)
        if command not in ANSWERS:
            return
        self._count += 1
        request = Request(row, self._count)
        append = command in APPENDS
        if append:
            self._append(request, opened)
        self._pending.add(request, append=append)

    def _set_up(self, row: Row) -> None:
        before = self._epochs.get(row.writer_id)
        if before is not None:
            self._report(row.writer_id, before)
            self._pending.close(before.number)
        self._count += 1
        self._epochs[row.writer_id] = _Epoch(self._count, row.segment, row)

    def _report(self, writer_id: str, epoch: _Epoch) -> None:
        known = max((number for number in (epoch.known, epoch.ack) if number is not None), default=None)
        if epoch.since is not None and epoch.segment is not None and known is not None:
            since = epoch.since
            self._found.set_ups.append(SetUp(since.file, *since.place, writer_id, epoch.segment, known))

    def _append(self, request: Request, opened: Row | None) -> None:
        row = request.row
        epoch = self._epoch(row.writer_id)
        request.epoch, request.writer_segment = epoch.number, epoch.segment
        if row.command == "APPEND_BLOCK_END" and opened is not None:
            request.block_bytes = opened.data_bytes
        request.repeated = epoch.ack is not None and row.event_number <= epoch.ack

    def _epoch(self, writer_id: str) -> _Epoch:
        """Returns the writer's epoch, which begins here if its set-up is not in the trace."""
        epoch = self._epochs.get(writer_id)
        if epoch is None:
            self._count += 1
            epoch = self._epochs[writer_id] = _Epoch(self._count, None, None)
        return epoch

    # --- replies --------------------------------------------------------------------------------------------------

    def _reply(self, row: Row) -> None:
        request = self._pending.answer(row)
        if request is None:
            self._found.exchanges.append(Request(row, orphan=True).exchange(self.life, closed=None))
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
        waits = append and request.refusal is None and request.ack is None and not request.repeated
        uncovered = waits and request.writer_segment is not None
        rows = self._found.uncovered if uncovered else self._found.exchanges
        rows.append(request.exchange(self.life, closed=self._closed))
