"""Traces that grow, as a stream on Spark: what is whole of each file, a micro-batch at a time.

An offset is `{path: byte}`: up to where each file was read. A step forward is a whole block of a capture or a whole
line of a fixture; files that appear are taken up from their start. Under a limit, steps are taken in the order of
their times over all files, so that the rows of a batch are about as old, whichever file they are in.

Invariant: between two offsets lie the same rows whenever they are read, so a batch that Spark repeats is the same.
A limit is kept to the block: a batch has at least one step, or a block longer than the limit would end the query's
progress. What stands at the end of a file and is no whole block is left for later, and so never reported.
Refused: packet captures, whose connections are put together from the start.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
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

from segstore.pipeline.trace_columns import Column
from segstore.pipeline.trace_files import Step, find_files, pieces_of, steps
from segstore.pipeline.trace_filter import Chosen
from segstore.pipeline.trace_options import Limit, TraceOptions
from segstore.pipeline.trace_rows import Row
from segstore.pipeline.trace_source import TracePiece, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TraceStreamReader", "next_offset"]

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
        return [
            TracePiece(piece)
            for path, stop in end.items()
            if stop > start.get(path, 0)
            for piece in pieces_of(path, self.options.split_bytes, start.get(path, 0), stop)
        ]

    def read(self, partition: InputPartition) -> Iterator[Row] | Iterator[pa.RecordBatch]:
        return read_rows(partition, self.options, self.columns, Chosen())

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


def next_offset(
    files: list[str], start: Mapping[str, int], limit: Limit | None, target: Mapping[str, int] | None
) -> dict[str, int]:
    """How far a batch that begins at `start` goes; never beyond `target`. Raises ValueError for a packet capture."""
    end = dict(start)
    taken = {"bytes": 0, "rows": 0, "files": 0}
    for path, step in _in_order(files, start, target):
        began = end.get(path, 0)
        more = {"bytes": step.end - began, "rows": step.rows, "files": began == start.get(path, 0)}
        if limit is not None and any(taken.values()) and taken[limit.unit] + more[limit.unit] > limit.most:
            if limit.unit == "files":
                continue
            break
        end[path] = step.end
        for unit, count in more.items():
            taken[unit] += count
    return end


def _in_order(
    files: list[str], start: Mapping[str, int], target: Mapping[str, int] | None
) -> Iterator[tuple[str, Step]]:
    """The steps of all files by time; those of one file in their order."""
    waiting: list[tuple[int, int, Step, str, Iterator[Step]]] = []

    def push(number: int, path: str, rest: Iterator[Step]) -> None:
        try:
            step = next(rest, None)
        except FileNotFoundError:
            step = None  # it has vanished since it was found
        if step is not None and (target is None or step.end <= target.get(path, 0)):
            heapq.heappush(waiting, (step.ts_ns, number, step, path, rest))

    for number, path in enumerate(files):
        push(number, path, steps(path, start.get(path, 0)))
    while waiting:
        _, number, step, path, rest = heapq.heappop(waiting)
        yield path, step
        push(number, path, rest)
