"""How fast do traces become rows: by column or one by one, in one process or on Spark, and in how much memory?

    python -m bench.pipeline [--megabytes N] [--quick] [--write-docs]

The trace is made up (`bench.traffic`), of the size that is asked for. Decoding in one process is compared by CPU time,
on a part of the trace, with its reading and its checksums. What Spark does is compared by the clock, on two cores, over
the whole of it: all default columns are made and thrown away by Spark's `noop` sink. Memory is that of the largest
Python worker, as the system counts it at its peak, for a trace and for one a quarter as long. The reports are those of
`segstore trace report`, of either engine in turn, by the clock, from the start of its process to its end; not with
`--quick`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.harness import Effort, Figure, Report, Times, take_turns
from bench.pages import main
from bench.pictures import Bars
from bench.processes import ROOT
from bench.traffic import write_traffic
from segstore.pipeline.session import session
from segstore.pipeline.trace.batches import BatchMaker
from segstore.pipeline.trace.columns import select
from segstore.pipeline.trace.files import plan
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import RowMaker, trace_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run", "watching"]

MEGABYTES: Final = 400
QUICK_MEGABYTES: Final = 24
REPORT_MEGABYTES: Final = 45
REPORT_GOAL_S: Final = 10.0
REPORT_GOAL: Final = 3.0
REPORT_ROUNDS: Final = 2
ONE_PROCESS_BYTES: Final = 64_000_000
"""The part of the trace that is decoded in one process to compare CPU times."""
ROUNDS: Final = 3
LOOK_S: Final = 0.02
_KINDS: Final = {
    b"pyspark.daemon": "python",
    b"CoarseGrainedExecutorBackend": "java",
    b"org.apache.spark.deploy.SparkSubmit": "java",
}
"""What stands in the command line of a process that runs tasks."""

PLAIN, TOGETHER = "one by one", "by column"
SPARK, TUPLES, ALONE = "Spark, batches", "Spark, tuples", "one process, plain Python"


def run(effort: Effort, megabytes: int = MEGABYTES) -> Report:
    """Makes a trace and measures."""
    full = effort.scale == 1
    size = round((megabytes if full else min(megabytes, QUICK_MEGABYTES)) * 1_000_000)
    report = Report(
        "Traces as rows",
        question="How fast do traces become rows, by column or one by one, in one process or on Spark?",
    )
    with tempfile.TemporaryDirectory(prefix="segstore-bench-") as folder:
        trace = Path(folder, "trace.wtrace")
        count = write_traffic(trace, size)
        part = Path(folder, "part.wtrace")
        part_count = write_traffic(part, min(size, ONE_PROCESS_BYTES))
        quarter = Path(folder, "quarter.wtrace")
        write_traffic(quarter, size // 4)
        decoded = _one_process(part, effort)
        ratio = decoded.ratio(PLAIN, TOGETHER)
        report.figures.append(Figure("decoding by column, of plain Python, one process", ratio, 5, at_most=False))
        planning = _planning(trace)
        report.figures.append(Figure("planning a GB", planning, 10, at_most=True, unit="ms"))
        spark = session("local[2]", app="bench", conf={"spark.log.level": "ERROR"})
        try:
            small, large = _worker_peak(spark, quarter), _worker_peak(spark, trace)  # in this order: workers stay
            times = _spark(spark, trace, ROUNDS if full else 1)
        finally:
            spark.stop()
        report.figures += [
            Figure("Spark with batches, of Spark with tuples", times.ratio(TUPLES, SPARK), 6, at_most=False),
            Figure("Spark on two cores, of one process", times.ratio(ALONE, SPARK), 1.5, at_most=False),
            Figure("memory of a worker, trace four times as long", large / small, 1.2, at_most=True),
        ]
        rows = [(f"{PLAIN}, one process", _rate(part_count, decoded.median(PLAIN)), "CPU")]
        rows.append((f"{TOGETHER}, one process", _rate(part_count, decoded.median(TOGETHER)), "CPU"))
        rows += [(name, _rate(count, times.median(name)), "clock") for name in (ALONE, TUPLES, SPARK)]
        _say(report, times, count)
        if full:
            reports = _reports(Path(folder))
            local = reports.median("local")
            name = f"a report of {REPORT_MEGABYTES} MB, local engine"
            report.figures += [
                Figure(name, local, REPORT_GOAL_S, at_most=True, unit="s"),
                Figure("that report on Spark in local[2]", reports.ratio("spark", "local"), REPORT_GOAL, at_most=False),
            ]
        report.tables.append((("way", "records/s", "time"), rows))
        report.notes += [
            f"a trace of {trace.stat().st_size / 1e6:,.0f} MB, {count:,} records; {len(select())} columns",
            f"the largest Python worker had {large / 1e6:,.0f} MB, with a quarter of the trace {small / 1e6:,.0f} MB",
            "Spark's own start (seconds) is not in these times: a job has to be longer than that to be worth it",
        ]
    return report


def _say(report: Report, times: Times, count: int) -> None:
    by_column, _, tuples, alone, memory = (figure.value for figure in report.figures)
    report.says = (
        f"In one process, decoding by column is {by_column:.1f} times as fast as decoding one by one. Spark on two "
        f"cores is {alone:.1f} times as fast as one process of plain Python, and {tuples:.1f} times as fast with "
        f"batches as with single rows. For a trace four times as long, a worker needs {memory:.2f} times as much "
        "memory."
    )
    report.pictures.append(
        Bars(
            "pipeline-rates",
            "Traces as rows",
            "",
            "thousand records a second",
            {"by the clock": [count / times.median(name) / 1000 for name in (ALONE, TUPLES, SPARK)]},
            groups=(ALONE, TUPLES, f"{SPARK}, local[2]"),
            decimals=0,
        )
    )


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}"


def _drain(items: Iterator[object]) -> None:
    deque(items, maxlen=0)


def _timed(work: Callable[[], None], clock: Callable[[], float]) -> Callable[[], float]:
    def once() -> float:
        start = clock()
        work()
        return clock() - start

    return once


def _one_process(path: Path, effort: Effort) -> Times:
    pieces = plan([str(path)])

    def plain() -> None:
        maker = RowMaker(select())
        _drain(row for piece in pieces for found in read_piece(piece) for row in maker.rows(found))

    def together() -> None:
        maker = BatchMaker(RowMaker(select()))
        _drain(batch for piece in pieces for found in read_piece(piece) for batch in maker.batches(found))

    together()
    clock = time.process_time
    return take_turns({PLAIN: _timed(plain, clock), TOGETHER: _timed(together, clock)}, max(2, effort.rounds // 2))


def _planning(path: Path) -> float:
    """Milliseconds for a GB."""
    took = min(_timed(lambda: _drain(iter(plan([str(path)]))), time.perf_counter)() for _ in range(5))
    return took * 1e3 / (path.stat().st_size / 1e9)


def _spark(spark: SparkSession, path: Path, rounds: int) -> Times:
    def job(vectorised: bool) -> None:
        reader = spark.read.format("segstore.trace").option("vectorised", str(vectorised).lower())
        reader.load(str(path)).write.format("noop").mode("overwrite").save()

    job(True)
    clock = time.perf_counter
    contenders = {
        SPARK: _timed(partial(job, True), clock),
        TUPLES: _timed(partial(job, False), clock),
        ALONE: _timed(lambda: _drain(trace_rows(str(path))), clock),
    }
    return take_turns(contenders, rounds)


def _reports(folder: Path) -> Times:
    """Seconds of the command that makes a report, by engine."""
    trace = folder / "report.wtrace"
    write_traffic(trace, REPORT_MEGABYTES * 1_000_000)

    def report(*engine: str) -> None:
        command = ["trace", "report", str(trace), "-o", str(folder / "report"), "--replace", *engine]
        subprocess.run(
            [sys.executable, "-c", "from segstore.cli.commands import main; main()", *command],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    clock = time.perf_counter
    contenders = {
        "local": _timed(partial(report, "--engine", "local"), clock),
        "spark": _timed(partial(report, "--master", "local[2]"), clock),
    }
    return take_turns(contenders, REPORT_ROUNDS)


# --- memory -----------------------------------------------------------------------------------------------------


def _worker_peak(spark: SparkSession, path: Path) -> float:
    """Bytes of the largest Python worker that reads a trace, at its peak."""
    with watching() as peaks:
        spark.read.format("segstore.trace").load(str(path)).write.format("noop").mode("overwrite").save()
    workers = [most for (_, kind), most in peaks.items() if kind == "python"]
    if not workers:
        raise RuntimeError("no worker was seen: the trace is too short")
    return max(workers)


@contextmanager
def watching() -> Iterator[dict[tuple[int, str], int]]:
    """Looks at what runs Spark's tasks below this process until the block ends.

    Gives (process, "java" or "python") → most memory so far. Java is executors, and the driver of a local master.
    """
    peaks: dict[tuple[int, str], int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            for process in Path("/proc").iterdir():
                if process.name.isdigit() and (seen := _peak_of(process)) is not None:
                    key = int(process.name), seen[0]
                    peaks[key] = max(seen[1], peaks.get(key, 0))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


def _peak_of(process: Path) -> tuple[str, int] | None:
    """The kind of a process and the most memory that it had, if it runs tasks of Spark and this process started it."""
    try:
        line = (process / "cmdline").read_bytes()
        kind = next((kind for mark, kind in _KINDS.items() if mark in line), None)
        if kind is None or not _is_ours(process):
            return None
        for line in (process / "status").read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return kind, int(line.split()[1]) * 1024
    except OSError:
        return None  # it has ended since
    return None


def _is_ours(process: Path) -> bool:
    """Whether this process started it, directly or through others. Raises OSError."""
    while process.name != "0":
        if int(process.name) == os.getpid():
            return True
        process = process.with_name((process / "stat").read_text().rpartition(") ")[2].split()[1])
    return False


if __name__ == "__main__":
    sys.exit(main("pipeline", run, megabytes=MEGABYTES))
