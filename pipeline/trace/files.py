"""Finds trace files by path, folder or glob, and splits them into pieces for parallel readers.

A `Piece` is a range of one file that a task reads independently. The pieces of a file are adjacent; each record and
each damage is in exactly one of them. Planning reads only headers, with `pread`: a shrinking file is then a reportable
error, where a memory map would crash the process.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from segstore.wire.trace import (
    HEADER_BYTES,
    LONGEST_LINE,
    MAGIC,
    MARK_BYTES,
    BlockHeader,
    Columns,
    DamagedBlock,
    Record,
    find_header,
    is_fixture,
    read_header,
)

PIECE_BYTES: Final = 32 * 1024 * 1024
"""Default size of the pieces of a short trace."""
MOST_PIECE_BYTES: Final = 128 * 1024 * 1024
"""Size of the pieces of a long trace."""
_OPEN_BYTES: Final = 64 * 1024
"""Opening a file costs a task about as much as reading this many bytes."""
_PIECES: Final = 4
_LONG_BLOCK_BYTES: Final = 8 * 1024 * 1024
SUFFIXES: Final = (".wtrace", ".jsonl", ".pcap", ".pcapng")
"""Suffixes of the files taken from a folder; files named explicitly may have any."""

Form = Literal["capture", "fixture", "packets"]

_PACKETS: Final = tuple(bytes.fromhex(each) for each in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a"))
_HEAD_BYTES: Final = 64
_WINDOW: Final = 1 << 20


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
                raise FileNotFoundError(2, "no such trace", path)
        if not inside and not may_be_none:
            raise FileNotFoundError(2, f"no file in it ends in {', '.join(suffixes)}", path)
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
        return [Piece(path, form_of(path, b""), start, start if stop is None else stop, reason=unreadable(error))]


def packed(pieces: Iterable[Piece], most_bytes: int) -> list[list[Piece]]:
    """Groups pieces, in order, for tasks of about `most_bytes` each: many small files share a task."""
    groups: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        cost = piece.size + _OPEN_BYTES
        if cost > room:
            groups.append([])
            room = most_bytes
        groups[-1].append(piece)
        room -= cost
    return groups


def unreadable(error: OSError) -> str:
    """Returns the reason to skip a file that cannot be opened."""
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
    at = find_block(fd, MAGIC, 0, size)
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
            found = find_block(fd, mark, at + 1, size)
            at = size if found is None else found


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


def find_block(fd: int, mark: bytes, at: int, size: int) -> int | None:
    """Returns the offset of the next whole header from `at` to before `size` whose mark starts with `mark`."""
    return find_header(lambda offset, length: os.pread(fd, length, offset), mark, at, size)
