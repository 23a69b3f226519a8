"""The exactly-once sink of `format("segstore.stream")`: its writers, and the sweeper that cleans up after them.

A streaming query is identified by its id in Spark's checkpoint, a batch by its number; a batch write has a fresh id and
one batch. Tasks write to segments that are not visible to readers (`write`), and the driver merges them (`commit`).
`sweep_stream` deletes leftovers of dead queries.

Invariant: data of a failed write never becomes visible. Dead stores block a driver for at most `commitTimeoutMs` or
`abortTimeoutMs`, plus the time to close (about two seconds). Refused when the query is planned: modes other than
append, a schema without the event or routing key column, and columns of types that cannot be written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from segstore.pipeline.stream.commit import BatchCommitter, abandon, end, sweep
from segstore.pipeline.stream.options import StreamOptions, read_stream_options
from segstore.pipeline.stream.segments import opened, opened_for
from segstore.pipeline.stream.write import BadRow, Rows, TaskResult, write_rows
from segstore.pipeline.trace.options import OptionError
from segstore.pipeline.versions import DataSourceStreamArrowWriter
from segstore.pipeline.workers import Shipped

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS: Final = (StringType, BinaryType, ByteType, ShortType, IntegerType, LongType, BooleanType, DateType)
"""Types whose text does not depend on settings of Spark."""
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


class Written(spark.WriterCommitMessage):
    """A task's result in the form that Spark sends to the driver."""

    def __init__(self, result: TaskResult) -> None:
        self.result = result


def _results(messages: list[spark.WriterCommitMessage | None]) -> list[TaskResult]:
    return [message.result for message in messages if isinstance(message, Written)]


def check_schema(options: StreamOptions, schema: StructType, overwrite: bool) -> None:
    """Checks the mode and schema of a write. Raises OptionError."""
    if overwrite:
        raise OptionError('a stream is appended to: mode("append")', "mode", "overwrite")
    fields = {field.name: field.dataType for field in schema.fields}
    wanted = [("eventColumn", options.event_column)]
    if options.routing_key_column is not None:
        wanted.append(("routingKeyColumn", options.routing_key_column))
    for option, column in wanted:
        if column not in fields:
            raise OptionError(
                f"the rows have no column {column!r}, which {option} names; they have {', '.join(fields) or 'none'}",
                option,
                column,
            )
        takes = (StringType, BinaryType) if option == "eventColumn" else _KEYS
        if not isinstance(fields[column], takes):
            kinds = " or ".join(dict.fromkeys(kind().simpleString() for kind in takes))
            raise OptionError(
                f"the column {column!r} is to be a {kinds}, not a {fields[column].simpleString()}: cast it",
                option,
                column,
            )


class StreamWriter(Shipped, spark.DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def __init__(self, options: StreamOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(options, schema, overwrite)
        self.options = options
        self.query = uuid4()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(asyncio.run(_write(self.options, self.query, 0, iterator)))

    def commit(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        asyncio.run(
            _commit(self.options, self.query, 0, _results(messages), "the commit of a batch write", is_last=True)
        )

    def abort(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        asyncio.run(_abort(self.options, query=self.query))


class StreamStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: StreamOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(options, schema, overwrite)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch = map(_task().getLocalProperty, (_QUERY, _BATCH))
        assert query is not None, "Spark passes both to the tasks of streaming queries"
        assert batch is not None
        return Written(asyncio.run(_write(self.options, UUID(query), int(batch), iterator)))

    def commit(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        results = _results(messages)
        if any(result.parts for result in results):
            doing = f"the commit of batch {batchId}"
            asyncio.run(_commit(self.options, results[0].query, batchId, results, doing))

    def abort(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        results = _results(messages)
        if any(result.parts for result in results):
            asyncio.run(_abort(self.options, results))


async def _commit(
    options: StreamOptions, query: UUID, batch: int, results: list[TaskResult], doing: str, *, is_last: bool = False
) -> None:
    doing = f"{doing} into {options.name}"
    async with opened_for(options, doing, "commitTimeoutMs", options.commit_timeout_ms) as segments:
        await BatchCommitter(segments, options, query, batch).commit(results)
        if is_last:
            await end(segments, query)


async def _abort(options: StreamOptions, results: Sequence[TaskResult] = (), *, query: UUID | None = None) -> None:
    doing = f"deleting what a failed write to {options.name} left, which is invisible and sweep_stream deletes later,"
    async with opened_for(options, doing, "abortTimeoutMs", options.abort_timeout_ms) as segments:
        await abandon(segments, results, query=query)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks of Spark"
    return context


async def _write(options: StreamOptions, query: UUID, batch: int, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    async with opened(options, "WRITE") as segments:
        return await write_rows(segments, query, batch, _task().partitionId(), rows_of(options, batches))


async def rows_of(options: StreamOptions, batches: Iterator[pa.RecordBatch]) -> AsyncIterator[Rows]:
    """Yields events and keys of Arrow batches; a thread waits for these, so connections stay alive. Raises BadRow."""
    row = 0
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        column = batch.column(options.event_column)
        if column.null_count:
            number = row + column.to_pylist().index(None)
            raise BadRow(f"row {number} has no event: {options.event_column} is null", options.event_column, number)
        events = [event.encode() if isinstance(event, str) else event for event in column.to_pylist()]
        keys = None
        if options.routing_key_column is not None:
            keys = [_key(key) for key in batch.column(options.routing_key_column).to_pylist()]
        row += len(events)
        yield events, keys


def _key(value: str | bytes | int | date | None) -> str | None:
    """Returns the text that Spark's cast makes of the value."""
    match value:
        case None | str():
            return value
        case bytes():
            return value.decode(errors="replace")
        case bool():
            return str(value).lower()
    return str(value)


def sweep_stream(options: Mapping[str, str], *, older_than_s: float = 86_400, query: str | None = None) -> int:
    """Deletes leftovers of a stream's killed writers; returns the number of segments.

    options: as for the format. older_than_s: minimum age; newer writes may still be running. query: restricts the sweep
    to one query's id; the id of a batch write is not known. A running streaming query cleans up with each batch. Raises
    OptionError, and the client's errors.
    """
    read = read_stream_options(options)
    return asyncio.run(_sweep(read, time.time() - older_than_s, None if query is None else UUID(query)))


async def _sweep(options: StreamOptions, before_s: float, query: UUID | None) -> int:
    async with opened(options, "WRITE") as segments:
        return await sweep(segments, before_s=before_s, query=query)
