"""How Spark compares at matching requests with replies, and from which size of a trace on a report pays.

`make bench-matching [ARGS="--quick --write-docs"]`. Two comparisons, each taken side by side in one run:

Matching: the same statement (`segstore.pipeline.analysis_steps.PAIRED`) on the same Parquet, by Spark in local[2] and
by DuckDB; both have to give the same number of pairs and the same sum of latencies. In plain Python the same by a
dictionary of queues over the columns.

The curve: all that a report knows of exchanges and broken rules, from captures of growing size, by
`segstore.pipeline.reference` in one process, by Spark in local[2], and by a stand-alone master with two workers of one
core each on this machine. Spark's sessions run and are warm: what starting one takes is a figure of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from bench.harness import FULL, Effort, Figure, Report, Table, take_turns
from bench.pages import main
from bench.pictures import Lines
from segstore.pipeline import analysis_steps as steps
from segstore.pipeline.analysis_rules import FRAME_COLUMNS, REPLIES, REQUESTS
from segstore.wire import AppendBlockEnd, AppendSetup, DataAppended, Hello, SetupAppend, encode
from segstore.wire.trace import Direction, Metadata, RecordKind, RecordWriter, event_data, make_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run", "write_trace"]

MATCHING_GOAL: Final = 12.0
_FRAMES: Final = 5_000_000
_SIZES: Final = (10_000, 100_000, 1_000_000, 5_000_000)
_A_BLOCK: Final = 20_000
_WRITERS: Final = 50
_READY_S: Final = 60.0


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
            for flow in range(1, _WRITERS + 1):
                who = UUID(int=connection << 16 | flow)
                segment = f"scope/stream/{connection * _WRITERS + flow}.#epoch.0"
                put(connection, Direction.REQUEST, encode(SetupAppend(flow << 32, who, segment, "")))
                put(connection, Direction.REPLY, encode(AppendSetup(flow << 32, segment, who, -(1 << 63))))
        for turn in range(max(1, frames // (2 * connections * 10))):
            for connection in range(1, connections + 1):
                flow = turn % _WRITERS + 1
                who, first = UUID(int=connection << 16 | flow), turn // _WRITERS * 10 + 1
                for number in range(first, first + 10):
                    end = AppendBlockEnd(who, 100, bytes(100), 1, number, flow << 32 | number)
                    put(connection, Direction.REQUEST, encode(end))
                for number in range(first, first + 10):
                    ack = DataAppended(flow << 32 | number, who, number, number - 1, 0)
                    put(connection, Direction.REPLY, encode(ack))
        file.write(writer.take())
    return written


_TOTAL: Final = (
    "SELECT count(*) AS pairs, sum(CAST(_reply_ts_ns - ts_ns AS DECIMAL(38, 0))) AS waited "
    "FROM ({}) AS paired WHERE _step = 1 AND _reply_block IS NOT NULL"
)


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

    from segstore.pipeline.analysis import placed

    trace, parquet = folder / "matching.wtrace", str(folder / "matching")
    count = write_trace(trace, frames)
    rows = spark.read.format("segstore.trace").option("columns", ",".join(FRAME_COLUMNS)).load(str(trace))
    # One file, in order: the plain way reads it as it stands.
    placed(rows).coalesce(1).sortWithinPartitions("block", "record").write.parquet(parquet)
    trace.unlink()
    expected = _plain(parquet)

    def by_spark() -> tuple[int, int]:
        paired = spark.sql(steps.PAIRED, frames=spark.read.parquet(parquet))
        (row,) = spark.sql(_TOTAL.format("SELECT * FROM {paired}"), paired=paired).collect()
        return row.pairs, int(row.waited)

    def by_duckdb() -> tuple[int, int]:
        with duckdb.connect(config={"threads": 2}) as database:
            statement = steps.PAIRED.format(frames=f"read_parquet('{parquet}/*.parquet')")
            row = database.execute(_TOTAL.format(statement)).fetchone()
            assert row is not None
            return row[0], int(row[1])

    contenders = {"Spark": by_spark, "DuckDB": by_duckdb, "a dictionary": lambda: _plain(parquet)}
    by_spark()
    times = take_turns({name: partial(_timed, work, expected) for name, work in contenders.items()}, rounds)
    ratio = times.ratio("Spark", "DuckDB")
    figure = Figure("matching, Spark in local[2] against DuckDB, time", ratio, MATCHING_GOAL, at_most=True)
    rows_of = [(name, f"{count:,}", f"{times.ratio(name, 'DuckDB'):.1f}") for name in contenders]
    return figure, (("matching", "frames", "× DuckDB's time"), rows_of)


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """A stand-alone master with two workers of one core; gives its address."""
    import pyspark

    home = Path(pyspark.__file__).parent
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    started = []

    def start(name: str, *command: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            made = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command], stdout=out, stderr=subprocess.STDOUT, env=env
            )
        started.append(made)
        return log

    def said(log: Path, text: str) -> str:
        until = time.monotonic() + _READY_S
        while time.monotonic() < until:
            for line in log.read_text(errors="replace").splitlines():
                if text in line:
                    return line
            time.sleep(0.05)
        raise RuntimeError(f"{log.name} did not say {text!r} within {_READY_S:g} s")

    try:
        master = start(
            "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        url = "spark://" + said(master, "Starting Spark master at").partition("spark://")[2].strip()
        for number in range(2):
            work = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / f"work{number}"))
            log = start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *work, "--host", "127.0.0.1", url)
            said(log, "Successfully registered")
        yield url
    finally:
        for made in reversed(started):
            made.terminate()
        for made in started:
            made.wait(timeout=30)


def _by_spark(spark: SparkSession, trace: str) -> tuple[int, int]:
    from segstore.pipeline.analysis import analyse

    rows = spark.read.format("segstore.trace").option("columns", ",".join(FRAME_COLUMNS)).load(trace)
    with analyse(rows) as found:
        return found.exchanges.count(), found.violations.count()


def _by_one_process(trace: str) -> tuple[int, int]:
    from segstore.pipeline.reference import reference

    found = reference(trace)
    return len(found.exchanges), len(found.violations)


def _session(master: str) -> SparkSession:
    from segstore.pipeline.session import session

    conf = {"spark.sql.shuffle.partitions": "8", "spark.driver.memory": "2g", "spark.driver.bindAddress": "127.0.0.1"}
    running = session(master, app="bench", conf=conf, quick=False)
    running.sparkContext.setLogLevel("ERROR")
    return running


def run(effort: Effort) -> Report:
    """Both comparisons."""
    report = Report("Matching on Spark")
    full = effort.scale == FULL.scale
    sizes = _SIZES if full else _SIZES[:2]
    seconds: dict[str, list[float]] = {"one process": [], "local[2]": [], "a master with two workers": []}
    with tempfile.TemporaryDirectory(prefix="segstore-matching-") as name:
        folder = Path(name)
        start = time.perf_counter()
        spark = _session("local[2]")
        report.notes.append(f"Starting a session of Spark took {time.perf_counter() - start:.1f} s.")
        try:
            figure, table = _matching(spark, folder, int(_FRAMES * effort.scale), 3)
            traces = [(str(folder / f"{size}.wtrace"), size) for size in sizes]
            for trace, size in traces:
                write_trace(Path(trace), size)
            _by_spark(spark, traces[0][0])
            expected = {}
            for trace, _ in traces:
                begun = time.perf_counter()
                expected[trace] = _by_one_process(trace)
                seconds["one process"].append(time.perf_counter() - begun)
                seconds["local[2]"].append(_timed(partial(_by_spark, spark, trace), expected[trace]))
        finally:
            spark.stop()
        with _cluster(folder) as url:
            spark = _session(url)
            try:
                _by_spark(spark, traces[0][0])
                for trace, _ in traces:
                    spent = _timed(partial(_by_spark, spark, trace), expected[trace])
                    seconds["a master with two workers"].append(spent)
            finally:
                spark.stop()
    report.figures.append(figure)
    report.tables.append(table)
    relative = {
        way: [each / one for each, one in zip(spent, seconds["one process"], strict=True)]
        for way, spent in seconds.items()
    }
    rows = [(f"{size:,}", *(f"{relative[way][at]:.2f}" for way in seconds)) for at, size in enumerate(sizes)]
    report.tables.append((("frames; × one process's time", *seconds), rows))
    title = "Exchanges and broken rules: time, against one process of plain Python"
    report.pictures.append(
        Lines("matching", title, "frames", "× one process", relative, log=True, x=tuple(map(float, sizes)), log_x=True)
    )
    report.notes.append(_said(sizes, relative))
    return report


def _said(sizes: tuple[int, ...], relative: dict[str, list[float]]) -> str:
    out = []
    for way in list(relative)[1:]:
        faster = [size for size, ratio in zip(sizes, relative[way], strict=True) if ratio < 1]
        out.append(
            f"{way} is faster than one process from {faster[0]:,} frames on"
            if faster
            else f"{way} is slower than one process at every size up to {sizes[-1]:,} frames"
        )
    return "; ".join(out) + ". Spark is here for more cores than two and for traces beyond one machine's memory."


if __name__ == "__main__":
    sys.exit(main("matching", run))
