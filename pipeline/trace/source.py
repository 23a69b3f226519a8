"""The data source `format("segstore.trace")`: traces as a table on Spark.

    spark.read.format("segstore.trace").load("traces/*.wtrace")
    spark.read.format("segstore.trace").schema("ts_ns long, command string").load(["a.wtrace", "b.jsonl"])
    spark.readStream.format("segstore.trace").option("maxBytesPerTrigger", 64_000_000).load("traces/")

A task reads a `FileRange`, or several small pieces, and returns Arrow batches, so Python passes columns to
Java. Readers hold only options, because Spark pickles them and plans in another process.

Invariant: the rows equal the rows of `segstore.pipeline.trace.rows`, whatever the number of tasks. A reader's schema
may omit default columns and name further columns; unknown columns and wrong types are refused when the query is
planned. Filters are left to Spark; `segstore.pipeline.session` explains why.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from segstore.pipeline.trace.columns import ColumnError, TraceColumn, ddl, select
from segstore.pipeline.trace.files import FileRange, find_files, find_traces, packed, piece_bytes_of, plan, sizes_of
from segstore.pipeline.trace.growth import Offset, is_late, late, next_offset, parts
from segstore.pipeline.trace.options import BatchLimit, OptionError, TraceReaderOptions, read_options
from segstore.pipeline.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    require,
)
from segstore.pipeline.workers import Shipped

if TYPE_CHECKING:
    import pyarrow as pa

_FOLLOWED: Final = (".wtrace", ".jsonl")


class TraceSource(Shipped, spark.DataSource):
    """The data source for traces; `TraceReaderOptions` describes its options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.read_options = read_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "segstore.trace"

    def schema(self) -> str:
        return ddl(self.read_options.given)

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        return TraceReader(self.read_options, wanted_columns(schema, self.read_options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> spark.DataSourceStreamReader:  # noqa: N802 — Spark's name
        require("readStream")
        if self.read_options.facts:
            raise OptionError("facts are made of whole traces", "facts", "true")
        return TraceStreamReader(self.read_options, wanted_columns(schema, self.read_options), schema.fieldNames())


def wanted_columns(schema: StructType, options: TraceReaderOptions) -> tuple[TraceColumn, ...]:
    """Returns the columns of a schema, which may be the caller's. Raises ColumnError."""
    columns = select((field.name for field in schema.fields), options.known)
    for column, field in zip(columns, schema.fields, strict=True):
        actual = field.dataType.simpleString()
        if actual != column.type:
            raise ColumnError(f"the column {column.name!r} is a {column.type}, not a {actual}", column.name, actual)
    return columns


class TracePieces(spark.InputPartition):
    """The pieces that one task reads."""

    def __init__(self, pieces: list[FileRange]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class _Reader(Shipped):
    """The common base of all readers. names: of the columns, as the schema spells them."""

    def __init__(self, options: TraceReaderOptions, columns: tuple[TraceColumn, ...], names: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.names = names

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        from segstore.pipeline.trace.facts import read_batches

        if not isinstance(partition, TracePieces):
            return iter(())  # Spark's own, where there is nothing to read
        rows = read_batches(partition.pieces, self.options, self.columns)
        return (batch.rename_columns(self.names) for batch in rows)


class TraceReader(_Reader, spark.DataSourceReader):
    """Reads whole traces."""

    def partitions(self) -> list[spark.InputPartition]:
        files = find_traces(self.options.paths, self.options.storage)
        split_bytes = self.options.split_bytes or piece_bytes_of(sum(sizes_of(files, self.options.storage).values()))
        return [TracePieces(pieces) for pieces in packed(self.options.pieces(files, split_bytes), split_bytes)]


class TraceStreamReader(_Reader, spark.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads traces as they grow: each micro-batch reads the data that has become complete in each file.

    `segstore.pipeline.trace.growth` describes offsets. Two offsets always delimit the same rows, so a batch that Spark
    repeats is the same.
    """

    _target: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 — Spark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 — Spark's name
        limit = self.options.limit
        if limit is None:
            return ReadAllAvailable()
        return {"bytes": ReadMaxBytes, "rows": ReadMaxRows, "files": ReadMaxFiles}[limit.unit](limit.most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 — Spark's name
        most_age_ns = self.options.most_file_age_ms * 1_000_000
        return next_offset(
            self._files(), start, _limit(limit), self._target, self.options.storage, most_age_ns=most_age_ns
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's name
        self._target = sizes_of(self._files(), self.options.storage)

    def partitions(self, start: Offset, end: Offset) -> list[spark.InputPartition]:
        new = parts(start, end)
        split_bytes = self.options.split_bytes or piece_bytes_of(sum(stop - begin for begin, stop in new.values()))
        read = {path: part for path, part in new.items() if not is_late(end, path)}
        pieces = chain(
            (late(path, *part) for path, part in new.items() if path not in read),
            plan(read, split_bytes, self.options.storage),
        )
        return [TracePieces(group) for group in packed(pieces, split_bytes)]

    def _files(self) -> list[str]:
        return find_files(self.options.paths, may_be_none=True, suffixes=_FOLLOWED, storage=self.options.storage)


def _limit(limit: ReadLimit) -> BatchLimit | None:
    match limit:
        case ReadMaxBytes():
            return BatchLimit("bytes", limit.max_bytes)
        case ReadMaxRows():
            return BatchLimit("rows", limit.max_rows)
        case ReadMaxFiles():
            return BatchLimit("files", limit.max_files)
    return None
