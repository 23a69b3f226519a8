"""Chunk files: segment bytes on disk, written once and verified block by block on every read.

A file consists of data, a table with the CRC-32 of each 32 KiB block of the data, and a footer of 40 bytes: magic,
version, the file's number, length of the data, block size, CRC of the table, CRC of the footer itself. The snapshot
that refers to the file also records the table's CRC, so a replaced file is detected. Several segments can share a file.

Invariant: every byte returned to a caller was verified by its checksum when it was read from the file; `DataDamaged`
otherwise. Blocks that were read are cached, up to a limit in bytes; files are not kept open.

Refused: writing to an existing file.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from segstore.server.durable.files import Files, file_name, open_regular
from segstore.server.store import Buffer, DataDamaged

BLOCK_BYTES: Final = 32 * 1024

_MAGIC: Final = b"SEGCHUNK"
_VERSION: Final = 1
_FOOTER: Final = Struct(">8sIQQIII")
_CRC: Final = Struct(">I")


class ChunkFileInfo(NamedTuple):
    """A snapshot's record of a file. length: of its data."""

    number: int
    length: int
    table_crc: int

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.length + _blocks(self.length) * _CRC.size + _FOOTER.size


def _blocks(length: int) -> int:
    return -(-length // BLOCK_BYTES)


def write(files: Files, folder: Path, number: int, parts: Iterable[Buffer]) -> ChunkFileInfo:
    """Writes a file of these parts, in order, and waits until it is on disk. Raises `OSError`."""
    descriptor = files.create(folder / file_name("chunk", number))
    try:
        table = bytearray()
        length, in_block, crc = 0, 0, 0
        for part in parts:
            view = memoryview(part)
            files.write(descriptor, view)
            length += len(view)
            while view:
                some = view[: BLOCK_BYTES - in_block]
                crc = crc32(some, crc)
                in_block += len(some)
                view = view[len(some) :]
                if in_block == BLOCK_BYTES:
                    table += _CRC.pack(crc)
                    in_block, crc = 0, 0
        if in_block:
            table += _CRC.pack(crc)
        info = ChunkFileInfo(number, length, crc32(table))
        files.write(descriptor, bytes(table) + _footer(info))
        files.sync(descriptor)
    finally:
        os.close(descriptor)
    return info


def _footer(info: ChunkFileInfo) -> bytes:
    fields = _FOOTER.pack(_MAGIC, _VERSION, info.number, info.length, BLOCK_BYTES, info.table_crc, 0)[: -_CRC.size]
    return fields + _CRC.pack(crc32(fields))


class BlockCache:
    """LRU cache of blocks, with at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def get(self, number: int, index: int) -> bytes | None:
        """Returns a block of a file, or None if it is not cached."""
        block = self._blocks.get((number, index))
        if block is not None:
            self._blocks.move_to_end((number, index))
        return block

    def put(self, number: int, index: int, block: bytes) -> None:
        """Caches a block and evicts the least recently used blocks."""
        key = (number, index)
        if key in self._blocks:
            return
        self._blocks[key] = block
        self.held_bytes += len(block)
        while self.held_bytes > self.max_bytes and self._blocks:
            _, gone = self._blocks.popitem(last=False)
            self.held_bytes -= len(gone)


class ChunkFile:
    """One file, for reading; `info` is the snapshot's record of it."""

    __slots__ = ("_cache", "_table", "info", "path")

    def __init__(self, folder: Path, info: ChunkFileInfo, cache: BlockCache) -> None:
        self.path = folder / file_name("chunk", info.number)
        self.info = info
        self._cache = cache
        self._table: bytes | None = None

    def views(self, at: int, size: int) -> list[memoryview]:
        """Returns `size` bytes from `at`, in views that never change. Raises `DataDamaged`."""
        if size <= 0:
            return []
        first, last = at // BLOCK_BYTES, (at + size - 1) // BLOCK_BYTES
        number, cache = self.info.number, self._cache
        blocks = [cache.get(number, index) for index in range(first, last + 1)]
        missing = [index for index, block in enumerate(blocks) if block is None]
        if missing:
            begin = missing[0]
            for index, read in enumerate(self.read_blocks(first + begin, first + missing[-1]), begin):
                blocks[index] = read
                cache.put(number, first + index, read)
        views: list[memoryview] = []
        at -= first * BLOCK_BYTES
        for block in blocks:
            assert block is not None
            part = memoryview(block)[at : at + size]
            views.append(part)
            size -= len(part)
            at = 0
        return views

    def read(self, at: int, size: int) -> bytes:
        """As `views`, but without the cache, which belongs to another thread. Raises `DataDamaged`."""
        first, last = at // BLOCK_BYTES, (at + size - 1) // BLOCK_BYTES
        at -= first * BLOCK_BYTES
        return b"".join(self.read_blocks(first, last))[at : at + size]

    def read_blocks(self, first: int, last: int) -> list[bytes]:
        """Returns verified blocks from the file. Raises `DataDamaged`."""
        start = first * BLOCK_BYTES
        wanted = min((last + 1) * BLOCK_BYTES, self.info.length) - start
        try:
            with open_regular(self.path) as file:
                if self._table is None:
                    self._table = self._read_table(file.fileno())
                data = _read(file.fileno(), start, wanted)
        except OSError as error:
            raise DataDamaged(str(self.path), f"it cannot be read: {error.strerror or error}", offset=start) from error
        blocks = []
        for index in range(first, last + 1):
            at = index * BLOCK_BYTES - start
            block = data[at : at + BLOCK_BYTES]
            (expected,) = _CRC.unpack_from(self._table, index * _CRC.size)
            if crc32(block) != expected:
                raise DataDamaged(str(self.path), "a block does not have its checksum", offset=start + at)
            blocks.append(block)
        return blocks

    def check_size(self, size: int) -> None:
        """Raises `DataDamaged` unless `size` is the file's, as it was written."""
        if size != self.info.file_bytes:
            raise DataDamaged(str(self.path), f"it has {size} bytes, {self.info.file_bytes} were written")

    def _read_table(self, descriptor: int) -> bytes:
        info, size = self.info, os.fstat(descriptor).st_size
        self.check_size(size)
        tail = _read(descriptor, info.length, size - info.length)
        table, footer = tail[: -_FOOTER.size], tail[-_FOOTER.size :]
        if footer != _footer(info):
            raise DataDamaged(str(self.path), "its footer is not the one that was written", offset=size - _FOOTER.size)
        if crc32(table) != info.table_crc:
            raise DataDamaged(str(self.path), "its checksums do not have their checksum", offset=info.length)
        return table


def check(file: ChunkFile) -> None:
    """Reads and verifies a whole file. Raises `DataDamaged`."""
    blocks = _blocks(file.info.length)
    for first in range(0, blocks, 128):
        file.read_blocks(first, min(first + 128, blocks) - 1)


def _read(descriptor: int, at: int, size: int) -> bytes:
    data = os.pread(descriptor, size, at)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), at + len(data))
        if not more:
            raise OSError(f"it ends at byte {at + len(data)}")
        data += more
    return data
