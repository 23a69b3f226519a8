"""The reference analysis: one pass over the records in plain Python.

It follows all connections of a file at once and in file order, by the same `segstore.pipeline.report.connection` that
the analysis on Spark runs connection by connection. Whether a later set-up covers an append is decided here on Python's
objects, on Spark by SQL. So comparing the two covers partitioning, batches and the SQL steps; tests check statuses with
planted faults and recorded traces. Rows are tuples in the order of `EXCHANGE_COLUMNS`.

Invariant: rows come from `segstore.pipeline.trace.rows`, and so from the codec. Memory grows with the number of
requests. No Spark, no NumPy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from segstore.pipeline.report.analysis_rules import EXCHANGE_COLUMNS, Status
from segstore.pipeline.report.connection import Found, Life, SetUp
from segstore.pipeline.report.exchange import FRAME_COLUMNS, to_row
from segstore.pipeline.trace.rows import trace_rows

_PLACE: Final = itemgetter(*map(EXCHANGE_COLUMNS.index, ("block", "record")))
_WRITER: Final = itemgetter(*map(EXCHANGE_COLUMNS.index, ("writer_id", "segment")))
_LAST_EVENT: Final = EXCHANGE_COLUMNS.index("last_event")
_STATUS: Final = EXCHANGE_COLUMNS.index("status")


class Reference(NamedTuple):
    """The result. skipped: (file, offset, bytes, reason) of unreadable parts."""

    exchanges: list[tuple[Any, ...]]
    skipped: list[tuple[str, int, int, str]]
    frames: int


def reference(paths: str | Iterable[str]) -> Reference:
    """Analyses traces. Raises FileNotFoundError."""
    out = Reference([], [], 0)
    frames = 0
    for _, records in groupby(map(to_row, trace_rows(paths, FRAME_COLUMNS)), attrgetter("file")):
        found = Found()
        lives: dict[int, Life] = {}
        for row in records:
            if row.kind == "skipped":
                out.skipped.append((row.file, row.block, row.size, row.error))
                continue
            frames += row.kind == "frame"
            life = lives.get(row.connection)
            if life is None:
                life = lives[row.connection] = Life(1, found)
            elif not life.continues(row):
                deque(life.end(), maxlen=0)
                life = lives[row.connection] = Life(life.life + 1, found)
            life.see(row)
        for life in lives.values():
            deque(life.end(), maxlen=0)
        out.exchanges.extend(sorted([*found.exchanges, *_covered(found)], key=_PLACE))
    return out._replace(frames=frames)


def _covered(found: Found) -> Iterable[tuple[Any, ...]]:
    """Yields the exchanges of appends without an ack, as covered if a later set-up covers them."""
    set_ups: dict[tuple[str, str], list[SetUp]] = {}
    for set_up in found.set_ups:
        set_ups.setdefault((set_up.writer_id, set_up.segment), []).append(set_up)
    for row in found.uncovered:
        covered = any(
            later.known >= row[_LAST_EVENT] and (later.block, later.record) > _PLACE(row)
            for later in set_ups.get(_WRITER(row), ())
        )
        yield (*row[:_STATUS], Status.COVERED.value, *row[_STATUS + 1 :]) if covered else row
