"""A query with a watermark drops no row that its batch query counts, however its stream is skewed and scaled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from segstore.client import connect
from segstore.testing import RunningServer, ServerThread
from tests.pipeline.stream_support import SCOPE
from tests.spark import SPARK
from tests.spark.watermarks import Counted, Event, count_windows, load, read_windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*SPARK, pytest.mark.needs("PySpark 4.2 or newer")]

FIRST_MS = 1_700_000_000_000
ROUND_MS = 10_000
"""Event times of a round, which is stored before the next begins."""
DELAY = "30 seconds"
"""A round ends within an index entry, and the next within the same step: batches follow rounds to within three."""
PAUSE_S = 0.02
KEYS = 40


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
            await load(self._uri, self._stream, [self._round()])
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
                each.segment_id in old for each in await pravega.controller.current_segments(SCOPE, self._stream)
            ):
                await asyncio.sleep(0.005)


def test_no_row_of_any_stream_is_late(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    """The query is stopped and started from its checkpoint while the stream grows, each time with another limit."""
    random, stream = Random(1), "any"
    uri = f"tcp://{server.controller_uri}"
    server.create_stream(SCOPE, stream, segments=random.randrange(1, 4))
    of = {"controller": uri, "scope": SCOPE, "stream": stream}
    how = {"delay": DELAY, "window": "5 seconds", "alignmentMs": "20"}
    writing, counts, found = Writing(uri, stream, random), dict[int, int](), list[Counted]()
    limits = [{"maxEventsPerTrigger": "120"}, {"maxBytesPerTrigger": "2500"}]
    for limit in random.sample(limits, 2):
        writing.rounds(random.randrange(6, 10))
        found.append(count_windows(spark, of, counts, tmp_path / "log", **how, **limit))
    assert [each.late for each in found] == [0, 0]
    assert sum(each.rows for each in found) == writing.events
    assert counts == read_windows(spark, of, "5 seconds")
