"""Streams growing traces on Spark: each micro-batch reads what has become complete in each file.

An offset is `{path: byte}`, as in `segstore.pipeline.trace.growth`. Two offsets always delimit the same rows, so a
batch that Spark repeats is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from segstore.pipeline.trace.columns import Column
from segstore.pipeline.trace.files import find_files, piece_bytes_of, pieces_of
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.growth import next_offset
from segstore.pipeline.trace.options import Limit, TraceOptions
from segstore.pipeline.trace.rows import Row
from segstore.pipeline.trace.source import TracePiece, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

_FOLLOWED = (".wtrace", ".jsonl")


class TraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads traces as they grow."""

    def __init__(self, options: TraceOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 — Spark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 — Spark's name
        limit = self.options.limit
        if limit is None:
            return ReadAllAvailable()
        return {"bytes": ReadMaxBytes, "rows": ReadMaxRows, "files": ReadMaxFiles}[limit.unit](limit.most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 — Spark's name
        return next_offset(self._files(), start, _limit(limit), self._target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's name
        self._target = next_offset(self._files(), {}, None, None)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        new = {path: (start.get(path, 0), stop) for path, stop in end.items() if stop > start.get(path, 0)}
        split_bytes = self.options.split_bytes or piece_bytes_of(sum(stop - begin for begin, stop in new.values()))
        return [TracePiece(piece) for path, part in new.items() for piece in pieces_of(path, split_bytes, *part)]

    def read(self, partition: InputPartition) -> Iterator[Row] | Iterator[pa.RecordBatch]:
        return read_rows(partition, self.options, self.columns, Chosen(self.options.conditions))

    def _files(self) -> list[str]:
        return find_files(self.options.paths, may_be_none=True, suffixes=_FOLLOWED)


def _limit(limit: ReadLimit) -> Limit | None:
    match limit:
        case ReadMaxBytes():
            return Limit("bytes", limit.max_bytes)
        case ReadMaxRows():
            return Limit("rows", limit.max_rows)
        case ReadMaxFiles():
            return Limit("files", limit.max_files)
    return None
