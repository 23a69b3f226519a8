"""Judges traces on Spark, or with DuckDB on this machine: the folds of `segstore.wire.history` on as many machines as
there are.

    rows = spark.read.format("segstore.trace").option("columns", ",".join(CHECKED)).load("traces/")
    verdicts(rows).show()

One shuffle brings the records of a connection together, and the folds of connections make facts of them; a second
shuffle brings the facts of a key together, in the order in which `Judge` sees them, so the verdicts are the same.

Facts are shuffled in packs, a pack for a key and some records, and merged by time.

Invariant: a task holds one key at a time, and the packs whose times overlap.
"""

from __future__ import annotations

import json
import pickle
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from segstore.pipeline.engine import Table, engine_of
from segstore.pipeline.trace.columns import PLACE, ColumnError
from segstore.wire.history import FOLDS, UNREAD, Broken, Fact, Finding, Key, Place, first_fold, first_key
from segstore.wire.trace import Direction, Record, RecordKind

CHECKED: Final = ("file", "block", "record", "kind", "ts_ns", "connection", "direction", "frame")
"""The columns of traces that are judged."""
_FACTS: Final = pa.schema(
    {
        "kind": pa.string(),
        "name": pa.string(),
        "ts_ns": pa.int64(),
        "file": pa.string(),
        "block": pa.int64(),
        "record": pa.int32(),
        "findings": pa.binary(),
    }
)
"""A pack: findings of one key, in order, and the place of the first finding."""
VERDICTS: Final = pa.schema(
    {
        "rule": pa.string(),
        "kind": pa.string(),
        "name": pa.string(),
        "text": pa.string(),
        "expected": pa.string(),
        "actual": pa.string(),
        "places": pa.string(),
        "file": pa.string(),
        "connection": pa.int64(),
        "block": pa.int64(),
        "record": pa.int32(),
        "ts_ns": pa.int64(),
        "unknown": pa.int64(),
    }
)
"""The columns of `verdicts`.

kind, name: of the key, such as a segment and its name. places: all records that show it, as JSON; file, connection,
block, record and ts_ns are the last one's. unknown: null for a broken rule; else how often the records do not decide
it, with the reason in `text`, and no place.
"""
_Packed = tuple[Any, Any, type[Any] | None, Any]
"""A finding of a pack: the place of the record that shows it, by which the findings of a key are sorted, and of a fact
its own place, and the type and the fields of its value; None, None and the finding if it is no fact. Plain tuples are
pickled several times as fast as named tuples.
"""
_order: Final = itemgetter(4, 0, 1, 2)
"""Of a place as a plain tuple: its time, file, block and record."""
_DIRECTIONS: Final = {direction.name.lower(): direction for direction in Direction}
_KINDS: Final = {kind.name.lower(): kind for kind in RecordKind}
_IS_UNKNOWN: Final = """judged.unknown IS NULL AND damaged.number > 0
  AND (judged.kind <> 'connection' OR array_contains(damaged.files, judged.file))"""
_NULL: Final = ", ".join(
    f"CASE WHEN {_IS_UNKNOWN} THEN NULL ELSE judged.{name} END AS {name}" for name in VERDICTS.names[4:-1]
)
_KNOWN: Final = f"""
SELECT judged.rule, judged.kind, judged.name,
  CASE WHEN {_IS_UNKNOWN} THEN '{UNREAD}' ELSE judged.text END AS text, {_NULL},
  CASE WHEN {_IS_UNKNOWN} THEN 1 ELSE judged.unknown END AS unknown
FROM {{judged}} AS judged
CROSS JOIN (
  SELECT count(*) AS number, array_agg(file) AS files
  FROM (
    SELECT file FROM {{rows}} GROUP BY file
    HAVING min(CASE WHEN kind = 'skipped' THEN block END) < max(CASE WHEN kind <> 'skipped' THEN block END)
  ) AS listed
) AS damaged
"""
"""Verdicts that records behind an unreadable part may explain are unknown, as in `segstore.check`."""
_MONOTONE: Final = """max(ts_ns) OVER (
  PARTITION BY file ORDER BY block, record ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS ts_ns"""
"""The latest time up to a record: a clock that was set back does not change the order of a file."""
_LAST: Final = (1 << 63) - 1
_AT_ONCE: Final = 4096
_BYTES_AT_ONCE: Final = 4 << 20
"""Bytes of records of which the findings are in memory at once."""


def verdicts(rows: Table) -> Table:
    """Returns broken rules, and what is not known: a table with the columns `VERDICTS`.

    rows: of `format("segstore.trace")`, with the columns `CHECKED`. Raises ColumnError.
    """
    for name in CHECKED:
        if name not in rows.columns:
            raise ColumnError(f"the column {name!r} is missing, a check needs {', '.join(CHECKED)}", name)
    engine = engine_of(rows)
    columns = ", ".join(_MONOTONE if name == "ts_ns" else name for name in CHECKED)
    records = f"SELECT {columns} FROM {{rows}} WHERE kind <> 'skipped'"
    facts = engine.mapped(engine.statement(records, rows=rows), _facts, _FACTS, PLACE[:2], PLACE)
    judged = engine.mapped(facts, _verdicts, VERDICTS, _FACTS.names[:2], _FACTS.names[:-1])
    return engine.statement(_KNOWN, rows=rows, judged=judged)


def _facts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Makes facts of the records of a partition's connections; broken rules go with them."""
    packs: dict[Key, list[_Packed]] = {}
    findings: list[Finding] = []
    fold, subject = None, None
    end = Place("", _LAST, 0, 0, _LAST)
    size = 0

    def take(place: Place) -> None:
        shown = tuple(place)
        for finding in findings:
            packs.setdefault(finding.key, []).append(_packed(place, shown, finding))
        findings.clear()

    for batch in batches:
        size += batch.nbytes
        for place, record in _records(batch):
            following = place.file, place.connection
            if fold is None or subject != following:
                if fold is not None:
                    fold.end()
                    take(end)
                fold, subject = first_fold(first_key(place, record), findings), following
                end = end._replace(file=place.file, connection=place.connection)
            fold.see(place, record)
            if findings:
                take(place)
        if size >= _BYTES_AT_ONCE and packs:
            yield _batch_of(packs)
            size = 0
    if fold is not None:
        fold.end()
        take(end)
    if packs:
        yield _batch_of(packs)


def _packed(place: Place, shown: tuple[Any, ...], finding: Finding) -> _Packed:
    """Returns a finding for a pack. shown: the place as a plain tuple."""
    if not isinstance(finding, Fact):
        return shown, None, None, finding
    _, own, value = finding
    return shown, shown if own is place else tuple(own), type(value), tuple(value)


def _unpacked(key: Key, packed: _Packed) -> Finding:
    _, own, kind, fields = packed
    finding: Finding = fields if kind is None else Fact(key, Place._make(own), kind._make(fields))
    return finding


def _batch_of(packs: dict[Key, list[_Packed]]) -> pa.RecordBatch:
    """Takes out the packs."""
    rows = []
    for key, findings in packs.items():
        findings.sort(key=_time_of)
        rows.append((*key, *_time_of(findings[0]), pickle.dumps(findings)))
    packs.clear()
    return _batch(rows, _FACTS)


def _time_of(packed: _Packed) -> Any:
    return _order(packed[0])


def _records(batch: pa.RecordBatch) -> Iterator[tuple[Place, Record]]:
    columns = [batch.column(name).to_pylist() for name in CHECKED]
    for file, block, record, kind, ts_ns, connection, direction, frame in zip(*columns, strict=True):
        checked = Record(ts_ns, connection, _DIRECTIONS[direction], _KINDS[kind], frame or b"")
        yield Place(file, block, record or 0, connection, ts_ns), checked


def _verdicts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Judges the facts of a partition's keys."""
    rows: list[tuple[Any, ...]] = []
    fold = None
    for key, findings in groupby(_merged(batches), lambda finding: finding.key):
        fold = None
        for finding in findings:
            if not isinstance(finding, Fact):
                rows.append(_row(finding))
                continue
            if fold is None:
                fold = FOLDS[key.kind](key)
            rows += map(_row, fold.see(finding))
            if len(rows) >= _AT_ONCE:
                yield _batch(rows, VERDICTS)
                rows.clear()
        rows += map(_row, fold.end() if fold is not None else ())
    if rows:
        yield _batch(rows, VERDICTS)


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[Finding]:
    """Yields the findings of packs in order, key by key. Packs come in the order of their first findings."""
    waiting: list[_Packed] = []
    key = Key("", "")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in _FACTS.names)
        for kind, name, *first, data in zip(*columns, strict=True):
            ready = len(waiting)
            if key == (kind, name):
                ready = bisect_left(waiting, tuple(first), key=_time_of)
            yield from map(partial(_unpacked, key), waiting[:ready])
            key = Key(kind, name)
            is_overlapping = ready < len(waiting)
            waiting[:ready] = ()
            waiting += pickle.loads(data)
            if is_overlapping:
                waiting.sort(key=_time_of)
    yield from map(partial(_unpacked, key), waiting)


def _row(finding: Any) -> tuple[Any, ...]:
    if not isinstance(finding, Broken):
        return finding.rule, *finding.key, finding.why, *[None] * 8, finding.times
    values = (None if value is None else str(value) for value in (finding.expected, finding.actual))
    place = finding.places[-1]
    places = json.dumps([place._asdict() for place in finding.places])
    last = place.file, place.connection, place.block, place.record, place.time_ns
    return finding.rule, *finding.key, finding.text, *values, places, *last, None


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = map(pa.array, zip(*rows, strict=True), schema.types)
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
