"""Tracks growing traces: how much of each file is complete, and how much a micro-batch reads.

An offset is `{path: byte}`: how far each file has been read. A step is a whole block of a capture or a whole line of a
fixture; new files are read from their start. Under a limit, steps are taken in time order over all files, so that the
rows of a batch are of similar age.

Invariant: offsets only grow and are always at the start of a block or line. Limits are applied in whole steps: a batch
has at least one, because a block above the limit would otherwise block all progress. An incomplete block at the end of
a file is left for later, because it may be in writing. Refused: packet captures, whose connections must be reassembled
from the start. No Spark.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from segstore.pipeline.blocks import headers, mark_in, read_index
from segstore.pipeline.storage import Storage, StoreError, concurrently, is_remote
from segstore.pipeline.trace.files import LOCAL, PIECE_BYTES, form_of, lines_of
from segstore.pipeline.trace.options import Limit
from segstore.wire.trace import HEADER_BYTES, MAGIC


class Step(NamedTuple):
    """The smallest advance in a growing file: to `end`, over `rows` records, the first at `ts_ns`."""

    end: int
    rows: int
    ts_ns: int


def steps(path: str, start: int, storage: Storage = LOCAL) -> Iterator[Step]:
    """Yields the steps of a growing file from `start`: to the end of each whole block or line.

    Damage before a whole block belongs to that block's step; damage at the end may be a block in writing, and is left.
    A compressed file, and a file that is not a trace, is one step. Raises OSError, and ValueError for a packet capture.
    """
    with storage.open(path) as file:
        size = file.size
        if 0 < start == size:
            return
        head = file.read_at(0, HEADER_BYTES)
        form = form_of(path, head)
        if form == "packets":
            raise ValueError(f"{path}: a packet capture is not followed while it grows; read it as a whole")
        if form == "fixture":
            yield from (Step(at + len(line), 1, 0) for at, line in lines_of(file, start, size) if line.endswith(b"\n"))
            return
        mark = mark_in(file, size) if form == "capture" else None
        if mark is not None:
            index = read_index(path, file, mark, storage) if size - start > PIECE_BYTES else None
            for at, header in headers(file, start, size, mark, index):
                if header is not None and at + header.size <= size:
                    yield Step(at + header.size, header.records, header.first_ts_ns)
        elif not MAGIC.startswith(head[: len(MAGIC)]) and start < size:
            yield Step(size, 0, 0)


def next_offset(
    files: list[str],
    start: Mapping[str, int],
    limit: Limit | None,
    target: Mapping[str, int] | None,
    storage: Storage = LOCAL,
) -> dict[str, int]:
    """Returns the end of a batch that starts at `start`, at most `target`. Raises ValueError for a packet capture."""
    end = dict(start)
    taken = {"bytes": 0, "rows": 0, "files": 0}
    for path, step in _in_order(files, start, target, storage):
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
    files: list[str], start: Mapping[str, int], target: Mapping[str, int] | None, storage: Storage
) -> Iterator[tuple[str, Step]]:
    """Yields the steps of all files by time, keeping the order within a file."""
    rests = {path: steps(path, start.get(path, 0), storage) for path in files}
    waiting: list[tuple[int, int, Step, str]] = []

    def following(path: str) -> Step | None:
        try:
            return next(rests[path], None)
        except FileNotFoundError:
            return None  # the file has vanished
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None

    def push(number: int, path: str, step: Step | None) -> None:
        if step is not None and (target is None or step.end <= target.get(path, 0)):
            heapq.heappush(waiting, (step.ts_ns, number, step, path))

    first = concurrently(following, files, at_once=any(map(is_remote, files)))
    for number, (path, step) in enumerate(zip(files, first, strict=True)):
        push(number, path, step)
    while waiting:
        _, number, step, path = heapq.heappop(waiting)
        yield path, step
        push(number, path, following(path))
