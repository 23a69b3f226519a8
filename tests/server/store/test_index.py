"""Index segments: the nearest entry, the point of truncation, and entries that are cut."""

from hypothesis import given
from hypothesis import strategies as st

from segstore.server.store import ChunkPool, Segment
from segstore.server.store.index import ENTRY_BYTES, locate, pack_entry, truncation_point, unpack_entry

NAME = "scope/stream/0.#epoch.0"


def index_of(lengths: list[int]) -> Segment:
    segment = Segment(NAME + "#index", 0, ChunkPool(), 0)
    for number, length in enumerate(lengths):
        segment.write(pack_entry(length, number + 1, 1000))
    return segment


def test_an_entry_is_three_int64() -> None:
    recorded = bytes.fromhex("00000000000000640000000000000001000001a1fc82de31")
    assert pack_entry(100, 1, 0x1A1FC82DE31) == recorded
    assert unpack_entry(recorded) == (100, 1, 0x1A1FC82DE31)


@given(st.lists(st.integers(1, 200), unique=True, max_size=30).map(sorted), st.integers(-5, 210))
def test_locate_finds_the_smallest_length_that_is_large_enough(lengths: list[int], target: int) -> None:
    assert locate(NAME, index_of(lengths), target) == min((x for x in lengths if x >= target), default=None)


@given(st.lists(st.integers(1, 200), unique=True, max_size=30).map(sorted), st.integers(0, 210))
def test_an_index_is_truncated_behind_the_entries_not_above_the_offset(lengths: list[int], offset: int) -> None:
    index = index_of(lengths)
    assert truncation_point(NAME, index, offset) == ENTRY_BYTES * sum(x <= offset for x in lengths)


def test_offsets_of_a_truncated_index_count_from_its_beginning() -> None:
    index = index_of([100, 200, 300, 400])
    index.truncate(2 * ENTRY_BYTES)
    assert locate(NAME, index, 0) == 300
    assert truncation_point(NAME, index, 300) == 3 * ENTRY_BYTES
    assert truncation_point(NAME, index, 250) == 2 * ENTRY_BYTES


def test_bytes_that_are_not_a_whole_entry_are_left_out() -> None:
    index = index_of([100])
    index.write(b"half an entry")
    assert locate(NAME, index, 50) == 100
    assert locate(NAME, index, 101) is None
