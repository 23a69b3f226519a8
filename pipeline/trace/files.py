"""Finds trace files by path, folder or glob, and splits them into pieces for parallel readers.

A `FileRange` is a range of one file that a task reads independently. The pieces of a file are adjacent; each record and
each damage is in exactly one piece. A packet capture is one piece, because its connections are reassembled from the
start. Planning reads headers only. There are three ways to cut a capture:

1. A local capture at the blocks that its headers describe.
2. A capture with an index beside it (`segstore.pipeline.blocks`) at the blocks that the index lists.
3. A capture on a store, where each header would cost a request, at equal distances: readers look for the next header. A
   capture whose bytes are also part of its own traffic can then hold a second header within a block; the reader reports
   it.
"""

from __future__ import annotations

import glob
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from segstore.pipeline.blocks import INDEX_SUFFIX, headers, read_index
from segstore.pipeline.compressed import COMPRESSIONS, decompressed, decompressed_limit
from segstore.pipeline.storage import File, Storage, concurrently, is_remote
from segstore.wire.trace import (
    LONGEST_LINE,
    MAGIC,
    MAX_BLOCK_BYTES,
    Columns,
    FixtureError,
    NotATrace,
    Record,
    TraceVersionError,
    decode_line,
    find_mark,
    header_from_line,
    is_fixture,
)

PIECE_BYTES: Final = 32 * 1024 * 1024
"""Default size of the pieces of a short trace."""
MOST_PIECE_BYTES: Final = 128 * 1024 * 1024
"""Size of the pieces of a long trace."""
_OPEN_BYTES: Final = 64 * 1024
"""Opening a file costs a task about as much as reading this many bytes."""
_PIECES: Final = 4
_LONG_BLOCK_BYTES: Final = 8 * 1024 * 1024
_MOST_SHARES: Final = 4
"""Each share reads all records, which costs about a fifteenth of judging them."""
SUFFIXES: Final = (".wtrace", ".jsonl", ".pcap", ".pcapng")
"""Suffixes of the files taken from a folder, compressed or not; files named explicitly may have any."""
LOCAL: Final = Storage()

Form = Literal["capture", "fixture", "packets", "compressed"]

_PACKETS: Final = tuple(bytes.fromhex(each) for each in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a"))
_HEAD_BYTES: Final = 64
_WINDOW: Final = 1 << 20
_MARK_WITHIN: Final = MAX_BLOCK_BYTES + _WINDOW
"""On a store, the mark is looked for up to here: behind a damaged first block of any size."""


class FileRange(NamedTuple):
    """A range of a file for one reader: everything that starts from `start` to before `stop`.

    mark: the capture's mark, as far as known. records: their number according to the headers; 0 if unknown.
    reason: why nothing of it can be read, as found during planning. end: 0 if the range starts and stops at blocks or
    lines; otherwise the reader looks for the first header from `start` on, and its last block may extend up to `end`.
    share, shares: readers of facts take only the connections whose number modulo `shares` is `share`.
    """

    path: str
    form: Form
    start: int
    stop: int
    mark: bytes = b""
    records: int = 0
    reason: str = ""
    end: int = 0
    share: int = 0
    shares: int = 1

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
    """A record and its place: the offset of its block, line or packet, and its number there or in its `RecordChunk`."""

    block: int
    number: int
    record: Record


@dataclass(slots=True, eq=False)
class RecordChunk:
    """Records of one file that were read together.

    columns: for a capture, the records of the block at offset `block`; for packets, the records whose packets `packets`
    has; None if `located` has the records. packets: for each such record, the offset of its packet. Iterating yields
    every record with its place.
    """

    path: str
    block: int
    columns: Columns | None
    located: Sequence[Located] = ()
    packets: array[int] | None = None

    def __iter__(self) -> Iterator[Located]:
        if self.columns is None:
            return iter(self.located)
        return (Located(self.block_of(number), number, record) for number, record in enumerate(self.columns))

    def block_of(self, number: int) -> int:
        """Returns the offset of the block or packet of a record in `columns`."""
        return self.block if self.packets is None else self.packets[number]

    def __len__(self) -> int:
        return len(self.located) if self.columns is None else len(self.columns)


# --- finding --------------------------------------------------------------------------------------------------------


def find_files(
    paths: Iterable[str], *, may_be_none: bool = False, suffixes: tuple[str, ...] = SUFFIXES, storage: Storage = LOCAL
) -> list[str]:
    """Returns the files of paths, folders (recursively) and globs, each once, in order of names.

    may_be_none: whether folders and globs may match no file yet. suffixes: of the files taken from folders.
    Raises FileNotFoundError, OSError of a store, and ValueError for a URL that cannot be opened.
    """
    files: dict[str, None] = {}
    for path in map(_local, paths):
        is_folder = not glob.has_magic(path) if is_remote(path) else Path(path).is_dir()
        inside = storage.files(path) if is_remote(path) else _local_files(path)
        if not inside and not (may_be_none and (is_folder or glob.has_magic(path))):
            raise FileNotFoundError(2, "no such trace", path)
        if inside != [path]:
            ends = tuple(end + more for end in suffixes for more in ("", *COMPRESSIONS)) if is_folder else ("",)
            inside = [file for file in inside if file.endswith(ends) and not file.endswith(INDEX_SUFFIX)]
            if not inside and not may_be_none:
                raise FileNotFoundError(2, f"no file in it ends in {', '.join(suffixes)}", path)
        files.update(dict.fromkeys(inside))
    return list(files)


def find_traces(paths: Iterable[str], storage: Storage = LOCAL) -> list[str]:
    """Returns the files of paths as `find_files` does. Raises NotATrace, too, if no file among them is a trace.

    Raises BadLimit if a file is compressed and the environment's limit is invalid.
    """
    files = find_files(paths, storage=storage)
    if any(path.endswith(tuple(COMPRESSIONS)) for path in files):
        decompressed_limit()
    refused = ""
    for path in files:
        if not (reason := _not_a_trace(path, storage)):
            return files
        refused = refused or f"{path} is not a trace: {reason}"
    raise NotATrace(refused)


def _not_a_trace(path: str, storage: Storage) -> str:
    """Returns why a file is not a trace; "" if it is, if it is empty, and if it cannot be opened."""
    with suppress(OSError), storage.open(path) as file:
        if form_of(path, file.read_at(0, _HEAD_BYTES)) != "compressed":
            return _foreign(path, file)
        with decompressed(file, file.size, _WINDOW) as (content, _):
            return _foreign(path, content)
    return ""


def _foreign(path: str, file: File) -> str:
    head = file.read_at(0, _HEAD_BYTES)
    form = form_of(path, head)
    if form == "fixture" and head:
        try:
            header_from_line(decode_line(first_line(file)[0], 0))
        except TraceVersionError:
            return ""
        except FixtureError as error:
            return f"{error.field}: {error.message}" if error.field else error.message
    if form == "capture" and not MAGIC.startswith(head[: len(MAGIC)]):
        mark = find_mark(file.read_at, min(file.size, _MARK_WITHIN))
        return "it is no capture, no packet capture, and does not start with a JSON object" if mark is None else ""
    return ""


def _local(path: str) -> str:
    if not path.startswith("file:"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{path}: a file: URL names a file of this machine, not of {parts.netloc}")
    return unquote(parts.path)


def _local_files(path: str) -> list[str]:
    where = Path(path)
    if where.is_dir():
        return sorted(str(file) for file in where.rglob("*") if file.is_file())
    if where.exists():
        return [path]
    return sorted(file for file in glob.glob(path, recursive=True) if Path(file).is_file())  # noqa: PTH207 — absolute patterns too


def form_of(path: str, head: bytes) -> Form:
    """Detects the form of a file from its first bytes; for an empty file, from its name."""
    if not head:
        return "fixture" if path.endswith(".jsonl") else "packets" if path.endswith(SUFFIXES[2:]) else "capture"
    if head.startswith(_PACKETS):
        return "packets"
    if head.startswith(tuple(COMPRESSIONS.values())):
        return "compressed"
    return "fixture" if is_fixture(head) else "capture"


# --- planning -------------------------------------------------------------------------------------------------------


def piece_bytes_of(total: int) -> int:
    """Returns the piece size for a total size: enough pieces to keep a few cores busy, then longer pieces.

    Each piece is a task, which costs Spark about as much as reading ten megabytes.
    """
    return min(max(total // _PIECES + _LONG_BLOCK_BYTES, PIECE_BYTES), MOST_PIECE_BYTES)


def sizes_of(paths: Iterable[str], storage: Storage = LOCAL) -> dict[str, int]:
    """Returns the sizes of all accessible files."""
    sizes = {}
    for path in paths:
        with suppress(OSError):  # reported when the file is opened
            sizes[path] = storage.size(path)
    return sizes


def plan(
    paths: Iterable[str] | Mapping[str, tuple[int, int]], piece_bytes: int = PIECE_BYTES, storage: Storage = LOCAL
) -> list[FileRange]:
    """Splits each file into pieces of about `piece_bytes`; a longer block is a piece of its own.

    paths: files, or for each file the range to split, which starts and stops at blocks or lines.
    """
    parts = paths if isinstance(paths, Mapping) else dict.fromkeys(paths, (0, None))

    def cut(path: str) -> list[FileRange]:
        return pieces_of(path, piece_bytes, *parts[path], storage=storage)

    planned = concurrently(cut, parts, at_once=any(map(is_remote, parts)))
    return [piece for pieces in planned for piece in pieces]


def pieces_of(
    path: str, piece_bytes: int = PIECE_BYTES, start: int = 0, stop: int | None = None, *, storage: Storage = LOCAL
) -> list[FileRange]:
    """Splits one file, or a range that starts and stops at blocks or lines, into pieces.

    A file that cannot be opened is a single piece with the reason.
    """
    try:
        with storage.open(path) as file:
            return cut(path, file, start, file.size if stop is None else stop, piece_bytes, storage)
    except OSError as error:
        return [FileRange(path, form_of(path, b""), start, start if stop is None else stop, reason=unreadable(error))]


def cut(path: str, file: File, start: int, stop: int, piece_bytes: int, storage: Storage = LOCAL) -> list[FileRange]:
    """Splits a range of an open file into pieces. Raises OSError."""
    form = form_of(path, file.read_at(0, _HEAD_BYTES))
    if form == "capture":
        return _cut_blocks(path, file, start, stop, piece_bytes, storage)
    if form == "fixture":
        return _cut_lines(path, file, start, stop, piece_bytes)
    grown = "the compressed file has grown since it was read; follow uncompressed files" if start else ""
    return [FileRange(path, form, start, stop, reason=grown)]


def shared(pieces: Iterable[FileRange], share_bytes: int) -> Iterator[FileRange]:
    """Divides the connections of a capture among up to four readers, one for each `share_bytes`; each reads it all."""
    for piece in pieces:
        shares = max(1, min(-(-piece.size // share_bytes), _MOST_SHARES)) if piece.form == "capture" else 1
        yield from (piece._replace(share=share, shares=shares) for share in range(shares))


def packed(pieces: Iterable[FileRange], most_bytes: int) -> list[list[FileRange]]:
    """Groups pieces, in order, into tasks of about `most_bytes`: many small files share a task."""
    groups: list[list[FileRange]] = []
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


def _cut_blocks(path: str, file: File, start: int, stop: int, piece_bytes: int, storage: Storage) -> list[FileRange]:
    searched = min(stop, _MARK_WITHIN) if file.remote else stop
    mark = find_mark(file.read_at, searched)
    if mark is None:
        where = "it" if searched == stop else f"its first {searched} bytes; if later blocks matter, copy the file first"
        return [FileRange(path, "capture", start, stop, reason=f"there is no whole block of a capture in {where}")]
    if file.remote and stop - start <= piece_bytes:
        return [FileRange(path, "capture", start, stop, mark)]
    index = read_index(path, file, mark, storage) if stop - start > piece_bytes else None
    if file.remote and index is None:
        return _cut_bytes(path, file, start, stop, piece_bytes, mark)
    pieces: list[FileRange] = []
    records = 0
    for at, header in headers(file, start, stop, mark, index):
        if header is not None:
            if at > start and at + header.size - start > piece_bytes:
                pieces.append(FileRange(path, "capture", start, at, mark, records))
                start, records = at, 0
            records += header.records
    return [*pieces, FileRange(path, "capture", start, stop, mark, records)]


def _cut_bytes(path: str, file: File, start: int, stop: int, piece_bytes: int, mark: bytes) -> list[FileRange]:
    first = next((at for at, header in headers(file, start, stop, mark) if header is not None), None)
    if first is None:
        return [FileRange(path, "capture", start, stop, mark)]
    damaged = [FileRange(path, "capture", start, first, mark)] if first > start else []
    cuts = [*range(first, stop, piece_bytes), stop]
    return damaged + [FileRange(path, "capture", *range_, mark, end=stop) for range_ in pairwise(cuts)]


def _cut_lines(path: str, file: File, start: int, stop: int, piece_bytes: int) -> list[FileRange]:
    if start == stop:
        return [FileRange(path, "fixture", start, stop, reason="the file is empty")]
    pieces: list[FileRange] = []
    while start < stop:
        end = stop if start + piece_bytes >= stop else _after_newline(file, start + piece_bytes - 1, stop)
        pieces.append(FileRange(path, "fixture", start, end))
        start = end
    return pieces


def _after_newline(file: File, at: int, size: int) -> int:
    while at < size:
        window = file.read_at(at, _WINDOW)
        end = window.find(b"\n")
        if end >= 0:
            return at + end + 1
        if not window:
            break
        at += len(window)
    return size


def lines_of(file: File, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yields each line with its offset. A line takes at most `LONGEST_LINE` bytes plus one window of memory."""
    at, rest = start, b""
    while at + len(rest) < stop and (window := file.read_at(at + len(rest), min(_WINDOW, stop - at - len(rest)))):
        *lines, rest = (rest + window).split(b"\n")
        for line in lines:
            yield at, line + b"\n"
            at += len(line) + 1
        if len(rest) > LONGEST_LINE:
            yield at, rest
            at, rest = at + len(rest), b""
    if rest:
        yield at, rest


def first_line(file: File) -> tuple[bytes, int]:
    """Returns the first non-empty line, and the offset of the next line."""
    at = 0
    for at, line in lines_of(file, 0, file.size):
        if line.strip():
            return line, at + len(line)
    return b"", at
