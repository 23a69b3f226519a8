"""The reference analysis: one pass over the records in plain Python, against which Spark's is tested.

It uses real queues and writer objects, and shares nothing with the statements of
`segstore.pipeline.report.analysis_steps` except the definitions of `segstore.pipeline.report.analysis_rules`. Rows are
tuples in the order of `EXCHANGE_COLUMNS` and `VIOLATION_COLUMNS`.

Invariant: rows come from `segstore.pipeline.trace.rows`, and so from the codec. Memory grows with the number of
requests. No Spark, no NumPy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from segstore.pipeline.report.analysis_rules import (
    ANSWERS,
    APPENDING,
    APPENDS,
    FRAME_COLUMNS,
    KEYS,
    REPLIES,
    WRITING,
    Rule,
    Status,
)
from segstore.pipeline.trace.rows import trace_rows

REFERENCE_COLUMNS: Final = (*FRAME_COLUMNS, "frame")
"""The trace columns that the analysis reads; `frame` is for the bytes of append blocks."""
_INT64: Final = range(-(1 << 63), 1 << 63)
_DATA_AT: Final = 24
"""Offset of an AppendBlock's data in its frame: after header and writer id."""
_CHECK_FAILED: Final = "CONDITIONAL_CHECK_FAILED"


class Reference(NamedTuple):
    """The result. skipped: (file, offset, bytes, reason) of unreadable parts."""

    exchanges: list[tuple[Any, ...]]
    violations: list[tuple[Any, ...]]
    skipped: list[tuple[str, int, int, str]]
    frames: int


class _Row:
    """One row of a trace."""

    __slots__ = ("frame", "life", *FRAME_COLUMNS)

    def __init__(self, values: tuple[Any, ...]) -> None:
        for name, value in zip(REFERENCE_COLUMNS, values, strict=True):
            setattr(self, name, value)
        self.life = 1

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # tells type checkers that there are the names of `__slots__`

    @property
    def place(self) -> tuple[int, int]:
        return self.block, self.record


class _Asked:
    """A request, or a reply without one."""

    __slots__ = (
        "ack", "connection", "failure", "last", "orphan", "repeated", "reply", "row", "segment", "writer_segment",
    )  # fmt: skip

    def __init__(self, row: _Row, connection: _Connection, *, orphan: bool = False) -> None:
        self.row = row
        self.connection = connection
        self.orphan = orphan
        self.reply: _Row | None = None
        self.ack: _Row | None = None
        self.failure: _Row | None = None
        self.repeated = False
        self.writer_segment: str | None = None
        self.last: _Row | None = None

    @property
    def refusal(self) -> _Row | None:
        """The failure that refused an append, if any."""
        reply = self.reply
        if self.row.command != "APPEND_BLOCK_END" and reply is not None and _refuses(reply):
            return reply
        return self.failure if self.ack is None and not self.repeated else None

    @property
    def done(self) -> tuple[int, int] | None:
        """The place of the reply to an append; None if there is none."""
        by = self.refusal or self.ack
        return by.place if by is not None else (-1, -1) if self.repeated else None


def _refuses(reply: _Row) -> bool:
    return bool(reply.failure) or reply.command == _CHECK_FAILED


class _Epoch:
    """A writer since it was set up."""

    def __init__(self, segment: str | None, since: tuple[int, int] | None) -> None:
        self.segment = segment
        self.since = since
        self.number: int | None = None
        self.ack: int | None = None
        self.known: int | None = None
        self.unacked: list[_Asked] = []


class _Tenure:
    """A flow since a writer was set up on it."""

    def __init__(self, writer_id: str) -> None:
        self.writer_id = writer_id
        self.appends: list[_Asked] = []


class _Connection:
    def __init__(self) -> None:
        self.opened = self.closed = False
        self.directions: set[str] = set()
        self.last: _Row | None = None
        self.queues: dict[Any, deque[_Asked]] = {}
        self.may_fail: dict[Any, list[_Asked]] = {}
        self.epochs: dict[str, _Epoch] = {}
        self.flows: dict[int, _Tenure] = {}


def reference(paths: str | Iterable[str]) -> Reference:
    """Analyses traces. Raises FileNotFoundError."""
    return reference_of(trace_rows(paths, REFERENCE_COLUMNS))


def reference_of(rows: Iterable[tuple[Any, ...]]) -> Reference:
    """Analyses rows with the columns `REFERENCE_COLUMNS`, in file order."""
    out = Reference([], [], [], 0)
    frames = 0
    follower: _Follower | None = None
    for values in rows:
        row = _Row(values)
        if row.kind == "skipped":
            out.skipped.append((row.file, row.block, row.size, row.error))
            continue
        if follower is None or follower.file != row.file:
            if follower is not None:
                out.exchanges.extend(follower.exchanges())
            follower = _Follower(row.file, out.violations)
        follower.see(row)
        frames += row.kind == "frame"
    if follower is not None:
        out.exchanges.extend(follower.exchanges())
    return out._replace(frames=frames)


class _Follower:
    """Processes the records of one file."""

    def __init__(self, file: str, violations: list[tuple[Any, ...]]) -> None:
        self.file = file
        self._violations = violations
        self._lives: dict[int, int] = {}
        self._connections: dict[tuple[int, int], _Connection] = {}
        self._asked: list[_Asked] = []
        self._epochs: dict[tuple[str, str | None], list[_Epoch]] = {}
        self._taken: list[tuple[_Row, _Tenure]] = []

    def see(self, row: _Row) -> None:
        if row.kind == "open":
            self._lives[row.connection] = self._lives.get(row.connection, 0) + 1
        row.life = max(1, self._lives.get(row.connection, 1))
        here = self._connections.setdefault((row.connection, row.life), _Connection())
        if row.kind == "open":
            here.opened = True
        elif row.kind == "close":
            here.closed = True
        else:
            self._sent(here, row)

    def _broken(self, rule: Rule, row: _Row, expected: int | None = None, actual: int | None = None) -> None:
        epoch = self._epoch(row) if _writes(row) else None
        segment = row.segment if row.segment is not None else epoch.segment if epoch is not None else None
        self._violations.append(
            (rule.name, row.file, row.connection, row.life, row.block, row.record, row.ts_ns, row.direction,
             row.command, segment, row.writer_id, row.request_id, expected, actual)
        )  # fmt: skip

    def _epoch(self, row: _Row) -> _Epoch | None:
        return self._connections[row.connection, row.life].epochs.get(row.writer_id) if row.writer_id else None

    def _sent(self, here: _Connection, row: _Row) -> None:
        if here.closed:
            self._broken(Rule.AFTER_CLOSE, row)
        if row.kind == "bytes":
            self._broken(Rule.FRAMES_ONLY, row)
            return
        first = row.direction not in here.directions
        here.directions.add(row.direction)
        if first and here.opened and row.command is not None and row.command != "HELLO":
            self._broken(Rule.HELLO_FIRST, row)
        if row.command == "UNKNOWN":
            self._broken(Rule.KNOWN_COMMAND, row, None, row.code)
        asks = row.command in ANSWERS or row.command == "APPEND_BLOCK"
        answers = row.command in REPLIES
        if row.command not in KEYS and (asks if row.direction == "reply" else answers):
            self._broken(Rule.DIRECTION, row)
        if row.error is not None:
            self._broken(Rule.DECODES, row)
        elif row.direction == "request":
            self._request(here, row)
        elif answers:
            self._reply(here, row)

    # --- requests -------------------------------------------------------------------------------------------------

    def _request(self, here: _Connection, row: _Row) -> None:
        last = here.last
        if row.command in APPENDING:
            if last is not None and last.command == "APPEND_BLOCK" and row.command != "APPEND_BLOCK_END":
                self._broken(Rule.BLOCK_OPEN, row)
            here.last = row
        if row.command == "SETUP_APPEND":
            self._set_up(here, row)
        if row.command in ("APPEND_BLOCK", *APPENDS) and here.opened:
            epoch = self._epoch(row)
            if epoch is None or epoch.since is None:
                self._broken(Rule.WRITER_UNKNOWN, row)
        if row.command not in ANSWERS:
            return
        asked = _Asked(row, here)
        self._asked.append(asked)
        waiting = here.queues.setdefault(_queue(row), deque())
        if row.command in APPENDS:
            here.may_fail.setdefault(_queue(row), []).append(asked)
            asked.last = last
            self._append(here, asked)
        elif waiting and row.command not in KEYS:
            self._broken(Rule.REQUEST_ID_REUSE, row)
        waiting.append(asked)

    def _set_up(self, here: _Connection, row: _Row) -> None:
        epoch = here.epochs[row.writer_id] = _Epoch(row.segment, row.place)
        self._epochs.setdefault((row.writer_id, row.segment), []).append(epoch)
        if row.flow > 0:
            before = here.flows.get(row.flow)
            here.flows[row.flow] = _Tenure(row.writer_id)
            if before is not None and before.writer_id != row.writer_id:
                self._taken.append((row, before))

    def _append(self, here: _Connection, asked: _Asked) -> None:
        row, last = asked.row, asked.last
        if row.command == "APPEND_BLOCK_END":
            if last is not None and last.command == "APPEND_BLOCK":
                self._block(row, last)
            if row.num_events <= 0:
                self._broken(Rule.NO_EVENTS, row, 1, row.num_events)
        if row.flow is not None and row.flow > 0 and row.flow in here.flows:
            here.flows[row.flow].appends.append(asked)
        epoch = here.epochs.get(row.writer_id)
        if epoch is None:
            epoch = here.epochs.setdefault(row.writer_id, _Epoch(None, None))
        asked.writer_segment = epoch.segment
        floor = max(0, epoch.number or 0)
        if epoch.since is not None and row.event_number < floor:
            self._broken(Rule.NUMBER_BACKWARDS, row, floor, row.event_number)
        epoch.number = row.event_number if epoch.number is None else max(epoch.number, row.event_number)
        if epoch.ack is not None and row.event_number <= epoch.ack:
            asked.repeated = True
        else:
            epoch.unacked.append(asked)

    def _block(self, row: _Row, opened: _Row) -> None:
        if opened.writer_id != row.writer_id:
            self._broken(Rule.WRITER_MISMATCH, row)
            return
        size, whole = opened.data_bytes, row.size_of_whole_events
        if not 0 <= whole <= size:
            self._broken(Rule.WHOLE_SIZE, row, size, whole)
            return
        epoch = self._epoch(row)
        if whole == size or epoch is None or epoch.since is None:
            return
        head = opened.frame[_DATA_AT + whole : _DATA_AT + whole + 8]
        kind = int.from_bytes(head[:4], "big", signed=True)
        if len(head) < 8 or kind not in (-1, -2) or int.from_bytes(head[4:], "big") > size - whole - 8:
            self._broken(Rule.BLOCK_TAIL, row)
        elif kind == -1 and row.data_bytes:
            self._broken(Rule.PADDED_DATA, row, 0, row.data_bytes)

    # --- replies --------------------------------------------------------------------------------------------------

    def _reply(self, here: _Connection, row: _Row) -> None:
        waiting = here.queues.get(_queue(row))
        if waiting:
            asked = waiting.popleft()
            asked.reply = row
            if not row.failure and row.command not in ANSWERS[asked.row.command]:
                self._broken(Rule.REPLY_KIND, row)
        else:
            self._broken(Rule.REPLY_WITHOUT_REQUEST, row)
            self._asked.append(_Asked(row, here, orphan=True))
        if _refuses(row):
            for asked in here.may_fail.pop(_queue(row), ()):
                asked.failure = row
        epoch = here.epochs.get(row.writer_id) if row.writer_id else None
        if row.command == "APPEND_SETUP" and epoch is not None:
            epoch.known = row.event_number if epoch.known is None else max(epoch.known, row.event_number)
        if row.command == "DATA_APPENDED":
            self._ack(here, row, epoch)

    def _ack(self, here: _Connection, row: _Row, epoch: _Epoch | None) -> None:
        if epoch is None:  # no set-up of this writer in the trace
            epoch = here.epochs.setdefault(row.writer_id, _Epoch(None, None))
        number = row.event_number
        if epoch.ack is not None and number < epoch.ack:
            self._broken(Rule.ACK_BACKWARDS, row, epoch.ack, number)
        said = [each for each in (epoch.number, epoch.known) if each is not None]
        if epoch.since is not None and (not said or number > max(said)):
            self._broken(Rule.ACK_BEYOND, row, max(said, default=None), number)
        if epoch.ack is None or number > epoch.ack:
            epoch.ack = number
            for asked in epoch.unacked:
                if asked.row.event_number <= number:
                    asked.ack = row
            epoch.unacked = [asked for asked in epoch.unacked if asked.ack is None]

    # --- the end --------------------------------------------------------------------------------------------------

    def exchanges(self) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of all requests and orphans of the file."""
        for row, before in self._taken:
            if any(each.done is None or each.done > row.place for each in before.appends):
                self._broken(Rule.FLOW_REUSE, row, None, row.flow)
        for asked in self._asked:
            yield self._exchange(asked)

    def _status(self, asked: _Asked) -> Status:
        row, closed = asked.row, asked.connection.closed
        if asked.orphan:
            return Status.ORPHAN
        if row.command not in APPENDS:
            if asked.reply is not None:
                return Status.REFUSED if asked.reply.failure else Status.ANSWERED
            return Status.UNANSWERED if closed else Status.WAITING
        if asked.refusal is not None:
            return Status.REFUSED
        if asked.ack is not None:
            return Status.ANSWERED
        if asked.repeated:
            return Status.REPEATED
        for later in self._epochs.get((row.writer_id, asked.writer_segment), ()):
            known = max((each for each in (later.known, later.ack) if each is not None), default=None)
            if known is not None and known >= row.event_number and later.since is not None and later.since > row.place:
                return Status.COVERED
        return Status.LOST if closed else Status.WAITING

    def _exchange(self, asked: _Asked) -> tuple[Any, ...]:
        row, status = asked.row, self._status(asked)
        append = row.command in APPENDS and not asked.orphan
        ended = row if asked.orphan else (asked.refusal or asked.ack) if append else asked.reply
        by_id = asked.reply.segment if asked.reply is not None else None
        own = asked.writer_segment if append else row.segment
        where = (ended.block, ended.record, ended.ts_ns, ended.command) if ended is not None else (None,) * 4
        latency = _within(ended.ts_ns - row.ts_ns) if ended is not None and not asked.orphan else None
        first = None
        if append:
            first = _within(row.event_number - (row.num_events if row.num_events is not None else 1))
            first = None if first is None else _within(first + 1)
        return (
            row.file, row.connection, row.life, row.block, row.record, row.ts_ns,
            None if asked.orphan else row.command, by_id if own is None else own, row.flow, row.request_id,
            row.writer_id, row.size, str(status), None if asked.orphan else asked.reply is not None, *where, latency,
            first, row.event_number if append else None, *_sizes(asked, append=append),
        )  # fmt: skip


def _writes(row: _Row) -> bool:
    """Whether the record carries a writer's events or acknowledgements."""
    replies = row.command in ("APPEND_SETUP", "DATA_APPENDED")
    return row.command in WRITING and row.error is None and row.direction == ("reply" if replies else "request")


def _queue(row: _Row) -> Any:
    return row.command if row.command in KEYS else row.request_id


def _within(value: int) -> int | None:
    return value if value in _INT64 else None


def _sizes(asked: _Asked, *, append: bool) -> tuple[int | None, int | None, int | None, bool | None]:
    """Returns append_bytes, block_bytes, whole_bytes, premature."""
    row, last = asked.row, asked.last
    if not append:
        return None, None, None, None
    own = row.data_bytes + 8 if row.command == "CONDITIONAL_APPEND" else row.data_bytes
    if row.command != "APPEND_BLOCK_END" or last is None or last.command != "APPEND_BLOCK":
        return own, None, None, None
    size, whole = last.data_bytes, row.size_of_whole_events
    if not 0 <= whole <= size:
        return size + own, size, whole, None
    if whole == size:
        return size, size, whole, False
    return (whole if own == 0 else size - 8 + own), size, whole, own == 0
