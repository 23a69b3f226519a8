"""The data source `format("segstore.stream")`: reads a stream's events as rows and writes rows as events.

    spark.read.format("segstore.stream").options(controller="tcp://…", scope="shop", stream="orders").load()
    spark.readStream.format("segstore.stream").option("maxBytesPerTrigger", 64_000_000)….load()
    rows.writeStream.format("segstore.stream").option("routingKeyColumn", "key")….start()

An offset of a streaming query is `{segment: byte offset}`. Spark pickles readers and plans in a separate process, so
readers hold only options and open connections within calls.

Invariant: a batch that Spark repeats has the same rows. Refused when the query is planned: unknown options, columns or
types; modes other than append. `segstore.pipeline.stream.sink` does the writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from segstore.pipeline.stream.cuts import Cut, Offsets, cut_of, offsets_of
from segstore.pipeline.stream.options import StreamLimit, StreamOptions, read_stream_options
from segstore.pipeline.stream.plan import ByteRange, batch_ranges, cut_at, next_cut, ranges_between
from segstore.pipeline.stream.rows import COLUMNS, range_batches, wanted_names
from segstore.pipeline.stream.segments import opened
from segstore.pipeline.trace.options import OptionError
from segstore.pipeline.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    require,
)
from segstore.pipeline.workers import Shipped

if TYPE_CHECKING:
    import pyarrow as pa


def sources(filters: bool) -> tuple[type[spark.DataSource], ...]:
    """Returns this module's data sources, which leave filters to Spark."""
    return (StreamSource,)


class StreamSource(Shipped, spark.DataSource):
    """The data source for streams; `StreamOptions` describes its options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.read_options = read_stream_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "segstore.stream"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        if self.read_options.limit is not None:
            raise OptionError("maxBytesPerTrigger and maxEventsPerTrigger are for readStream", "maxBytesPerTrigger")
        if self.read_options.end == "head":
            raise OptionError("to is the end of what is read: a cut or tail", "to", "head")
        return StreamReader(self.read_options, _names(schema))

    def streamReader(self, schema: StructType) -> spark.DataSourceStreamReader:  # noqa: N802 — Spark's name
        require("readStream")
        if self.read_options.end is not None:
            raise OptionError("to is for read: a query with readStream goes on, see Trigger.AvailableNow", "to")
        return StreamStreamReader(self.read_options, _names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        from segstore.pipeline.stream.sink import StreamWriter

        return StreamWriter(self.read_options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:  # noqa: N802 — Spark's
        require("writeStream")
        from segstore.pipeline.stream.sink import StreamStreamWriter

        return StreamStreamWriter(self.read_options, schema, overwrite)


def _names(schema: StructType) -> tuple[str, ...]:
    return wanted_names((field.name, field.dataType.simpleString()) for field in schema.fields)


class StreamPart(spark.InputPartition):
    """The range that one task reads."""

    def __init__(self, part: ByteRange) -> None:
        super().__init__(part)
        self.part = part


class _Reader(Shipped):
    """The common base of both readers."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamPart):
            return iter(())  # Spark's own, where there is nothing to read
        return range_batches(self.options, partition.part, self.names)


class StreamReader(_Reader, spark.DataSourceReader):
    """Reads the events between two cuts."""

    def partitions(self) -> list[spark.InputPartition]:
        return [StreamPart(part) for part in asyncio.run(self._plan())]

    async def _plan(self) -> list[ByteRange]:
        async with opened(self.options, "READ") as segments:
            return await batch_ranges(segments, self.options)


class StreamStreamReader(_Reader, spark.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream continuously, in micro-batches."""

    _target: Cut | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802 — Spark's name
        return asyncio.run(self._at())

    async def _at(self) -> Offsets:
        async with opened(self.options, "READ") as segments:
            return offsets_of(await cut_at(segments, self.options.start or "head"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 — Spark's name
        limit = self.options.limit
        if limit is None:
            return ReadAllAvailable()
        return ReadMaxRows(limit.most) if limit.events else ReadMaxBytes(limit.most)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 — Spark's name
        return asyncio.run(self._latest(cut_of(start), _limit(limit)))

    async def _latest(self, start: Cut, limit: StreamLimit | None) -> Offsets:
        async with opened(self.options, "READ") as segments:
            return offsets_of(await next_cut(segments, self.options, start, limit, self._target))

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 — Spark's name
        """Returns the stream's tail, which a query's progress shows beside the offset that it has reached."""
        return offsets_of(asyncio.run(self._tail()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's name
        self._target = asyncio.run(self._tail())

    async def _tail(self) -> Cut:
        async with opened(self.options, "READ") as segments:
            return await cut_at(segments, "tail")

    def partitions(self, start: Offsets, end: Offsets) -> list[spark.InputPartition]:
        return [StreamPart(part) for part in asyncio.run(self._plan(cut_of(start), cut_of(end)))]

    async def _plan(self, start: Cut, end: Cut) -> list[ByteRange]:
        async with opened(self.options, "READ") as segments:
            return await ranges_between(segments, start, end, self.options.split_bytes)


def _limit(limit: ReadLimit) -> StreamLimit | None:
    match limit:
        case ReadMaxBytes():
            return StreamLimit(limit.max_bytes, False)
        case ReadMaxRows():
            return StreamLimit(limit.max_rows, True)
    return None
