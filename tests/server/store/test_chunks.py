"""Chunks: bytes come back as written, views stay what they are, memory is given back and used again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.server.store import ChunkPool
from segstore.server.store.chunks import CHUNK_BYTES, FIRST_CHUNK_BYTES, FileChunk, SegmentData
from segstore.server.store.errors import StoreFull
from segstore.server.store.memory import MemoryAccount
from tests.looped import looped


def joined(data: SegmentData, offset: int, size: int) -> bytes:
    return b"".join(data.read(offset, size))


@given(st.lists(st.binary(max_size=3000), max_size=30), st.data())
def test_what_is_written_is_read_back_at_any_offset(writes: list[bytes], draw: st.DataObject) -> None:
    data = SegmentData(ChunkPool())
    for write in writes:
        data.write(write)
    model = b"".join(writes)
    assert data.length == len(model)
    cut = draw.draw(st.integers(0, len(model)))
    data.truncate(cut)
    start = draw.draw(st.integers(cut, len(model)))
    end = draw.draw(st.integers(start, len(model)))
    assert joined(data, start, end - start) == model[start:end]
    data.write(b"more")
    assert joined(data, data.length - 4, 4) == b"more"


def allocated_bytes(data: SegmentData) -> int:
    """Size of all chunks in memory, used or not."""
    return sum(len(chunk) for _, _, chunk in data.pieces() if not isinstance(chunk, FileChunk))


def test_chunks_grow_up_to_four_mebibytes() -> None:
    data = SegmentData(ChunkPool())
    sizes = []
    for _ in range(12):
        before = allocated_bytes(data)
        data.write(bytes(allocated_bytes(data) - data.length + 1))
        sizes.append(allocated_bytes(data) - before)
    assert sizes[0] == FIRST_CHUNK_BYTES
    assert sizes[:8] == [256, 1024, 4096, 16384, 65536, 262144, 1048576, CHUNK_BYTES]
    assert set(sizes[8:]) == {CHUNK_BYTES}


def test_a_write_above_the_next_size_gets_one_chunk_of_a_power_of_two() -> None:
    for size, allocated in [(1023, 1024), (1024, 1024), (1025, 2048)]:
        data = SegmentData(ChunkPool())
        data.write(bytes(size))
        assert [len(chunk) for _, _, chunk in data.pieces()] == [allocated]


def test_parts_are_written_one_after_the_other() -> None:
    data = SegmentData(ChunkPool())
    data.write_all([b"one", bytearray(b"two"), memoryview(b"three")])
    data.write_all([b"x" * 300, b"y" * 300])
    data.write_all([])
    data.write_all([b"z" * 5000])
    data.write_all([b"large" * 500, b"small"])  # the last chunk has room for them
    end = b"z" * 5000 + b"large" * 500 + b"small"
    assert joined(data, 0, data.length) == b"onetwothree" + b"x" * 300 + b"y" * 300 + end


def test_parts_that_need_more_memory_than_there_is_are_all_refused() -> None:
    data = SegmentData(ChunkPool(memory=MemoryAccount(16 * 1024)))
    data.write(bytes(5000))
    with pytest.raises(StoreFull):
        data.write_all([bytes(3000), bytes(3000)])
    assert data.length == 5000


def test_the_callers_buffer_is_free_after_a_write() -> None:
    data = SegmentData(ChunkPool())
    buffer = bytearray(b"first")
    data.write(memoryview(buffer))
    buffer[:] = b"other"
    buffer.extend(b"!")
    assert joined(data, 0, 5) == b"first"


def test_views_are_read_only() -> None:
    data = SegmentData(ChunkPool())
    data.write(b"abc")
    assert data.read(0, 3)[0].readonly


def test_a_view_outlives_truncation_and_reuse_of_its_chunk() -> None:
    pool = ChunkPool()
    data = SegmentData(pool)
    data.write(b"a" * CHUNK_BYTES)
    views = data.read(0, CHUNK_BYTES)
    data.truncate(CHUNK_BYTES)
    assert pool.idle_bytes == CHUNK_BYTES
    other = SegmentData(pool)
    other.write(b"b" * CHUNK_BYTES)
    assert pool.idle_bytes == CHUNK_BYTES
    assert b"".join(views) == b"a" * CHUNK_BYTES


@looped("size", [64 * 1024, 512 * 1024, CHUNK_BYTES])
def test_a_chunk_without_views_is_used_again(size: int) -> None:
    pool = ChunkPool()
    data = SegmentData(pool)
    data.write(b"a" * size)
    del data.read(0, 10)[:]
    data.clear()
    assert pool.idle_bytes == size
    data.write(b"c" * size)
    assert pool.idle_bytes == 0
    assert joined(data, 0, size) == b"c" * size


def test_a_chunk_of_another_size_is_not_used() -> None:
    pool = ChunkPool()
    data = SegmentData(pool)
    data.write(bytes(CHUNK_BYTES))
    data.clear()
    data.write(bytes(64 * 1024))
    assert (pool.idle_bytes, allocated_bytes(data)) == (CHUNK_BYTES, 64 * 1024)


def test_small_chunks_are_left_to_the_allocator() -> None:
    pool = ChunkPool()
    data = SegmentData(pool)
    data.write(bytes(32 * 1024))
    data.clear()
    assert pool.idle_bytes == 0


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    pool = ChunkPool(max_idle_bytes=2 * CHUNK_BYTES + 100_000)
    data, others = SegmentData(pool), [SegmentData(pool) for _ in range(2)]
    data.write(bytes(5 * CHUNK_BYTES))
    for other in others:
        other.write(bytes(64 * 1024))
    data.clear()
    assert pool.idle_bytes == 2 * CHUNK_BYTES
    others[0].clear()
    assert pool.idle_bytes == 2 * CHUNK_BYTES + 64 * 1024
    others[1].clear()
    assert pool.idle_bytes == CHUNK_BYTES + 2 * 64 * 1024


def test_the_pool_frees_chunks_of_the_size_that_was_released_least_recently() -> None:
    pool = ChunkPool(max_idle_bytes=CHUNK_BYTES)
    small, large = [SegmentData(pool) for _ in range(3)], SegmentData(pool)
    for each in small:
        each.write(bytes(64 * 1024))
    large.write(bytes(CHUNK_BYTES))
    small[0].clear()
    small[1].clear()
    large.clear()
    assert pool.idle_bytes == CHUNK_BYTES
    small[2].clear()
    assert pool.idle_bytes == 64 * 1024
    small[2].write(bytes(64 * 1024))
    assert pool.idle_bytes == 0
    large.write(bytes(CHUNK_BYTES))
    other = SegmentData(pool)
    other.write(bytes(1 << 20))
    large.clear()
    other.clear()
    assert pool.idle_bytes == 1 << 20


def test_truncation_gives_back_whole_chunks_only() -> None:
    pool = ChunkPool()
    data = SegmentData(pool)
    data.write(bytes(2 * CHUNK_BYTES))
    data.truncate(CHUNK_BYTES - 1)
    assert pool.idle_bytes == 0
    data.truncate(CHUNK_BYTES)
    assert pool.idle_bytes == CHUNK_BYTES
    assert data.start_offset == CHUNK_BYTES
    assert allocated_bytes(data) == CHUNK_BYTES


@given(st.integers(0, 5000), st.sampled_from([0, 1, 700, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 77]))
def test_absorbing_moves_all_bytes_and_empties_the_source(before: int, size: int) -> None:
    pool = ChunkPool()
    target, source = SegmentData(pool), SegmentData(pool)
    target.write(b"t" * before)
    source.write(b"s" * size)
    target.absorb(source)
    assert (source.length, allocated_bytes(source)) == (0, 0)
    target.write(b"end")
    assert target.length == before + size + 3
    tail = min(size, 1000)
    assert joined(target, before + size - tail, tail + 3) == b"s" * tail + b"end"
    assert joined(target, 0, before) == b"t" * before


class Saved:
    """Bytes in a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def views(self, at: int, size: int) -> list[memoryview]:
        return [memoryview(self.data)[at : at + size]]


def test_chunks_that_were_saved_are_replaced_and_those_written_since_stay() -> None:
    pool = ChunkPool()
    data = SegmentData(pool)
    data.write(b"a" * (2 * CHUNK_BYTES))
    source = Saved(b"??" + bytes(data.read_bytes(0, data.length)))
    stored = {
        id(piece.chunk): (piece, FileChunk(source, 2 + piece.start, piece.size))  # type: ignore[arg-type]
        for piece in data.pieces()
    }
    data.cut_tail()
    data.write(b"b" * 100)
    assert len(data.pieces()) == 3
    data.replace(stored)
    assert [(each.start, each.size) for each in data.pieces()] == [(0, 2 * CHUNK_BYTES), (2 * CHUNK_BYTES, 100)]
    assert joined(data, 0, data.length) == b"a" * (2 * CHUNK_BYTES) + b"b" * 100
    assert pool.idle_bytes == 2 * CHUNK_BYTES
