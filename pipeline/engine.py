"""The engines of the analyses: Spark, or DuckDB on this machine.

A table is a Spark `DataFrame` or a `LocalTable`. Both have `columns`; everything else is asked of the engine.

Invariant: an analysis is written once. Statements are SELECTs in the SQL that Spark and DuckDB have in common, with
Spark's `DIV`, `DECIMAL(38, 0)` and backticks, and both engines give the same rows and types. Steps in Python take and
yield Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from segstore.pipeline.local_engine import LocalTable

if TYPE_CHECKING:
    import pyarrow as pa

Table = Any
"""A `DataFrame` or a `LocalTable`."""
Step = Callable[[Iterator["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]
"""A step in Python. It must be picklable."""


class Engine(Protocol):
    """Runs statements and steps. Tables of two engines must not be mixed; see `taken`."""

    @property
    def about(self) -> str:
        """The engine, its version and where it runs."""

    def read(self, files: Sequence[str], columns: Sequence[str], **options: str) -> Table:
        """Returns the rows of traces. options: as for `format("segstore.trace")`."""

    def statement(self, text: str, **tables: Table) -> Table:
        """Returns the result of a SELECT in which `{name}` refers to the table of that name."""

    def mapped(
        self, table: Table, step: Step, schema: pa.Schema, by: Sequence[str] = (), order: Sequence[str] = ()
    ) -> Table:
        """Applies a step to each part of a table. schema: of the step's batches.

        by: rows that are equal in these columns are in one part. order: of the rows of a part.
        """

    def held(self, table: Table) -> Table:
        """Returns the same table, kept on disk from its first use until `release`."""

    def release(self, table: Table) -> None:
        """Removes from disk what `held` returned."""

    def kept(self, table: Table, folder: Path, order: Sequence[str] = ()) -> Table:
        """Writes a table to Parquet files (zstd) in a new folder, and returns it read back from there.

        order: columns, or columns with DESC; nulls come last. With an order there is one file.
        """

    def taken(self, table: Table) -> Table:
        """Returns a table as a table of this engine; a `LocalEngine` takes Spark's tables as well, as files."""

    def rows(self, table: Table) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a table in its order."""


def engine_of(table: Table) -> Engine:
    """Returns the engine that a table belongs to."""
    if isinstance(table, LocalTable):
        return table.engine
    from segstore.pipeline.spark_engine import SparkEngine

    return SparkEngine(table.sparkSession)
