"""`format("segstore.trace")` gives the rows of the reference, however a trace is cut; what it lacks it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fsspec
import pytest

from segstore.pipeline.session import register
from segstore.pipeline.trace.columns import ALL_COLUMNS, DEFAULT_COLUMNS
from segstore.pipeline.trace.rows import Row, trace_rows
from segstore.wire import DataAppended, Hello, NoSuchSegment, ReadSegment, encode
from segstore.wire.trace import Record, RecordKind
from tests.pipeline.stores import SECRET, closed_stores, s3_server
from tests.pipeline.support import write_capture, write_fixture
from tests.pipeline.trace.test_packets import STORE, packet, written
from tests.spark import SPARK
from tests.wire.trace.traces import capture, frame, record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "traces"


def rows(frame: DataFrame) -> list[Row]:
    """The rows in an order of their own, times with their zone: Spark gives them without."""
    return sorted((tuple(map(_zoned, row)) for row in frame.collect()), key=repr)


def _zoned(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def reference(paths: str | Iterable[str], columns: Iterable[str] | None = None, **how: Any) -> list[Row]:
    return sorted(trace_rows(paths, columns, **how), key=repr)


def traffic(count: int) -> list[Record]:
    return [
        record(
            (DataAppended(at, UUID(int=at % 3), at, at - 1, 9), ReadSegment(f"s/{at % 2}", at, 9, "t", at))[at % 2],
            at=at,
        )
        for at in range(count)
    ]


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    """A folder with a bit of everything that can be wrong with traces."""
    whole = capture([*traffic(40), record(frame(9, b"\0")), record(b"ab"), record(frame(111))], a_block=4)
    (tmp_path / "torn.wtrace").write_bytes(whole[:-20])
    damaged = bytearray(whole)
    damaged[700] ^= 1
    (tmp_path / "damaged.wtrace").write_bytes(damaged)
    (tmp_path / "other.wtrace").write_bytes(b"something else")
    lines = write_fixture(tmp_path / "lines.jsonl", traffic(5)).read_bytes()
    (tmp_path / "lines.jsonl").write_bytes(lines + b'{"at_ns": 1}\n')
    packets = written(tmp_path / "cut.pcap", [each for port in range(30) for each in talk(port)])
    packets.write_bytes(packets.read_bytes()[:-3])
    return str(tmp_path)


def talk(port: int) -> list[bytes]:
    """The packets of a client that says Hello and reads."""
    sent = [encode(Hello(17, 5)), encode(ReadSegment("s/0", 0, 9, "t", port))]
    client = ("10.0.0.1", 40_000 + port)
    return [packet(client, STORE, 1, sent[0]), packet(client, STORE, 1 + len(sent[0]), sent[1])]


def test_traces_of_the_official_client_give_the_rows_of_the_reference(spark: SparkSession) -> None:
    found = spark.read.format("segstore.trace").load(str(RECORDED))
    assert tuple(found.columns) == DEFAULT_COLUMNS
    assert rows(found) == reference(str(RECORDED))
    assert found.where("error is not null").count() == 0


def test_whatever_is_wrong_with_traces_the_rows_are_those_of_the_reference(spark: SparkSession, faulty: str) -> None:
    reader = spark.read.format("segstore.trace").option("columns", ",".join(ALL_COLUMNS)).option("splitBytes", 900)
    found = rows(reader.load(faulty))
    assert found == reference(faulty, ALL_COLUMNS)
    skipped = {Path(row[0]).name for row in found if row[3] == "skipped"}
    assert skipped == {"torn.wtrace", "damaged.wtrace", "other.wtrace", "lines.jsonl", "cut.pcap"}


def test_several_paths_and_one_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    paths = [str(write_capture(tmp_path / f"{name}.wtrace", traffic(5))) for name in "ab"]
    assert rows(spark.read.format("segstore.trace").load(paths)) == reference(paths)
    with pytest.raises(Exception, match=r"no such trace.*none\.wtrace"):
        spark.read.format("segstore.trace").load(str(tmp_path / "none.wtrace")).count()
    (tmp_path / "stream.py").write_text("print(1)")
    with pytest.raises(Exception, match=r"stream\.py is not a trace") as refused:
        spark.read.format("segstore.trace").load(str(tmp_path / "stream.py")).count()
    assert len(str(refused.value).splitlines()) <= 2, "the sentence, without a traceback"


# --- columns --------------------------------------------------------------------------------------------------------


def test_a_schema_may_name_any_columns_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    path = str(
        write_capture(tmp_path / "a.wtrace", [*traffic(9), record(NoSuchSegment(3, "s", "trace", 4), reply=True)])
    )
    columns = ["server_stack_trace", "TS_NS", "Command", "frame"]
    found = spark.read.format("segstore.trace").schema(
        "server_stack_trace string, TS_NS long, Command string, frame binary"
    )
    assert found.load(path).columns == columns
    assert rows(found.load(path)) == reference(path, columns)


QUERIES = [
    ("SELECT command, count(*) FROM {t} GROUP BY command", {"command"}),
    ("SELECT count(*) FROM {t}", {"failure"}),
    ("SELECT ts_ns FROM {t} WHERE kind = 'frame' AND size > 20", {"ts_ns", "kind", "size"}),
    ("SELECT DISTINCT connection, segment FROM {t} WHERE error IS NULL", {"connection", "segment", "error"}),
    ("SELECT a.ts_ns, b.code FROM {t} a JOIN {t} b ON a.request_id = b.request_id", {"ts_ns", "code", "request_id"}),
    ("SELECT ts_ns FROM {t} UNION ALL SELECT size FROM {t}", {"ts_ns", "size"}),
    ("SELECT size, row_number() OVER (PARTITION BY file ORDER BY block, record) FROM {t}",
     {"size", "file", "block", "record"}),
    ("SELECT ts_ns FROM {t} WHERE ts_ns > (SELECT avg(size) FROM {t}) ORDER BY block LIMIT 3",
     {"ts_ns", "size", "block"}),
    ("SELECT * FROM {t}", set(DEFAULT_COLUMNS)),
    ("SELECT * FROM {t} UNION SELECT * FROM {t}", set(DEFAULT_COLUMNS)),
]  # fmt: skip


def test_a_query_reads_the_columns_that_it_uses(spark: SparkSession, faulty: str) -> None:
    found = spark.read.format("segstore.trace").load(faulty)
    whole = spark.createDataFrame(list(trace_rows(faulty)), found.schema)
    for query, columns in QUERIES:
        asked = spark.sql(query, t=found)
        plan = asked._jdf.queryExecution().optimizedPlan().toString()  # type: ignore[operator]
        scans = [set(re.findall(r"(\w+)#", each)) for each in re.findall(r"RelationV2\[(.*)\] segstore", plan)]
        assert set().union(*scans) == columns if len(columns) < 10 else all(len(scan) > 10 for scan in scans), query
        assert rows(asked) == rows(spark.sql(query, t=whole)), query


def test_a_spark_for_which_the_rule_does_not_compile_reads_all_columns(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("segstore.pipeline.session._PRUNING", "segstore.pipeline.Unknown")
    other = spark.newSession()
    register(other)
    assert "queries on traces read all columns" in caplog.text
    assert other.read.format("segstore.trace").load(str(RECORDED)).count() == len(reference(str(RECORDED)))
    register(spark)


# --- filters --------------------------------------------------------------------------------------------------------

TWO = ("READ_SEGMENT", "DATA_APPENDED")


def twice(found: DataFrame) -> list[Row]:
    """The commands of one DataFrame that is filtered in two ways."""
    one, other = (found.where(f"command = '{name}'") for name in TWO)
    return sorted(tuple(row) for row in one.union(other).select("command").collect())


def test_a_dataframe_can_be_filtered_twice_as_sessions_are_made_here(spark: SparkSession, faulty: str) -> None:
    found = spark.read.format("segstore.trace").load(faulty)
    assert twice(found) == sorted(row for row in reference(faulty, ["command"]) if row[0] in TWO)
    assert found.count() == len(reference(faulty))


# --- streams --------------------------------------------------------------------------------------------------------


@pytest.fixture
def follow(spark: SparkSession, tmp_path: Path) -> Callable[..., tuple[list[Row], list[int]]]:
    """Reads what is there now, as a query that goes on from where it was; all rows so far, and the batches' sizes."""

    def run(path: str, **options: Any) -> tuple[list[Row], list[int]]:
        stream = spark.readStream.format("segstore.trace").options(**options).load(path)
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(200)
        sizes = [progress["numInputRows"] for progress in query.recentProgress]
        return rows(spark.read.schema(stream.schema).parquet(str(tmp_path / "out"))), [size for size in sizes if size]

    return run


@pytest.mark.needs("PySpark 4.2 or newer")
def test_a_capture_that_grows_is_read_once_block_by_block(
    tmp_path: Path, follow: Callable[..., tuple[list[Row], list[int]]]
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    whole = capture(traffic(20), a_block=4)
    path = folder / "a.wtrace"
    path.write_bytes(whole[: len(whole) // 2])
    first, sizes = follow(str(folder), maxRowsPerTrigger=4)
    assert set(sizes) == {4}
    assert len(first) == sum(sizes) < 20
    path.write_bytes(whole)
    write_fixture(folder / "late.jsonl", [record(Hello(17, 5)), record(b"{}", kind=RecordKind.CLOSE)])
    found, _ = follow(str(folder), maxRowsPerTrigger=4)
    assert found == reference(str(folder))


# --- stores ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored() -> Iterator[tuple[Any, dict[str, str]]]:
    """A bucket `traces` on an S3 server, and the options that open it."""
    with s3_server() as options, closed_stores():
        store = fsspec.filesystem("s3", **options)
        store.mkdir("traces")
        yield store, {"storageOptions": json.dumps(options)}


def test_a_folder_on_s3_gives_the_rows_of_the_reference(
    spark: SparkSession, faulty: str, stored: tuple[Any, dict[str, str]]
) -> None:
    url, names = "s3://traces/run/", ("kind", "block", "ts_ns", "command", "error")
    store, storage = stored
    store.put(faulty, "traces/run", recursive=True)
    frame = spark.read.format("segstore.trace").options(**storage, splitBytes="2000").load(url)
    assert rows(frame.select(*names)) == reference(faulty, names)
    assert {row.file for row in frame.select("file").distinct().collect()} == {
        f"{url}{each.name}" for each in Path(faulty).iterdir()
    }
    shown = frame._jdf.queryExecution().toString()
    assert "segstore.trace" in shown
    assert SECRET not in shown
    with pytest.raises(Exception, match=r"no such trace.*s3://traces/none") as caught:
        spark.read.format("segstore.trace").options(**storage).load("s3://traces/none").count()
    assert SECRET not in str(caught.value)
