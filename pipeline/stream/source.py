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
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from segstore.client import CutError
from segstore.pipeline.stream.cuts import Cut, Offsets, cut_of, offsets_of
from segstore.pipeline.stream.options import StreamAmount, StreamOptions, read_stream_options
from segstore.pipeline.stream.plan import ByteRange, Lag, batch_ranges, lag, next_cut, ranges_between, skipped, start_of
from segstore.pipeline.stream.rows import COLUMNS, DEFAULT, range_batches, wanted_names
from segstore.pipeline.stream.segments import Segments, opened
from segstore.pipeline.trace.options import OptionError
from segstore.pipeline.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    require,
)
from segstore.pipeline.workers import Shipped
from segstore.wire.blocks import EVENT_HEADER_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class StreamSource(Shipped, spark.DataSource):
    """The data source for streams; `StreamOptions` describes its options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.read_options = read_stream_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "segstore.stream"

    def schema(self) -> str:
        return ", ".join(f"{name} {COLUMNS[name]}" for name in DEFAULT)

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        for bound, amount in (("max", self.read_options.limit), ("min", self.read_options.minimum)):
            if amount is not None:
                name = amount.option(bound)
                raise OptionError(f"{name} is for readStream: a read has no triggers", name)
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

    def _ask(self, ask: Callable[[Segments], Awaitable[T]]) -> T:
        """Runs requests about the stream, with a client of their own."""

        async def run() -> T:
            async with opened(self.options, "READ") as segments:
                return await ask(segments)

        return asyncio.run(run())


class StreamReader(_Reader, spark.DataSourceReader):
    """Reads the events between two cuts."""

    def partitions(self) -> list[spark.InputPartition]:
        return list(map(StreamPart, self._ask(lambda segments: batch_ranges(segments, self.options))))


class StreamStreamReader(_Reader, spark.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream continuously, in micro-batches. Spark calls one reader, in one process, as long as a query runs.

    Attributes:
        lost: bytes that were gone before they could be read, since the query was started.
    """

    _target: Cut | None = None
    _end: Cut | None = None
    """Of the last batch that was planned."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        super().__init__(options, names)
        self.lost = 0
        self._planned_s = time.monotonic()

    def initialOffset(self) -> Offsets:  # noqa: N802 — Spark's name
        return offsets_of(self._ask(lambda segments: start_of(segments, self.options)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 — Spark's name
        limit, minimum = self.options.limit, self.options.minimum
        if limit is not None:
            return ReadMaxRows(limit.number) if limit.events else ReadMaxBytes(limit.number)
        return ReadAllAvailable() if minimum is None else ReadMinRows(minimum.number)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 — Spark's name
        cut = self._checkpointed(start)
        return offsets_of(self._ask(lambda segments: self._latest(segments, cut, limit)))

    async def _latest(self, segments: Segments, start: Cut, limit: ReadLimit) -> Cut:
        self._end = start
        if not isinstance(limit, ReadAllAvailable) and not await self._is_due(segments, start):
            return start
        self._end = await next_cut(segments, self.options, start, _limit(limit), self._target)
        if self._end != start:
            self._planned_s = time.monotonic()
            if not self.options.fail_on_data_loss:
                self.lost += await skipped(segments, start, self._end)
        return self._end

    async def _is_due(self, segments: Segments, start: Cut) -> bool:
        """Whether there is enough for a batch, or the last batch was planned long ago."""
        minimum = self.options.minimum
        if minimum is None or self._target is not None:
            return True
        if (time.monotonic() - self._planned_s) * 1000 >= self.options.trigger_delay_ms:
            return True
        behind = await lag(segments, self.options, start)
        amount = behind.bytes
        if minimum.events:  # not known before the first entry of an index
            amount = behind.bytes // EVENT_HEADER_BYTES if behind.events is None else behind.events
        return amount >= minimum.number

    def reportLatestOffset(self) -> dict[str, Offsets | int | None]:  # noqa: N802 — Spark's name
        """Returns the latest offset for the query's progress: the stream's tail, how far the last batch is behind it,
        and `lost`."""
        return self._ask(self._report)

    async def _report(self, segments: Segments) -> dict[str, Offsets | int | None]:
        tail = offsets_of(await segments.tail())
        behind = Lag(0, 0) if self._end is None else await lag(segments, self.options, self._end)
        return {"tail": tail, "lagBytes": behind.bytes, "lagEvents": behind.events, "lostBytes": self.lost}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's name
        self._target = self._ask(lambda segments: segments.tail())

    def partitions(self, start: Offsets, end: Offsets) -> list[spark.InputPartition]:
        first, last, size = self._checkpointed(start), self._checkpointed(end), self.options.split_bytes
        return list(map(StreamPart, self._ask(lambda segments: ranges_between(segments, first, last, size))))

    def _checkpointed(self, offsets: Offsets) -> Cut:
        try:
            return cut_of(offsets)
        except CutError as cause:
            raise CutError(
                f"the checkpoint's offset is not one of {self.options.name}: {cause}; start with a new checkpoint",
                cause.actual,
            ) from cause


def _limit(limit: ReadLimit) -> StreamAmount | None:
    match limit:
        case ReadMaxBytes():
            return StreamAmount(limit.max_bytes, False)
        case ReadMaxRows():
            return StreamAmount(limit.max_rows, True)
    return None
