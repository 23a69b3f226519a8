"""Reads the pieces of trace files block by block.

A reader holds one block in memory, however long the file is.

Invariant: unreadable parts become `Skipped`, with file, offset and size, and reading continues after them, so records
and skips account for every byte of a file. File contents never raise, and neither does a file that cannot be read any
further. Skipped are: damaged or torn blocks, captures of other versions, invalid fixture lines, files that are not
traces, have vanished, or are shorter than when planned. Follows `segstore.wire.trace.reader`, block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from segstore.pipeline.blocks import find_block
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
from segstore.wire.trace import (
    HEADER_BYTES,
    MAX_IN_VAIN,
    BlockHeader,
    BlockType,
    Columns,
    DamagedBlock,
    FixtureError,
    TraceError,
    TraceVersionError,
    decode_line,
    from_line,
    header_from_line,
    read_body,
    read_header,
    read_metadata,
)

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
            at = find_block(file, piece.mark, at, stop)
        is_empty = at >= stop
        in_vain = 0
        while at < stop:
            try:
                header = read_header(file.read_at(at, min(HEADER_BYTES, end - at)), 0, piece.mark)
                after = at + header.size
                body_bytes = min(header.stored, end - at)
                in_vain += body_bytes
                columns = _read_block(file, at, end, header, takes_block)
            except TraceVersionError as error:
                after = find_block(file, piece.mark, stop, end) if piece.end else piece.stop
                yield Skipped(piece.path, at, after - at, error.message)
                return
            except DamagedBlock as error:
                after = find_block(file, piece.mark, at + 1 if in_vain <= MAX_IN_VAIN * piece.size else stop, end)
                yield Skipped(piece.path, at, after - at, error.message)
            else:
                in_vain -= body_bytes
                if columns is not None and len(columns):
                    yield RecordChunk(piece.path, at, columns)
            at = after
        if piece.end and at < end and not is_empty:
            # The next piece starts with the first header from `stop` on, so it cannot see what is before that.
            following = find_block(file, piece.mark, stop, end)
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


def _read_block(
    file: File, at: int, size: int, header: BlockHeader, takes_block: Callable[[BlockHeader], bool] | None
) -> Columns | None:
    """Reads the records of the block with this header; None for a metadata block or an unwanted block."""
    if takes_block is not None and header.type == BlockType.RECORDS and not takes_block(header):
        return None
    block = file.read_at(at, min(HEADER_BYTES + header.stored, size - at))
    body = read_body(block, 0, header)
    if header.type == BlockType.RECORDS:
        return Columns(body, header.records)
    if header.type == BlockType.METADATA:
        read_metadata(body)
        return None
    raise DamagedBlock(f"there is no block type {header.type}", offset=at, actual=header.type)


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
