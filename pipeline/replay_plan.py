"""Splits a trace into independent parts, and replays them in parallel as Spark tasks.

Two connections depend on each other if both name the same segment or writer. Transaction, transient and index segments
count as the segment that they belong to. Connections that depend on each other, directly or not, form a component;
components are assigned to parts, the largest first, each to the part with the fewest records.

Invariant: all records of a connection are in one part, and no segment or writer is named in two parts. Files are
separate traces unless they name a common segment or writer; then they are one trace, in order of file names. A
connection that names everything, such as a controller's, ties everything into one part. `ReplayPlan.hubs` lists the
five connections that share the most. Segments named only in a batch of merges count if rows have the column
`fields`.

`replay` knows no store: the function to run for each part is an argument and must be picklable.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.pipeline.engine import Table, engine_of
from segstore.wire.errors import WireError
from segstore.wire.names import SegmentName
from segstore.wire.trace import Direction, Record, RecordKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

LINK_COLUMNS: Final = ("file", "connection", "command", "segment", "source", "writer_id")
REPLAY_COLUMNS: Final = ("file", "block", "record", "kind", "ts_ns", "connection", "direction", "frame")
_BATCH: Final = ("MERGE_SEGMENTS_BATCH", "SEGMENTS_BATCH_MERGED")
_MOST_HUBS: Final = 5

Connection = tuple[str, int]


class ConnectionUse(NamedTuple):
    """A connection and a segment or writer that it names; None counts its records that name nothing."""

    file: str
    connection: int
    key: str | None
    records: int

    @property
    def origin(self) -> Connection:
        return self.file, self.connection


class TracePart(NamedTuple):
    """Connections to replay together, in the order of the trace. components: number of independent groups in it."""

    number: int
    connections: tuple[Connection, ...]
    records: int
    components: int


class ReplayPlan(NamedTuple):
    """The parts of a trace. parts: non-empty parts, the largest first. components: number of independent groups. hubs:
    the five connections that share the most segments and writers with other connections, and how many.
    """

    parts: tuple[TracePart, ...]
    components: int
    hubs: tuple[tuple[Connection, int], ...]

    def part_of(self) -> dict[Connection, int]:
        return {connection: part.number for part in self.parts for connection in part.connections}


class PartOutcome(NamedTuple):
    """The outcome of replaying one part. differences: the first few, as text. error: why it could not be replayed."""

    part: int
    requests: int
    replies: int
    different: int
    differences: list[str]
    error: str | None = None


Replayer = Callable[[int, list[Record]], PartOutcome]


def keys_of(segment: str | None, source: str | None, writer_id: str | None) -> Iterator[str]:
    """Yields the segments and writer that a record depends on."""
    for name in (segment, source):
        if name is not None:
            yield f"segment {SegmentName.parse(name).base}"
    if writer_id is not None:
        yield f"writer {writer_id}"


def links(rows: Table) -> list[ConnectionUse]:
    """Returns what each connection names, from rows with `LINK_COLUMNS`, plus `fields` for batches of merges.

    The distinct pairs are collected on the driver, which keeps some hundred bytes for each connection and name.
    """
    from segstore.pipeline.report.analysis import require

    require(rows, (*LINK_COLUMNS, "kind"))
    batch = f"CASE WHEN command IN {_BATCH} THEN"
    fields = f"{batch} fields END" if "fields" in rows.columns else "NULL"
    columns = ", ".join(f"{batch} command END AS command" if column == "command" else column for column in LINK_COLUMNS)
    engine = engine_of(rows)
    chosen = f"SELECT {columns}, {fields} AS fields FROM {{rows}} WHERE kind <> 'skipped'"
    counted = f"SELECT {', '.join(LINK_COLUMNS)}, fields, count(*) FROM ({chosen}) GROUP BY ALL"
    uses: Counter[tuple[str, int, str | None]] = Counter()
    for file, connection, command, segment, source, writer_id, merged, count in engine.rows(
        engine.statement(counted, rows=rows)
    ):
        keys = dict.fromkeys(keys_of(segment, source, writer_id))
        if command in _BATCH and merged is not None:
            batch_fields = json.loads(merged)
            for name in batch_fields.get("source_segment_ids") or batch_fields.get("sources") or ():
                keys.update(dict.fromkeys(keys_of(name, None, None)))
        for key in keys:
            uses[file, connection, key] += 0
        uses[file, connection, None] += count
    return [ConnectionUse(*key, count) for key, count in sorted(uses.items(), key=repr)]


def plan(uses: Iterable[ConnectionUse], parts: int) -> ReplayPlan:
    """Assigns connections to at most `parts` parts."""
    if parts < 1:
        raise ValueError(f"at least one part is needed, not {parts}")
    root: dict[Connection, Connection] = {}
    records: Counter[Connection] = Counter()
    users: dict[str, list[Connection]] = {}
    for use in uses:
        root.setdefault(use.origin, use.origin)
        records[use.origin] += use.records
        if use.key is not None:
            users.setdefault(use.key, []).append(use.origin)
    for first, *others in users.values():
        for other in others:
            root[_root(root, other)] = _root(root, first)
    components: dict[Connection, list[Connection]] = {}
    for connection in sorted(root):
        components.setdefault(_root(root, connection), []).append(connection)
    weighed = sorted(
        ((sum(records[connection] for connection in connections), connections) for connections in components.values()),
        key=lambda component: (-component[0], component[1]),
    )
    bins: list[tuple[int, list[list[Connection]]]] = [(0, []) for _ in range(min(parts, len(weighed)))]
    for weight, one in weighed:
        least = min(range(len(bins)), key=lambda at: bins[at][0])
        bins[least] = (bins[least][0] + weight, [*bins[least][1], one])
    dealt = tuple(
        TracePart(number, tuple(sorted(each for one in ones for each in one)), weight, len(ones))
        for number, (weight, ones) in enumerate(sorted(bins, key=lambda each: -each[0]))
    )
    return ReplayPlan(dealt, len(components), _hubs(users))


def _root(root: dict[Connection, Connection], connection: Connection) -> Connection:
    top = connection
    while root[top] != top:
        top = root[top]
    while root[connection] != top:
        root[connection], connection = top, root[connection]
    return top


def _hubs(users: dict[str, list[Connection]]) -> tuple[tuple[Connection, int], ...]:
    shared: Counter[Connection] = Counter()
    for connections in map(set, users.values()):
        if len(connections) > 1:
            shared.update(connections)
    ranked = sorted(shared.items(), key=lambda hub: (-hub[1], hub[0]))
    return tuple(ranked[:_MOST_HUBS])


# --- the job ------------------------------------------------------------------------------------------------------


def replay(rows: DataFrame, parts: ReplayPlan, run: Replayer) -> list[PartOutcome]:
    """Replays each part in its own task; returns the outcomes in order of the parts.

    rows: must have `REPLAY_COLUMNS`, with delegation tokens. A task holds the records of its part in memory. run:
    called with a part's number and records; an OSError, ValueError or WireError that it raises becomes that part's
    `error`, any other exception fails the job.
    """
    from pyspark.sql import functions as f

    from segstore.pipeline import versions
    from segstore.pipeline.report.analysis import require

    versions.require("replay")
    require(rows, REPLAY_COLUMNS)
    spark = rows.sparkSession
    assigned = spark.createDataFrame(
        [(file, connection, number) for (file, connection), number in parts.part_of().items()],
        "file string, connection long, part int",
    )
    dealt = rows.select(*REPLAY_COLUMNS).join(f.broadcast(assigned), ["file", "connection"])
    count = max(1, len(parts.parts))
    by_task = dealt.repartitionById(count, f.col("part")).sortWithinPartitions("part", "file", "block", "record")
    return sorted(by_task.rdd.mapPartitions(partial(_replayed, run)).collect())


def _replayed(run: Replayer, rows: Iterable[Row]) -> Iterator[PartOutcome]:
    """Yields the outcomes of the parts of a Spark task."""
    for part, rows_of_part in groupby(rows, attrgetter("part")):
        numbers: dict[Connection, int] = {}  # equal numbers in two files are different connections
        records = [
            Record(
                row.ts_ns,
                numbers.setdefault((row.file, row.connection), len(numbers) + 1),
                Direction[row.direction.upper()],
                RecordKind[row.kind.upper()],
                bytes(row.frame),
            )
            for row in rows_of_part
        ]
        try:
            yield run(part, records)
        except (OSError, ValueError, WireError) as error:
            yield PartOutcome(part, 0, 0, 0, [], f"{type(error).__name__}: {error}")
