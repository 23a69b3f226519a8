"""A stand-alone cluster of Spark does both jobs: `python -m tests.spark.cluster`, or `make spark-cluster`.

A master and two workers are started on this machine. `segstore trace report`, the command itself, makes a report
about a generated trace with planted faults and a torn end; its numbers and every row of its tables are compared with
the reference, which goes through the trace in one process. Then events go from a stream to a stream
(`round_trip`). What ran and how long is printed; exits with 1 and says what is wrong if something is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet

from segstore.check import check
from segstore.pipeline.report.analysis_rules import EXCHANGE_COLUMNS
from segstore.pipeline.report.reference import reference
from segstore.pipeline.session import session
from segstore.testing import ServerThread
from tests.pipeline.planted import planted, soup
from tests.pipeline.stream_support import SCOPE, every_event, scale, write_events
from tests.pipeline.support import write_capture
from tests.spark.standalone import ROOT, Standalone

_PATIENCE_S = 900.0
_PIECES = 4
"""The trace is so many whole files, and a torn one."""


def generate(folder: Path, connections: int) -> list[Path]:
    """Captures with each fault several times."""
    folder.mkdir()
    files = [
        write_capture(folder / f"{piece}.wtrace", planted(piece, connections=connections // _PIECES)[0], a_block=500)
        for piece in range(_PIECES)
    ]
    whole = write_capture(folder / "torn.wtrace", soup(1, 2_000, 15), a_block=100).read_bytes()
    (folder / "torn.wtrace").write_bytes(whole[: len(whole) * 2 // 3])
    return [*files, folder / "torn.wtrace"]


def report(master: str, folder: Path, connections: int) -> str:
    """Raises AssertionError."""
    files = generate(folder / "traces", connections)
    out = folder / "report"
    start = time.monotonic()
    command = ["trace", "report", str(folder / "traces"), "-o", str(out), "--master", master]
    said = subprocess.run(
        [sys.executable, "-c", "from segstore.cli.commands import main; main()", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    took = time.monotonic() - start
    # The torn block is told, and makes the exit status 1.
    assert said.returncode == 1, f"the command ended with {said.returncode}: {said.stderr[-4000:]}"
    assert "torn.wtrace: at byte" in said.stderr, said.stderr[-4000:]
    start = time.monotonic()
    plain = reference([str(each) for each in files])
    alone = time.monotonic() - start
    facts: dict[str, Any] = json.loads((out / "report.json").read_text())
    status = Counter(row[EXCHANGE_COLUMNS.index("status")] for row in plain.exchanges)
    judged = check([str(each) for each in files])
    found = {
        "status": {name: count for name, count in facts["status"].items() if count},
        "rules": {row["rule"]: row["broken"] for row in facts["rules"] if row["broken"]},
        "unpaired": facts["unpaired"],
        "skipped": [[row["file"], row["offset"], row["bytes"]] for row in facts["skipped"]["rows"] if _lost(row)],
        "frames": pyarrow.parquet.read_table(out / "rows", columns=["kind"], filters=[("kind", "=", "frame")]).num_rows,
    }
    expected = {
        "status": dict(status),
        "rules": {rule: len(verdicts) for rule, verdicts in judged.verdicts.by_rule.items()},
        "unpaired": sum(row[EXCHANGE_COLUMNS.index("paired")] is False for row in plain.exchanges),
        "skipped": [[file, offset, size] for file, offset, size, _ in plain.skipped],
        "frames": plain.frames,
    }
    for name, value in expected.items():
        assert found[name] == value, f"{name}: the report says {found[name]}, one process {value}"
    of_spark = pyarrow.parquet.read_table(out / "exchanges").select(list(EXCHANGE_COLUMNS)).to_pylist()
    assert Counter(repr(tuple(row.values())) for row in of_spark) == Counter(map(repr, plain.exchanges))
    size = sum(each.stat().st_size for each in files)
    return (
        f"report: {plain.frames} frames, {size} bytes, in {took:.0f} s on {master}, Java's start included; one process "
        f"took {alone:.1f} s. All {len(plain.exchanges)} exchanges are equal, row by row, and "
        f"{len(judged.broken)} verdicts by their rules; {expected['unpaired']} unpaired, "
        f"{len(plain.skipped)} skipped stretch"
    )


def _lost(row: dict[str, Any]) -> bool:
    return bool(row["kind"] == "skipped")


def round_trip(master: str, conf: Mapping[str, str], folder: Path, events: int) -> str:
    """Raises AssertionError."""
    with ServerThread() as servers:
        server = servers.serve(stores=2, containers=4)
        uri = f"tcp://{server.controller_uri}"
        for stream in ("in", "back"):
            server.create_stream(SCOPE, stream)
        numbered = [(b"%d" % number, f"k{number % 9}") for number in range(events)]
        asyncio.run(write_events(uri, numbered[: events // 2], "in"))
        for stream in ("in", "back"):
            asyncio.run(scale(uri, 3, stream))
        asyncio.run(write_events(uri, numbered[events // 2 :], "in"))
        spark = session(master, app="round trip", conf={"spark.sql.shuffle.partitions": "2", **conf}, quick=True)
        try:
            executors = _executors(spark)
            of = {"controller": uri, "scope": SCOPE}
            limit = {"maxEventsPerTrigger": str(events // 3)}
            frame = spark.readStream.format("segstore.stream").options(**of, stream="in", **limit).load()
            keyed = frame.selectExpr("event", "concat('k', cast(cast(event as string) as int) % 9) key")
            writer = keyed.repartition(2).writeStream.format("segstore.stream")
            writer = writer.options(**of, stream="back", routingKeyColumn="key")
            query = writer.option("checkpointLocation", str(folder / "log")).trigger(availableNow=True).start()
            assert query.awaitTermination(240), "the query did not end in time"
            batches = len([each for each in query.recentProgress if each["numInputRows"]])
        finally:
            spark.stop()
        found = Counter(int(event.data) for event in asyncio.run(every_event(uri, "back")))
        lost, doubled = events - len(found), sum(found.values()) - len(found)
        assert (lost, doubled) == (0, 0), f"{lost} lost, {doubled} twice"
    return f"{events} events in {batches} batches, each once; {executors} executors on {master}"


def _executors(spark: object) -> int:
    """How many there are besides the driver, after work has made them start."""
    context = spark.sparkContext  # type: ignore[attr-defined]
    context.parallelize(range(8), 8).count()
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.cluster", description=__doc__)
    parser.add_argument("--connections", type=int, default=800, help="of the trace, besides those with faults")
    parser.add_argument("--events", type=int, default=3_000, help="of the round trip")
    asked = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Standalone(folder / "cluster") as cluster:
            print(f"a master and two workers: {cluster.master}, in {time.monotonic() - start:.0f} s", flush=True)
            print(report(cluster.master, folder, asked.connections), flush=True)
            start = time.monotonic()
            said = round_trip(cluster.master, cluster.conf, folder, asked.events)
            print(f"stream to stream: {said}; {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
