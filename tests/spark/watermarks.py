"""Streams of events with times of their own, and queries with a watermark over them, for tests and long runs.

An event says its time: milliseconds, as text. A query counts events by windows of time. As a batch query it counts all
of them; as a streaming query it drops those that are late, which Spark reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.client import connect
from tests.pipeline.stream_support import SCOPE, scale

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["Counted", "Event", "count_windows", "joined", "load", "read_windows", "run", "timed"]

FORMAT = "segstore.stream"
TIME = "timestamp_millis(cast(cast(event as string) as bigint)) time"
_PATIENCE_S = 600
_AT_ONCE = 20
"""Events that are written before the event loop has its turn."""
Event = tuple[bytes, str]


class Counted(NamedTuple):
    """A run of a query. late: rows that Spark dropped."""

    batches: int
    rows: int
    late: int
    progress: list[Any]


async def load(uri: str, stream: str, rounds: Iterable[list[Event]], scalings: Mapping[int, int] | None = None) -> None:
    """Writes rounds of events, each stored before the next begins.

    scalings: number of an event → number of segments, to which the stream is scaled while that event and others are
    written, but before the next scaling.
    """
    number = 0
    scaling: asyncio.Task[None] | None = None
    async with connect(uri) as pravega, pravega.event_writer(SCOPE, stream) as writer:
        for events in rounds:
            for data, key in events:
                if parts := (scalings or {}).get(number):
                    if scaling is not None:
                        await scaling
                    scaling = asyncio.create_task(scale(uri, parts, stream))
                await writer.submit(data, routing_key=key)
                number += 1
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            await writer.flush()
        if scaling is not None:
            await scaling


def timed(frame: DataFrame, delay: str) -> DataFrame:
    return frame.selectExpr("event", TIME).withWatermark("time", delay)


def windows(frame: DataFrame, delay: str, window: str) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        timed(frame, delay)
        .groupBy(f.window("time", window))
        .count()
        .selectExpr("cast(window.start as bigint) start", "count")
    )


def read_windows(spark: SparkSession, of: Mapping[str, str], window: str) -> dict[int, int]:
    """The counts of a batch query."""
    frame = windows(spark.read.format(FORMAT).options(**of).load(), "0 seconds", window)
    return {row.start: row["count"] for row in frame.collect()}


def count_windows(
    spark: SparkSession,
    of: Mapping[str, str],
    counts: dict[int, int],
    checkpoint: Path,
    *,
    delay: str,
    window: str,
    **options: str,
) -> Counted:
    """Runs a streaming query to the end of what there is; the counts of windows that change are put into `counts`."""

    def heard(rows: DataFrame, _: int) -> None:
        counts.update({row.start: row["count"] for row in rows.collect()})

    frame = windows(spark.readStream.format(FORMAT).options(**of, **options).load(), delay, window)
    return run(frame.writeStream.foreachBatch(heard).outputMode("update"), checkpoint)


def joined(spark: SparkSession, of: Mapping[str, str], other: Mapping[str, str], delay: str) -> DataFrame:
    """Two streams by their times, each with a watermark."""
    left = timed(spark.readStream.format(FORMAT).options(**of).load(), delay)
    right = timed(spark.readStream.format(FORMAT).options(**other).load(), delay)
    return left.alias("a").join(right.alias("b"), "time").selectExpr("a.event")


def run(writer: Any, checkpoint: Path) -> Counted:
    """Runs a query to the end of what there is."""
    query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(_PATIENCE_S), "the query did not end in time"
        progress = query.recentProgress
    finally:
        query.stop()
    rows = sum(each["numInputRows"] for each in progress)
    late = sum(state["numRowsDroppedByWatermark"] for each in progress for state in each["stateOperators"])
    return Counted(len([each for each in progress if each["numInputRows"]]), rows, late, progress)
