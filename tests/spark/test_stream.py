"""`format("segstore.stream")` on Spark: what is written is read, once each, through scaling, failures and restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from segstore.client import StreamCut
from segstore.pipeline.stream.options import read_stream_options
from segstore.pipeline.stream.registry import registry_name
from segstore.pipeline.stream.sink import check_schema, rows_of
from segstore.testing import RunningServer, ServerThread
from tests.pipeline.stream_support import SCOPE, every_event, scale, using, write_events
from tests.spark import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK

FORMAT = "segstore.stream"
COUNT = 300


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ServerThread() as servers:
        yield servers.serve(stores=2, containers=4)


@pytest.fixture
def uri(server: RunningServer) -> str:
    return f"tcp://{server.controller_uri}"


def named(request: pytest.FixtureRequest) -> str:
    """The test, as the name of a stream may be; the same in every run."""
    return f"{request.function.__name__[:60]}-{crc32(request.node.name.encode())}".replace("_", "-")


@pytest.fixture
def options(server: RunningServer, uri: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Those of a stream of the test's own with 100 events on one segment and 200 on the three that follow."""
    stream = "from-" + named(request)
    server.create_stream(SCOPE, stream)
    numbered = [(b"%d" % number, f"k{number}") for number in range(COUNT)]
    asyncio.run(write_events(uri, numbered[:100], stream))
    asyncio.run(scale(uri, 3, stream))
    asyncio.run(write_events(uri, numbered[100:], stream))
    return {"controller": uri, "scope": SCOPE, "stream": stream}


@pytest.fixture
def sink(server: RunningServer, uri: str, request: pytest.FixtureRequest) -> dict[str, str]:
    stream = "to-" + named(request)
    server.create_stream(SCOPE, stream, segments=2)
    return {"controller": uri, "scope": SCOPE, "stream": stream}


def written(sink: Mapping[str, str]) -> list[int]:
    return sorted(int(event.data) for event in asyncio.run(every_event(sink["controller"], sink["stream"])))


def left_over(server: RunningServer, stream: str) -> list[str]:
    return [
        name
        for name in server.segments()
        if f"/{stream}/" in name and "#transaction." in name and name != registry_name(SCOPE, stream)
    ]


def read_stream(spark: SparkSession, options: Mapping[str, str], **more: str) -> DataFrame:
    return spark.readStream.format(FORMAT).options(**options, **more).load()


def run(frame: DataFrame, sink: Mapping[str, str], checkpoint: Path, **more: str) -> list[Any]:
    """A query to the end of what there is; the rows of its batches."""
    writer = frame.writeStream.format(FORMAT).options(**sink, **more)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return [each["numInputRows"] for each in query.recentProgress]


def test_a_stream_is_a_table(spark: SparkSession, options: dict[str, str]) -> None:
    frame = spark.read.format(FORMAT).options(**options).load()
    rows = frame.collect()
    assert sorted(int(row.event) for row in rows) == list(range(COUNT))
    assert {row.segment.rsplit("/", 1)[1] for row in rows} == {"0.#epoch.0", "1.#epoch.1", "2.#epoch.1", "3.#epoch.1"}
    assert all(row.length == len(row.event) for row in rows)
    assert frame.count() == COUNT
    of_two = spark.read.format(FORMAT).schema("OFFSET long, Length int").options(**options).load()
    assert of_two.columns == ["OFFSET", "Length"]
    assert of_two.selectExpr("sum(length)").collect()[0][0] == sum(len(str(number)) for number in range(COUNT))


def test_a_batch_is_written_with_keys_and_between_cuts(
    spark: SparkSession, server: RunningServer, options: dict[str, str], sink: dict[str, str]
) -> None:
    cut = StreamCut(SCOPE, options["stream"], {0: 0}).to_text()
    end = asyncio.run(_tail(options))
    frame = spark.read.format(FORMAT).options(**options, **{"from": cut, "to": end}).load()
    rows = frame.selectExpr("event", "concat('k', cast(cast(event as string) as int) % 7) key")
    rows.write.format(FORMAT).options(**sink, routingKeyColumn="key").mode("append").save()
    assert left_over(server, sink["stream"]) == []
    assert written(sink) == list(range(COUNT))


async def _tail(options: Mapping[str, str]) -> str:
    async with using(options["controller"], stream=options["stream"]) as segments:
        return StreamCut(SCOPE, options["stream"], await segments.tail()).to_text()


@pytest.mark.needs("PySpark 4.2 or newer")
def test_a_query_is_stopped_and_goes_on_where_it_was(
    spark: SparkSession, server: RunningServer, options: dict[str, str], sink: dict[str, str], tmp_path: Path
) -> None:
    frame = read_stream(spark, options, maxEventsPerTrigger="90").selectExpr("event", "segment key").repartition(2)
    batches = run(frame, sink, tmp_path / "log", routingKeyColumn="key")
    assert sum(batches) == COUNT
    assert len([rows for rows in batches if rows]) >= 4
    assert max(batches) <= 90
    later = [(b"%d" % number, "k") for number in range(COUNT, COUNT + 20)]
    asyncio.run(write_events(options["controller"], later, options["stream"]))
    asyncio.run(scale(sink["controller"], 3, sink["stream"]))
    assert sum(run(frame, sink, tmp_path / "log", routingKeyColumn="key")) == 20
    assert left_over(server, sink["stream"]) == []
    assert written(sink) == list(range(COUNT + 20))


@pytest.mark.needs("PySpark 4.2 or newer")
def test_a_batch_whose_commit_is_not_in_sparks_log_is_there_once(
    spark: SparkSession, options: dict[str, str], sink: dict[str, str], tmp_path: Path
) -> None:
    frame = read_stream(spark, options).select("event")
    log = tmp_path / "log"
    run(frame, sink, log)
    last = max((log / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    run(frame, sink, log)
    assert written(sink) == list(range(COUNT))


def test_a_schema_may_name_the_epoch_and_the_time_of_writing_at_which_a_read_may_start_and_end(
    spark: SparkSession, options: dict[str, str]
) -> None:
    frame = spark.read.format(FORMAT).schema("event binary, epoch int, time timestamp").options(**options)
    rows = frame.load().collect()
    times = {epoch: [row.time for row in rows if row.epoch == epoch] for epoch in (0, 1)}
    assert [len(time_) for time_ in times.values()] == [100, 200]
    assert max(times[0]) < min(times[1])
    at = str(int(min(times[1]).timestamp() * 1000))
    later = spark.read.format(FORMAT).options(**options, **{"from": at}).load().collect()
    assert sorted(int(row.event) for row in later) == list(range(100, COUNT))
    earlier = spark.read.format(FORMAT).options(**options, to=f"{min(times[1]).isoformat()}Z").load().collect()
    assert sorted(int(row.event) for row in earlier) == list(range(100))


@pytest.mark.needs("PySpark 4.2 or newer")
def test_progress_shows_how_far_a_query_is_behind(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    writer = read_stream(spark, options, maxEventsPerTrigger="120").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    found = [each["sources"][0] for each in query.recentProgress if each["numInputRows"]]
    latest = [json.loads(each["latestOffset"]) for each in found]
    read = 0
    bytes_of = [8 + len(str(number)) for number in range(COUNT)]
    for progress, reported in zip(found, latest, strict=True):
        read += progress["numInputRows"]
        assert reported["tail"].keys() == {"1.#epoch.1", "2.#epoch.1", "3.#epoch.1"}
        assert (reported["lagBytes"] > 0) == (reported["lagEvents"] > 0) == (read < COUNT)
    assert read == COUNT
    assert latest[0]["lagBytes"] < sum(bytes_of)


def test_a_routing_key_of_another_type_is_cast_as_spark_does(spark: SparkSession, options: dict[str, str]) -> None:
    kinds = ("tinyint", "smallint", "int", "bigint", "boolean", "date", "binary", "string")
    values = ("-7", "300", "70000", "5000000000", "true", "date'2024-02-29'", "unhex('C3A4')", "'ä'")
    for kind, value in zip(kinds, values, strict=True):
        frame = spark.sql(
            f"select 'x' event, cast({value} as {kind}) key, cast(cast({value} as {kind}) as string) text"
        )
        given = read_stream_options(options | {"routingKeyColumn": "key"})
        check_schema(given, frame.schema, overwrite=False)
        table = frame.toArrow()
        rows = asyncio.run(anext(rows_of(given, iter(table.to_batches()))))
        assert rows[1] == table.column("text").to_pylist(), kind


REFUSED: list[tuple[list[str], dict[str, str], str]] = [
    (["id"], {}, "the rows have no column 'event', which eventColumn names; they have id"),
    (["event"], {"routingKeyColumn": "key"}, "the rows have no column 'key', which routingKeyColumn names"),
    (["id event"], {}, "the column 'event' is to be a string or binary, not a bigint"),
    (["event", "1.5d key"], {"routingKeyColumn": "key"}, "is to be a string or .* or date, not a double: cast it"),
    (["event"], {"colour": "red"}, "there is no option 'colour'"),
    (["if(id = 1, null, 'x') event"], {}, "has no event: event is null"),
]


def test_rows_that_do_not_do_are_refused_by_name(spark: SparkSession, sink: dict[str, str]) -> None:
    numbers = spark.range(0, 2, 1, 1).selectExpr("id", "cast(id as string) event")
    for columns, more, says in REFUSED:
        with pytest.raises(Exception, match=says):
            numbers.selectExpr(*columns).write.format(FORMAT).options(**sink, **more).mode("append").save()
    assert written(sink) == []
