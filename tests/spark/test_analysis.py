"""What the analyses refuse. What they find is tested with the report, in one run, for starting Spark's jobs is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from segstore.pipeline.analysis_rules import FRAME_COLUMNS
from segstore.pipeline.trace_columns import ColumnError
from tests.spark import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK


def test_a_missing_column_is_named(spark: SparkSession) -> None:
    from segstore.pipeline.analysis import analyse, latencies

    lacking = spark.createDataFrame([], ", ".join(f"`{name}` string" for name in FRAME_COLUMNS if name != "writer_id"))
    with pytest.raises(ColumnError, match="'writer_id'") as caught:
        analyse(lacking)
    assert caught.value.column == "writer_id"
    with pytest.raises(ColumnError, match="'stream'"):
        latencies(lacking, "stream")
