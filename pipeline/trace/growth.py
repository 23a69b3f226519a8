"""Tracks growing traces: how much of each file is complete, and how much a micro-batch reads.

An offset is `{path: byte}`: how far each file has been read. A step is a whole block of a capture or a whole line of a
fixture; new files are read from their start. Under a limit, steps are taken in time order over all files, so that the
rows of a batch are of similar age.

Offsets are bounded: they forget files. The watermark, under the key `""`, is a time of at least `most_age_ns` before
the newest change of any file, and not later than the first record of a file that has not been read. A file is forgotten
if it has been read to its end, and if its first record and its last change are before the watermark. A deleted file is
forgotten when the watermark has passed the time at which it was missed; until then its entry is `[byte, time]`. A file
whose first record has no readable time is never forgotten.

There are three cases of a file that the offset does not name: 1. Changed before the watermark: it was forgotten. 2.
Changed later, and its first record is not before the watermark: it is new. 3. Changed later, but its first record is
before the watermark: it was forgotten and has grown, or it came too late. Such a file is not read, because its rows
could come twice; its entry is `-byte`, and it becomes a row of kind "skipped".

Invariant: offsets only grow and are always at the start of a block or line. Limits are applied in whole steps: a batch
has at least one step, because a block above the limit would otherwise block all progress. An incomplete block at the
end of a file is left for later, because it may be in writing. Refused: packet captures, whose connections must be
reassembled from the start. No Spark.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from segstore.pipeline.blocks import headers, read_index
from segstore.pipeline.compressed import decompressed
from segstore.pipeline.storage import File, Storage, StorageError, concurrently, is_remote
from segstore.pipeline.trace.files import LOCAL, PIECE_BYTES, FileRange, form_of, lines_of
from segstore.pipeline.trace.options import BatchLimit
from segstore.wire.trace import HEADER_BYTES, MAGIC, TraceError, decode_line, find_mark, header_from_line

log = logging.getLogger(__name__)

_BEGINNING_BYTES: Final = 8 * 1024 * 1024
"""How much of a compressed file is decompressed to find its first record."""


class GrowthStep(NamedTuple):
    """The smallest advance in a growing file: to `end`, over `rows` records, the first at `ts_ns`."""

    end: int
    rows: int
    ts_ns: int


def steps(path: str, start: int, storage: Storage = LOCAL) -> Iterator[GrowthStep]:
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
            yield from (
                GrowthStep(at + len(line), 1, 0) for at, line in lines_of(file, start, size) if line.endswith(b"\n")
            )
            return
        mark = find_mark(file.read_at, size) if form == "capture" else None
        if mark is not None:
            index = read_index(path, file, mark, storage) if size - start > PIECE_BYTES else None
            for at, header in headers(file, start, size, mark, index):
                if header is not None and at + header.size <= size:
                    yield GrowthStep(at + header.size, header.records, header.first_ts_ns)
        elif not MAGIC.startswith(head[: len(MAGIC)]) and start < size:
            yield GrowthStep(size, 0, 0)


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


def late(path: str, start: int, stop: int) -> FileRange:
    """Returns the piece of a file that is skipped."""
    return FileRange(path, form_of(path, b""), start, stop, reason=_LATE)


def next_offset(
    files: list[str],
    start: Mapping[str, Any],
    limit: BatchLimit | None,
    target: Mapping[str, int] | None,
    storage: Storage = LOCAL,
    *,
    most_age_ns: int | None = None,
) -> Offset:
    """Returns the end of a batch that starts at `start`, at most `target`; `start` if there is nothing to read.

    most_age_ns: forget files as the module describes; None to remember all. Raises ValueError for a packet capture.
    """
    end = dict(start)
    taken = {"bytes": 0, "rows": 0, "files": 0}
    followed, unknown = [path for path in files if path in start], [path for path in files if path not in start]
    watermark, at_once = start.get(WATERMARK), any(map(is_remote, files))
    entries = concurrently(lambda path: _entry(path, watermark, storage), unknown, at_once=at_once)
    for path, entry in zip(unknown, entries, strict=True):
        if entry is not None and entry >= 0:
            followed.append(path)
        elif entry is not None and (target is None or path in target):
            log.warning("%s is skipped: %s", path, _LATE)
            end[path] = entry
            taken["files"] += 1
    idle: set[str] = set()
    for path, step in _in_order(followed, start, target, idle, storage):
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
        _forget(end, files, idle, most_age_ns, storage)
    return end


def _forget(end: Offset, files: list[str], idle: set[str], most_age_ns: int, storage: Storage) -> None:
    """Forgets files. idle: files that had nothing to read at the start of the batch."""
    changes = {path: changed for path in files if (changed := storage.changed_ns(path)) is not None}
    newest = min(max(changes.values(), default=0), time.time_ns())  # some may be of clocks that are ahead
    bound = newest - most_age_ns
    unread = []
    for path, changed in changes.items():
        if path in end or (WATERMARK in end and changed < end[WATERMARK]):
            continue
        first = _first_time(path, storage)
        if first is not None:
            unread.append(min(first, changed))
        elif changed < bound:
            end[path] = 0  # without a record so far, but remembered from now on
    watermark = min((bound, *unread))
    watermark = max(watermark, end.get(WATERMARK, watermark))
    for path in [known for known in end if known != WATERMARK]:
        if path not in changes:
            entry = end[path]
            first = None if isinstance(entry, int) else entry[1]
            end[path] = [position(end, path), newest if first is None else first]
        else:
            first = _first_time(path, storage) if path in idle and changes[path] < watermark else None
        if first is not None and first < watermark:
            del end[path]
            end[WATERMARK] = watermark


def _entry(path: str, watermark: int | None, storage: Storage) -> int | None:
    """Returns the first entry of a file that is not in the offset: 0 if it is new; None if it is to be ignored."""
    changed = None if watermark is None else storage.changed_ns(path)
    if changed is None or watermark is None:
        return 0
    if changed < watermark:
        return None
    first = _first_time(path, storage)
    return 0 if first is None or first >= watermark else -max((step.end for step in steps(path, 0, storage)), default=0)


def _first_time(path: str, storage: Storage) -> int | None:
    """Returns the time of a file's first record; None without a record, or if the file is gone."""
    try:
        with storage.open(path) as file:
            return _first_in(file, path)
    except FileNotFoundError:
        return None


def _first_in(file: File, path: str) -> int | None:
    size, form = file.size, form_of(path, file.read_at(0, HEADER_BYTES))
    if form == "compressed":
        with decompressed(file, size, _BEGINNING_BYTES) as (content, _):
            is_nested = form_of(path, content.read_at(0, HEADER_BYTES)) == form
            return None if is_nested else _first_in(content, path)
    if form == "fixture":
        line = next((line for _, line in lines_of(file, 0, size) if line.strip()), b"")
        try:
            return header_from_line(decode_line(line, 0)).start_ns
        except TraceError:
            return None
    mark = find_mark(file.read_at, size) if form == "capture" else None
    blocks = () if mark is None else (header for _, header in headers(file, 0, size, mark) if header is not None)
    return next((header.first_ts_ns for header in blocks if header.records), None)


def _in_order(
    files: list[str], start: Mapping[str, Any], target: Mapping[str, int] | None, idle: set[str], storage: Storage
) -> Iterator[tuple[str, GrowthStep]]:
    """Yields the steps of all files by time, keeping the order within a file. Adds files without any to `idle`."""
    rests = {path: steps(path, position(start, path), storage) for path in files}
    waiting: list[tuple[int, int, GrowthStep, str]] = []

    def following(path: str) -> GrowthStep | None:
        try:
            return next(rests[path], None)
        except FileNotFoundError:
            return None  # the file has vanished
        except StorageError as error:
            raise StorageError(f"{path}: {error}") from None

    def push(number: int, path: str, step: GrowthStep | None) -> None:
        if step is not None and (target is None or step.end <= target.get(path, 0)):
            heapq.heappush(waiting, (step.ts_ns, number, step, path))

    first = concurrently(following, files, at_once=any(map(is_remote, files)))
    for number, (path, step) in enumerate(zip(files, first, strict=True)):
        if step is None:
            idle.add(path)
        push(number, path, step)
    while waiting:
        _, number, step, path = heapq.heappop(waiting)
        yield path, step
        push(number, path, following(path))
