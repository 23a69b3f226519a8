"""Chunk files: blocks are read and verified once while the cache has them, and what is wrong names the file."""

from pathlib import Path

import pytest

from segstore.server.durable import Files
from segstore.server.durable.chunk_files import BLOCK_BYTES, BlockCache, ChunkFile, check, write
from segstore.server.store import DataDamaged
from tests.server.durable.support import RANDOM

DATA = RANDOM.randbytes(3 * BLOCK_BYTES + 100)


def made(folder: Path, cache: BlockCache) -> ChunkFile:
    parts = [DATA[:10], DATA[10 : BLOCK_BYTES + 1], DATA[BLOCK_BYTES + 1 :]]
    return ChunkFile(folder, write(Files(), folder, 7, parts), cache)


def read(file: ChunkFile, at: int, size: int) -> bytes:
    return b"".join(file.views(at, size))


def test_any_range_is_read_with_the_cache_and_without(tmp_path: Path) -> None:
    file = made(tmp_path, BlockCache(1 << 20))
    assert file.path == tmp_path / "chunk-0000000007"
    assert file.path.stat().st_size == file.info.file_bytes == len(DATA) + 4 * 4 + 40
    for at in (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5, len(DATA) - 1):
        for size in (1, 2, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES):
            size = min(size, len(DATA) - at)
            assert read(file, at, size) == file.read(at, size) == DATA[at : at + size]
    assert file.views(5, 0) == []
    check(file)


def test_blocks_are_read_once_and_only_those_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlockCache(1 << 20)
    file, asked = made(tmp_path, cache), list[tuple[int, int]]()
    blocks = ChunkFile.read_blocks

    def recorded(self: ChunkFile, first: int, last: int) -> list[bytes]:
        asked.append((first, last))
        return blocks(self, first, last)

    monkeypatch.setattr(ChunkFile, "read_blocks", recorded)
    for at, size in ((BLOCK_BYTES, 1), (BLOCK_BYTES, BLOCK_BYTES), (0, 2 * BLOCK_BYTES), (0, len(DATA)), (9, 99)):
        assert read(file, at, size) == DATA[at : at + size]
    assert asked == [(1, 1), (0, 0), (2, 3)]
    assert cache.held_bytes == len(DATA)


def test_the_block_that_was_not_used_for_longest_gives_way(tmp_path: Path) -> None:
    cache = BlockCache(2 * BLOCK_BYTES)
    file = made(tmp_path, cache)
    for index in (0, 1, 0, 2):
        read(file, index * BLOCK_BYTES, 1)
    assert [cache.get(7, index) is not None for index in range(4)] == [True, False, True, False]
    assert cache.held_bytes == 2 * BLOCK_BYTES
    cache.put(7, 0, b"another")
    assert cache.held_bytes == 2 * BLOCK_BYTES
    assert cache.get(7, 0) == DATA[:BLOCK_BYTES]


def test_what_cannot_be_read_is_damage_of_that_file_at_that_place(tmp_path: Path) -> None:
    file = made(tmp_path, BlockCache(1 << 20))
    file.path.rename(tmp_path / "elsewhere")
    said = f"{file.path} is damaged at byte {BLOCK_BYTES}: it cannot be read: No such"
    with pytest.raises(DataDamaged, match=said) as damaged:
        read(file, BLOCK_BYTES + 5, 1)
    assert damaged.value.what.endswith(f", at byte {BLOCK_BYTES}")
