"""Reads the pieces of trace files block by block.

A reader holds one block in memory, however long the file is.

Invariant: unreadable parts become `Skipped`, with file, offset and size, and reading continues after them, so records
and skips account for every byte of a file. File contents never raise; only a path that names no file raises `OSError`.
Skipped are: damaged or torn blocks, captures of other versions, invalid fixture lines, files that are not traces, have
vanished, or are shorter than when planned. Follows `segstore.wire.trace.reader`, block by block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from segstore.pipeline.trace.files import Chunk, Located, Piece, Skipped, find_block, lines_of, unreadable
from segstore.pipeline.trace.packets import Reassembly
from segstore.wire.trace import (
    HEADER_BYTES,
    MAX_IN_VAIN,
    BlockHeader,
    BlockType,
    Columns,
    DamagedBlock,
    FixtureError,
    FixtureHeader,
    Record,
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


def read_piece(
    piece: Piece, *, takes_block: Callable[[BlockHeader], bool] | None = None, ports: tuple[int, ...] = ()
) -> Iterator[Chunk | Skipped]:
    """Yields the records of a piece in order, with `Skipped` in place of unreadable parts.

    takes_block: decides by its header whether a block is wanted; other bodies are not read. ports: the stores' ports in
    packet captures; empty for all connections that speak the protocol.
    """
    if piece.reason:
        yield Skipped(piece.path, piece.start, piece.size, piece.reason)
        return
    try:
        file = open(piece.path, "rb", buffering=0)  # noqa: PTH123, SIM115 — closed below; unbuffered, read by position
    except OSError as error:
        yield Skipped(piece.path, piece.start, piece.size, unreadable(error))
        return
    with file:
        if piece.form == "capture":
            yield from _read_blocks(piece, file.fileno(), takes_block)
        elif piece.form == "fixture":
            yield from _read_lines(piece, file.fileno())
        else:
            try:
                yield from Reassembly(piece.path, ports).read(file.fileno())
            except OSError as error:
                yield Skipped(piece.path, 0, 0, unreadable(error))


def _read_blocks(piece: Piece, fd: int, takes_block: Callable[[BlockHeader], bool] | None) -> Iterator[Chunk | Skipped]:
    size = min(piece.stop, os.fstat(fd).st_size)
    at, in_vain = piece.start, 0
    while at < size:
        try:
            header = read_header(os.pread(fd, min(HEADER_BYTES, size - at), at), 0, piece.mark)
            after = at + header.size
            body_bytes = min(header.stored, size - at)
            in_vain += body_bytes
            columns = _read_block(fd, at, size, header, takes_block)
        except TraceVersionError as error:
            yield Skipped(piece.path, at, piece.stop - at, error.message)
            return
        except DamagedBlock as error:
            found = find_block(fd, piece.mark, at + 1, size) if in_vain <= MAX_IN_VAIN * piece.size else None
            after = size if found is None else found
            yield Skipped(piece.path, at, after - at, error.message)
        else:
            in_vain -= body_bytes
            if columns is not None and len(columns):
                yield Chunk(piece.path, at, columns)
        at = after
    yield from _missing(piece, fd)


def _missing(piece: Piece, fd: int) -> Iterator[Skipped]:
    """Yields the part of a piece beyond the end of its file."""
    end = max(piece.start, os.fstat(fd).st_size)
    if end < piece.stop:
        yield Skipped(piece.path, end, piece.stop - end, "the file is shorter than it was when it was planned")


def _read_block(
    fd: int, at: int, size: int, header: BlockHeader, takes_block: Callable[[BlockHeader], bool] | None
) -> Columns | None:
    """Reads the records of the block with this header; None for a metadata block or an unwanted block."""
    if takes_block is not None and header.type == BlockType.RECORDS and not takes_block(header):
        return None
    wanted = min(HEADER_BYTES + header.stored, size - at)
    block = os.pread(fd, wanted, at)
    while len(block) < wanted and (more := os.pread(fd, wanted - len(block), at + len(block))):
        block += more
    body = read_body(block, 0, header)
    if header.type == BlockType.RECORDS:
        return Columns(body, header.records)
    if header.type == BlockType.METADATA:
        read_metadata(body)
        return None
    raise DamagedBlock(f"there is no block type {header.type}", offset=at, actual=header.type)


def _read_lines(piece: Piece, fd: int) -> Iterator[Chunk | Skipped]:
    first, after_first = _first_line(fd)
    try:
        header = header_from_line(decode_line(first, 0))
    except TraceError as error:
        yield Skipped(piece.path, piece.start, piece.size, _reason(error))
        return
    found: list[Located] = []
    for at, line in lines_of(fd, max(piece.start, after_first), piece.stop):
        if not line.strip():
            continue
        try:
            record = _record(line, header)
        except FixtureError as error:
            if found:
                yield Chunk(piece.path, found[0].block, None, tuple(found))
                found = []
            yield Skipped(piece.path, at, len(line), _reason(error))
            continue
        found.append(Located(at, 0, record))
        if len(found) == _LINES_AT_ONCE:
            yield Chunk(piece.path, found[0].block, None, tuple(found))
            found = []
    if found:
        yield Chunk(piece.path, found[0].block, None, tuple(found))
    yield from _missing(piece, fd)


def _reason(error: TraceError) -> str:
    return f"{error.field}: {error.message}" if error.field else error.message


def _record(line: bytes, header: FixtureHeader) -> Record:
    return from_line(decode_line(line, 0), header, 0)


def _first_line(fd: int) -> tuple[bytes, int]:
    """Returns the first non-empty line, and the offset of the next one."""
    at = 0
    for at, line in lines_of(fd, 0, os.fstat(fd).st_size):
        if line.strip():
            return line, at + len(line)
    return b"", at
