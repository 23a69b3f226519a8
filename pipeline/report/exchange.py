"""Rows of a trace as the analysis sees them, and a request with its replies.

Invariant: `Request.exchange` makes rows in the order of `EXCHANGE_COLUMNS` from the request alone. No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from segstore.pipeline.report.analysis_rules import APPENDS, KEYS, Status

_INT64: Final = range(-(1 << 63), 1 << 63)
_NAMES: Final = {status: status.value for status in Status}
_CHECK_FAILED: Final = "CONDITIONAL_CHECK_FAILED"


class Row(NamedTuple):
    """A row of a trace. Columns that are null for some commands have the type Any."""

    file: str
    block: int
    record: int
    kind: str
    ts_ns: int
    connection: int
    direction: str
    size: int
    code: Any
    command: Any
    failure: Any
    error: Any
    flow: Any
    data_bytes: Any
    request_id: Any
    writer_id: Any
    segment: Any
    event_number: Any
    size_of_whole_events: Any
    num_events: Any

    @property
    def place(self) -> tuple[int, int]:
        """Where the record is in its file."""
        return self.block, self.record

    @property
    def queue(self) -> Any:
        """The queue in which a request waits for its reply: its request id, or its command if it has no request id."""
        return self.command if self.command in KEYS else self.request_id

    @property
    def refuses(self) -> bool:
        """Whether this reply refuses an append."""
        return bool(self.failure) or self.command == _CHECK_FAILED


FRAME_COLUMNS: Final = Row._fields
"""The trace columns that the analyses need."""
to_row: Final[Callable[[Iterable[Any]], Row]] = partial(tuple.__new__, Row)
"""Makes a row of its values; faster than `Row._make`, and takes all of them."""


@dataclass(slots=True, eq=False)
class Request:
    """A request, or a reply without one (`orphan`).

    number: counts the requests of a life. epoch: of the writer, while an ack can still cover the append. block_bytes:
    the size in the append block's header. repeated: whether its events had been acknowledged before.
    """

    row: Row
    number: int = 0
    orphan: bool = False
    reply: Row | None = None
    ack: Row | None = None
    failure: Row | None = None
    repeated: bool = False
    epoch: int | None = None
    writer_segment: str | None = None
    block_bytes: int | None = None

    @property
    def refusal(self) -> Row | None:
        """The failure that refused an append, if any."""
        reply = self.reply
        if reply is not None and self.row.command != "APPEND_BLOCK_END" and reply.refuses:
            return reply
        return self.failure if self.ack is None and not self.repeated else None

    @property
    def finished(self) -> bool:
        """Whether no later record can change the exchange."""
        if self.reply is None or self.row.command not in APPENDS:
            return self.reply is not None
        return self.ack is not None or self.repeated or (self.row.command != "APPEND_BLOCK_END" and self.reply.refuses)

    def exchange(self, life: int, *, closed: str | None) -> tuple[Any, ...]:
        """Returns the row. closed: the side that closed the connection, `request` for the client, if it was closed.

        `COVERED` is not decided here.
        """
        row, reply = self.row, self.reply
        ended: Row | None
        append = not self.orphan and row.command in APPENDS
        if self.orphan:
            status, ended, segment = Status.ORPHAN, row, row.segment
        elif append:
            refusal, segment = self.refusal, self.writer_segment
            ended = refusal or self.ack
            if refusal is not None:
                status = Status.REFUSED
            elif ended is not None:
                status = Status.ANSWERED
            elif self.repeated:
                status = Status.REPEATED
            else:
                status = Status.LOST if closed else Status.WAITING
        else:
            ended, segment = reply, row.segment
            if reply is not None:
                status = Status.REFUSED if reply.failure else Status.ANSWERED
            elif closed == "request" and row.command == "READ_SEGMENT":
                status = Status.GIVEN_UP
            else:
                status = Status.UNANSWERED if closed else Status.WAITING
        if segment is None and reply is not None:
            segment = reply.segment
        return (
            row.file, row.connection, life, row.block, row.record, row.ts_ns, None if self.orphan else row.command,
            segment, row.flow, row.request_id, row.writer_id, row.size, _NAMES[status],
            None if self.orphan else reply is not None,
            *((None,) * 4 if ended is None else (ended.block, ended.record, ended.ts_ns, ended.command)),
            None if ended is None or self.orphan else _within(ended.ts_ns - row.ts_ns),
            *(self._append() if append else (None,) * 6),
        )  # fmt: skip

    def _append(self) -> tuple[Any, ...]:
        """Returns first_event, last_event, append_bytes, block_bytes, whole_bytes, premature of an append."""
        row, size, whole = self.row, self.block_bytes, self.row.size_of_whole_events
        first = _within(row.event_number - (row.num_events if row.num_events is not None else 1))
        first = None if first is None else _within(first + 1)
        own = row.data_bytes + 8 if row.command == "CONDITIONAL_APPEND" else row.data_bytes
        if size is None:
            return first, row.event_number, own, None, None, None
        if not 0 <= whole <= size:
            return first, row.event_number, size + own, size, whole, None
        if whole == size:
            return first, row.event_number, size, size, whole, False
        return first, row.event_number, whole if own == 0 else size - 8 + own, size, whole, own == 0


def _within(value: int) -> int | None:
    return value if value in _INT64 else None
