"""What the analyses refuse. What they find is tested with the report, in one run, for starting Spark's jobs is slow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from segstore.pipeline.report.analysis_rules import FRAME_COLUMNS
from segstore.pipeline.trace.columns import ColumnError
from tests.spark import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "traces" / "write.jsonl"


def sources(table: DataFrame) -> list[str]:
    """What a table is read from, as Spark plans it; what is kept counts as a source, whatever it was made of."""
    leaves: Any = table._jdf.queryExecution().withCachedData().collectLeaves()
    found = [str(leaves.apply(at).nodeName()) for at in range(leaves.size())]
    return [name for name in found if name != "CTERelationRef"]  # a name within a statement


def test_a_missing_column_is_named(spark: SparkSession) -> None:
    from segstore.pipeline.report.analysis import analyse, latencies

    lacking = spark.createDataFrame([], ", ".join(f"`{name}` string" for name in FRAME_COLUMNS if name != "writer_id"))
    with pytest.raises(ColumnError, match="'writer_id'") as caught:
        analyse(lacking)
    assert caught.value.column == "writer_id"
    with pytest.raises(ColumnError, match="'stream'"):
        latencies(lacking, "stream")


def test_a_trace_is_read_once_and_all_tables_are_made_of_what_is_kept(spark: SparkSession) -> None:
    from segstore.pipeline.report.analysis import Analysis, analyse, placed

    rows = spark.read.format("segstore.trace").load(str(RECORDED))
    (trace,) = sources(rows)
    assert sources(placed(rows)) == [trace]
    with analyse(rows) as found:
        kept = sources(found.written)
        assert kept == ["InMemoryRelation"]
        for table in (found.exchanges, found.violations, found.frames):
            assert set(sources(table)) == set(kept)
        found.close()
        assert sources(found.written.select("*")) == [trace]
    with Analysis(placed(rows), rows.withColumn("frame", rows.command.cast("binary"))) as found:
        assert sources(found.violations).count(trace) == 1
