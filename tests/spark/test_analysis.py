"""What the analyses refuse. What they find is tested with the report, in one run, for starting Spark's jobs is slow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from segstore.pipeline.report.analysis_rules import APPENDS, EXCHANGE_COLUMNS
from segstore.pipeline.report.exchange import FRAME_COLUMNS
from segstore.pipeline.report.reference import reference
from segstore.pipeline.trace.columns import ColumnError
from segstore.pipeline.trace.rows import trace_rows
from segstore.wire import AppendBlockEnd, SetupAppend
from tests.pipeline.planted import planted
from tests.pipeline.support import write_capture
from tests.spark import SPARK
from tests.wire.trace.traces import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "traces" / "write.jsonl"

WRITER = UUID(int=7)


def block_end(number: int) -> AppendBlockEnd:
    return AppendBlockEnd(WRITER, 1, b"a", 1, number, number)


def test_a_missing_column_is_named(spark: SparkSession) -> None:
    from segstore.pipeline.report.analysis import analyse, latencies

    lacking = spark.createDataFrame([], ", ".join(f"`{name}` string" for name in FRAME_COLUMNS if name != "writer_id"))
    with pytest.raises(ColumnError, match="'writer_id'") as caught:
        analyse(lacking)
    assert caught.value.column == "writer_id"
    with pytest.raises(ColumnError, match="'stream'"):
        latencies(lacking, "stream")


def test_rows_in_any_order_are_followed_as_the_reference_follows_them(spark: SparkSession, tmp_path: Path) -> None:
    from segstore.pipeline.report.analysis import analyse

    path = str(write_capture(tmp_path / "planted.wtrace", planted(4, times=1, connections=4)[0], a_block=40))
    rows = spark.read.format("segstore.trace").load(path).repartition(3)
    plain = reference(path)
    others = sum(kind not in ("frame", "skipped") for (kind,) in trace_rows(path, ["kind"]))
    with analyse(rows) as found:
        assert sorted(repr(tuple(row)) for row in found.exchanges.collect()) == sorted(map(repr, plain.exchanges))
        assert found.frames.count() == plain.frames + others


def test_packed_rows_can_be_queried(spark: SparkSession) -> None:
    rows = spark.read.format("segstore.trace").option("packed", "true").load(str(RECORDED))
    assert rows.columns == ["connection", "file", "block", "record", "rows"]
    first = rows.collect()
    assert len(first) > 1
    assert sorted(rows.select("rows", "connection").collect()) == sorted((row.rows, row.connection) for row in first)


def test_appends_have_the_segment_of_their_writer_however_a_trace_is_cut(spark: SparkSession, tmp_path: Path) -> None:
    from segstore.pipeline.report.analysis import with_segments

    moved = [SetupAppend(1, WRITER, "s/first", ""), block_end(1), SetupAppend(2, WRITER, "s/second", ""), block_end(2)]
    write_capture(tmp_path / "moved.wtrace", [record(block_end(0)), *map(record, moved)], a_block=1)
    write_capture(tmp_path / "planted.wtrace", planted(3, times=1, connections=4)[0], a_block=9)
    paths = [str(tmp_path), str(RECORDED)]
    expected = {
        (row["file"], row["block"], row["record"]): row["segment"]
        for row in (dict(zip(EXCHANGE_COLUMNS, exchange, strict=True)) for exchange in reference(paths).exchanges)
        if row["command"] in APPENDS and row["segment"] is not None
    }
    assert len(expected) > 20
    rows = spark.read.format("segstore.trace").option("splitBytes", 5_000).load(paths)
    found = with_segments(rows)
    assert found.columns == rows.columns
    segments = {
        (row.file, row.block, row.record): (row.command, row.segment)
        for row in found.select("file", "block", "record", "command", "segment").collect()
    }
    assert len(segments) == len(list(trace_rows(paths, ["kind"])))
    named = {place: segment for place, (command, segment) in segments.items() if command in APPENDS and segment}
    assert expected.items() <= named.items()
    own = [segments[at] for at in sorted(segments) if at[0].endswith("moved.wtrace")]
    assert [segment for command, segment in own if command == "APPEND_BLOCK_END"] == [None, "s/first", "s/second"]
