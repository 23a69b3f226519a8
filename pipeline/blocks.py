"""Finds the blocks of a capture without reading their bodies, by their headers or by an index beside the capture.

An index, `NAME.wtrace.index`, holds a copy of every header, so the blocks of a capture on a store are known after one
request. Numbers are little-endian:

    magic 8s, end u64 (of the last indexed block), crc u32 (CRC-32 of the entries), zeros 4s
    entries: offset u64, header 64s

Invariant: an index changes how often the capture is read, and nothing else. It is ignored with a warning, unless its
checksum is right, its last header is in the capture at the same place, and the capture is not shorter. Blocks that were
added to the capture later are found by their headers.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from segstore.pipeline.storage import File, Storage
from segstore.wire.trace import HEADER_BYTES, BlockHeader, DamagedBlock, TraceError, find_header, find_mark, read_header

log = logging.getLogger(__name__)

INDEX_SUFFIX: Final = ".wtrace.index"
_MAGIC: Final = b"\x93wtridx\n"
_HEAD: Final = struct.Struct("<8sQI4x")
_ENTRY: Final = struct.Struct(f"<Q{HEADER_BYTES}s")
_MOST_BYTES: Final = 1 << 30
"""Longest index that is read, enough for a capture of about 60 TB."""

Index = Mapping[int, bytes]
"""Offset → header."""


def headers(
    file: File, start: int, size: int, mark: bytes, index: Index | None = None
) -> Iterator[tuple[int, BlockHeader | None]]:
    """Yields the offset and header of each block between `start` and `size`; header None for bytes of no whole block.

    Does not read bodies. A block whose body would end after `size` is not whole.
    """
    known, at = index or {}, start
    while at < size:
        try:
            header = read_header(known.get(at) or file.read_at(at, HEADER_BYTES), 0, mark)
            is_whole = at + HEADER_BYTES + header.stored <= size
        except DamagedBlock:
            is_whole = False
        if is_whole:
            yield at, header
            at += header.size
        else:
            yield at, None
            at = find_header(file.read_at, mark, at + 1, size)


def write_index(path: str, storage: Storage) -> tuple[str, int]:
    """Writes the index of a capture beside it; returns the path of the index and the number of blocks.

    Raises OSError; TraceError if the file is not a capture.
    """
    end, entries = 0, []
    with storage.open(path) as file:
        size = file.size
        mark = find_mark(file.read_at, size)
        if mark is None:
            raise TraceError("there is no whole block of a capture in it: only captures have an index")
        for at, header in headers(file, 0, size, mark):
            if header is not None:
                entries.append(_ENTRY.pack(at, file.read_at(at, HEADER_BYTES)))
                end = at + HEADER_BYTES + header.stored
    body = b"".join(entries)
    index = _index_of(path)
    storage.write(index, _HEAD.pack(_MAGIC, end, zlib.crc32(body)) + body)
    return index, len(entries)


def read_index(path: str, file: File, mark: bytes, storage: Storage) -> Index | None:
    """Returns the index of a capture; None if it is missing or belongs to another capture."""
    index = _index_of(path)
    try:
        with storage.open(index) as opened:
            if opened.size > _MOST_BYTES:
                raise TraceError(f"it has {opened.size} bytes")
            data = opened.read_at(0, opened.size)
        return _parsed(data, file, mark)
    except FileNotFoundError:
        return None
    except (OSError, TraceError) as error:
        log.warning("%s is ignored: %s; segstore trace index writes it again", index, error)
        return None


def _parsed(data: bytes, file: File, mark: bytes) -> Index:
    if len(data) < _HEAD.size + _ENTRY.size or (len(data) - _HEAD.size) % _ENTRY.size or not data.startswith(_MAGIC):
        raise TraceError("it is not the index of a capture, or not a whole one")
    _, end, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if zlib.crc32(body) != crc:
        raise TraceError("its checksum is wrong")
    if end > file.size:
        raise TraceError(f"the capture had at least {end} bytes when it was indexed and has {file.size}")
    entries = dict(_ENTRY.iter_unpack(body))
    last, header = next(reversed(entries.items()))
    if not header.startswith(mark) or file.read_at(last, HEADER_BYTES) != header:
        raise TraceError("the capture has been replaced since it was indexed")
    return entries


def _index_of(path: str) -> str:
    return path.removesuffix(".wtrace") + INDEX_SUFFIX
