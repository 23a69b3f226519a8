"""How far a streaming query on Spark is behind a stream that is written steadily, beside a plain reader.

A process writes events at a fixed rate, each with the time at which its turn was. `readStream` of `segstore.stream`
brings them to `foreachBatch`, with no trigger but that the last batch is done; a reader of the asyncio client reads the
same stream at the same time. The lag of an event ends when its batch has arrived in the driver's Python, or when the
reader hands it out. A first run, in which Java and Spark's Python start, does not count, nor do the first seconds of
each rate.

The goal is that the lag does not grow: over the second half it is what it was over the first.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.pictures import Lines
from bench.processes import ROOT, Serving, serving
from segstore.client import connect
from segstore.client.errors import Closed
from segstore.pipeline.session import session

__all__ = ["RATES", "row_of", "run", "write"]

RATES: Final = (100, 1_000, 5_000)
"""Events a second."""
EVENT_BYTES: Final = 100
SECONDS: Final = 40.0
QUICK_S: Final = 6.0
WARM_SHARE: Final = 0.3
WARM_UP_S: Final = 15.0
SEGMENTS: Final = 2
PATIENCE_S: Final = 60.0
GROWTH_GOAL: Final = 1.5
SCOPE: Final = "lag"
_TICK_S: Final = 0.01
_DIGITS: Final = 20


def write(uri: str, stream: str, rate: int, seconds: float) -> None:
    """Writes for that long; what falls behind is made up for, and its lag counted from its turn."""
    asyncio.run(_write(uri, stream, rate, seconds))


async def _write(uri: str, stream: str, rate: int, seconds: float) -> None:
    async with connect(uri) as pravega, pravega.event_writer(SCOPE, stream) as writer:
        start, sent = time.time_ns(), 0
        while sent < rate * seconds:
            due = min(int((time.time_ns() - start) / 1e9 * rate), int(rate * seconds))
            for number in range(sent, due):
                event = b"%0*d" % (_DIGITS, start + number * 1_000_000_000 // rate)
                await writer.submit(event.ljust(EVENT_BYTES, b"."), routing_key=f"k{number % 97}")
            sent = due
            await asyncio.sleep(_TICK_S)
        await writer.flush()


class _Plain(threading.Thread):
    """A reader of the client in a loop of its own; `lags` has (turn, lag), both in nanoseconds."""

    def __init__(self, uri: str, stream: str) -> None:
        super().__init__(name="plain reader")
        self.lags: list[tuple[int, int]] = []
        self.ready = threading.Event()
        self._uri = uri
        self._stream = stream
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader: Any = None

    def run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with connect(self._uri) as pravega, pravega.event_reader(SCOPE, self._stream) as reader:
            self._reader = reader
            self.ready.set()
            try:
                async for event in reader:
                    at = int(event.data[:_DIGITS])
                    self.lags.append((at, time.time_ns() - at))
            except Closed:
                return

    def wait_for(self, count: int) -> None:
        """Until so many events have come."""
        until = time.monotonic() + PATIENCE_S
        while len(self.lags) < count:
            if time.monotonic() > until:
                raise RuntimeError(f"the plain reader has {len(self.lags)} of {count} events")
            time.sleep(_TICK_S)

    def end(self) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._reader.aclose(), self._loop).result(30)
        self.join(30)


@contextmanager
def _query(spark: Any, uri: str, stream: str, lags: list[tuple[int, int]], batches: list[int]) -> Iterator[Any]:
    def arrived(batch: Any, _: int) -> None:
        turns = batch.selectExpr(f"cast(substring(cast(event as string), 1, {_DIGITS}) as long) at").toArrow()
        now = time.time_ns()
        lags.extend((at, now - at) for at in turns.column("at").to_pylist())
        batches.append(turns.num_rows)

    frame = spark.readStream.format("segstore.stream").options(controller=uri, scope=SCOPE, stream=stream).load()
    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.foreachBatch(arrived).option("checkpointLocation", folder).start()
        try:
            yield query
        finally:
            query.stop()


def _quantiles(lags: list[int]) -> tuple[float, float]:
    """Median and 99th percentile, in ms."""
    cuts = statistics.quantiles(lags, n=100)
    return cuts[49] / 1e6, cuts[98] / 1e6


def run(effort: Effort) -> Report:
    report = Report(
        "Streaming source",
        question="How far is a streaming query behind a stream that is written steadily, and does the lag grow?",
    )
    full = effort.scale == 1
    seconds, warm_up_s = (SECONDS, WARM_UP_S) if full else (QUICK_S, QUICK_S)
    spark = session("local[2]", conf={"spark.sql.shuffle.partitions": "2"}, quick=not full)
    rows, medians = [], {"Spark": list[float](), "plain reader": list[float]()}
    try:
        spark.sparkContext.setLogLevel("ERROR")
        with serving() as server:
            _at(spark, server, "warm-up", RATES[0], warm_up_s)
            for number, rate in enumerate(RATES):
                row, spark_ms, plain_ms, growth = _at(spark, server, f"stream{number}", rate, seconds)
                rows.append(row)
                medians["Spark"].append(spark_ms)
                medians["plain reader"].append(plain_ms)
                report.figures.append(
                    Figure(f"lag at {rate:,} events/s, second half ÷ first half", growth, GROWTH_GOAL, at_most=True)
                )
    finally:
        spark.stop()
    heading = (
        "events/s", "Spark: median lag, ms", "99 %, ms", "events a batch", "plain reader: median lag, ms", "99 %, ms",
        "Spark ÷ plain",
    )  # fmt: skip
    report.tables.append((heading, rows))
    report.says = (
        f"At {RATES[-1]:,} events a second half of them have arrived in a batch of Spark within "
        f"{medians['Spark'][-1]:,.0f} ms, in a plain reader within {medians['plain reader'][-1]:,.1f} ms; "
        "over the second "
        f"half of a run the lag is at most {max(figure.value for figure in report.figures):.2f} times what "
        "it was over the "
        "first."
    )
    report.notes.append(
        f"{EVENT_BYTES} bytes an event, {SEGMENTS} segments, {seconds:.0f} s a rate, of which the first "
        f"{WARM_SHARE:.0%} do not count; local[2], no trigger interval; writer, store and Spark share the machine"
    )
    report.pictures.append(
        Lines(
            name="stream-lag",
            title="Lag of a streaming query behind a steady load",
            x_label="events a second",
            y_label="median lag, ms",
            series=medians,
            log=True,
            x=RATES,
        )
    )
    return report


def _at(spark: Any, server: Serving, stream: str, rate: int, seconds: float) -> tuple[list[str], float, float, float]:
    uri = f"tcp://{server.controller}"
    asyncio.run(_make(uri, stream))
    lags: list[tuple[int, int]] = []
    batches: list[int] = []
    plain = _Plain(uri, stream)
    plain.start()
    if not plain.ready.wait(60):
        raise RuntimeError("the plain reader did not start")
    code = f"from bench.stream_lag import write; write({uri!r}, {stream!r}, {rate}, {seconds})"
    with _query(spark, uri, stream, lags, batches) as query:
        began = time.time_ns()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=seconds * 10 + 60)
        query.processAllAvailable()
    plain.wait_for(len(lags))
    plain.end()
    if len(lags) != len(plain.lags):
        raise RuntimeError(f"Spark read {len(lags)} events, the plain reader {len(plain.lags)}")
    return row_of(rate, seconds, began, lags, plain.lags, batches)


def row_of(
    rate: int,
    seconds: float,
    began: int,
    lags: Sequence[tuple[int, int]],
    plain: Sequence[tuple[int, int]],
    batches: Sequence[int],
) -> tuple[list[str], float, float, float]:
    """A row of the table; the median lags of Spark and of the plain reader in ms; by how much Spark's grew.

    lags, plain: (turn, lag) of each event, in nanoseconds. began: when the writing did; what has its turn in the first
    `WARM_SHARE` of the seconds does not count. batches: events of each.
    """
    first = began + int(seconds * WARM_SHARE * 1e9)
    half = first + int(seconds * (1 - WARM_SHARE) / 2 * 1e9)
    counted = [(at, lag) for at, lag in lags if at >= first]
    spark_ms, spark_99 = _quantiles([lag for _, lag in counted])
    plain_ms, plain_99 = _quantiles([lag for at, lag in plain if at >= first])
    halves = [_quantiles([lag for at, lag in counted if (at >= half) is later])[0] for later in (False, True)]
    size = statistics.median(each for each in batches if each)
    figures = [spark_ms, spark_99, size, plain_ms, plain_99, spark_ms / plain_ms]
    row = [f"{rate:,}", *[f"{each:,.1f}" if each < 10 else f"{each:,.0f}" for each in figures]]
    return row, spark_ms, plain_ms, halves[1] / halves[0]


async def _make(uri: str, stream: str) -> None:
    async with connect(uri) as pravega:
        await pravega.controller.create_scope(SCOPE)
        await pravega.controller.create_stream(SCOPE, stream, segments=SEGMENTS)


if __name__ == "__main__":
    sys.exit(main("stream_lag", run))
