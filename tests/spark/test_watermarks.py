"""A query with a watermark drops no row that its batch query counts, however its stream is skewed and scaled.

An event says its time: milliseconds, as text. A query counts events by windows of time; rows that are late are dropped,
which Spark reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from segstore.client import connect
from segstore.testing import RunningServer, ServerThread
from tests.pipeline.stream_support import SCOPE
from tests.spark import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [*SPARK, pytest.mark.needs("PySpark 4.2 or newer")]

FIRST_MS = 1_700_000_000_000
ROUND_MS = 10_000
"""Event times of a round, which is stored before the next begins."""
DELAY = "30 seconds"
"""A round ends within an index entry, and the next within the same step: batches follow rounds to within three."""
PAUSE_S = 0.02
KEYS = 40
FORMAT = "segstore.stream"
TIME = "timestamp_millis(cast(cast(event as string) as bigint)) time"
WINDOW = "5 seconds"
Event = tuple[bytes, str]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ServerThread() as servers:
        yield servers.serve(stores=2, containers=4)


class Writing:
    """Writes rounds of events, between which the stream is scaled."""

    def __init__(self, uri: str, stream: str, random: Random) -> None:
        self.events = self._rounds = 0
        self._uri, self._stream, self._random = uri, stream, random

    def rounds(self, count: int) -> None:
        asyncio.run(self._write(count))

    async def _write(self, count: int) -> None:
        for _ in range(count):
            async with connect(self._uri) as pravega, pravega.event_writer(SCOPE, self._stream) as writer:
                for data, key in self._round():
                    await writer.submit(data, routing_key=key)
                await writer.flush()
            if self._random.random() < 0.5:
                await self._scale()
            await asyncio.sleep(PAUSE_S)

    def _round(self) -> list[Event]:
        size, hot = self._random.randrange(10, 70), self._random.choice((0.0, 0.75, 0.95))
        begin, self._rounds, self.events = FIRST_MS + self._rounds * ROUND_MS, self._rounds + 1, self.events + size
        times = sorted(begin + self._random.randrange(ROUND_MS) for _ in range(size))
        keys = ["hot" if self._random.random() < hot else f"k{self._random.randrange(KEYS)}" for _ in times]
        return [(b"%d" % time_ms, key) for time_ms, key in zip(times, keys, strict=True)]

    async def _scale(self) -> None:
        """Splits a segment, merges two, or moves the edge between two."""
        async with connect(self._uri) as pravega:
            now = sorted(await pravega.controller.current_segments(SCOPE, self._stream), key=lambda each: each.low)
            at = self._random.randrange(len(now))
            some = now[at : at + self._random.choice((1, 2))]
            low, high = some[0].low, some[-1].high
            edges = [low, low + (high - low) * self._random.uniform(0.2, 0.8), high]
            if len(some) == 2 and self._random.random() < 0.5:
                edges = [low, high]
            old = {each.segment_id for each in some}
            await pravega.controller.scale(SCOPE, self._stream, sorted(old), list(pairwise(edges)))
            while any(  # noqa: ASYNC110 — the controller has no call that waits for it
                segment.segment_id in old for segment in await pravega.controller.current_segments(SCOPE, self._stream)
            ):
                await asyncio.sleep(0.005)


class Counted(NamedTuple):
    """The rows of a query, and those that Spark dropped as late."""

    rows: int
    late: int


def windows(frame: DataFrame, delay: str) -> DataFrame:
    from pyspark.sql import functions as f

    counted = frame.selectExpr(TIME).withWatermark("time", delay).groupBy(f.window("time", WINDOW)).count()
    return counted.selectExpr("cast(window.start as bigint) start", "count")


def count_windows(
    spark: SparkSession, of: Mapping[str, str], counts: dict[int, int], checkpoint: Path, **options: str
) -> Counted:
    """Runs a streaming query to the end of its stream; puts the counts of windows that change into `counts`."""

    def update(rows: DataFrame, _: int) -> None:
        counts.update({row.start: row["count"] for row in rows.collect()})

    frame = windows(spark.readStream.format(FORMAT).options(**of, **options).load(), DELAY)
    writer = frame.writeStream.foreachBatch(update).outputMode("update")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(600), "the query did not end in time"
        progress = query.recentProgress
    finally:
        query.stop()
    rows = sum(each["numInputRows"] for each in progress)
    return Counted(
        rows, sum(state["numRowsDroppedByWatermark"] for each in progress for state in each["stateOperators"])
    )


def test_no_row_of_any_stream_is_late(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    """The query is stopped and started from its checkpoint while the stream grows, each time with another limit."""
    random, stream = Random(1), "any"
    uri = f"tcp://{server.controller_uri}"
    server.create_stream(SCOPE, stream, segments=random.randrange(1, 4))
    of = {"controller": uri, "scope": SCOPE, "stream": stream}
    writing, counts, found = Writing(uri, stream, random), dict[int, int](), list[Counted]()
    limits = [{"maxEventsPerTrigger": "120"}, {"maxBytesPerTrigger": "2500"}]
    for limit in random.sample(limits, 2):
        writing.rounds(random.randrange(6, 10))
        found.append(count_windows(spark, of, counts, tmp_path / "log", alignmentMs="20", **limit))
    assert [each.late for each in found] == [0, 0]
    assert sum(each.rows for each in found) == writing.events
    whole = windows(spark.read.format(FORMAT).options(**of).load(), "0 seconds")
    assert counts == {row.start: row["count"] for row in whole.collect()}
