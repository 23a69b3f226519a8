"""Judges traces on Spark, or with DuckDB on this machine: the folds of `segstore.wire.history` on as many machines as
there are.

    rows = spark.read.format("segstore.trace").option("columns", ",".join(CHECKED)).load("traces/")
    verdicts(rows).show()

One shuffle brings the records of a connection together, and the folds of connections make facts of them; a second
shuffle brings the facts of a key together, in the order in which `Judge` sees them, so the verdicts are the same.

Invariant: a task holds one key at a time.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Final

import pyarrow as pa

from segstore.pipeline.engine import Table, engine_of
from segstore.pipeline.trace.columns import PLACE, ColumnError
from segstore.wire.history import FOLDS, UNREAD, Broken, Fact, Finding, Place, first_fold, first_key
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
        "number": pa.int64(),
        "finding": pa.binary(),
    }
)
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
_NULL: Final = ", ".join(
    f"CASE WHEN damaged.file IS NULL THEN judged.{name} END AS {name}" for name in VERDICTS.names[4:-1]
)
_KNOWN: Final = f"""
SELECT judged.rule, judged.kind, judged.name,
  CASE WHEN damaged.file IS NULL THEN judged.text ELSE '{UNREAD}' END AS text, {_NULL},
  CASE WHEN damaged.file IS NULL THEN judged.unknown ELSE 1 END AS unknown
FROM {{judged}} AS judged LEFT JOIN (
  SELECT skipped.file
  FROM (SELECT file, min(block) AS first FROM {{rows}} WHERE kind = 'skipped' GROUP BY file) AS skipped
  JOIN (SELECT file, max(block) AS last FROM {{rows}} WHERE kind <> 'skipped' GROUP BY file) AS read
  ON skipped.file = read.file AND skipped.first < read.last) AS damaged
ON judged.file = damaged.file
"""
"""Verdicts on files with records behind a part that could not be read are unknown, as in `segstore.check`."""
_LAST: Final = (1 << 63) - 1
_AT_ONCE: Final = 4096


def verdicts(rows: Table) -> Table:
    """Returns broken rules, and what is not known: a table with the columns `VERDICTS`.

    rows: of `format("segstore.trace")`, with the columns `CHECKED`. Raises ColumnError.
    """
    for name in CHECKED:
        if name not in rows.columns:
            raise ColumnError(f"the column {name!r} is missing, a check needs {', '.join(CHECKED)}", name)
    engine = engine_of(rows)
    records = f"SELECT {', '.join(CHECKED)} FROM {{rows}} WHERE kind <> 'skipped'"
    facts = engine.mapped(engine.statement(records, rows=rows), _facts, _FACTS, PLACE[:2], PLACE)
    judged = engine.mapped(facts, _verdicts, VERDICTS, _FACTS.names[:2], _FACTS.names[:-1])
    return engine.statement(_KNOWN, rows=rows, judged=judged)


def _facts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Makes facts of the records of a partition's connections; broken rules go with them."""
    taken: list[tuple[Any, ...]] = []
    fold, key = None, None
    end = Place("", _LAST, 0, 0, _LAST)
    number = count()

    def take(findings: Iterable[Finding], place: Place) -> None:
        for finding in findings:
            kind, name = finding.key
            data = pickle.dumps(finding)
            taken.append((kind, name, place.time_ns, place.file, place.block, place.record, next(number), data))

    for batch in batches:
        for place, record in _records(batch):
            following = first_key(place, record)
            if fold is None or key != following:
                if fold is not None:
                    take(fold.end(), end)
                fold, key = first_fold(following), following
                end = end._replace(file=place.file, connection=place.connection)
            take(fold.see(place, record), place)
        yield from _batches(taken, _FACTS, _AT_ONCE)
    if fold is not None:
        take(fold.end(), end)
    yield from _batches(taken, _FACTS, 1)


def _records(batch: pa.RecordBatch) -> Iterator[tuple[Place, Record]]:
    columns = [batch.column(name).to_pylist() for name in CHECKED]
    for file, block, record, kind, ts_ns, connection, direction, frame in zip(*columns, strict=True):
        way = Direction[direction.upper()]
        made = Record(ts_ns, connection, way, RecordKind[kind.upper()], frame or b"")
        yield Place(file, block, record or 0, connection, ts_ns), made


def _verdicts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Judges the facts of a partition's keys."""
    taken: list[tuple[Any, ...]] = []
    fold, key = None, None
    for batch in batches:
        for data in batch.column("finding").to_pylist():
            finding: Finding = pickle.loads(data)
            if not isinstance(finding, Fact):
                taken.append(_row(finding))
                continue
            if fold is None or finding.key != key:
                taken += map(_row, fold.end() if fold is not None else ())
                fold, key = FOLDS[finding.key.kind](finding.key), finding.key
            taken += map(_row, fold.see(finding))
        yield from _batches(taken, VERDICTS, _AT_ONCE)
    taken += map(_row, fold.end() if fold is not None else ())
    yield from _batches(taken, VERDICTS, 1)


def _row(finding: Any) -> tuple[Any, ...]:
    if not isinstance(finding, Broken):
        return finding.rule, *finding.key, finding.why, *[None] * 8, finding.times
    values = (None if value is None else str(value) for value in (finding.expected, finding.actual))
    place = finding.places[-1]
    places = json.dumps([place._asdict() for place in finding.places])
    last = place.file, place.connection, place.block, place.record, place.time_ns
    return finding.rule, *finding.key, finding.text, *values, places, *last, None


def _batches(rows: list[tuple[Any, ...]], schema: pa.Schema, least: int) -> Iterator[pa.RecordBatch]:
    """Takes out the rows if there are at least `least`."""
    if len(rows) >= least:
        columns = map(pa.array, zip(*rows, strict=True), schema.types)
        yield pa.RecordBatch.from_arrays(list(columns), schema=schema)
        rows.clear()
