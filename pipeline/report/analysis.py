"""Trace analysis: requests paired with replies, errors and latencies as tables.

    from segstore.pipeline.report import analysis
    from segstore.pipeline.session import session
    rows = session().read.format("segstore.trace").load("run.wtrace")
    found = analysis.analyse(rows)
    found.exchanges.where("status = 'lost'").show()
    analysis.latencies(found.exchanges, "command").show()

Tables here belong to Spark or to `segstore.pipeline.local_engine`; see `segstore.pipeline.engine`.
`segstore.pipeline.report.analysis_rules` defines the results, `segstore.pipeline.report.analysis_steps` the steps: one
shuffle and one sort bring the frames of a connection together and in order, and a step in Python follows it.
`analyse_traces` shuffles packed rows, which the engine copies as they are; `analyse` takes rows as they come.
`segstore.pipeline.check.verdicts` judges the same traces.

Invariant: every row equals the row of `segstore.pipeline.report.reference`, which processes the records in file order
by the same code. Comparing the two covers partitioning, batches and the SQL steps. Pairing has two meanings: `paired`
is by request id; the `status` of an append is by event numbers, because a later ack covers earlier events. So an append
without its own ack is not paired, but not lost if a later ack covers it. One task sorts and follows a connection,
however long: Java spills the sort to disk, and Python the requests that wait (`segstore.pipeline.report.pending`).
Refused, with `ColumnError`: rows that lack a column, by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Final

import pyarrow as pa

from segstore.pipeline.engine import Engine, Table, engine_of
from segstore.pipeline.report import analysis_steps as steps
from segstore.pipeline.report.analysis_rules import Status
from segstore.pipeline.report.exchange import FRAME_COLUMNS
from segstore.pipeline.trace.batches import unpacked
from segstore.pipeline.trace.columns import PLACE, ColumnError
from segstore.pipeline.trace.files import find_traces
from segstore.pipeline.trace.options import OptionError, read_options
from segstore.wire.names import parent_of

_DECIDED: Final = ("path", "paths", "columns", "fields", "frame", "commands", "packed")
"""The options of traces that an analysis decides itself."""

BUCKET_BITS: Final = 7
"""Latencies up to 2^7 ns are counted exactly, longer latencies in buckets no wider than 1/2^7 of their lower bound."""


def require(rows: Table, columns: Sequence[str]) -> None:
    """Raises ColumnError for the first missing column."""
    for name in columns:
        if name not in rows.columns:
            raise ColumnError(f"the column {name!r} is missing, the analysis needs {', '.join(columns)}", name)


def with_segments(rows: Table) -> Table:
    """Returns trace rows in which frames that name only their writer, such as appends, have its `segment`.

    It comes from the writer's last SETUP_APPEND before on this connection; null without a SETUP_APPEND. The source
    cannot fill it in, because a task may read the append without the set-up. Reads set-ups in a second pass. Raises
    ColumnError.
    """
    require(rows, ("file", "block", "record", "connection", "command", "writer_id", "segment"))
    filled = "coalesce(r.segment, s.named) AS segment"
    return engine_of(rows).statement(
        f"""
        WITH s AS (
          SELECT file, connection, writer_id, segment AS named, (block, record) AS first,
            lead((block, record)) OVER (PARTITION BY file, connection, writer_id ORDER BY block, record) AS next
          FROM {{rows}} WHERE command = 'SETUP_APPEND')
        SELECT {", ".join(filled if name == "segment" else f"r.`{name}`" for name in rows.columns)}
        FROM {{rows}} AS r LEFT JOIN s ON r.segment IS NULL AND r.writer_id = s.writer_id
          AND r.file = s.file AND r.connection = s.connection AND (r.block, r.record) > s.first
          AND (s.next IS NULL OR (r.block, r.record) < s.next)
        """,
        rows=rows,
    )


class Analysis:
    """The analysis of a trace and the tables derived from it.

    followed: the result of a step of `segstore.pipeline.report.analysis_steps`; made once. Intermediate results are on
    disk until `close`.
    """

    def __init__(self, followed: Table) -> None:
        self._engine = engine_of(followed)
        self.written = self._engine.held(followed)

    def __enter__(self) -> Analysis:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases persisted data."""
        self._engine.release(self.written)

    @cached_property
    def frames(self) -> Table:
        """The frames: `FRAME_COLUMNS` and `life`."""
        return self._unpacked("frames", steps.FRAMES)

    @cached_property
    def exchanges(self) -> Table:
        """All requests, and all replies without a request: `EXCHANGE_COLUMNS`."""
        return self._sql(steps.ALL_EXCHANGES, exchanges=self._unpacked("exchanges", steps.EXCHANGES))

    def _unpacked(self, column: str, schema: pa.Schema) -> Table:
        packed = self._sql(f"SELECT {column} FROM {{written}} WHERE {column} IS NOT NULL")
        return self._engine.mapped(packed, partial(unpacked, schema), schema)

    def _sql(self, text: str, **tables: Table) -> Table:
        return self._engine.statement(text, written=self.written, **tables)


def analyse(rows: Table) -> Analysis:
    """Analyses rows of `format("segstore.trace")`. Raises ColumnError."""
    require(rows, FRAME_COLUMNS)
    engine = engine_of(rows)
    frames = f"SELECT {', '.join(FRAME_COLUMNS)} FROM {{rows}} WHERE kind <> 'skipped'"
    followed = engine.mapped(engine.statement(frames, rows=rows), steps.follow, steps.WRITTEN, PLACE[:2], PLACE)
    return Analysis(followed)


def analyse_traces(engine: Engine, files: Sequence[str], *, tables: Engine | None = None, **options: str) -> Analysis:
    """Analyses traces, which is faster than analysing their rows.

    tables: the engine that makes the tables from the connections that `engine` has followed; by default `engine`.
    options: as for `format("segstore.trace")`, except for columns and commands. Raises OptionError, FileNotFoundError,
    NotATrace and the errors of `engine.read`.
    """
    for name in options:
        if name.lower() in _DECIDED:
            raise OptionError(f"an analysis has all columns and commands that it needs, without {name}", name)
    traces = find_traces(files, storage=read_options({"paths": json.dumps(list(files)), **options}).storage)
    packed = engine.read(traces, FRAME_COLUMNS, packed="true", **options)
    followed = engine.mapped(packed, steps.follow_packed, steps.WRITTEN, PLACE[:2], PLACE)
    return Analysis((engine if tables is None else tables).taken(followed))


def traffic(frames: Table) -> Table:
    """Returns frames and bytes by direction and command, with the numbers of failures and malformed frames."""
    return engine_of(frames).statement(
        """
        SELECT direction, coalesce(command, '(no frame)') AS command, count(*) AS frames, sum(size) AS bytes,
          count(CASE WHEN failure THEN 1 END) AS failures,
          count(CASE WHEN kind = 'bytes' OR error IS NOT NULL THEN 1 END) AS malformed
        FROM {frames} WHERE kind IN ('frame', 'bytes') GROUP BY direction, coalesce(command, '(no frame)')
        """,
        frames=frames,
    )


def calls(rows: Table) -> Table:
    """Counts controller calls by method and outcome; an unanswered call has the outcome `(no answer)`."""
    return engine_of(rows).statement(
        """
        WITH c AS (
          SELECT rpc, status, call_failed, count(*) AS times, CASE WHEN status IS NULL THEN 1 ELSE -1 END AS sign
          FROM {rows} WHERE rpc IS NOT NULL GROUP BY rpc, status, call_failed)
        SELECT rpc, status, call_failed AS failed, times FROM c WHERE status IS NOT NULL
        UNION ALL SELECT rpc, '(no answer)' AS status, FALSE AS failed, CAST(sum(sign * times) AS BIGINT) AS times
        FROM c GROUP BY rpc HAVING sum(sign * times) > 0
        """,
        rows=rows,
    )


def errors(frames: Table, exchanges: Table) -> Table:
    """Returns failures by kind, with the refused request and the number of segments concerned."""
    return engine_of(frames).statement(
        """
        SELECT e.reply_command AS error, e.command AS request, count(*) AS times, count(DISTINCT e.segment) AS segments,
          min(e.reply_ts_ns) AS first_ts_ns, max(e.reply_ts_ns) AS last_ts_ns
        FROM {exchanges} AS e JOIN (SELECT DISTINCT command FROM {frames} WHERE failure
            UNION SELECT 'CONDITIONAL_CHECK_FAILED') AS failing ON e.reply_command = failing.command
        GROUP BY e.reply_command, e.command
        """,
        frames=frames,
        exchanges=exchanges,
    )


def by_parent(exchanges: Table) -> Table:
    """Returns the exchanges that name a segment; transactions' and transient segments have the name of their parent."""
    columns = ", ".join("p.parent AS segment" if name == "segment" else f"e.{name}" for name in exchanges.columns)
    return engine_of(exchanges).statement(
        f"SELECT {columns} FROM {{exchanges}} AS e JOIN {{parents}} AS p ON e.segment = p.segment",
        exchanges=exchanges,
        parents=named(exchanges, _parent, "parent"),
    )


def _parent(segment: str) -> str:
    return parent_of(segment) or segment


def named(rows: Table, name_of: Callable[[str], str | None], column: str) -> Table:
    """Returns the distinct segments of rows, with a column of the names that a picklable function gives them."""
    engine = engine_of(rows)
    segments = engine.statement("SELECT DISTINCT segment FROM {rows} WHERE segment IS NOT NULL", rows=rows)
    schema = pa.schema({"segment": pa.string(), column: pa.string()})
    return engine.mapped(segments, partial(_with_names, name_of, column), schema)


def _with_names(
    name_of: Callable[[str], str | None], column: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.append_column(column, pa.array(map(name_of, batch.column(0).to_pylist()), pa.string()))


_WIDTH: Final = f"length(bin(greatest(latency_ns, 0))) - {BUCKET_BITS + 1}"


def histogram(exchanges: Table, *by: str) -> Table:
    """Returns a histogram of the latencies of answered and refused requests: buckets from `least_ns`, `width_ns` wide.

    by: columns, such as "command", "segment", "flow". A negative latency, from a clock set back, counts as 0.
    """
    columns = "".join(f"`{name}`, " for name in by)
    text = f"SELECT {columns}least_ns, width_ns, times FROM {{counted}}"
    return engine_of(exchanges).statement(text, counted=_buckets(exchanges, by))


def _buckets(exchanges: Table, by: Sequence[str]) -> Table:
    """Returns a histogram with the exact least, most and sum of the latencies in each bucket."""
    require(exchanges, (*by, "status", "latency_ns", "command"))
    names = "".join(f"`{name}`, " for name in by)
    return engine_of(exchanges).statement(
        f"""
        SELECT {names}(latency >> shift) << shift AS least_ns, CAST(1 AS BIGINT) << shift AS width_ns,
          count(*) AS times, min(latency_ns) AS low, max(latency_ns) AS high,
          sum(CAST(latency_ns AS DECIMAL(38, 0))) AS total
        FROM (
          SELECT {names}latency_ns, greatest(latency_ns, 0) AS latency, greatest({_WIDTH}, 0) AS shift
          FROM {{exchanges}}
          WHERE status IN ('{Status.ANSWERED}', '{Status.REFUSED}') AND latency_ns IS NOT NULL)
        GROUP BY {names}least_ns, width_ns
        """,
        exchanges=exchanges,
    )


def latencies(exchanges: Table, *by: str, percentiles: Sequence[float] = (0.5, 0.9, 0.99, 0.999)) -> Table:
    """Returns percentiles of latencies by these columns: the upper end of the bucket that holds the value of that rank.

    A percentile is never below the actual value, less than 1/2^`BUCKET_BITS` above it, and never above the maximum.
    Memory depends on the number of buckets, not of requests. `mean_ns`, `least_ns` and `most_ns` are exact.
    """
    names = "".join(f"`{name}`, " for name in by)
    group = f"PARTITION BY {names[:-2]}" if by else ""
    ranks = "".join(
        f"least(min(CASE WHEN so_far >= ceil(of_all * CAST('{p}' AS DOUBLE)) THEN least_ns + width_ns - 1 END), "
        f"greatest(max(high), 0)) AS {percentile_name(p)}, "
        for p in percentiles
    )
    return engine_of(exchanges).statement(
        f"""
        WITH running AS (
          SELECT *, sum(times) OVER ({group} ORDER BY least_ns ROWS UNBOUNDED PRECEDING) AS so_far,
            sum(times) OVER ({group}) AS of_all
          FROM {{counted}})
        SELECT {names}coalesce(sum(times), 0) AS times, CAST(sum(total) DIV sum(times) AS BIGINT) AS mean_ns,
          min(low) AS least_ns, {ranks}max(high) AS most_ns
        FROM running {f"GROUP BY {names[:-2]}" if by else ""}
        """,
        counted=_buckets(exchanges, by),
    )


def percentile_name(share: float) -> str:
    """Returns the column name of a percentile: p50_ns for 0.5, p99_9_ns for 0.999."""
    return f"p{f'{share * 100:.10g}'.replace('.', '_')}_ns"
