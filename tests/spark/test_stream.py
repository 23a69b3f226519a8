"""`format("segstore.stream")` on Spark: what is written is read, once each, through scaling, failures and restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from segstore.pipeline.stream.cuts import cut_text
from segstore.pipeline.stream.registry import registry_name
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
    of_two = spark.read.format(FORMAT).schema("offset long, length int").options(**options).load()
    assert of_two.columns == ["offset", "length"]
    assert of_two.selectExpr("sum(length)").collect()[0][0] == sum(len(str(number)) for number in range(COUNT))


def test_a_batch_is_written_with_keys_and_between_cuts(
    spark: SparkSession, server: RunningServer, options: dict[str, str], sink: dict[str, str]
) -> None:
    cut = cut_text(SCOPE, options["stream"], {0: 0})
    end = asyncio.run(_tail(options))
    frame = spark.read.format(FORMAT).options(**options, **{"from": cut, "to": end}).load()
    rows = frame.selectExpr("event", "concat('k', cast(cast(event as string) as int) % 7) key")
    rows.write.format(FORMAT).options(**sink, routingKeyColumn="key").mode("append").save()
    assert left_over(server, sink["stream"]) == []
    assert written(sink) == list(range(COUNT))


async def _tail(options: Mapping[str, str]) -> str:
    async with using(options["controller"], stream=options["stream"]) as segments:
        return cut_text(SCOPE, options["stream"], await segments.tail())


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


@pytest.mark.needs("PySpark 4.1 or newer")
def test_a_query_over_another_source_is_written(spark: SparkSession, sink: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "numbers").write_text("".join(f"{number}\n" for number in range(9)))
    lines = spark.readStream.schema("event string").text(str(tmp_path / "in"))
    assert sum(run(lines, sink, tmp_path / "log")) == 9
    assert written(sink) == list(range(9))


def test_a_write_that_fails_leaves_nothing_visible_and_nothing_behind(
    spark: SparkSession, server: RunningServer, sink: dict[str, str]
) -> None:
    rows = spark.range(0, 2_000, 1, 2).selectExpr(
        "cast(if(id = 1999, raise_error('the rows end here'), cast(id as string)) as string) event"
    )
    with pytest.raises(Exception, match="the rows end here"):
        rows.write.format(FORMAT).options(**sink).mode("append").save()
    for _ in range(1_000):  # a task that was at work when the other failed deletes what it wrote as it ends
        if not left_over(server, sink["stream"]):
            break
        time.sleep(0.02)
    assert left_over(server, sink["stream"]) == []
    assert written(sink) == []


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


@pytest.mark.parametrize(
    ("columns", "more", "says"),
    [
        (["id"], {}, "the rows have no column 'event', which eventColumn names; they have id"),
        (["event"], {"routingKeyColumn": "key"}, "the rows have no column 'key', which routingKeyColumn names"),
        (["id event"], {}, "the column 'event' is to be a string or binary, not a bigint"),
        (["event"], {"colour": "red"}, "there is no option 'colour'"),
        (["if(id = 1, null, 'x') event"], {}, "has no event: event is null"),
    ],
)
def test_rows_that_do_not_do_are_refused_by_name(
    spark: SparkSession, sink: dict[str, str], columns: list[str], more: dict[str, str], says: str
) -> None:
    rows = spark.range(0, 2, 1, 1).selectExpr("id", "cast(id as string) event").selectExpr(*columns)
    with pytest.raises(Exception, match=says):
        rows.write.format(FORMAT).options(**sink, **more).mode("append").save()
    assert written(sink) == []


def test_a_stream_that_there_is_not_is_named(spark: SparkSession, options: dict[str, str]) -> None:
    with pytest.raises(Exception, match="NoSuchStream"):
        spark.read.format(FORMAT).options(**options | {"stream": "nowhere"}).load().count()
