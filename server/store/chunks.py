"""Storage for segment bytes: chunks that grow with the segment, and a pool that recycles the large ones.

Ownership of buffers. A write copies the caller's bytes once; the caller may reuse its buffer at once. A read returns
read-only views of the chunks and copies nothing. A view stays valid and unchanged as long as it is held, whatever
happens to the segment: bytes are written only above the used part of a chunk, and a chunk is reused only when no view
of it is left (`has_views`). A chunk with views stays idle, or is freed by the garbage collector if the pool is full.

Chunks of 64 KiB and more are mapped, so that their pages take memory only once they are written to: many segments that
grow at the same pace also get their next chunks at the same time. The first write to such a page costs several times
the copy itself. Therefore these chunks are recycled, and chunks large enough for huge pages (4 MiB) use them where the
system supports it.

Invariant: chunk i holds the offsets from `_starts[i]` to `_starts[i + 1]` (the last one to `length`); chunks are
never resized or moved. The first chunk of a segment is 256 bytes and each further one four times larger, up to 4 MiB,
so that a small segment is small and a large one consists of large chunks.

A store with a data directory replaces chunks whose bytes are in a file with a `FileChunk`: the same bytes at the same
offsets, read on demand. Only chunks that are no longer written to are replaced.

This module knows nothing of segments' states, names or time; the caller checks offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from segstore.server.areas import LOOK_AT, MAPPED_BYTES, Memory, has_views, new_memory
from segstore.server.store.memory import MemoryAccount

Buffer = bytes | bytearray | memoryview


class ChunkSource(Protocol):
    """A file that holds bytes of segments and never changes."""

    def views(self, at: int, size: int) -> list[memoryview]:
        """Returns `size` bytes from `at`. Raises `DataDamaged` if they are corrupt."""


class FileChunk(NamedTuple):
    """A chunk in a file: `size` bytes from `at`."""

    source: ChunkSource
    at: int
    size: int


Chunk = Memory | FileChunk


class ChunkExtent(NamedTuple):
    """The part of a segment in one chunk: `size` bytes from offset `start`, at the beginning of `chunk`."""

    start: int
    size: int
    chunk: Chunk


CHUNK_BYTES: Final = 4 * 1024 * 1024
FIRST_CHUNK_BYTES: Final = 256
_GROWTH: Final = 4
_SMALL_BYTES: Final = 2048
_IDLE_BYTES: Final = 256 * 1024 * 1024
_NO_IDLE: Final[deque[Memory]] = deque()


class ChunkPool:
    """Keeps up to `max_idle_bytes` of chunks for reuse; the allocator handles chunks below 64 KiB.

    The pool first frees chunks of the size released least recently, so that it follows the needs of the segments.

    `counted`: chunks are charged to `memory`, and writes are refused while that is full.

    Attributes:
        idle_bytes: bytes in idle chunks, including chunks with views.
    """

    __slots__ = ("_charged", "_idle", "_max_idle_bytes", "idle_bytes", "memory")

    def __init__(
        self, *, max_idle_bytes: int = _IDLE_BYTES, memory: MemoryAccount | None = None, counted: bool = True
    ) -> None:
        self.memory = MemoryAccount() if memory is None else memory
        self._charged = self.memory if counted else MemoryAccount()
        if self._charged.limit is not None:
            max_idle_bytes = min(max_idle_bytes, self._charged.limit // 8)
        self._idle: dict[int, deque[Memory]] = {}
        """Idle chunks by size; the size that was released last comes last."""
        self._max_idle_bytes = max_idle_bytes
        self.idle_bytes = 0

    def check(self, size: int, *, frees: bool = False) -> None:
        """Raises `StoreFull` if chunks of `size` bytes would exceed the limit; see `MemoryAccount.check`."""
        self._charged.check(size, frees=frees)

    def take(self, sizes: Sequence[int], *, decided: bool = False) -> list[Memory]:
        """Returns chunks of exactly these sizes, with arbitrary content and without views.

        Raises `MemoryError`, and unless `decided` `StoreFull` if they would exceed the limit.
        """
        total = sum(sizes)
        if not decided:
            self.check(total)
        chunks = [self._take(size) for size in sizes]
        self._charged.charge(total)
        return chunks

    def _take(self, size: int) -> Memory:
        idle = self._idle.get(size, _NO_IDLE)
        for _ in range(min(LOOK_AT, len(idle))):
            chunk = idle.popleft()
            if not has_views(chunk):
                self.idle_bytes -= size
                return chunk
            idle.append(chunk)
        return new_memory(size)

    def give(self, chunk: Chunk) -> None:
        """Takes back a chunk that no segment refers to any more; readers may still hold views of it."""
        if isinstance(chunk, FileChunk):
            return
        size = len(chunk)
        self._charged.charge(-size)
        if not MAPPED_BYTES <= size <= self._max_idle_bytes:
            return
        self._idle.setdefault(size, deque()).append(chunk)
        self.idle_bytes += size
        self._idle[size] = self._idle.pop(size)
        while self.idle_bytes > self._max_idle_bytes:
            first, idle = next(iter(self._idle.items()))
            if idle:
                idle.popleft()
                self.idle_bytes -= first
            else:
                del self._idle[first]


_NO_TAIL: Final = memoryview(bytearray())
_NO_STARTS: Final[list[int]] = []
_NO_CHUNKS: Final[list[Chunk]] = []


class SegmentData:
    """The bytes of one segment, from `start_offset` to `length`."""

    __slots__ = ("_chunks", "_pool", "_starts", "_tail", "_tail_size", "_tail_used", "length", "start_offset")

    def __init__(self, pool: ChunkPool) -> None:
        self._pool = pool
        # Shared and never changed: a segment without data costs no lists.
        self._starts: list[int] = _NO_STARTS
        self._chunks: list[Chunk] = _NO_CHUNKS
        self._tail: memoryview = _NO_TAIL
        self._tail_used = 0
        self._tail_size = 0
        self.start_offset = 0
        self.length = 0

    def write(self, data: Buffer, *, decided: bool = False) -> None:
        """Appends a copy of `data`. If it fails (`MemoryError`, `StoreFull`), nothing is written.

        `decided`: the change is decided, so it is not refused if the pool's account is full.
        """
        size = len(data)
        used = self._tail_used
        end = used + size
        if end <= self._tail_size:
            self._tail[used:end] = data
            self._tail_used = end
            self.length += size
        else:
            self._write_across(memoryview(data), decided)

    def write_all(self, parts: Sequence[Buffer], *, decided: bool = False) -> None:
        """Appends the parts, in order, as one `write`."""
        # All memory that is needed comes first, so that no part is written without the rest. Small parts are copied
        # twice, because that takes less time than many writes.
        is_small = not parts or len(parts[0]) < _SMALL_BYTES
        if is_small or self._tail_used + sum(map(len, parts)) > self._tail_size:
            self.write(b"".join(parts), decided=decided)
        else:
            for part in parts:
                self.write(part)

    def read(self, offset: int, size: int) -> list[memoryview]:
        """Returns views of `size` bytes; `start_offset <= offset` and `offset + size <= length` must hold."""
        views: list[memoryview] = []
        if size <= 0:
            return views
        starts = self._starts
        index = bisect_right(starts, offset) - 1
        at = offset - starts[index]
        while True:
            following = starts[index + 1] if index + 1 < len(starts) else self.length
            part = min(size, following - starts[index] - at)
            chunk = self._chunks[index]
            if type(chunk) is FileChunk:
                views += chunk.source.views(chunk.at + at, part)
            else:
                views.append(memoryview(chunk).toreadonly()[at : at + part])  # type: ignore[arg-type]
            size -= part
            if size == 0:
                return views
            index += 1
            at = 0

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Returns a copy of `size` bytes from `offset`; bounds as in `read`."""
        return b"".join(self.read(offset, size))

    def truncate(self, offset: int) -> None:
        """Drops the bytes before `offset`, which is in the segment, and releases chunks that are not needed."""
        self.start_offset = offset
        if offset == self.length:
            self._release_chunks()
            return
        keep = bisect_right(self._starts, offset) - 1
        if keep > 0:
            for chunk in self._chunks[:keep]:
                self._pool.give(chunk)
            del self._chunks[:keep]
            del self._starts[:keep]

    def absorb(self, other: SegmentData) -> None:
        """Moves the bytes of `other`, which starts at 0, to the end of this segment; `other` is empty afterwards.

        Large data is moved without a copy. Data smaller than a chunk is copied, because moving it would waste the rest
        of this segment's last chunk.
        """
        if other.length < CHUNK_BYTES:
            self.write_all(other.read(0, other.length), decided=True)
        else:
            if not self._chunks:
                self._starts, self._chunks = [], []
            self._starts.extend(self.length + start for start in other._starts)
            self._chunks.extend(other._chunks)
            self._tail, self._tail_used, self._tail_size = other._tail, other._tail_used, other._tail_size
            self.length += other.length
            other._forget()
        other.clear()

    def clear(self) -> None:
        """Releases all chunks and resets the segment to offset 0."""
        self._release_chunks()
        self.start_offset = 0
        self.length = 0

    # For data directories

    @property
    def in_files(self) -> bool:
        return any(isinstance(chunk, FileChunk) for chunk in self._chunks)

    def pieces(self) -> list[ChunkExtent]:
        """Returns the segment's pieces, one for each chunk. The first may begin before `start_offset`."""
        ends = [*self._starts[1:], self.length]
        return [
            ChunkExtent(start, end - start, chunk)
            for start, end, chunk in zip(self._starts, ends, self._chunks, strict=False)  # no chunk: no start, an end
        ]

    def cut_tail(self) -> None:
        """Starts a new chunk with the next write, so that existing chunks never change again."""
        self._tail, self._tail_used, self._tail_size = _NO_TAIL, 0, 0

    def replace(self, stored: Mapping[int, tuple[ChunkExtent, FileChunk]]) -> None:
        """Replaces chunks with file chunks. `stored`: `id` of a chunk → the saved piece and its file chunk.

        The tail must not be among them. Adjacent pieces in one file become one chunk.
        """
        pieces: list[ChunkExtent] = []
        for piece in self.pieces():
            saved_as = stored.get(id(piece.chunk))
            if saved_as is None or saved_as[0].chunk is not piece.chunk:
                pieces.append(piece)
                continue
            saved, chunk = saved_as
            # The saved piece may lack a truncated part at the beginning.
            pieces.append(ChunkExtent(piece.start + piece.size - saved.size, saved.size, chunk))
            self._pool.give(piece.chunk)
        self._starts, self._chunks = [], []
        self._take_pieces(pieces)

    def restore(self, start_offset: int, length: int, pieces: Iterable[ChunkExtent]) -> None:
        """Fills an empty segment with pieces, which are read-only."""
        self._forget()
        self._starts, self._chunks = [], []
        self._take_pieces(pieces)
        self.start_offset = start_offset
        self.length = length

    def _take_pieces(self, pieces: Iterable[ChunkExtent]) -> None:
        for start, _, chunk in pieces:
            before = self._chunks[-1] if self._chunks else None
            if (
                isinstance(chunk, FileChunk)
                and isinstance(before, FileChunk)
                and chunk.source is before.source
                and chunk.at == before.at + before.size
                and start == self._starts[-1] + before.size
            ):
                self._chunks[-1] = FileChunk(before.source, before.at, before.size + chunk.size)
                continue
            self._starts.append(start)
            self._chunks.append(chunk)

    def _write_across(self, data: memoryview, decided: bool) -> None:
        room = self._tail_size - self._tail_used
        sizes: list[int] = []
        missing = len(data) - room
        size = self._tail_size
        while missing > 0:
            size = _next_size(size, missing)
            sizes.append(size)
            missing -= size
        fresh = self._pool.take(sizes, decided=decided)
        if not self._chunks:
            self._starts, self._chunks = [], []
        self._tail[self._tail_used :] = data[:room]
        at = room
        for chunk in fresh:
            part = min(len(chunk), len(data) - at)
            self._starts.append(self.length + at)
            self._chunks.append(chunk)
            self._tail = memoryview(chunk)
            self._tail_size = len(chunk)
            self._tail_used = part
            self._tail[:part] = data[at : at + part]
            at += part
        self.length += len(data)

    def _release_chunks(self) -> None:
        chunks = self._chunks
        # The tail's view must be released before the pool tests the chunk for views.
        self._forget()
        for chunk in chunks:
            self._pool.give(chunk)

    def _forget(self) -> None:
        self._starts, self._chunks = _NO_STARTS, _NO_CHUNKS
        self.cut_tail()


def _next_size(previous: int, missing: int) -> int:
    """Returns the size of the next chunk. previous: size of the last chunk, or 0. missing: bytes yet to be written."""
    if missing >= CHUNK_BYTES:
        return CHUNK_BYTES
    grown = max(FIRST_CHUNK_BYTES, previous * _GROWTH)
    return min(CHUNK_BYTES, max(grown, 1 << (missing - 1).bit_length()))
