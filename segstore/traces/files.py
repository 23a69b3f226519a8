"""Opens trace files by content, writes them by suffix, and records traces while a server runs.

Invariants: a written file appears under its name only when complete, so records can be read from the file that they
replace. The exception is a recording, which grows block by block and never replaces an existing file. Files written
here are readable only by their owner. A recording contains delegation tokens only on request. Damaged parts of a
capture are reported, never skipped silently.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import logging
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from segstore.server.recording import TraceRecorder
from segstore.wire import MAX_FRAME_BYTES, WIRE_VERSION
from segstore.wire.trace import (
    BLOCK_BYTES,
    HEADER_BYTES,
    LONGEST_LINE,
    MAGIC,
    SECRET_CODES,
    SPARE_BYTES,
    Block,
    Damage,
    FixtureHeader,
    Metadata,
    Record,
    RecordWriter,
    TraceError,
    TraceWriter,
    decode_line,
    is_fixture,
    make_mark,
    mark_of,
    read_blocks,
    read_lines,
    redact,
    redacted_data,
    write_lines,
)

if TYPE_CHECKING:
    from segstore.wire import Buffer

log = logging.getLogger(__name__)

CAPTURE: Final = ".wtrace"
FIXTURE: Final = ".jsonl"
PACKETS: Final = ".pcapng"
_PACKET_MAGICS: Final = tuple(map(bytes.fromhex, ("0a0d0d0a", "a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1")))
_START_BYTES: Final = 64
_STANDARD_INPUT: Final = Path("-")
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_DIRECT_BYTES: Final = 1024 * 1024
"""From this size of a block's data, it is written past the system's cache."""
_SMALL_BYTES: Final = 4096
"""Up to this size, bytes find room in any block that is not due."""
_MOST_PARTS: Final = 512
"""Maximum number of buffers per `writev`; systems accept at least 1024."""


class UnknownSuffix(ValueError):
    """The suffix of a file to be written names no trace format."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: a trace ends in {CAPTURE} (for machines), {FIXTURE} (for people) or {PACKETS} (for Wireshark)"
        )
        self.path = path


class UnreadableTrace(TraceError):
    """A file could not be read as a trace. Attribute: path."""

    def __init__(self, path: Path, cause: TraceError) -> None:
        super().__init__(f"{path}: {cause}")
        self.path = path


class TraceFile:
    """Reads a trace of any form, detected from its first bytes. Of packet captures (pcap, pcapng), the connections that
    start with a Hello are read. The path may be a pipe, or `-` for standard input: a fixture is then read as it comes,
    and once; another form is first copied to a temporary file.

        with TraceFile(path) as trace:
            for record in trace.records():
                ...

    Attributes: path, size (bytes; of a fixture from a pipe those read so far), form ("capture", "fixture" or
    "packets"), metadata (set once `records` has started), damages (unreadable parts so far). Raises OSError.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.metadata = Metadata()
        self.damages: list[Damage] = []
        self._file: io.BufferedReader | io.BufferedRandom = _opened(self.path)
        try:
            self._is_pipe = not self._file.seekable()
            start = self._file.peek(_START_BYTES)[:_START_BYTES]
            self.form = "packets" if start.startswith(_PACKET_MAGICS) else "fixture" if is_fixture(start) else "capture"
            if self._is_pipe and self.form != "fixture":
                self._file = _copy(self._file)
            self.size = os.fstat(self._file.fileno()).st_size
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def records(self) -> Iterator[Record]:
        """Yields all records in order. Raises UnreadableTrace."""
        if self.form == "packets":
            return self._named(self._packets())
        return self._named(self._fixture() if self.form == "fixture" else self._capture())

    def _named(self, records: Iterator[Record]) -> Iterator[Record]:
        try:
            yield from records
        except TraceError as cause:
            raise UnreadableTrace(self.path, cause) from cause

    def _packets(self) -> Iterator[Record]:
        from segstore.pipeline.storage import LocalFile
        from segstore.traces.packets import read_capture

        self.metadata = Metadata(WIRE_VERSION)
        yield from read_capture(LocalFile(self._file), str(self.path), self.damages)

    def _fixture(self) -> Iterator[Record]:
        def lines() -> Iterator[str]:
            for number, line in enumerate(iter(lambda: self._file.readline(LONGEST_LINE + 1), b""), 1):
                text = decode_line(line, number)
                if self._is_pipe:
                    self.size += len(line)
                yield text

        for item in read_lines(lines()):
            if isinstance(item, FixtureHeader):
                self.metadata = item.metadata
            else:
                yield item

    def _capture(self) -> Iterator[Record]:
        with self._mapped() as buffer:
            for block in read_blocks(buffer):
                yield from self._records(block)

    def _records(self, block: Block | Damage) -> Iterable[Record]:
        if isinstance(block, Damage):
            self.damages.append(block)
            return ()
        if block.metadata is not None:
            self.metadata = block.metadata
        return block.columns

    def follow(self, wait: Callable[[], object]) -> Iterator[Record]:
        """Yields the records of a capture, including records that its recorder adds later.

        wait: called when there are no more records; its error, such as KeyboardInterrupt, ends the iteration. Damage is
        added to `damages` once a block follows it; a torn block may still be being written. Raises UnreadableTrace,
        also for a fixture, which does not grow.
        """
        return self._named(self._grown(wait))

    def _grown(self, wait: Callable[[], object]) -> Iterator[Record]:
        if self.form != "capture":
            raise TraceError(f"a file of {self.form} does not grow: only a capture can be followed")
        at, mark = 0, None
        while True:
            self.size = os.fstat(self._file.fileno()).st_size
            if self.size > at:
                with self._mapped() as buffer:
                    mark = mark or mark_of(buffer)
                    for block in read_blocks(buffer, at, mark=mark) if mark else ():
                        if isinstance(block, Damage) and block.torn:
                            break
                        at = block.offset + block.size
                        yield from self._records(block)
            wait()

    def _mapped(self) -> contextlib.AbstractContextManager[Any]:
        if not os.fstat(self._file.fileno()).st_size:
            return contextlib.nullcontext(b"")  # empty files cannot be mapped
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)


def _opened(path: Path) -> io.BufferedReader:
    return open(0, "rb", closefd=False) if path == _STANDARD_INPUT else path.open("rb")


def _copy(pipe: io.BufferedReader | io.BufferedRandom) -> io.BufferedRandom:
    """Returns a temporary file with all bytes of a pipe, which it closes."""
    copy = tempfile.TemporaryFile("w+b")  # noqa: SIM115 — closed by its owner
    with pipe:
        shutil.copyfileobj(pipe, copy)
    copy.seek(0)
    return copy


def check_suffix(given: Path | str) -> Path:
    """Returns the path of a trace to write. Raises UnknownSuffix unless its suffix names a form."""
    path = Path(given)
    if path.suffix not in _WRITERS:
        raise UnknownSuffix(path)
    return path


def is_trace(path: Path) -> bool:
    """Whether a file is a trace by its name, or by its first bytes if it exists. Raises OSError."""
    if path.suffix in _WRITERS:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
    return start.startswith((MAGIC, *_PACKET_MAGICS)) or (is_fixture(start) and b'"segstore_trace"' in start)


def redacted(records: Iterable[Record]) -> Iterator[Record]:
    """Yields the records with delegation tokens overwritten; lengths stay the same."""
    for record in records:
        data = redacted_data(record)
        yield record if data is record.data else record._replace(data=data)


def write_trace(
    path: Path, records: Iterable[Record], metadata: Callable[[], Metadata], *, compress: bool = False
) -> int:
    """Writes a trace in the form named by the suffix of `path`, replacing an existing file; returns the record count.

    metadata: called after the first record. Raises UnknownSuffix, OSError and what `records` raises; an existing
    file is then unchanged.
    """
    check_suffix(path)
    count = 0

    def counted() -> Iterator[Record]:
        nonlocal count
        for count, record in enumerate(records, 1):  # noqa: B007 — read outside
            yield record

    rest = counted()
    first = list(itertools.islice(rest, 1))
    with replacing(path) as file:
        file.writelines(_WRITERS[path.suffix](itertools.chain(first, rest), metadata(), compress))
    return count


def make_folder(path: Path) -> None:
    """Creates a folder and its parents unless it exists. Raises OSError, also if no file can be created in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise of_file(error, path) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file, readable only by its owner, that replaces `path` at the end unless the block fails.

    A link stays, and its target is replaced. A device or pipe is written to. An OSError in writing names `path`.
    """
    if path.exists() and not path.is_file():
        with _naming(path, path), path.open("wb") as there:
            yield there
        return
    real = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links
    part = real.with_name(f".{real.name}.{os.getpid()}.part")
    with _naming(path, part):
        try:
            with open(part, "xb", opener=_owners) as file:
                yield file
            part.replace(real)
        finally:
            part.unlink(missing_ok=True)  # gone if it has taken its place


@contextlib.contextmanager
def _naming(path: Path, written: Path) -> Iterator[None]:
    """Makes errors of the system that name no file, or the file being written, name `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(written)):
            raise
        raise of_file(error, path) from error


def of_file(error: OSError, path: Path | str) -> OSError:
    """Returns an error of writing that names the file: the system's error names no file, or the unfinished part."""
    return error if error.errno is None else OSError(error.errno, error.strerror, str(path))


def _fixture(records: Iterator[Record], metadata: Metadata, _: bool) -> Iterator[bytes]:
    return map(str.encode, write_lines(metadata, records))


def _capture(records: Iterator[Record], metadata: Metadata, compress: bool) -> Iterator[bytes]:
    first = tuple(itertools.islice(records, 1))
    # The mark is a digest instead of random bytes, so equal traces give equal files.
    mark = make_mark(hashlib.blake2b(repr((metadata, first)).encode(), digest_size=8).digest())
    writer = RecordWriter(mark, metadata, compress=compress)
    yield writer.start()
    for record in itertools.chain(first, records):
        yield writer.add(record)
    yield writer.take()


def _packets(records: Iterator[Record], metadata: Metadata, _: bool) -> Iterator[bytes]:
    from segstore.traces.packets import write_capture

    return write_capture(records, metadata)


_WRITERS: Final = {CAPTURE: _capture, FIXTURE: _fixture, PACKETS: _packets}


def _owners(path: str, flags: int) -> int:
    """Opens a file readable only by its owner: traffic is confidential and may contain tokens."""
    return os.open(path, flags, 0o600)


def _pages(size: int) -> mmap.mmap:
    """Returns memory that starts at a page. Writing it past the system's cache takes less time with huge pages."""
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages uses small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class FileRecorder(TraceRecorder):
    """Records to a new file.

    Methods return immediately, except that the call which completes a block writes it, with one system call. Full
    blocks bypass the system's cache if possible, because making room there costs more than everything else. Call `tick`
    at least once per `FLUSH_AFTER_NS`, so that old data is written without further traffic. If the disk fails, the
    recording ends with a log line and sets `failure`; the server continues.

    Raises OSError, and FileExistsError for an existing file, which a recording never replaces.
    """

    def __init__(
        self,
        path: Path,
        metadata: Metadata,
        *,
        record_tokens: bool = False,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = path
        self.failure: OSError | None = None
        self._memory = _pages(BLOCK_BYTES + SPARE_BYTES)
        self._columns = mmap.mmap(-1, mmap.PAGESIZE)  # the columns of a block end where it ends
        self._position = 0
        self._direct: int | None = None
        writer = TraceWriter(
            make_mark(os.urandom(8)),
            metadata,
            redact=None if record_tokens else redact,
            redact_codes=SECRET_CODES,
            max_frame_bytes=max_frame_bytes,
            memory=memoryview(self._memory),
            columns=self._memory_of_columns,
        )
        super().__init__(writer, clock)
        try:
            self._file: io.FileIO | None = io.FileIO(path, "xb", opener=_owners)
        except FileExistsError as cause:
            problem = "the file exists, and a recording never overwrites a file"
            raise FileExistsError(cause.errno, problem, str(path)) from cause
        self._write([self._writer.start()])
        if self.failure is not None:
            raise self.failure
        if _DIRECT:
            with contextlib.suppress(OSError):  # file systems without direct I/O use ordinary writes
                self._direct = os.open(path, os.O_WRONLY | _DIRECT)

    def close(self) -> None:
        """Writes pending data and closes the file. Can be called twice."""
        if self._file is not None:
            self._write(self._writer.finish_parts(self._clock()))
        self._end()

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def take_block(self) -> None:
        self._write(self._writer.take_parts())

    def received(self, connection: int, data: Buffer, *, lasting: bool = False) -> bool:
        self._add(connection, 0, data)
        return False

    def sent(self, connection: int, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self._add(connection, 1, part)

    def _add(self, connection: int, direction: int, data: Buffer) -> None:
        """Records bytes; if there are too many for this block, the rest begins the next block."""
        writer, now = self._writer, self._clock()
        if len(data) > _SMALL_BYTES and len(data) > (room := writer.room(connection, direction)):
            writer.add(now, connection, direction, memoryview(data)[:room])
            self.take_block()
            data = memoryview(data)[room:]
        if writer.add(now, connection, direction, data):
            self.take_block()

    def _memory_of_columns(self, size: int) -> memoryview:
        """Returns the end of the memory for columns, with room for a header and a filler before it."""
        filled = len(self._writer.start()) + HEADER_BYTES + size
        if filled + mmap.PAGESIZE > len(self._columns):
            self._columns = mmap.mmap(-1, (filled // mmap.PAGESIZE + 2) * mmap.PAGESIZE)
        return memoryview(self._columns)[len(self._columns) - size :]

    def _write(self, parts: list[Buffer]) -> None:
        if self._file is None or not any(parts):
            return
        try:
            if self._direct is not None and self._writer.data_start == 0 and len(parts[-2]) >= _DIRECT_BYTES:
                self._write_direct(self._file, self._direct, parts)
            else:
                self._write_all(self._file, parts)
        except OSError as error:
            log.error("recording to %s has ended: %s", self.path, error)
            self.failure = of_file(error, self.path)
            self._end()

    def _write_all(self, file: io.FileIO, parts: list[Buffer]) -> None:
        if len(parts) > _MOST_PARTS:
            parts = [b"".join(parts)]
        size = sum(map(len, parts))
        left = size - os.writev(file.fileno(), parts)
        if left:
            # Partial write, as on a nearly full disk.
            view = memoryview(b"".join(parts))[-left:]
            while view:
                view = view[os.writev(file.fileno(), [view]) :]
        self._position += size

    def _write_direct(self, file: io.FileIO, direct: int, parts: list[Buffer]) -> None:
        """Writes a block whose data is at the start of `_memory`, in whole pages, padded with filler blocks."""
        page, filler = mmap.PAGESIZE, self._writer.filler
        header, columns, data, padding = parts
        size = len(header) + len(columns)
        first = filler(self._position, page)
        if first:
            self._write_all(file, [first])
        head = filler(size, page) + bytes(header)
        tail = bytes(padding) + filler(len(data) + len(padding), page)
        end = len(data) + len(tail)
        if end > len(self._memory):
            self._write_all(file, parts)
            return
        of_columns = len(self._columns) - len(columns)
        start = of_columns - len(head)
        self._columns[start:of_columns] = head
        self._memory[len(data) : end] = tail
        pages: list[Buffer] = [memoryview(self._columns)[start:], memoryview(self._memory)[:end]]
        try:
            written = os.pwritev(direct, pages, self._position)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            written = 0  # the file system refuses direct writes only now
            os.close(direct)
            self._direct = None
        os.lseek(file.fileno(), self._position + written, os.SEEK_SET)
        self._position += written
        left = len(pages[0]) + end - written
        if left:
            self._write_all(file, [memoryview(b"".join(pages))[-left:]])
