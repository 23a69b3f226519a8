"""Runs the analyses on Spark.

PySpark's (4.3.0) `spark.sql(text, name=frame)` creates a view for each frame and drops it afterwards through
`spark.catalog.dropTempView`, which also unpersists cached data of the same plan. A persisted table named in a statement
would then silently be recomputed by every query.

Invariant: a statement leaves no view behind, even if it fails, and unpersists no frame.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from segstore.pipeline.engine import Step


class SparkEngine:
    """The `Engine` of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def about(self) -> str:
        return f"Spark {self._spark.version}, {self._spark.conf.get('spark.master')}"

    def read(self, files: Sequence[str], columns: Sequence[str], **options: str) -> DataFrame:
        reader = self._spark.read.format("segstore.trace").option("columns", ",".join(columns)).options(**options)
        return reader.option("paths", json.dumps(files)).load()

    def statement(self, text: str, **tables: DataFrame) -> DataFrame:
        views = {name: f"segstore_{uuid.uuid4().hex}" for name in tables}
        # The session's own catalog only drops the view.
        catalog = self._spark._jsparkSession.sessionState().catalog()
        try:
            for name, view in views.items():
                tables[name].createTempView(view)
            return self._spark.sql(text.format(**views))
        finally:
            for view in views.values():
                catalog.dropTempView(view)

    def mapped(
        self, table: DataFrame, step: Step, schema: pa.Schema, by: Sequence[str] = (), order: Sequence[str] = ()
    ) -> DataFrame:
        """As `DataFrame.mapInArrow` does; that method (4.3.0) demands pandas, which it does not use."""
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.udf import UserDefinedFunction
        from pyspark.util import PythonEvalType

        parts = table.repartition(*by) if by else table
        rows = parts.sortWithinPartitions(*order) if order else parts
        function = UserDefinedFunction(step, from_arrow_schema(schema), evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
        return DataFrame(rows._jdf.mapInArrow(function(*rows.columns)._jc, False, None), self._spark)

    def held(self, table: DataFrame) -> DataFrame:
        return table.persist(StorageLevel.DISK_ONLY)

    def release(self, table: DataFrame) -> None:
        table.unpersist()

    def kept(self, table: DataFrame, folder: Path, order: Sequence[str] = ()) -> DataFrame:
        rows = table.coalesce(1).sortWithinPartitions(*map(_sorting, order)) if order else table
        rows.write.option("compression", "zstd").parquet(str(folder))
        return self._spark.read.schema(table.schema).parquet(str(folder))

    def taken(self, table: DataFrame) -> DataFrame:
        return table

    def rows(self, table: DataFrame) -> Iterator[tuple[Any, ...]]:
        return iter(table.toLocalIterator())


def _sorting(column: str) -> Any:
    name, _, way = column.partition(" ")
    return f.col(name).desc_nulls_last() if way == "DESC" else f.col(name).asc_nulls_last()
