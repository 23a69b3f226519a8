"""Finds trace files by path, folder or glob, splits them for parallel readers, and reads them block by block.

A `Piece` is a range of one file that a task reads independently. The pieces of a file are adjacent; each record and
each damage is in exactly one of them. Planning reads only headers. A reader holds one block in memory, however long the
file is.

Invariant: unreadable parts become `Skipped`, with file, offset and size, and reading continues after them, so records
and skips account for every byte of a file. File contents never raise; only a path that names no file raises `OSError`.
Skipped are: damaged or torn blocks, captures of other versions, invalid fixture lines, files that are not traces, have
vanished, or are shorter than when planned. Follows `segstore.wire.trace.reader`, block by block; files are read with
`pread`, because a shrinking file is then a reportable error, where a memory map would crash the process.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from segstore.wire.trace import (
    HEADER_BYTES,
    LONGEST_LINE,
    MAGIC,
    MARK_BYTES,
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
    find_header,
    from_line,
    header_from_line,
    is_fixture,
    read_body,
    read_header,
    read_metadata,
)

PIECE_BYTES: Final = 32 * 1024 * 1024
"""Default size of the pieces of a short trace."""
MOST_PIECE_BYTES: Final = 128 * 1024 * 1024
"""Size of the pieces of a long trace."""
_PIECES: Final = 4
_LONG_BLOCK_BYTES: Final = 8 * 1024 * 1024
SUFFIXES: Final = (".wtrace", ".jsonl", ".pcap", ".pcapng")
"""Suffixes of the files taken from a folder; files named explicitly may have any."""

Form = Literal["capture", "fixture", "packets"]

_PACKETS: Final = tuple(bytes.fromhex(each) for each in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a"))
_HEAD_BYTES: Final = 64
_WINDOW: Final = 1 << 20
_LINES_AT_ONCE: Final = 4096


class Piece(NamedTuple):
    """A range of a file for one reader: everything that starts from `start` to before `stop`.

    mark: the capture's mark, as far as known. records: their number according to the headers; 0 if unknown.
    reason: why nothing of it can be read, as found during planning.
    """

    path: str
    form: Form
    start: int
    stop: int
    mark: bytes = b""
    records: int = 0
    reason: str = ""

    @property
    def size(self) -> int:
        return self.stop - self.start


class Skipped(NamedTuple):
    """Unreadable bytes of a file: `size` bytes from `offset`."""

    path: str
    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.size} bytes at {self.offset} are skipped: {self.reason}"


class Located(NamedTuple):
    """A record and its place: the offset of its block or line, and its number there."""

    block: int
    number: int
    record: Record


class Chunk:
    """Records of one file that were read together.

    columns: for a capture, the records of the block at offset `block`; else None. Iterating yields every record with
    its place, for either form.
    """

    __slots__ = ("_located", "block", "columns", "path")

    def __init__(self, path: str, block: int, columns: Columns | None, located: Sequence[Located] = ()) -> None:
        self.path = path
        self.block = block
        self.columns = columns
        self._located = located

    def __iter__(self) -> Iterator[Located]:
        if self.columns is None:
            return iter(self._located)
        return (Located(self.block, number, record) for number, record in enumerate(self.columns))

    def __len__(self) -> int:
        return len(self._located) if self.columns is None else len(self.columns)


# --- finding --------------------------------------------------------------------------------------------------------


def find_files(paths: Iterable[str], *, may_be_none: bool = False, suffixes: tuple[str, ...] = SUFFIXES) -> list[str]:
    """Returns the files of paths, folders (recursively) and globs, each once, in order of names.

    may_be_none: whether folders and globs may match no file yet. suffixes: of the files taken from folders.
    Raises FileNotFoundError, and ValueError for a path of another file system.
    """
    found: dict[str, None] = {}
    for path in map(_local, paths):
        where = Path(path)
        if where.is_dir():
            inside = sorted(str(each) for each in where.rglob("*") if each.suffix in suffixes and each.is_file())
        elif where.exists():
            inside = [path]
        else:
            inside = sorted(each for each in glob.glob(path, recursive=True) if Path(each).is_file())  # noqa: PTH207 — absolute patterns too
            if not inside and not (may_be_none and glob.has_magic(path)):
                raise FileNotFoundError(2, "there is no such trace", path)
        if not inside and not may_be_none:
            raise FileNotFoundError(2, f"no file here ends in {', '.join(suffixes)}", path)
        found.update(dict.fromkeys(inside))
    return list(found)


def _local(path: str) -> str:
    if "://" not in path and not path.startswith("file:"):
        return path
    parts = urlsplit(path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ValueError(f"{path}: traces are read from this machine's files, not over {parts.scheme}")
    return unquote(parts.path)


def form_of(path: str, head: bytes) -> Form:
    """Detects the form of a file from its first bytes; for an empty one, from its name."""
    if not head:
        return "fixture" if path.endswith(".jsonl") else "packets" if path.endswith(SUFFIXES[2:]) else "capture"
    if head.startswith(_PACKETS):
        return "packets"
    return "fixture" if is_fixture(head) else "capture"


# --- planning -------------------------------------------------------------------------------------------------------


def piece_bytes_of(total: int) -> int:
    """Returns the piece size for a total size: enough pieces to keep a few cores busy, then longer ones.

    Each piece is a task, which costs Spark about as much as reading ten megabytes.
    """
    return min(max(total // _PIECES + _LONG_BLOCK_BYTES, PIECE_BYTES), MOST_PIECE_BYTES)


def size_of(paths: Iterable[str]) -> int:
    """Returns the total size of all accessible files."""
    total = 0
    for path in paths:
        with suppress(OSError):  # reported when the file is opened
            total += Path(path).stat().st_size
    return total


def plan(paths: Iterable[str], piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Splits files into pieces of about `piece_bytes` each; a longer block is a piece of its own."""
    return [piece for path in paths for piece in pieces_of(path, piece_bytes)]


def pieces_of(path: str, piece_bytes: int = PIECE_BYTES, start: int = 0, stop: int | None = None) -> list[Piece]:
    """Splits one file, or a range that starts and stops at blocks or lines, into pieces.

    A file that cannot be opened is a single piece with the reason.
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 — unbuffered, read by position
            size = os.fstat(file.fileno()).st_size
            form = form_of(path, os.pread(file.fileno(), _HEAD_BYTES, 0))
            stop = size if stop is None else stop
            if form == "packets":
                return [Piece(path, form, start, stop)]
            cut = _cut_lines if form == "fixture" else _cut_blocks
            return cut(path, file.fileno(), start, stop, piece_bytes)
    except OSError as error:
        return [Piece(path, form_of(path, b""), start, start if stop is None else stop, reason=_said(error))]


def _said(error: OSError) -> str:
    return f"the file cannot be read: {error.strerror or error}"


def _cut_blocks(path: str, fd: int, start: int, stop: int, piece_bytes: int) -> list[Piece]:
    mark = mark_in(fd, stop)
    if mark is None:
        return [Piece(path, "capture", start, stop, reason="there is no whole block of a capture in it")]
    pieces: list[Piece] = []
    records = 0
    for at, header in headers(fd, start, stop, mark):
        if header is not None:
            if at > start and at + header.size - start > piece_bytes:
                pieces.append(Piece(path, "capture", start, at, mark, records))
                start, records = at, 0
            records += header.records
    return [*pieces, Piece(path, "capture", start, stop, mark, records)]


def _cut_lines(path: str, fd: int, start: int, stop: int, piece_bytes: int) -> list[Piece]:
    if start == stop:
        return [Piece(path, "fixture", start, stop, reason="the file is empty")]
    pieces: list[Piece] = []
    while start < stop:
        end = stop if start + piece_bytes >= stop else _after_newline(fd, start + piece_bytes - 1, stop)
        pieces.append(Piece(path, "fixture", start, end))
        start = end
    return pieces


def _after_newline(fd: int, at: int, size: int) -> int:
    while at < size:
        window = os.pread(fd, _WINDOW, at)
        found = window.find(b"\n")
        if found >= 0:
            return at + found + 1
        if not window:
            break
        at += len(window)
    return size


def mark_in(fd: int, size: int) -> bytes | None:
    """Returns the mark of a capture, from its first whole header; None if there is none."""
    at = _find(fd, MAGIC, 0, size)
    return None if at is None else os.pread(fd, MARK_BYTES, at)


def headers(fd: int, start: int, size: int, mark: bytes) -> Iterator[tuple[int, BlockHeader | None]]:
    """Yields the offset and header of each block between `start` and `size`; header None for bytes of no whole block.

    Does not read bodies. A block whose body would end after `size` is not whole.
    """
    at = start
    while at < size:
        try:
            header = read_header(os.pread(fd, HEADER_BYTES, at), 0, mark)
            whole = at + HEADER_BYTES + header.stored <= size
        except DamagedBlock:
            whole = False
        if whole:
            yield at, header
            at += header.size
        else:
            yield at, None
            found = _find(fd, mark, at + 1, size)
            at = size if found is None else found


def _find(fd: int, mark: bytes, at: int, size: int) -> int | None:
    """Returns the offset of the next whole header from `at` to before `size` whose mark starts with `mark`."""
    return find_header(lambda offset, length: os.pread(fd, length, offset), mark, at, size)


# --- reading --------------------------------------------------------------------------------------------------------


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
        yield Skipped(piece.path, piece.start, piece.size, _said(error))
        return
    with file:
        if piece.form == "capture":
            yield from _read_blocks(piece, file.fileno(), takes_block)
        elif piece.form == "fixture":
            yield from _read_lines(piece, file.fileno())
        else:
            from segstore.pipeline.trace.packets import read_packets  # only packet captures need its library

            yield from read_packets(piece.path, ports)


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
            found = _find(fd, piece.mark, at + 1, size) if in_vain <= MAX_IN_VAIN * piece.size else None
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
        header = header_from_line(_text(first))
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
    return from_line(_text(line), header, 0)


def _text(line: bytes) -> str:
    if len(line) > LONGEST_LINE:
        raise FixtureError(f"a line exceeds {LONGEST_LINE} bytes", line=0)
    try:
        return line.decode()
    except UnicodeDecodeError as cause:
        raise FixtureError(f"not UTF-8 at byte {cause.start} of the line", line=0) from cause


def _first_line(fd: int) -> tuple[bytes, int]:
    """Returns the first non-empty line, and the offset of the next one."""
    at = 0
    for at, line in lines_of(fd, 0, os.fstat(fd).st_size):
        if line.strip():
            return line, at + len(line)
    return b"", at


def lines_of(fd: int, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yields each line with its offset. A line takes at most `LONGEST_LINE` bytes plus one window of memory."""
    at, rest = start, b""
    while at + len(rest) < stop and (window := os.pread(fd, min(_WINDOW, stop - at - len(rest)), at + len(rest))):
        *lines, rest = (rest + window).split(b"\n")
        for line in lines:
            yield at, line + b"\n"
            at += len(line) + 1
        if len(rest) > LONGEST_LINE:
            yield at, rest
            at, rest = at + len(rest), b""
    if rest:
        yield at, rest
