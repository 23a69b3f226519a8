"""Tracks growing traces: how much of each file is complete, and how much a micro-batch reads.

An offset is `{path: byte}`: how far each file has been read. A step is a whole block of a capture or a whole line of a
fixture; new files are read from their start. Under a limit, steps are taken in time order over all files, so that the
rows of a batch are of similar age.

Offsets are bounded: they forget files. The watermark, under the key `""`, is a time of at least `most_age_ns` before
the newest change of any file, and not later than the first record of a file that has not been read. A file is forgotten
if it has been read to its end, and if its first record and its last change are before the watermark. A deleted file is
forgotten when the watermark has passed the time at which it was missed; until then its entry is `[byte, time]`. A file
whose first record has no readable time is never forgotten.

A file that the offset does not name is one of three: 1. Changed before the watermark: it was forgotten. 2. Changed
later, and its first record is not before the watermark: it is new. 3. Changed later, but its first record is before the
watermark: it was forgotten and has grown, or it came too late. Such a file is not read, because its rows could come
twice; its entry is `-byte`, and it becomes a row of kind "skipped". Offsets of earlier versions, in which all files are
named and there is no watermark, are valid.

Invariant: offsets only grow and are always at the start of a block or line. Limits are applied in whole steps: a batch
has at least one, because a block above the limit would otherwise block all progress. An incomplete block at the end of
a file is left for later, because it may be in writing. Refused: packet captures, whose connections must be reassembled
from the start. No Spark.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from segstore.pipeline.trace.files import Piece, form_of, headers, lines_of, mark_in
from segstore.pipeline.trace.options import Limit
from segstore.wire.trace import HEADER_BYTES, MAGIC, TraceError, decode_line, header_from_line


class Step(NamedTuple):
    """The smallest advance in a growing file: to `end`, over `rows` records, the first at `ts_ns`."""

    end: int
    rows: int
    ts_ns: int


def steps(path: str, start: int) -> Iterator[Step]:
    """Yields the steps of a growing file from `start`: to the end of each whole block or line.

    Damage before a whole block belongs to that block's step; damage at the end may be a block in writing, and is left.
    A file that is not a trace is one step. Raises OSError, and ValueError for a packet capture.
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


Offset = dict[str, Any]
"""Path → byte; `[byte, time]` of a missing file; -byte of a file that is skipped. `WATERMARK` → ns since 1970."""
_LATE: Final = "its first record is older than maxFileAgeMs: it was read before and has grown, or it came too late"
WATERMARK: Final = ""
"""The key of the watermark, which is no path."""


def position(offset: Mapping[str, Any], path: str) -> int:
    """Returns how far an offset has read a file, in bytes."""
    entry: int | list[int] = offset.get(path, 0)
    return abs(entry) if isinstance(entry, int) else entry[0]


def is_late(offset: Mapping[str, Any], path: str) -> bool:
    """Whether the bytes of a file up to its position are skipped."""
    entry = offset[path]
    return isinstance(entry, int) and entry < 0


def parts(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Returns the range of each file that a batch between two offsets reads."""
    ranges = {path: (position(start, path), position(end, path)) for path in end if path != WATERMARK}
    return {path: part for path, part in ranges.items() if part[0] < part[1]}


def late(path: str, start: int, stop: int) -> Piece:
    """Returns the piece of a file that is skipped."""
    return Piece(path, form_of(path, b""), start, stop, reason=_LATE)


def next_offset(
    files: list[str],
    start: Mapping[str, Any],
    limit: Limit | None,
    target: Mapping[str, int] | None,
    most_age_ns: int | None = None,
) -> Offset:
    """Returns the end of a batch that starts at `start`, at most `target`; `start` if there is nothing to read.

    most_age_ns: forget files as the module says; None to remember all. Raises ValueError for a packet capture.
    """
    end = dict(start)
    taken = {"bytes": 0, "rows": 0, "files": 0}
    followed = []
    for path in files:
        entry = position(start, path) if path in start else _entry(path, start.get(WATERMARK))
        if entry is not None and entry >= 0:
            followed.append(path)
        elif entry is not None and (target is None or path in target):
            end[path] = entry
            taken["files"] += 1
    idle: set[str] = set()
    for path, step in _in_order(followed, start, target, idle):
        began = position(end, path)
        more = {"bytes": step.end - began, "rows": step.rows, "files": began == position(start, path)}
        if limit is not None and any(taken.values()) and taken[limit.unit] + more[limit.unit] > limit.most:
            if limit.unit == "files":
                continue
            break
        end[path] = step.end
        for unit, count in more.items():
            taken[unit] += count
    if most_age_ns is not None and any(taken.values()):
        _forget(end, files, idle, most_age_ns)
    return end


def _forget(end: Offset, files: list[str], idle: set[str], most_age_ns: int) -> None:
    """Forgets files. idle: files that had nothing to read at the start of the batch."""
    times = {path: found for path in files if (found := _times(path)) is not None}
    newest = max((changed for _, changed in times.values()), default=0)
    bound = newest - most_age_ns
    unread = []
    for path, (first, changed) in times.items():
        if path in end or (WATERMARK in end and changed < end[WATERMARK]):
            continue
        if first is not None:
            unread.append(min(first, changed))
        elif changed < bound:
            end[path] = 0  # without a record so far, but remembered from now on
    watermark = min((bound, *unread))
    watermark = max(watermark, end.get(WATERMARK, watermark))
    for path in [each for each in end if each != WATERMARK]:
        if path not in times:
            entry = end[path]
            first, changed = (None, newest) if isinstance(entry, int) else (entry[1], entry[1])
            end[path] = [position(end, path), changed]
        else:
            first, changed = times[path] if path in idle else (None, newest)
        if first is not None and max(first, changed) < watermark:
            del end[path]
            end[WATERMARK] = watermark


def _entry(path: str, watermark: int | None) -> int | None:
    """Returns the first entry of a file that is not in the offset: 0 if it is new; None if it is to be ignored."""
    found = None if watermark is None else _times(path)
    if found is None or watermark is None:
        return 0
    first, changed = found
    if changed < watermark:
        return None
    return 0 if first is None or first >= watermark else -max((step.end for step in steps(path, 0)), default=0)


def _times(path: str) -> tuple[int | None, int] | None:
    """Returns the times of a file's first record, None if it has none, and of its last change; None without a file."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 — unbuffered, read by position
            fd = file.fileno()
            found = os.fstat(fd)
            return _first_time(fd, path, found.st_size), found.st_mtime_ns
    except OSError:
        return None


def _first_time(fd: int, path: str, size: int) -> int | None:
    if form_of(path, os.pread(fd, HEADER_BYTES, 0)) == "fixture":
        line = next((line for _, line in lines_of(fd, 0, size) if line.strip()), b"")
        try:
            return header_from_line(decode_line(line, 0)).start_ns
        except TraceError:
            return None
    mark = mark_in(fd, size)
    blocks = () if mark is None else (header for _, header in headers(fd, 0, size, mark) if header is not None)
    return next((header.first_ts_ns for header in blocks if header.records), None)


def _in_order(
    files: list[str], start: Mapping[str, Any], target: Mapping[str, int] | None, idle: set[str]
) -> Iterator[tuple[str, Step]]:
    """Yields the steps of all files by time, keeping the order within a file. Adds files without any to `idle`."""
    waiting: list[tuple[int, int, Step, str, Iterator[Step]]] = []

    def push(number: int, path: str, rest: Iterator[Step]) -> bool:
        try:
            step = next(rest, None)
        except FileNotFoundError:
            step = None  # the file has vanished
        if step is not None and (target is None or step.end <= target.get(path, 0)):
            heapq.heappush(waiting, (step.ts_ns, number, step, path, rest))
        return step is not None

    for number, path in enumerate(files):
        if not push(number, path, steps(path, position(start, path))):
            idle.add(path)
    while waiting:
        _, number, step, path, rest = heapq.heappop(waiting)
        yield path, step
        push(number, path, rest)
