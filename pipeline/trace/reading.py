"""Reads the pieces of trace files block by block.

A reader holds one block in memory, however long the file is.

Invariant: unreadable parts become `Skipped`, with file, offset and size, and reading continues after them, so records
and skips account for every byte of a file. File contents never raise, and neither does a file that cannot be read any
further. Skipped are: damaged or torn blocks, captures of other versions, invalid fixture lines, files that are not
traces, have vanished, or are shorter than when planned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate, repeat
from typing import Final

from segstore.pipeline.compressed import decompressed
from segstore.pipeline.storage import File, Storage
from segstore.pipeline.trace.files import (
    LOCAL,
    FileRange,
    Located,
    RecordChunk,
    Skipped,
    cut,
    first_line,
    lines_of,
    unreadable,
)
from segstore.pipeline.trace.packets import read_packets
from segstore.wire.history import Place, timed
from segstore.wire.trace import (
    BlockHeader,
    Damage,
    FixtureError,
    Record,
    TraceError,
    TraceVersionError,
    blocks_between,
    decode_line,
    find_header,
    from_line,
    header_from_line,
)

Placed = tuple[Place, Record]

_make_place: Final = partial(tuple.__new__, Place)
_LINES_AT_ONCE: Final = 4096
_TWICE: Final = (
    "a block contains a header of its own capture, whose records may appear as well; segstore trace index prevents this"
)


def read_piece(
    piece: FileRange,
    *,
    takes_block: Callable[[BlockHeader], bool] | None = None,
    ports: tuple[int, ...] = (),
    storage: Storage = LOCAL,
) -> Iterator[RecordChunk | Skipped]:
    """Yields the records of a piece in order, with `Skipped` in place of unreadable parts.

    takes_block: decides by its header whether a block is wanted; other bodies are not read. ports: the stores' ports in
    packet captures; empty for all connections that speak the protocol.
    """
    if piece.reason:
        yield Skipped(piece.path, piece.start, piece.size, piece.reason)
        return
    try:
        file = storage.open(piece.path)
    except OSError as error:
        yield Skipped(piece.path, piece.start, piece.size, unreadable(error))
        return
    with file:
        if piece.form == "compressed":
            yield from _read_compressed(piece, file, takes_block, ports)
        else:
            yield from _read(piece, file, takes_block, ports)


def placed_records(
    piece: FileRange,
    skipped: Callable[[Skipped], object],
    damaged: set[str],
    *,
    ports: tuple[int, ...] = (),
    storage: Storage = LOCAL,
) -> Iterator[Placed]:
    """Yields the records of a whole file, or of a share of its connections, in order; their times never decrease.

    skipped: called for each part that cannot be read. damaged: gets the path of a file with records behind such a part.
    ports: as in `read_piece`.
    """
    records = _located(piece, skipped, damaged, ports, storage)
    return records if piece.form == "capture" else timed(records)


def _located(
    piece: FileRange, skipped: Callable[[Skipped], object], damaged: set[str], ports: tuple[int, ...], storage: Storage
) -> Iterator[Placed]:
    share, shares = piece.share, piece.shares
    first_skip, last, latest = sys.maxsize, -1, -sys.maxsize
    with closing(read_piece(piece, ports=ports, storage=storage)) as chunks:  # type: ignore[type-var]  # a generator
        for chunk in chunks:
            if isinstance(chunk, Skipped):
                skipped(chunk)
                first_skip = min(first_skip, chunk.offset)
                continue
            last = max(last, chunk.block_of(len(chunk) - 1))
            columns = chunk.columns
            if columns is None:
                for block, number, record in chunk.located:
                    yield Place(piece.path, block, number, record[1], record[0]), record
                continue
            blocks = repeat(chunk.block) if chunk.packets is None else chunk.packets
            connections: Sequence[int] = columns.connection.tolist()
            times: Sequence[int] = columns.ts_ns.tolist()
            if piece.form == "capture":
                if times[0] < latest or times != sorted(times):
                    times = list(accumulate(times, max, initial=latest))[1:]
                latest = times[-1]
            records: Iterable[Record] = columns
            numbers: Sequence[int] = range(len(columns))
            if shares > 1:
                numbers = [number for number, connection in enumerate(connections) if connection % shares == share]
                connections = [connections[number] for number in numbers]
                times = [times[number] for number in numbers]
                records = map(columns.__getitem__, numbers)
            values = zip(repeat(piece.path), blocks, numbers, connections, times)
            yield from zip(map(_make_place, values), records, strict=True)
    if first_skip < last:
        damaged.add(piece.path)


def _read(
    piece: FileRange, file: File, takes_block: Callable[[BlockHeader], bool] | None, ports: tuple[int, ...]
) -> Iterator[RecordChunk | Skipped]:
    if piece.reason or piece.form == "compressed":
        yield Skipped(piece.path, piece.start, piece.size, piece.reason or "it is compressed twice")
    elif piece.form == "capture":
        yield from _read_blocks(piece, file, takes_block)
    elif piece.form == "fixture":
        yield from _read_lines(piece, file)
    else:
        try:
            yield from read_packets(piece, file, ports)
        except OSError as error:
            yield Skipped(piece.path, 0, 0, unreadable(error))


def _read_compressed(
    piece: FileRange, file: File, takes_block: Callable[[BlockHeader], bool] | None, ports: tuple[int, ...]
) -> Iterator[RecordChunk | Skipped]:
    """Reads a compressed file as a whole. Offsets, except for a final skip, refer to the decompressed file."""
    with decompressed(file, piece.stop) as (content, damage):
        size = content.size
        for part in cut(piece.path, content, 0, size, max(size, 1)) if size or not damage else ():
            yield from _read(part, content, takes_block, ports)
    if damage:
        yield Skipped(piece.path, 0, piece.size, f"{size} bytes were decompressed from it; {damage}")


def _read_blocks(
    piece: FileRange, file: File, takes_block: Callable[[BlockHeader], bool] | None
) -> Iterator[RecordChunk | Skipped]:
    at = piece.start
    try:
        end = min(piece.end or piece.stop, file.size)
        stop = min(piece.stop, end)
        if piece.end:
            at = find_header(file.read_at, piece.mark, at, stop)
        is_empty = at >= stop
        try:
            for part in blocks_between(file.read_at, piece.mark, at, stop, end, takes_block):
                if isinstance(part, Damage):
                    yield Skipped(piece.path, part.offset, part.size, part.reason)
                elif len(part.columns):
                    yield RecordChunk(piece.path, part.offset, part.columns)
                at = part.offset + part.size
        except TraceVersionError as error:
            after = find_header(file.read_at, piece.mark, stop, end) if piece.end else piece.stop
            yield Skipped(piece.path, at, after - at, error.message)
            return
        if piece.end and at < end and not is_empty:
            # The next piece starts with the first header from `stop` on, so it cannot see what is before that.
            following = find_header(file.read_at, piece.mark, stop, end)
            if following > at:
                yield Skipped(piece.path, at, following - at, "no block starts here")
            elif following < at:
                yield Skipped(piece.path, following, 0, _TWICE)
    except OSError as error:
        yield Skipped(piece.path, at, max(piece.stop - at, 0), unreadable(error))
    else:
        yield from _missing(piece, file)


def _missing(piece: FileRange, file: File) -> Iterator[Skipped]:
    """Yields the part of a piece beyond the end of its file."""
    end = max(piece.start, file.size)
    if end < piece.stop:
        yield Skipped(piece.path, end, piece.stop - end, "the file is shorter than it was when it was planned")


def _read_lines(piece: FileRange, file: File) -> Iterator[RecordChunk | Skipped]:
    located: list[Located] = []
    after, failure = piece.start, ""
    try:
        first, after_first = first_line(file)
        header = header_from_line(decode_line(first, 0))
        for at, line in lines_of(file, max(piece.start, after_first), piece.stop):
            after = at + len(line)
            if not line.strip():
                continue
            try:
                record = from_line(decode_line(line, 0), header, 0)
            except FixtureError as error:
                if located:
                    yield RecordChunk(piece.path, located[0].block, None, located)
                    located = []
                yield Skipped(piece.path, at, len(line), _reason(error))
                continue
            located.append(Located(at, 0, record))
            if len(located) == _LINES_AT_ONCE:
                yield RecordChunk(piece.path, located[0].block, None, located)
                located = []
    except TraceError as error:
        yield Skipped(piece.path, piece.start, piece.size, _reason(error))
        return
    except OSError as error:
        failure = unreadable(error)
    if located:
        yield RecordChunk(piece.path, located[0].block, None, located)
    if failure:
        yield Skipped(piece.path, after, piece.stop - after, failure)
    else:
        yield from _missing(piece, file)


def _reason(error: TraceError) -> str:
    return f"{error.field}: {error.message}" if error.field else error.message
