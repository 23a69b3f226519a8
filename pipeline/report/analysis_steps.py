"""The steps of the trace analysis: a step in Python over Arrow, which follows each connection, and SQL after it.

`follow` runs over partitions that have whole connections, sorted by `PLACE`; `follow_packed` is the same for packed
rows of traces, which engines shuffle and sort as a few long values. The result has the rows of several tables, a column
for each table: the frames themselves, with the life of their connection; exchanges; exchanges that a later set-up of
their writer may still cover, and these set-ups, which may be on other connections. Frames and exchanges, which are
nearly all rows, are packed: a value is a compressed batch of many rows, so that engines copy and store bytes instead of
rows; `segstore.pipeline.trace.batches.unpacked` makes them rows again.

Invariant: a task holds one connection at a time, within the bounds of `segstore.pipeline.report.connection`, and a few
batches. SQL here reads persisted rows, each table once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from segstore.pipeline.report.analysis_rules import EXCHANGE_COLUMNS, Status
from segstore.pipeline.report.connection import ROWS_AT_ONCE, Found, Life, SetUp
from segstore.pipeline.report.exchange import FRAME_COLUMNS, to_row
from segstore.pipeline.trace.batches import arrow_schema, joined, packed, unpacked
from segstore.pipeline.trace.columns import ColumnType, TraceColumn, select

_TABLES: Final = {"uncovered": EXCHANGE_COLUMNS, "set_up": SetUp._fields}
_TYPES: Final[dict[str, ColumnType]] = {
    **{column.name: column.type for column in select(FRAME_COLUMNS)},
    **dict.fromkeys(("life", "reply_record"), "int"),
    **dict.fromkeys(("status", "reply_command"), "string"),
    **dict.fromkeys(("paired", "premature"), "boolean"),
}


def _columns(names: Iterable[str]) -> tuple[TraceColumn, ...]:
    return tuple(TraceColumn(name, _TYPES.get(name, "bigint"), "") for name in names)


WRITTEN: Final = pa.schema(
    [
        *(pa.field(table, pa.struct(arrow_schema(_columns(_TABLES[table])))) for table in _TABLES),
        pa.field("exchanges", pa.binary()),
        pa.field("frames", pa.binary()),
    ]
)
"""The columns of the result of `follow`: a column has the rows of a table, and is null in the rows of other tables.

exchanges, frames: packed batches of `EXCHANGES` and `FRAMES`.
"""
EXCHANGES: Final = arrow_schema(_columns(EXCHANGE_COLUMNS))
_FOLLOWED: Final = arrow_schema(_columns(FRAME_COLUMNS))
FRAMES: Final = arrow_schema(_columns((*FRAME_COLUMNS, "life")))


def follow_packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follows the connections of a partition; batches have `PACKED_COLUMNS`, sorted by `PLACE`."""
    return follow(joined(unpacked(_FOLLOWED, batches)))


def follow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Follows the connections of a partition; batches have `FRAME_COLUMNS`, sorted by `PLACE`."""
    found = Found()
    life, key = Life(0, found), None
    for batch in batches:
        lives = []
        for row in map(to_row, zip(*(column.to_pylist() for column in batch.columns), strict=True)):
            if key != (row.connection, row.file):
                yield from _ended(life, found)
                life, key = Life(1, found), (row.connection, row.file)
            elif not life.continues(row):
                yield from _ended(life, found)
                life = Life(life.life + 1, found)
            life.see(row)
            lives.append(life.life)
        yield _batch("frames", pa.array([packed(batch.append_column("life", pa.array(lives, pa.int32())))]))
        yield from _taken(found)
    yield from _ended(life, found)
    yield from _taken(found, 1)


def _ended(life: Life, found: Found) -> Iterator[pa.RecordBatch]:
    for _ in life.end():
        yield from _taken(found)


def _taken(found: Found, least: int = ROWS_AT_ONCE) -> Iterator[pa.RecordBatch]:
    """Takes out the tables that have at least `least` rows."""
    if len(found.exchanges) >= least:
        columns = map(pa.array, zip(*found.exchanges, strict=True), EXCHANGES.types)
        yield _batch("exchanges", pa.array([packed(pa.RecordBatch.from_arrays(list(columns), schema=EXCHANGES))]))
        found.exchanges.clear()
    rows: list[Any]
    for table, rows in (("uncovered", found.uncovered), ("set_up", found.set_ups)):
        if len(rows) >= least:
            fields = list(WRITTEN.field(table).type)
            columns = map(pa.array, zip(*rows, strict=True), (field.type for field in fields))
            yield _batch(table, pa.StructArray.from_arrays(list(columns), fields=fields))
            rows.clear()


def _batch(table: str, rows: pa.Array) -> pa.RecordBatch:
    arrays = [rows if column.name == table else pa.nulls(len(rows), column.type) for column in WRITTEN]
    return pa.RecordBatch.from_arrays(arrays, schema=WRITTEN)


_STATUS: Final = f"CASE WHEN known >= uncovered.last_event THEN '{Status.COVERED}' ELSE uncovered.status END AS status"
_WINDOW: Final = "PARTITION BY {}, {}, {} ORDER BY {} DESC, {} DESC ROWS UNBOUNDED PRECEDING".format(
    *(f"ifnull(uncovered.{name}, set_up.{name})" for name in ("writer_id", "segment", "file", "block", "record"))
)

ALL_EXCHANGES: Final = f"""
SELECT * FROM {{exchanges}}
UNION ALL
SELECT {", ".join(_STATUS if name == "status" else f"uncovered.{name}" for name in EXCHANGE_COLUMNS)}
FROM (
  SELECT uncovered, max(set_up.known) OVER ({_WINDOW}) AS known
  FROM {{written}} WHERE uncovered IS NOT NULL OR set_up IS NOT NULL)
WHERE uncovered IS NOT NULL
"""
"""All exchanges. An append is covered if the store reported its number after a later set-up of its writer.

{exchanges}: the packed exchanges.
"""
