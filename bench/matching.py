"""From which size of a trace on does Spark pay, and how does it compare at matching requests with replies?

`make bench-matching [ARGS="--quick --write-docs"]`. Everything is taken in one run, on one machine.

The curves: what traces of growing size take in one process of plain Python, in one process that reads by column, by
Spark in local[2], and by a stand-alone master with two workers of one core each on this machine. Once for reading
alone (all default columns, thrown away), once for the analysis (every exchange and every broken rule of the frames, by
`segstore.pipeline.report.analysis`, thrown away by Spark's `noop` sink) beside `segstore.pipeline.report.reference`.
All have run before they are timed, and give equal counts; Spark's sessions are warm: what starting one takes is a note.

Matching: the whole analysis on Spark in local[2], beside DuckDB, which only pairs requests with replies
(`bench.pairing`), on the same Parquet; both have to give the same number of pairs and the same sum of latencies. In
plain Python the pairs alone by a dictionary of queues over the columns.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from bench.harness import FULL, Effort, Figure, Report, Table, take_turns
from bench.pages import main
from bench.pairing import PAIRED
from bench.pictures import Lines
from bench.standalone import cluster, session
from bench.traffic import write_traffic
from segstore.pipeline.report.analysis_rules import FRAME_COLUMNS, REPLIES, REQUESTS
from segstore.wire import AppendBlockEnd, AppendSetup, DataAppended, Hello, SetupAppend, encode
from segstore.wire.trace import Direction, Metadata, RecordKind, RecordWriter, event_data, make_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CLUSTER", "JOBS", "LOCAL", "curve", "measure_alone", "measure_spark", "run", "write_trace"]

MATCHING_GOAL: Final = 12.0
ANALYSIS_GOAL: Final = 0.6
MEGABYTES: Final = (8, 32, 128, 512)
QUICK_MEGABYTES: Final = (4, 9)
WRITERS: Final = 200
CONNECTIONS: Final = 40
WHY: Final = (
    "Each query of Spark has a fixed cost for its plan, its stages and its tasks, and rows go to Java, through a "
    "shuffle and a sort, and back to Python, where the same code follows each connection; what Spark gives is more "
    "cores than two, memory that does not grow with the trace, and traces that are larger than one machine's memory."
)
_FRAMES: Final = 2_000_000
_A_BLOCK: Final = 20_000
_A_CONNECTION: Final = 50


def write_trace(path: Path, frames: int, connections: int = 40) -> int:
    """Writes a capture of appends and their acks, several under way at a time; gives how many frames it has."""
    from segstore.wire.trace import Record

    writer = RecordWriter(make_mark(b"matching"), Metadata(17, "bench", {}))
    written, now = 0, 1_700_000_000_000_000_000
    with path.open("wb") as file:
        file.write(writer.start())

        def put(connection: int, direction: Direction, data: bytes, kind: RecordKind = RecordKind.FRAME) -> None:
            nonlocal written, now
            now += 700
            file.write(writer.add(Record(now, connection, direction, kind, data)))
            written += kind is RecordKind.FRAME
            if written % _A_BLOCK == 0:
                file.write(writer.take())

        for connection in range(1, connections + 1):
            put(connection, Direction.REQUEST, event_data(peer="client"), RecordKind.OPEN)
            for way in Direction:
                put(connection, way, encode(Hello(17, 5)))
            for flow in range(1, _A_CONNECTION + 1):
                who = UUID(int=connection << 16 | flow)
                segment = f"scope/stream/{connection * _A_CONNECTION + flow}.#epoch.0"
                put(connection, Direction.REQUEST, encode(SetupAppend(flow << 32, who, segment, "")))
                put(connection, Direction.REPLY, encode(AppendSetup(flow << 32, segment, who, -(1 << 63))))
        for turn in range(max(1, frames // (2 * connections * 10))):
            for connection in range(1, connections + 1):
                flow = turn % _A_CONNECTION + 1
                who, first = UUID(int=connection << 16 | flow), turn // _A_CONNECTION * 10 + 1
                for number in range(first, first + 10):
                    end = AppendBlockEnd(who, 100, bytes(100), 1, number, flow << 32 | number)
                    put(connection, Direction.REQUEST, encode(end))
                for number in range(first, first + 10):
                    ack = DataAppended(flow << 32 | number, who, number, number - 1, 0)
                    put(connection, Direction.REPLY, encode(ack))
        file.write(writer.take())
    return written


_TOTAL: Final = f"""
SELECT count(*) AS pairs, sum(CAST(_reply_ts_ns - ts_ns AS DECIMAL(38, 0))) AS waited
FROM ({PAIRED}) AS paired WHERE _step = 1 AND _reply_block IS NOT NULL
"""


def _plain(parquet: str) -> tuple[int, int]:
    """The same with queues in a dictionary."""
    import pyarrow.parquet as pq

    requests, replies = frozenset(REQUESTS), frozenset(REPLIES)
    columns = ["connection", "request_id", "direction", "command", "ts_ns"]
    waiting: dict[tuple[int, Any], deque[int]] = {}
    pairs = waited = 0
    for name in sorted(Path(parquet).glob("*.parquet")):
        for batch in pq.ParquetFile(name).iter_batches(columns=columns):
            for connection, request_id, direction, command, ts_ns in zip(
                *(batch.column(each).to_pylist() for each in columns), strict=True
            ):
                key = connection, command if request_id is None else request_id
                if direction == "request" and command in requests:
                    waiting.setdefault(key, deque()).append(ts_ns)
                elif direction == "reply" and command in replies and (queue := waiting.get(key)):
                    pairs += 1
                    waited += ts_ns - queue.popleft()
    return pairs, waited


def _timed(work: Any, expected: Any) -> float:
    start = time.perf_counter()
    found = work()
    spent = time.perf_counter() - start
    if found != expected:
        raise RuntimeError(f"{found} was found, {expected} expected")
    return spent


def _matching(spark: SparkSession, folder: Path, frames: int, rounds: int) -> tuple[Figure, Table]:
    import duckdb

    from segstore.pipeline.report.analysis import analyse

    trace, parquet = folder / "matching.wtrace", str(folder / "matching")
    count = write_trace(trace, frames)
    rows = spark.read.format("segstore.trace").option("columns", ",".join(FRAME_COLUMNS)).load(str(trace))
    # One file, in order: the plain way reads it as it stands.
    rows.where("kind <> 'skipped'").selectExpr("*", "1 AS life").coalesce(1).sortWithinPartitions(
        "block", "record"
    ).write.parquet(parquet)
    trace.unlink()
    expected = _plain(parquet)

    def by_spark() -> tuple[int, int]:
        with analyse(spark.read.parquet(parquet)) as found:
            (row,) = (
                found.exchanges.where("paired").selectExpr("count(*) AS pairs", "sum(latency_ns) AS waited").collect()
            )
        return row.pairs, row.waited

    def by_duckdb() -> tuple[int, int]:
        with duckdb.connect(config={"threads": 2}) as database:
            row = database.execute(_TOTAL.format(frames=f"read_parquet('{parquet}/*.parquet')")).fetchone()
            assert row is not None
            return row[0], int(row[1])

    contenders = {"Spark": by_spark, "DuckDB": by_duckdb, "a dictionary": lambda: _plain(parquet)}
    by_spark()
    times = take_turns({name: partial(_timed, work, expected) for name, work in contenders.items()}, rounds)
    ratio = times.ratio("Spark", "DuckDB")
    figure = Figure("matching, Spark in local[2] against DuckDB, time", ratio, MATCHING_GOAL, at_most=True)
    rows_of = [(name, f"{count:,}", f"{times.ratio(name, 'DuckDB'):.1f}") for name in contenders]
    return figure, (("matching", "frames", "× DuckDB's time"), rows_of)


# --- the curves ---------------------------------------------------------------------------------------------------


def _read_by_spark(spark: SparkSession, trace: str) -> int:
    """Rows that were read, counted on the way."""
    return _counted(spark.read.format("segstore.trace").load(trace))


def _analyse_by_spark(spark: SparkSession, trace: str) -> tuple[int, int]:
    """Exchanges and broken rules."""
    from segstore.pipeline.report.analysis import analyse_traces
    from segstore.pipeline.spark_engine import SparkEngine

    with analyse_traces(SparkEngine(spark), [trace]) as found:
        return _counted(found.exchanges), _counted(found.violations)


def _counted(table: DataFrame) -> int:
    """Makes all of a table and throws it away; `count` would leave out the columns that it does not need."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    table.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def _columns(trace: str, names: Sequence[str] | None = None) -> Iterator[Any]:
    from segstore.pipeline.trace.batches import BatchMaker
    from segstore.pipeline.trace.columns import select
    from segstore.pipeline.trace.files import plan
    from segstore.pipeline.trace.reading import read_piece
    from segstore.pipeline.trace.rows import RowMaker

    maker = BatchMaker(RowMaker(select(names)))
    for piece in plan([trace]):
        for found in read_piece(piece):
            yield from maker.batches(found)


def _read_alone(trace: str) -> int:
    from segstore.pipeline.trace.rows import trace_rows

    return sum(1 for _ in trace_rows(trace))


def _read_by_column(trace: str) -> int:
    return sum(batch.num_rows for batch in _columns(trace))


def _analyse_alone(trace: str) -> tuple[int, int]:
    from segstore.pipeline.report.reference import reference

    found = reference(trace)
    return len(found.exchanges), len(found.violations)


def _analyse_by_column(trace: str) -> tuple[int, int]:
    """The reference over columns that were read together."""
    from segstore.pipeline.report.reference import REFERENCE_COLUMNS, reference_of

    rows = (
        row
        for batch in _columns(trace, REFERENCE_COLUMNS)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    found = reference_of(rows)
    return len(found.exchanges), len(found.violations)


ALONE: Final = "one process, plain Python"
BY_COLUMN: Final = "one process, read by column"
LOCAL: Final = "local[2]"
CLUSTER: Final = "a master with two workers"


class Job(NamedTuple):
    """name: of its picture. what: in words. ways: in one process. spark: on Spark."""

    name: str
    what: str
    ways: Mapping[str, Callable[[str], Any]]
    spark: Callable[[SparkSession, str], Any]


JOBS: Final = (
    Job("spark-reading", "reading", {ALONE: _read_alone, BY_COLUMN: _read_by_column}, _read_by_spark),
    Job("spark-analysis", "the analysis", {ALONE: _analyse_alone, BY_COLUMN: _analyse_by_column}, _analyse_by_spark),
)

Seconds = dict[str, dict[str, list[float]]]
"""Job → way → one entry a size."""


def measure_alone(traces: Sequence[str], found: Seconds) -> dict[tuple[str, str], Any]:
    """Times the ways of one process; what each job found in each trace, on which they agree."""
    expected: dict[tuple[str, str], Any] = {}
    for job in JOBS:
        for work in job.ways.values():
            work(traces[0])
        for trace in traces:
            for way, work in job.ways.items():
                expected.setdefault((job.name, trace), None)
                known = expected[job.name, trace]
                spent, seen = _clocked(partial(work, trace))
                if known is not None and seen != known:
                    raise RuntimeError(f"{job.what}, {way}: {seen} was found, {known} expected")
                expected[job.name, trace] = seen
                found.setdefault(job.name, {}).setdefault(way, []).append(spent)
    return expected


def measure_spark(
    spark: SparkSession,
    way: str,
    traces: Sequence[str],
    found: Seconds,
    expected: Mapping[tuple[str, str], Any],
    *,
    warm: bool = True,
) -> None:
    """Times a session, which has to find what was found before. warm: after a run that does not count."""
    for job in JOBS:
        if warm:
            job.spark(spark, traces[0])
        for trace in traces:
            spent = _timed(partial(job.spark, spark, trace), expected[job.name, trace])
            found.setdefault(job.name, {}).setdefault(way, []).append(spent)


def _clocked(work: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.perf_counter()
    seen = work()
    return time.perf_counter() - start, seen


def curve(report: Report, job: Job, megabytes: Sequence[int], records: Sequence[int], found: Seconds) -> str:
    """Adds a job's picture and table; the sentence about it."""
    seconds = found[job.name]
    relative = {
        way: [each / one for each, one in zip(spent, seconds[ALONE], strict=True)] for way, spent in seconds.items()
    }
    rows = [
        (
            f"{size:,}",
            f"{count:,}",
            f"{seconds[ALONE][at]:,.2f}",
            *(f"{relative[way][at]:.2f}" for way in relative if way != ALONE),
        )
        for at, (size, count) in enumerate(zip(megabytes, records, strict=True))
    ]
    others = [f"{way}, × that" for way in relative if way != ALONE]
    report.tables.append(((f"{job.what}: MB", "records", "one process, plain Python, s", *others), rows))
    title = f"{job.what.capitalize()}: time, against one process of plain Python"
    sizes = tuple(map(float, megabytes))
    report.pictures.append(
        Lines(job.name, title, "MB of trace", "× one process", relative, log=True, x=sizes, log_x=True)
    )
    said = "; ".join(f"{way} {_said(megabytes, relative[way])}" for way in (LOCAL, CLUSTER) if way in relative)
    return f"For {job.what}, {said}."


def _said(sizes: Sequence[int], ratios: Sequence[float]) -> str:
    """From which size on it is faster, if it stays so."""
    slower = [at for at, ratio in enumerate(ratios) if ratio >= 1]
    first = slower[-1] + 1 if slower else 0
    if first == len(sizes):
        return f"is slower than one process at every size ({ratios[-1]:.1f} times the time at {sizes[-1]:,} MB)"
    return f"is faster than one process from {sizes[first]:,} MB on ({ratios[-1]:.2f} of the time at {sizes[-1]:,} MB)"


def run(effort: Effort) -> Report:
    """Both comparisons."""
    report = Report(
        "Spark beside one process",
        question="From which trace size is Spark faster than one process, on local[2] and on a master with two "
        "workers?",
    )
    full = effort.scale == FULL.scale
    wanted = MEGABYTES if full else QUICK_MEGABYTES
    found: Seconds = {}
    with tempfile.TemporaryDirectory(prefix="segstore-matching-") as name:
        folder = Path(name)
        traces = [str(folder / f"{size}.wtrace") for size in wanted]
        records = [
            write_traffic(Path(trace), size * 1_000_000, writers=WRITERS, connections=CONNECTIONS)
            for trace, size in zip(traces, wanted, strict=True)
        ]
        megabytes = [round(Path(trace).stat().st_size / 1e6) for trace in traces]  # whole blocks, so a little more
        expected = measure_alone(traces, found)
        start = time.perf_counter()
        spark = session("local[2]", quick=not full)
        report.notes.append(
            f"starting a session of Spark took {time.perf_counter() - start:.1f} s, which is not in these"
        )
        try:
            measure_spark(spark, LOCAL, traces, found, expected, warm=full)
            figure, table = _matching(spark, folder, int(_FRAMES * effort.scale**2), 3 if full else 1)
        finally:
            spark.stop()
        with cluster(folder) as url:
            spark = session(url, quick=not full)
            try:
                measure_spark(spark, CLUSTER, traces, found, expected, warm=full)
            finally:
                spark.stop()
    report.figures.append(figure)
    reading, analysis = JOBS
    if full:
        ratio = found[analysis.name][LOCAL][-1] / found[analysis.name][ALONE][-1]
        name = f"the analysis, {LOCAL}, of one process at {megabytes[-1]:,} MB: time"
        report.figures.append(Figure(name, ratio, ANALYSIS_GOAL, at_most=True))
    said = [curve(report, job, megabytes, records, found) for job in (analysis, reading)]
    report.tables.append(table)
    fixed = ", ".join(f"{job.what} {found[job.name][LOCAL][0]:.1f} s" for job in JOBS)
    report.notes.append(f"most of what the smallest trace takes is fixed: on {LOCAL} {fixed}")
    report.says = f"{' '.join(said)} {WHY}"
    report.notes.append(
        f"made-up traffic of {WRITERS} writers on {CONNECTIONS} connections; {os.cpu_count()} cores, which "
        "Spark's Java, "
        f"its Python workers and the system share; each size once{', warm' * full}; matching: Spark "
        "analyses, DuckDB and the dictionary only pair"
    )
    return report


if __name__ == "__main__":
    sys.exit(main("matching", run))
