"""The data source as Spark calls it, with a cluster but without Spark."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from segstore.pipeline.stream.source import StreamSource, StreamStreamReader
from segstore.pipeline.versions import ReadAllAvailable, ReadMaxRows
from tests.pipeline.stream_support import SCOPE, STREAM, scale, write_events


def reader(uri: str, **more: str) -> StreamStreamReader:
    source = StreamSource({"controller": uri, "scope": SCOPE, "stream": STREAM, **more})
    found = source.streamReader(StructType([StructField("event", BinaryType())]))
    assert isinstance(found, StreamStreamReader)
    return found


def query(uri: str, available_now: bool, limit: ReadAllAvailable | ReadMaxRows) -> list[list[int]]:
    """The rows of each batch, until there is nothing to read; each has a reader of its own, as after a restart."""
    at, batches = reader(uri).initialOffset(), []
    one = reader(uri)
    if available_now:
        one.prepareForTriggerAvailableNow()
    while (end := one.latestOffset(at, limit)) != at:
        another = reader(uri)
        parts = another.partitions(at, end)
        batches.append([int(row) for part in parts for rows in another.read(part) for row in rows["event"].to_pylist()])
        at = end
    assert one.reportLatestOffset().items() <= at.items()  # which has finished segments, too, until the next batch
    return batches


@pytest.mark.needs("PySpark 4.2 or newer")
async def test_batches_cross_scalings_and_the_tail_is_reported(uri: str) -> None:
    for first in range(0, 300, 100):
        await write_events(uri, [(b"%d" % number, f"k{number % 7}") for number in range(first, first + 100)])
        if first < 200:
            await scale(uri, 2)
    tail = await asyncio.to_thread(reader(uri).reportLatestOffset)
    assert sorted(tail) == ["3.#epoch.2", "4.#epoch.2"]
    for available_now in (False, True):
        (batch,) = await asyncio.to_thread(query, uri, available_now, ReadAllAvailable())
        assert sorted(batch) == list(range(300))
        batches = await asyncio.to_thread(query, uri, available_now, ReadMaxRows(30))
        assert sorted(number for batch in batches for number in batch) == list(range(300))
        assert max(map(len, batches)) <= 30
        assert 10 <= len(batches) <= 13
