from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from segstore.check import check
from segstore.pipeline.check import CHECKED, verdicts
from tests.pipeline.test_check import checked_files, compare, whole_files


def test_spark_judges_as_one_process_does(spark: SparkSession, tmp_path: Path) -> None:
    for files in (checked_files(tmp_path), whole_files(tmp_path)):
        rows = spark.read.format("segstore.trace").option("columns", ",".join(CHECKED)).load(files)
        compare(map(tuple, verdicts(rows).collect()), check(files))
