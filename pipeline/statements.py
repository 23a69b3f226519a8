"""Runs SQL over DataFrames and keeps persisted DataFrames persisted.

PySpark's (4.3.0) `spark.sql(text, name=frame)` creates a view for each frame and drops it afterwards through
`spark.catalog.dropTempView`, which also unpersists cached data of the same plan. A persisted table named in a statement
would then silently be recomputed by every query.

Invariant: a statement leaves no view behind, even if it fails, and unpersists no frame.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def statement(spark: SparkSession, text: str, **frames: DataFrame) -> DataFrame:
    """Returns the result of a SELECT in which `{name}` refers to the frame of that name."""
    views = {name: f"segstore_{uuid.uuid4().hex}" for name in frames}
    # The session's own catalog only drops the view.
    catalog = spark._jsparkSession.sessionState().catalog()
    try:
        for name, view in views.items():
            frames[name].createTempView(view)
        return spark.sql(text.format(**views))
    finally:
        for view in views.values():
            catalog.dropTempView(view)


def map_in_arrow(
    rows: DataFrame, step: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Returns what a step in Python makes of each partition, as `DataFrame.mapInArrow` does.

    That method (4.3.0) demands pandas, which it does not use.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    made = UserDefinedFunction(step, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    return DataFrame(rows._jdf.mapInArrow(made(*rows.columns)._jc, False, None), rows.sparkSession)
