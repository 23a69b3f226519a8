"""Queries with a watermark on Spark lose no row of a stream that is skewed or was scaled.

150,000 events, one for every hundredth of a second of event time, are written in order with routing keys. A streaming
query with a watermark of 10 seconds counts them by windows of 10 seconds, with `Trigger.AvailableNow`, and so does a
batch query. Each case is a way in which the stream is skewed, scaled, limited and written.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from segstore.pipeline.session import session
from segstore.testing import RunningServer, ServerThread
from tests.pipeline.stream_support import SCOPE, scale
from tests.spark.watermarks import count_windows, joined, load, read_windows, run

__all__ = ["CASES"]

EVENTS: Final = 150_000
STEP_MS: Final = 10
FIRST_MS: Final = 1_700_000_000_000
"""Not 0, where a watermark begins: Spark drops a row of a join that is not later."""
DELAY: Final = "10 seconds"
WINDOW: Final = "10 seconds"
KEYS: Final = 1_000
HOT: Final = 0.75
SCALINGS: Final = 8
_CONF: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}


class Case(NamedTuple):
    """hot: the fraction of events that have one key. scalings: during the writing."""

    name: str
    hot: float = 0.0
    scalings: int = 0
    limit: tuple[str, int] | None = None
    join: bool = False


CASES: Final = (
    Case("even keys, no limit"),
    Case("hot key, limit in events", HOT, 0, ("maxEventsPerTrigger", 15_000)),
    Case("hot key, limit in bytes", HOT, 0, ("maxBytesPerTrigger", 1_000_000)),
    Case("scaled, no limit", 0.0, SCALINGS),
    Case("scaled, limit in bytes", 0.0, SCALINGS, ("maxBytesPerTrigger", 1_000_000)),
    Case("scaled, hot key, limit in events", HOT, SCALINGS, ("maxEventsPerTrigger", 15_000)),
    Case("join of two scaled streams", 0.0, SCALINGS, None, join=True),
    Case("join of two scaled streams, limit in events", 0.0, SCALINGS, ("maxEventsPerTrigger", 15_000), join=True),
)
PACES: Final = ("at once", "in rounds of 1,000", "as they happen")
"""How the events are written: as fast as the writer can; each thousand stored before the next begins; at a hundred
times the speed of their times."""


def _rounds(case: Case, pace: str, events: int, chance: random.Random) -> Iterator[list[tuple[bytes, str]]]:
    size = {"at once": events, "in rounds of 1,000": 1_000, "as they happen": 100}[pace]
    begin = time.monotonic()
    for first in range(0, events, size):
        if pace == "as they happen":
            time.sleep(max(0.0, begin + first * STEP_MS / 100_000 - time.monotonic()))
        yield [
            (
                b"%d" % (FIRST_MS + number * STEP_MS),
                "hot" if chance.random() < case.hot else f"k{chance.randrange(KEYS)}",
            )
            for number in range(first, min(events, first + size))
        ]


def _write(uri: str, stream: str, case: Case, pace: str, events: int) -> None:
    every = events // (SCALINGS + 1)
    scalings = {every * (number + 1): 1 + (number * 3 + 1) % 5 for number in range(case.scalings)}
    asyncio.run(load(uri, stream, _rounds(case, pace, events, random.Random(stream)), scalings))


def _copy(spark: SparkSession, of: dict[str, str], to: dict[str, str], folder: Path) -> None:
    """Writes a stream to another with a query of Spark, which is scaled between batches."""
    frame = spark.readStream.format("segstore.stream").options(**of, maxEventsPerTrigger="15000").load()
    frame = frame.selectExpr("event", f"concat('k', cast(cast(event as string) as bigint) % {KEYS}) key")
    batches = iter(range(1_000))

    def scaled(rows: DataFrame, _: int) -> None:
        rows.write.format("segstore.stream").options(**to, routingKeyColumn="key").mode("append").save()
        if (batch := next(batches)) < SCALINGS:
            asyncio.run(scale(to["controller"], 1 + (batch * 3 + 1) % 5, to["stream"]))

    run(frame.writeStream.foreachBatch(scaled), folder / "copy")


def _case(spark: SparkSession, server: RunningServer, case: Case, pace: str, events: int, folder: Path) -> bool:
    """Runs a case; prints what came of it and returns whether it is right."""
    folder.mkdir()
    uri, stream = f"tcp://{server.controller_uri}", folder.name
    of = {"controller": uri, "scope": SCOPE, "stream": stream}
    server.create_stream(SCOPE, stream, segments=1 if case.scalings else 4)
    begin = time.monotonic()
    _write(uri, stream, case, pace, events)
    wrote_s = time.monotonic() - begin
    limit = {case.limit[0]: str(case.limit[1])} if case.limit is not None else {}
    if case.join:
        to = of | {"stream": f"{stream}-copy"}
        server.create_stream(SCOPE, to["stream"])
        _copy(spark, of, to, folder)
        matched: list[int] = []
        writer = joined(spark, of | limit, to | limit, DELAY).writeStream
        found = run(writer.foreachBatch(lambda rows, _: matched.append(rows.count())), folder / "log")
        counted, right = sum(matched), sum(matched) == events
    else:
        counts: dict[int, int] = {}
        found = count_windows(spark, of, counts, folder / "log", delay=DELAY, window=WINDOW, **limit)
        counted, right = sum(counts.values()), counts == read_windows(spark, of, WINDOW)
    used = spark.read.format("segstore.stream").options(**of).load().select("segment").distinct().count()
    print(
        f"{case.name}, written {pace} in {wrote_s:.1f} s: {counted:,} of {events:,}; "
        f"{found.late} late of {found.rows:,} rows, {found.batches} batches, {used} segments",
        flush=True,
    )
    return right and found.late == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stream_watermarks", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--pace", choices=PACES, action="append")
    parser.add_argument("--case", type=int, action="append", help="its number, from 0 on")
    asked = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name, ServerThread() as servers:
        spark = session("local[2]", app="watermarks", conf=_CONF, quick=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for pace in asked.pace or PACES:
                for number, case in enumerate(CASES):
                    if asked.case is None or number in asked.case:
                        with_server = servers.serve(stores=2, containers=4)
                        folder = Path(name) / f"case{number}-{PACES.index(pace)}"
                        wrong += not _case(spark, with_server, case, pace, asked.events, folder)
        finally:
            spark.stop()
    print(f"{wrong} cases are wrong" if wrong else "no row was lost")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
