from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from segstore.check import check
from segstore.pipeline.check import verdicts
from segstore.pipeline.spark_engine import SparkEngine
from tests.pipeline.test_check import checked_files, compare, whole_files


def test_spark_judges_as_one_process_does(spark: SparkSession, tmp_path: Path) -> None:
    for files in (checked_files(tmp_path), whole_files(tmp_path)):
        judged = verdicts(SparkEngine(spark), files, splitBytes="1000")
        compare(map(tuple, judged.collect()), check(files))
