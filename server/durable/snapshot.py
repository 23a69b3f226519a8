"""Snapshots: the state of containers at a batch, so that recovery replays only the journal after it.

There are three steps, because the loop must not wait for a disk. 1. `capture` runs on the loop: it copies a container's
state into immutable values and cuts the tails of segments, so that their chunks no longer change. 2. `save` runs in a
thread: it writes segment bytes that are not in chunk files yet to chunk files (small amounts to the snapshot itself),
then the snapshot. 3. `install`, on the loop again, replaces the saved chunks with file chunks, which frees memory.

Containers are captured one by one, each container with the number of its last batch; recovery applies the operations of
later batches. So a capture blocks the loop for one container at a time.

A chunk file less than half in use is rewritten (`sparse`), so that truncated and deleted data release their disk space.

Invariant: a restored container equals the captured container, except for waiting readers and owners of transient
segments. The manifest has the CRC of the whole file; the caller of `read` has checked it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID
from zlib import crc32

import msgspec

from segstore.server.durable import chunk_files
from segstore.server.durable.chunk_files import BlockCache, ChunkFile, ChunkFileInfo
from segstore.server.durable.files import Files
from segstore.server.store import Buffer, ChunkExtent, Container, FileChunk, Kind, Segment, pack_name, unpack_name
from segstore.server.store.tables import TableSegment

_MAGIC: Final = b"SEGSNAP1"
_INLINE_BYTES: Final = 4096
"""If less than this of a segment is not in chunk files, it is stored in the snapshot."""
_FILE_BYTES: Final = 16 * 1024 * 1024
_OWN_FILE_BYTES: Final = 1024 * 1024
_TOGETHER: Final = 256


class _Extent(msgspec.Struct, frozen=True, array_like=True):
    """`size` bytes from offset `start`: in a chunk file from `at`, or inline."""

    start: int
    size: int
    file: int = 0
    at: int = 0
    data: bytes = b""


class _Segment(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: int
    values: tuple[tuple[UUID, int], ...]
    modified_ms: int
    sealed: bool
    start_offset: int
    length: int
    extents: tuple[_Extent, ...]
    key_length: int = 0
    live_bytes: int = 0
    positions: tuple[tuple[bytes, int], ...] = ()
    mapped: bool = True


class _Files(msgspec.Struct, frozen=True, array_like=True, tag="files"):
    files: tuple[ChunkFileInfo, ...]


class _Container(msgspec.Struct, frozen=True, array_like=True, tag="container"):
    container_id: int
    batch: int
    retired: tuple[str, ...]
    unindexed: tuple[str, ...]


class _Segments(msgspec.Struct, frozen=True, array_like=True, tag="segments"):
    segments: tuple[_Segment, ...]


class _Other(msgspec.Struct, frozen=True, array_like=True, tag="other"):
    """The controller's state."""

    batch: int
    data: bytes


_Record = _Files | _Container | _Segments | _Other
_ENCODER: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: Final[msgspec.msgpack.Decoder[_Record]] = msgspec.msgpack.Decoder(_Record)


class _Taken(NamedTuple):
    """A captured segment: everything except its bytes, and its bytes."""

    segment: Segment
    image: _Segment
    pieces: list[ChunkExtent]
    views: list[list[memoryview] | None]
    """For each piece, the bytes to save: empty if they are in a file to be rewritten, None if that file is kept.

    The first piece may be only the end of its chunk, if the segment was truncated.
    """


class Captured(NamedTuple):
    """A container at a batch."""

    container: Container
    header: _Container
    segments: list[_Taken]


class Saved(NamedTuple):
    """The result of `save`. files: all chunk files that the snapshot refers to. stored: see `SegmentData.replace`."""

    size: int
    crc: int
    files: dict[int, ChunkFile]
    stored: dict[int, tuple[ChunkExtent, FileChunk]]


class Image(NamedTuple):
    """A container in a snapshot."""

    header: _Container
    segments: list[_Segment]


class Snapshot(NamedTuple):
    """A whole snapshot: the containers, batch and bytes of the controller's state, the chunk files by number."""

    images: list[Image]
    controller: tuple[int, bytes] | None
    chunks: dict[int, ChunkFile]


def sparse(containers: Iterable[Container]) -> set[int]:
    """Returns the numbers of chunk files less than half in use."""
    return {number for number, (length, used) in usage_of(containers).items() if 2 * used < length}


def usage_of(containers: Iterable[Container]) -> dict[int, tuple[int, int]]:
    """Returns the lengths of the chunk files in use, and how many of these bytes are in segments."""
    usage: dict[int, tuple[int, int]] = {}
    for container in containers:
        for segment in container.segments.values():
            for start, size, chunk in segment.pieces() if segment.in_files else ():
                if isinstance(chunk, FileChunk):
                    assert isinstance(chunk.source, ChunkFile)
                    info, used = chunk.source.info, min(size, start + size - segment.start_offset)
                    usage[info.number] = info.length, usage.get(info.number, (0, 0))[1] + used
    return usage


# --- taking -------------------------------------------------------------------------------------------------------


def capture(container: Container, batch: int, rewritten: set[int]) -> Captured:
    """Captures a container after batch `batch`; bytes in the chunk files `rewritten` are saved again."""
    taken = [_take(segment, rewritten) for segment in container.segments.values()]
    return Captured(container, _header(container, batch), taken)


def _header(container: Container, batch: int) -> _Container:
    retired = tuple(map(pack_name, container.retired_names))
    unindexed = tuple(map(pack_name, container.unindexed_names))
    return _Container(container.container_id, batch, retired, unindexed)


def _take(segment: Segment, rewritten: set[int]) -> _Taken:
    pieces = segment.pieces()
    first = segment.start_offset
    if pieces and pieces[0].start < first:
        start, size, chunk = pieces[0]
        pieces[0] = ChunkExtent(first, size - first + start, chunk)
    views: list[list[memoryview] | None] = []
    for start, size, chunk in pieces:
        if isinstance(chunk, FileChunk):
            views.append([] if chunk.source.info.number in rewritten else None)  # type: ignore[attr-defined]
        else:
            views.append(segment.read(start, size))
    if any(views):
        segment.cut_tail()
    return _Taken(segment, _image(segment), pieces, views)


def _image(segment: Segment, extents: tuple[_Extent, ...] = ()) -> _Segment:
    table = segment.table
    kind = Kind.TRANSIENT if segment.is_transient else Kind.STREAM if table is None else Kind.TABLE
    return _Segment(
        pack_name(segment.name),
        kind.value,
        tuple(segment.attribute_values()),
        segment.last_modified_ms,
        segment.sealed,
        segment.start_offset,
        segment.length,
        extents,
        0 if table is None else table.key_length,
        0 if table is None else table.live_bytes,
        () if table is None else table.positions(),
        segment.mapped,
    )


def copy_of(container: Container) -> Image:
    """Returns an immutable copy of a container, with the bytes of its segments; `restore` needs no files for it."""
    copies = []
    for segment in container.segments.values():
        start, size = segment.start_offset, segment.length - segment.start_offset
        copies.append(_image(segment, (_Extent(start, size, data=segment.read_bytes(start, size)),) if size else ()))
    return Image(_header(container, 0), copies)


# --- saving -------------------------------------------------------------------------------------------------------


class _ChunkWriter:
    """Collects bytes of segments into chunk files."""

    def __init__(self, files: Files, folder: Path, cache: BlockCache, next_number: Callable[[], int]) -> None:
        self._files = files
        self._folder = folder
        self._cache = cache
        self._next_number = next_number
        self._parts: list[Buffer] = []
        self._waiting: list[tuple[ChunkExtent, int]] = []
        self._bytes = 0
        self.stored: dict[int, tuple[ChunkExtent, FileChunk]] = {}

    def add(self, pieces: list[tuple[ChunkExtent, list[memoryview]]]) -> None:
        """Adds the pieces of one segment."""
        if self._bytes and sum(piece.size for piece, _ in pieces) >= _OWN_FILE_BYTES:
            self.flush()
        for piece, views in pieces:
            if self._bytes >= _FILE_BYTES:
                self.flush()
            if isinstance(piece.chunk, FileChunk):
                source, skip = piece.chunk.source, piece.chunk.size - piece.size
                assert isinstance(source, ChunkFile)
                self._parts.append(source.read(piece.chunk.at + skip, piece.size))
            else:
                self._parts += views
            self._waiting.append((piece, self._bytes))
            self._bytes += piece.size

    def flush(self) -> None:
        """Writes the collected pieces to a file."""
        if not self._bytes:
            return
        info = chunk_files.write(self._files, self._folder, self._next_number(), self._parts)
        file = ChunkFile(self._folder, info, self._cache)
        for piece, at in self._waiting:
            self.stored[id(piece.chunk)] = piece, FileChunk(file, at, piece.size)
        self._parts, self._waiting, self._bytes = [], [], 0


def save(
    files: Files,
    path: Path,
    captured: Iterable[Captured],
    other: tuple[int, bytes] | None,
    cache: BlockCache,
    next_number: Callable[[], int],
) -> Saved:
    """Writes chunk files and the snapshot at `path`, and waits until they are on disk. Raises `OSError`, `DataDamaged`.

    other: batch and bytes of the controller's state. next_number: returns numbers for chunk files.
    """
    captured = list(captured)
    writer = _ChunkWriter(files, path.parent, cache, next_number)
    for copy in captured:
        for taken in copy.segments:
            pending = [
                (piece, views) for piece, views in zip(taken.pieces, taken.views, strict=True) if views is not None
            ]
            if sum(piece.size for piece, _ in pending) >= _INLINE_BYTES:
                writer.add(pending)
    writer.flush()
    used: dict[int, ChunkFile] = {}
    records: list[bytes] = []
    for copy in captured:
        records.append(_ENCODER.encode(copy.header))
        for at in range(0, len(copy.segments), _TOGETHER):
            some = tuple(_finished(taken, writer.stored, used) for taken in copy.segments[at : at + _TOGETHER])
            records.append(_ENCODER.encode(_Segments(some)))
    if other is not None:
        records.append(_ENCODER.encode(_Other(*other)))
    first = _ENCODER.encode(_Files(tuple(file.info for file in used.values())))
    data = b"".join([_MAGIC, *(part for record in (first, *records) for part in (len(record).to_bytes(4), record))])
    files.write_new(path, data)
    files.sync_folder(path.parent)
    return Saved(len(data), crc32(data), used, writer.stored)


def _finished(
    taken: _Taken, stored: Mapping[int, tuple[ChunkExtent, FileChunk]], used: dict[int, ChunkFile]
) -> _Segment:
    extents: list[_Extent] = []
    for piece, views in zip(taken.pieces, taken.views, strict=True):
        saved = stored.get(id(piece.chunk))
        chunk = piece.chunk if saved is None else saved[1]
        if not isinstance(chunk, FileChunk):
            extents.append(_Extent(piece.start, piece.size, data=b"".join(views or ())))
            continue
        source = chunk.source
        assert isinstance(source, ChunkFile)
        number = source.info.number
        used[number] = source
        extents.append(_Extent(piece.start, piece.size, number, chunk.at + chunk.size - piece.size))
    return msgspec.structs.replace(taken.image, extents=tuple(extents))


def install(captured: Iterable[Captured], saved: Saved) -> None:
    """Replaces saved chunks with file chunks; skips segments that were deleted or merged meanwhile."""
    for copy in captured:
        segments = copy.container.segments
        for taken in copy.segments:
            segment = taken.segment
            if segments.get(segment.name) is segment and any(id(piece.chunk) in saved.stored for piece in taken.pieces):
                segment.replace(saved.stored)


# --- reading ------------------------------------------------------------------------------------------------------


def read(data: bytes, folder: Path, cache: BlockCache) -> Snapshot:
    """Decodes a snapshot. Raises `ValueError`."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as a snapshot does")
    images: list[Image] = []
    other: tuple[int, bytes] | None = None
    files: dict[int, ChunkFile] = {}
    at = len(_MAGIC)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        try:
            record = _DECODER.decode(memoryview(data)[at + 4 : at + 4 + size])
        except RecursionError as cause:
            raise ValueError(f"the record at byte {at} is nested too deeply") from cause
        at += 4 + size
        match record:
            case _Files():
                if any(not 0 <= each <= 0xFFFFFFFF for info in record.files for each in (info.number, info.table_crc)):
                    raise ValueError("a chunk file has an impossible number")
                files = {info.number: ChunkFile(folder, info, cache) for info in record.files}
            case _Container():
                images.append(Image(record, []))
            case _Segments():
                if not images:
                    raise ValueError("a segment comes before its container")
                images[-1].segments.extend(record.segments)
            case _Other():
                other = record.batch, record.data
    return Snapshot(images, other, files)


def restore(container: Container, image: Image, files: Mapping[int, ChunkFile]) -> None:
    """Restores an empty container from an image."""
    for segment in image.segments:
        container.adopt(_segment(segment, container, files))
    container.adopt_names(
        retired=map(unpack_name, image.header.retired), unindexed=map(unpack_name, image.header.unindexed)
    )


def _segment(image: _Segment, container: Container, files: Mapping[int, ChunkFile]) -> Segment:
    name = unpack_name(image.name)
    segment = Segment(name, image.kind, container.pool, image.modified_ms)
    for attribute_id, value in image.values:
        segment.set_attribute(attribute_id, value)
    segment.mapped = image.mapped
    if image.sealed:
        segment.seal()
    if any(extent.file for extent in image.extents):
        pieces = [
            ChunkExtent(
                extent.start,
                extent.size,
                FileChunk(files[extent.file], extent.at, extent.size) if extent.file else bytearray(extent.data),
            )
            for extent in image.extents
        ]
        segment.restore(image.start_offset, image.length, pieces)
    else:
        segment.restore(image.start_offset, image.start_offset, ())
        for extent in image.extents:
            segment.write(extent.data, decided=True)
    if segment.is_table:
        segment.table = TableSegment(name, segment, image.key_length)
        segment.table.restore(image.positions, image.live_bytes)
        segment.charge(segment.table.index_bytes)
    return segment
