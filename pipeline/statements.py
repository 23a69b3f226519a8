"""Runs SQL over DataFrames and keeps persisted DataFrames persisted.

PySpark's (4.3.0) `spark.sql(text, name=frame)` creates a view for each frame and drops it afterwards through
`spark.catalog.dropTempView`, which also unpersists cached data of the same plan. A persisted table named in a statement
would then silently be recomputed by every query.

Invariant: a statement leaves no view behind, even if it fails, and unpersists no frame.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
