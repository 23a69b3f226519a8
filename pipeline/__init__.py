"""Spark data sources for traces (`segstore.trace`) and streams (`segstore.stream`), and jobs built on them.

    from segstore.pipeline.session import session
    spark = session()
    rows = spark.read.format("segstore.trace").load("run.wtrace")
    rows.groupBy("command", "failure").count().show()

    from segstore.pipeline.trace.rows import trace_rows      # the same rows in plain Python, without Spark
    for row in trace_rows("run.wtrace", ["ts_ns", "command", "request_id"]): ...

Imports are lazy: without PySpark and Java, everything that needs neither works, and the rest raises `SparkMissing`,
which names what to install.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from segstore.pipeline.session import SparkMissing, register
    from segstore.pipeline.stream.sink import sweep_stream
    from segstore.pipeline.trace.columns import ALL_COLUMNS, DEFAULT_COLUMNS, ColumnError
    from segstore.pipeline.trace.rows import BadTrace

__all__ = ["ALL_COLUMNS", "DEFAULT_COLUMNS", "BadTrace", "ColumnError", "SparkMissing", "register", "sweep_stream"]

_WHERE: Final = {
    "ALL_COLUMNS": "trace.columns",
    "DEFAULT_COLUMNS": "trace.columns",
    "BadTrace": "trace.rows",
    "ColumnError": "trace.columns",
    "SparkMissing": "session",
    "register": "session",
    "sweep_stream": "stream.sink",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
