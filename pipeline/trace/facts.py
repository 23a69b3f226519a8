"""Makes facts of the records of traces, by the folds of connections of `segstore.wire.history`, for `pipeline.check`.

Facts are in packs: findings of one key, with the place of the first one, by which packs are sorted. A pack of the kind
`damaged` names a file with records behind a part that cannot be read.

Invariants: a piece is a whole file, or a share of its connections. Memory is bounded by the folds of these connections,
and by the findings of `_BYTES_AT_ONCE` bytes of records.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from segstore.pipeline.trace.batches import arrow_schema, read_rows
from segstore.pipeline.trace.columns import FACT_COLUMNS, TraceColumn
from segstore.pipeline.trace.files import FileRange, Skipped
from segstore.pipeline.trace.options import TraceReaderOptions
from segstore.pipeline.trace.reading import placed_records
from segstore.pipeline.trace.rows import BadTrace
from segstore.wire.history import Fact, Finding, FirstFold, Key, Place, first_fold, first_key

DAMAGED: Final = "damaged"
"""The kind of the packs that name files."""
FACTS: Final = arrow_schema(FACT_COLUMNS)
"""The columns of packs."""
_Packed = tuple[Any, Any, type[Any] | None, Any]
"""A finding of a pack: the place of the record that shows it, by which the findings of a key are sorted, and of a fact
its own place, and the type and the fields of its value; None, None and the finding if it is no fact. Plain tuples are
pickled several times as fast as named tuples.
"""
_order: Final = itemgetter(4, 0, 1, 2)
"""Of a place as a plain tuple: its time, file, block and record."""
_LAST: Final = (1 << 63) - 1
_BYTES_AT_ONCE: Final = 1 << 20
_RECORD_BYTES: Final = 64
"""What a record takes beside its data."""


def read_batches(
    pieces: Iterable[FileRange], options: TraceReaderOptions, columns: tuple[TraceColumn, ...]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of pieces, or their facts, by the options. Raises BadTrace.

    columns: of the result, a part of `options.given` or all.
    """
    if not options.facts:
        return read_rows(pieces, options, columns)
    names = [column.name for column in columns]
    return (batch.select(names) for piece in pieces for batch in _facts(piece, options))


def _facts(piece: FileRange, options: TraceReaderOptions) -> Iterator[pa.RecordBatch]:
    """Yields the facts of a whole file, or of a share of its connections. Raises BadTrace if skipping is disabled."""

    def skip(part: Skipped) -> None:
        if options.fail_fast:
            raise BadTrace(part.path, part.offset, part.reason)

    file = as_utf8(piece.path)
    packs: defaultdict[Key, list[_Packed]] = defaultdict(list)
    findings: list[Finding] = []
    folds: dict[int, FirstFold] = {}
    damaged: set[str] = set()
    size = 0

    def take(place: Place) -> None:
        shown = tuple(place)
        for finding in findings:
            if isinstance(finding, Fact):
                key, own, value = finding
                packs[key].append((shown, shown if own is place else tuple(own), type(value), tuple(value)))
            else:
                packs[finding.key].append((shown, None, None, finding))
        findings.clear()

    for read_at, record in placed_records(piece, skip, damaged, ports=options.ports, storage=options.storage):
        place = read_at if file == piece.path else read_at._replace(file=file)
        fold = folds.get(place[3])
        if fold is None:
            fold = folds[place[3]] = first_fold(first_key(place, record), findings)
        fold.see(place, record)
        if findings:
            take(place)
        size += len(record[4]) + _RECORD_BYTES
        if size >= _BYTES_AT_ONCE and packs:
            yield _batch_of(packs)
            size = 0
    for connection, fold in folds.items():
        fold.end()
        take(Place(file, _LAST, 0, connection, _LAST))
    if damaged and piece.share == 0:
        packs[Key(DAMAGED, file)] = [((file, 0, 0, 0, 0), None, None, None)]
    if packs:
        yield _batch_of(packs)


def unpacked_facts(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Key, Finding | None]]:
    """Yields the findings of packs in order, key by key; None for a damaged file.

    batches: of `FACTS`, sorted by all columns but the last.
    """
    waiting: list[_Packed] = []
    key = Key("", "")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in FACTS.names)
        for kind, name, *first, data in zip(*columns, strict=True):
            following = Key(kind, name.decode("utf-8", "surrogatepass"))
            ready = bisect_left(waiting, tuple(first), key=_time_of) if key == following else len(waiting)
            yield from zip(repeat(key), map(partial(_unpacked, key), waiting[:ready]))
            key = following
            is_overlapping = ready < len(waiting)
            waiting[:ready] = ()
            waiting += pickle.loads(data)
            if is_overlapping:
                waiting.sort(key=_time_of)
    yield from zip(repeat(key), map(partial(_unpacked, key), waiting))


def _unpacked(key: Key, packed: _Packed) -> Finding | None:
    _, own, kind, fields = packed
    finding: Finding | None = fields if kind is None else Fact(key, Place._make(own), kind._make(fields))
    return finding


def _batch_of(packs: dict[Key, list[_Packed]]) -> pa.RecordBatch:
    """Takes out the packs: their findings are in order, since the records of a file are."""
    rows = [
        (key.kind, key.name.encode("utf-8", "surrogatepass"), *_time_of(findings[0]), pickle.dumps(findings))
        for key, findings in packs.items()
    ]
    packs.clear()
    return batch_of(rows, FACTS)


def _time_of(packed: _Packed) -> Any:
    return _order(packed[0])


def batch_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Returns rows as a batch."""
    columns = map(pa.array, zip(*rows, strict=True), schema.types)
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)


def as_utf8(text: str) -> str:
    """Replaces lone surrogates by their escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
