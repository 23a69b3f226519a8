"""Runs SQL over DataFrames and keeps persisted DataFrames persisted.

`spark.sql(text, name=frame)` of PySpark (4.3.0) makes a view of each frame and drops it in the end, by
`spark.catalog.dropTempView`; and to drop a view through the catalog gives back whatever is kept of the same plan. So a
table that was persisted and then named in a statement is computed anew by every query, which nothing tells.

Invariant: a statement leaves no view behind, whether it is right or not, and no frame less persisted than it was.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def statement(spark: SparkSession, text: str, **frames: DataFrame) -> DataFrame:
    """The table of a SELECT, in which `{name}` stands for the frame of that name."""
    views = {name: f"segstore_{uuid.uuid4().hex}" for name in frames}
    # The catalog of the session itself, which drops views and nothing else.
    catalog = spark._jsparkSession.sessionState().catalog()
    try:
        for name, view in views.items():
            frames[name].createTempView(view)
        return spark.sql(text.format(**views))
    finally:
        for view in views.values():
            catalog.dropTempView(view)
