"""The data source as Spark calls it, with a cluster but without Spark."""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from segstore.client import CutError
from segstore.pipeline.stream.plan import DataLost
from segstore.pipeline.stream.source import StreamSource, StreamStreamReader
from segstore.pipeline.versions import ReadAllAvailable, ReadMaxRows, ReadMinRows
from tests.pipeline.stream_support import SCOPE, STREAM, scale, using, write_events


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
    reported = one.reportLatestOffset()
    assert reported["tail"].items() <= at.items()  # which has finished segments, too, until the next batch
    assert (reported["lagBytes"], reported["lagEvents"], reported["lostBytes"]) == (0, 0, 0)
    return batches


@pytest.mark.needs("PySpark 4.2 or newer")
async def test_batches_cross_scalings_and_the_tail_is_reported(uri: str) -> None:
    for first in range(0, 300, 100):
        await write_events(uri, [(b"%d" % number, f"k{number % 7}") for number in range(first, first + 100)])
        if first < 200:
            await scale(uri, 2)
    reported = await asyncio.to_thread(reader(uri).reportLatestOffset)
    assert sorted(reported["tail"]) == ["3.#epoch.2", "4.#epoch.2"]
    for available_now in (False, True):
        (batch,) = await asyncio.to_thread(query, uri, available_now, ReadAllAvailable())
        assert sorted(batch) == list(range(300))
        batches = await asyncio.to_thread(query, uri, available_now, ReadMaxRows(30))
        assert sorted(number for batch in batches for number in batch) == list(range(300))
        assert max(map(len, batches)) <= 30
        assert 10 <= len(batches) <= 13


@pytest.mark.needs("PySpark 4.2 or newer")
async def test_a_minimum_does_not_hold_a_batch_longer_than_its_delay_or_the_end_of_a_query(uri: str) -> None:
    await write_events(uri, [(b"%d" % number, f"k{number}") for number in range(100)])
    await asyncio.to_thread(_wait_for_more, uri)


def _wait_for_more(uri: str) -> None:
    start = reader(uri).initialOffset()
    one = reader(uri, minEventsPerTrigger="1000")
    limit = one.getDefaultReadLimit()
    assert limit == ReadMinRows(1000)
    assert one.latestOffset(start, limit) == start
    assert one.reportLatestOffset()["lagBytes"] == 890 + 100
    assert one.latestOffset(start, ReadAllAvailable()) != start  # of Trigger.Once
    one.prepareForTriggerAvailableNow()
    assert one.latestOffset(start, limit) != start
    for more in ({"maxTriggerDelay": "0s", "minBytesPerTrigger": "1000000"}, {"minBytesPerTrigger": "900"}):
        one = reader(uri, **more)
        assert one.latestOffset(start, one.getDefaultReadLimit()) != start


@pytest.mark.needs("PySpark 4.2 or newer")
async def test_bytes_that_were_truncated_before_they_were_read_are_reported(uri: str) -> None:
    await write_events(uri, [(b"%d" % number, f"k{number}") for number in range(10)])
    async with using(uri) as segments:
        tail = await segments.tail()
        await segments.client.controller.truncate_stream(SCOPE, STREAM, tail)
    assert await asyncio.to_thread(_lost, uri) == tail[0] > 0


def _lost(uri: str) -> object:
    one = reader(uri, failOnDataLoss="false")
    one.latestOffset({"0.#epoch.0": 0}, ReadAllAvailable())
    return one.reportLatestOffset()["lostBytes"]


@pytest.mark.needs("PySpark 4.2 or newer")
async def test_an_offset_of_another_format_is_refused_with_what_to_do(uri: str) -> None:
    await asyncio.to_thread(_refuse, uri)


def _refuse(uri: str) -> None:
    with pytest.raises(CutError, match=r"'topic' is not a stream segment.*start with a new checkpoint"):
        reader(uri).latestOffset({"topic": 7}, ReadAllAvailable())
    with pytest.raises(DataLost, match=r"it is not the one that was read to 99999.*start with a new checkpoint"):
        reader(uri).latestOffset({"0.#epoch.0": 99_999}, ReadAllAvailable())
