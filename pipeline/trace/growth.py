"""Tracks growing traces: how much of each file is complete, and how much a micro-batch reads.

An offset is `{path: byte}`: up to where each file was read. A step forward is a whole block of a capture or a whole
line of a fixture; files that appear are taken up from their start. Under a limit, steps are taken in the order of
their times over all files, so that the rows of a batch are about as old, whichever file they are in.

Invariant: offsets only grow, and stand where blocks or lines start. A limit is kept to the step: a batch has at least
one, or a block longer than the limit would end all progress. What stands at the end of a file and is no whole block is
left for later: it may be one that is being written. Refused: packet captures, whose connections are put together from
the start. No Spark.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from segstore.pipeline.trace.files import form_of, headers, lines_of, mark_in
from segstore.pipeline.trace.options import Limit
from segstore.wire.trace import HEADER_BYTES, MAGIC


class Step(NamedTuple):
    """The least that a reader of a growing file goes forward: to `end`, over `rows` records, the first at `ts_ns`."""

    end: int
    rows: int
    ts_ns: int


def steps(path: str, start: int) -> Iterator[Step]:
    """How far a growing file can be read from `start` on, step by step: to the end of each whole block or line.

    Damage with a whole block behind it counts into the step over that block; damage at the end may be a block that is
    being written, and is left. A file that is no trace is one step. Raises OSError, ValueError for a packet capture.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 — unbuffered, read by position
        fd = file.fileno()
        size = os.fstat(fd).st_size
        head = os.pread(fd, HEADER_BYTES, 0)
        form = form_of(path, head)
        if form == "packets":
            raise ValueError(f"{path}: a packet capture is not followed while it grows; read it as a whole")
        if form == "fixture":
            yield from (Step(at + len(line), 1, 0) for at, line in lines_of(fd, start, size) if line.endswith(b"\n"))
            return
        mark = mark_in(fd, size)
        if mark is not None:
            for at, header in headers(fd, start, size, mark):
                if header is not None and at + header.size <= size:
                    yield Step(at + header.size, header.records, header.first_ts_ns)
        elif not MAGIC.startswith(head[: len(MAGIC)]) and start < size:
            yield Step(size, 0, 0)


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
