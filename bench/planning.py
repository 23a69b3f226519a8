"""Where does a terabyte on 100 nodes break first? What planning and the driver hold, without the terabyte.

    python -m bench.planning [--quick] [--write-docs]

Measured: planning by block, and pickling by task; jobs of many tasks with next to nothing to read, which are links to
one small trace, and the memory of the driver's Java after each; what the driver's Python keeps for the replay plan.
From these the table calculates a trace of 1 TB: one task for each `MOST_PIECE_BYTES`, `CONNECTIONS` connections that
name `NAMES` segments and writers each.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.harness import FULL, Effort, Figure, Report
from bench.pages import main
from bench.pictures import Bars
from bench.standalone import session
from bench.traffic import records, write_traffic
from segstore.pipeline.blocks import headers, mark_in
from segstore.pipeline.replay_plan import Link, plan
from segstore.pipeline.session import MOST_PARTITIONS, shuffle_partitions
from segstore.pipeline.trace import files
from segstore.wire.trace import Metadata, RecordWriter, make_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

WHOLE: Final = 10**12
NODES: Final = 100
CORES: Final = 16
CONNECTIONS: Final = 100_000
NAMES: Final = 20
READ_S: Final = 1e-3
"""What one read from shared storage is taken to cost."""
TASKS: Final = (1_000, 8_000)
QUICK_TASKS: Final = (20, 60)
MAP_STATUS_BYTES: Final = 1
"""What Spark keeps of a block of a shuffle on the driver: the logarithm of its size."""
A_FILE_BYTES: Final = 70_000
"""Size of a task's input with which each small file is a task of its own."""
_JAVA: Final = b"org.apache.spark.deploy.SparkSubmit"


def run(effort: Effort) -> Report:
    """Measures, and calculates the terabyte."""
    full = effort.scale == FULL.scale
    report = Report(
        "A terabyte on 100 nodes",
        question="What does a trace of 1 TB cost planning and the driver on 100 nodes, and what breaks first?",
    )
    with tempfile.TemporaryDirectory(prefix="segstore-planning-") as name:
        folder = Path(name)
        per_block, block_bytes = _planning(folder, 100_000_000 if full else 8_000_000)
        per_task, task_bytes = _pickling()
        per_link, link_bytes = _replay_plan(10_000 if full else 100)
        spark = session("local[2]", quick=True)
        try:
            jobs = _jobs(spark, folder, TASKS if full else QUICK_TASKS)
        finally:
            spark.stop()
    (few, few_s, few_java), (many, many_s, many_java) = jobs
    task_s, java_bytes = (many_s - few_s) / (many - few), (many_java - few_java) / (many - few)
    blocks, tasks = WHOLE / block_bytes, -(-WHOLE // files.MOST_PIECE_BYTES)
    links = CONNECTIONS * NAMES
    parts = shuffle_partitions(WHOLE, NODES * CORES)
    shuffled = tasks * parts
    rows = [
        ("blocks of local files, whose headers one process reads", f"{blocks:,.0f}", f"{per_block * 1e6:,.1f} µs",
         f"{per_block * blocks:,.0f} s; {READ_S * blocks / 60:,.0f} min at {READ_S * 1e3:g} ms a read"),
        ("tasks, planned and pickled", f"{tasks:,}", f"{task_bytes:,.0f} B, {per_task * 1e6:,.0f} µs",
         f"{task_bytes * tasks / 1e6:,.1f} MB, {per_task * tasks:,.1f} s"),
        ("tasks, run one after the other on two cores", f"{tasks:,}", f"{task_s * 1e3:,.1f} ms",
         f"{task_s * tasks:,.0f} s here, {task_s * tasks * 2 / NODES / CORES:,.1f} s on {NODES * CORES:,} cores"),
        ("the driver's Java, by task", f"{tasks:,}", f"{max(0, java_bytes) / 1e3:,.0f} KB",
         f"{max(0, java_bytes) * tasks / 1e6:,.0f} MB"),
        ("blocks of the shuffle, at the driver", f"{shuffled:,}", f"{MAP_STATUS_BYTES} B",
         f"{MAP_STATUS_BYTES * shuffled / 1e6:,.0f} MB; {WHOLE / shuffled / 1e3:,.0f} KB of trace a block"),
        ("names of connections, collected for the replay plan", f"{links:,}", f"{link_bytes:,.0f} B",
         f"{link_bytes * links / 1e9:,.1f} GB, {per_link * links:,.0f} s"),
    ]  # fmt: skip
    report.tables.append((("what", "how many", "each", "for 1 TB"), rows))
    report.figures += [
        Figure("planning a task, with its pickling", per_task * 1e3, 1.0, at_most=True, unit="ms"),
        Figure("a pickled task", task_bytes, 2_000, at_most=True, unit="B"),
        Figure("shuffle partitions for 1 TB, of those whose sizes Spark knows", parts / MOST_PARTITIONS, 1, True),
    ]
    report.pictures.append(
        Bars(
            "planning-tasks", "Jobs of tasks with next to nothing to read, local[2]", "", "seconds",
            {"by the clock": [seconds for _, seconds, _ in jobs]}, groups=[f"{count:,} tasks" for count, _, _ in jobs],
        )
    )  # fmt: skip
    report.says = (
        f"A trace of 1 TB has {blocks / 1e6:,.2f} million blocks and makes {tasks:,} tasks. On a shared file system "
        f"planning breaks first: one process reads all headers, {per_block * blocks:,.0f} s from memory, "
        f"{READ_S * blocks / 60:,.0f} minutes if a read takes {READ_S * 1e3:g} ms. An index, or a store, avoids "
        f"this. The replay plan of a report is next: {link_bytes * links / 1e9:,.1f} GB at the driver for "
        f"{CONNECTIONS:,} connections with {NAMES} names each."
    )
    report.notes.append(f"jobs of {few:,} and {many:,} tasks, in this order, each once; memory is the peak of Java")
    return report


def _planning(folder: Path, size: int) -> tuple[float, float]:
    """Seconds and bytes of a block."""
    path = folder / "planned.wtrace"
    write_traffic(path, size)
    with files.LOCAL.open(str(path)) as file:
        mark = mark_in(file, file.size)
        assert mark is not None
        blocks = sum(1 for _ in headers(file, 0, file.size, mark))
    took = []
    for _ in range(5):
        start = time.perf_counter()
        files.plan([str(path)])
        took.append(time.perf_counter() - start)
    whole = path.stat().st_size
    path.unlink()
    return min(took) / blocks, whole / blocks


def _pickling() -> tuple[float, float]:
    """Seconds and bytes of a task, as the planning process sends it to Java."""
    from pyspark.serializers import CloudPickleSerializer

    from segstore.pipeline.trace.source import TracePieces

    dumps: Callable[[object], bytes] = CloudPickleSerializer().dumps  # type: ignore[no-untyped-call,unused-ignore]
    size = files.MOST_PIECE_BYTES
    path = "/mnt/traces/2026-01-01/segment-store-000/traffic-of-the-day.wtrace"
    pieces = [files.Piece(path, "capture", at * size, (at + 1) * size, bytes(16), 400_000) for at in range(2_000)]
    start = time.perf_counter()
    bytes_ = sum(len(dumps(TracePieces([each]))) for each in pieces)
    return (time.perf_counter() - start) / len(pieces), bytes_ / len(pieces)


def _replay_plan(connections: int) -> tuple[float, float]:
    """Seconds and bytes, at the peak, for each name of a connection."""

    def work() -> None:
        plan(
            [
                Link("/mnt/traffic.wtrace", connection, f"segment scope/stream/{connection * NAMES + name}.#epoch.0", 9)
                for connection in range(connections)
                for name in range(NAMES)
            ],
            8,
        )

    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    tracemalloc.start()
    try:
        work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return took / (connections * NAMES), peak / (connections * NAMES)


def _jobs(spark: SparkSession, folder: Path, counts: tuple[int, int]) -> list[tuple[int, float, int]]:
    """Tasks, seconds, and the peak of the driver's Java after them."""
    one = folder / "one.wtrace"
    writer = RecordWriter(make_mark(b"planning"), Metadata(17, "bench", {}))
    one.write_bytes(writer.start() + b"".join(map(writer.add, islice(records(), 20))) + writer.take())
    _count(spark, str(one))
    found = []
    for count in counts:
        many = folder / f"{count}"
        many.mkdir()
        for number in range(count):
            os.link(one, many / f"{number}.wtrace")
        start = time.perf_counter()
        _count(spark, str(many))
        found.append((count, time.perf_counter() - start, _java_peak()))
    return found


def _count(spark: SparkSession, path: str) -> None:
    reader = spark.read.format("segstore.trace").options(columns="command", splitBytes=A_FILE_BYTES)
    reader.load(path).write.format("noop").mode("overwrite").save()


def _java_peak() -> int:
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        if _JAVA in Path(f"/proc/{child}/cmdline").read_bytes():
            status = Path(f"/proc/{child}/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    raise RuntimeError("the driver's Java is not a child of this process")


if __name__ == "__main__":
    sys.exit(main("planning", run))
