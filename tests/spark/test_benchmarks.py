"""The benchmarks of the pipeline work on Spark, at tiny sizes, and statements give back nothing that was kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tests.bench.conftest  # noqa: F401 — finds `bench`, which is not installed
from tests.spark import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK


def test_spark_reads_what_one_process_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import matching
    from bench.traffic import write_traffic

    monkeypatch.setattr(matching, "JOBS", matching.JOBS[:1])  # the other one is held to the reference with the report
    trace = tmp_path / "some.wtrace"
    write_traffic(trace, 60_000, writers=4, connections=2)
    seconds: matching.Seconds = {}
    expected = matching.measure_alone([str(trace)], seconds)
    matching.measure_spark(spark, matching.LOCAL, [str(trace)], seconds, expected)
    assert set(seconds["spark-reading"]) == {matching.ALONE, matching.BY_COLUMN, matching.LOCAL}
    with pytest.raises(RuntimeError, match="expected"):
        matching.measure_spark(spark, matching.LOCAL, [str(trace)], seconds, dict.fromkeys(expected, 7))


def test_what_is_kept_of_a_table_stays_kept_when_a_statement_names_it(spark: SparkSession) -> None:
    from pyspark import StorageLevel

    from segstore.pipeline.spark_engine import SparkEngine

    engine = SparkEngine(spark)
    kept = spark.range(10).selectExpr("id", "id % 2 AS odd").persist(StorageLevel.DISK_ONLY)
    try:
        before = len(spark.catalog.listTables())
        found = engine.statement("SELECT odd, count(*) AS times FROM {kept} GROUP BY odd", kept=kept)
        with pytest.raises(Exception, match="nowhere"):
            engine.statement("SELECT nowhere FROM {kept}", kept=kept)
        assert {tuple(row) for row in found.collect()} == {(0, 5), (1, 5)}
        assert kept.storageLevel == StorageLevel.DISK_ONLY
        assert len(spark.catalog.listTables()) == before
        assert "InMemoryTableScan" in found._jdf.queryExecution().executedPlan().toString()
    finally:
        kept.unpersist()
