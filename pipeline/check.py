"""Judges traces on Spark, or with DuckDB on this machine: the folds of `segstore.wire.history` on as many machines as
there are.

    verdicts(SparkEngine(spark), ["traces/"]).show()

The readers of traces make facts of connections (`segstore.pipeline.trace.facts`); a shuffle brings the facts of a key
together, in the order in which `Judge` sees them, so the verdicts are the same.

Invariant: a task holds one key at a time, and the packs of facts whose times overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from segstore.pipeline.engine import Engine, Table
from segstore.pipeline.trace.facts import DAMAGED, FACTS, as_utf8, batch_of, unpacked_facts
from segstore.pipeline.trace.files import find_traces
from segstore.pipeline.trace.options import OF_FACTS, by_name, read_options
from segstore.wire.history import FOLDS, UNREAD, Broken, Fact

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
_NULL: Final = ", ".join(f"CASE WHEN is_unread THEN NULL ELSE {name} END AS {name}" for name in VERDICTS.names[4:-1])
_KNOWN: Final = f"""
SELECT rule, kind, name, CASE WHEN is_unread THEN '{UNREAD}' ELSE text END AS text, {_NULL},
  CASE WHEN is_unread THEN 1 ELSE unknown END AS unknown
FROM (
  SELECT *, unknown IS NULL AND CASE WHEN kind = 'connection' THEN max(kind = '{DAMAGED}') OVER (PARTITION BY file)
    ELSE max(kind = '{DAMAGED}') OVER () END AS is_unread
  FROM {{judged}}
) AS known
WHERE kind <> '{DAMAGED}'
"""
"""Verdicts that records behind an unreadable part may explain are unknown, as in `segstore.check`."""
_AT_ONCE: Final = 4096


def verdicts(engine: Engine, files: Sequence[str], **options: str) -> Table:
    """Returns broken rules, and what is not known: a table with the columns `VERDICTS`.

    files: files, folders and globs. options: `OF_FACTS` of `format("segstore.trace")`. Raises OptionError,
    FileNotFoundError, NotATrace and the errors of `engine.read`.
    """
    by_name(options, OF_FACTS)
    traces = find_traces(files, read_options({"paths": json.dumps(list(files)), **options}).storage)
    facts = engine.read(traces, FACTS.names, facts="true", **options)
    return engine.statement(_KNOWN, judged=engine.mapped(facts, _verdicts, VERDICTS, FACTS.names[:2], FACTS.names[:-1]))


def _verdicts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Judges the facts of a partition's keys."""
    rows: list[tuple[Any, ...]] = []
    for key, findings in groupby(unpacked_facts(batches), itemgetter(0)):
        if key.kind == DAMAGED:
            rows.append(("", DAMAGED, *[None] * 5, key.name, *[None] * 5))
            continue
        fold = None
        for _, finding in findings:
            if not isinstance(finding, Fact):
                rows.append(_row(finding))
                continue
            if fold is None:
                fold = FOLDS[key.kind](key)
            rows += map(_row, fold.see(finding))
            if len(rows) >= _AT_ONCE:
                yield batch_of(rows, VERDICTS)
                rows.clear()
        rows += map(_row, fold.end() if fold is not None else ())
    if rows:
        yield batch_of(rows, VERDICTS)


def _row(finding: Any) -> tuple[Any, ...]:
    kind, name = finding.key
    if not isinstance(finding, Broken):
        return finding.rule, kind, as_utf8(name), finding.why, *[None] * 8, finding.times
    values = (None if value is None else as_utf8(str(value)) for value in (finding.expected, finding.actual))
    place = finding.places[-1]
    places = json.dumps([place._asdict() for place in finding.places])
    last = place.file, place.connection, place.block, place.record, place.time_ns
    return finding.rule, kind, as_utf8(name), as_utf8(finding.text), *values, places, *last, None
