"""Reading captures that are whole, cut, damaged, or shared out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.trace import MAGIC, Block, Damage, NotATrace, Record, mark_of, read_blocks, read_records
from tests.looped import looped
from tests.wire.trace.traces import MARK, capture, frame, record

SOME = [record(frame(100, bytes(index)), at=index) for index in range(10)]


def offsets(data: bytes) -> list[int]:
    return [block.offset for block in read_blocks(data)]


def ends(data: bytes) -> list[int]:
    """Where the bytes of each block end, without the zeros behind them."""
    return [block.offset + 64 + block.header.stored for block in read_blocks(data) if isinstance(block, Block)]


def test_a_capture_cut_at_any_byte_gives_all_blocks_before_the_cut() -> None:
    whole = capture(SOME)
    starts, stops = offsets(whole), ends(whole)
    for cut in range(len(whole)):
        found = list(read_blocks(whole[:cut]))
        blocks = [each for each in found if isinstance(each, Block)]
        assert [block.offset for block in blocks] == [
            start for start, stop in zip(starts, stops, strict=True) if stop <= cut
        ]
        last = max((start for start in starts if start <= cut), default=0)
        if cut in starts[1:] or stops[starts.index(last)] <= cut:
            assert len(found) == len(blocks), "nothing but zeros was cut off"
        else:
            damage = found[-1]
            assert isinstance(damage, Damage)
            assert (damage.offset, damage.size, damage.torn) == (last, cut - last, True)


def test_a_capture_whose_start_is_lost_gives_what_is_left() -> None:
    whole = capture(SOME)
    starts = offsets(whole)
    for cut in range(1, starts[2]):
        found = list(read_blocks(whole[cut:]))
        expected = [start - cut for start in starts if start >= cut]
        assert [each.offset for each in found if isinstance(each, Block)] == expected
        assert (isinstance(found[0], Damage)) == (cut not in starts)


@looped("form", [bytes, bytearray, memoryview])
def test_any_changed_byte_costs_one_block_at_most(form: type) -> None:
    whole = capture(SOME)
    starts = offsets(whole)
    in_front = [record for block in read_blocks(whole) if isinstance(block, Block) for record in block.columns]
    assert in_front == SOME
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 0x41
        found = list(read_blocks(form(changed)))
        hit = max(start for start in starts if start <= at)
        assert [each.offset for each in found] == starts
        damages = [each for each in found if isinstance(each, Damage)]
        assert [damage.offset for damage in damages] in ([hit], []), "or a zero between blocks was hit"
        assert all(damage.offset + damage.size in (*starts, len(whole)) for damage in damages)


def test_bytes_that_went_missing_cost_one_block() -> None:
    whole = capture(SOME)
    starts = offsets(whole)
    damaged = whole[: starts[2] + 80] + whole[starts[2] + 90 :]
    found = list(read_blocks(damaged))
    assert [type(each) for each in found] == [Block, Block, Damage, Block, Block]
    assert found[2].offset == starts[2]
    assert str(found[2]).startswith("a block is damaged: ")


def test_zeros_at_the_end_are_reported() -> None:
    """What some file systems leave after a power cut."""
    whole = capture(SOME)
    *_, last = read_blocks(whole + bytes(4096))
    assert isinstance(last, Damage)
    assert (last.offset, last.size, last.torn) == (len(whole), 4096, True)
    assert str(last).startswith("the last block is torn: 4096 bytes at ")


def test_an_empty_file_is_named_as_one() -> None:
    (damage,) = read_blocks(b"")
    assert str(damage) == "the file is empty"
    assert mark_of(b"") is None


@looped("data", [MAGIC[:3], MAGIC, MARK, capture([])[:63]])
def test_a_torn_start_of_a_capture_is_no_error(data: bytes) -> None:
    assert list(read_blocks(data)) == [Damage(0, len(data), True, "not one block is whole")]
    assert mark_of(data) is None


@looped("data", [b"x", b"{}", bytes(200), b"PK\x03\x04" * 50, bytes(8) + MAGIC + bytes(100)])
def test_what_is_no_capture_is_refused(data: bytes) -> None:
    with pytest.raises(NotATrace):
        list(read_blocks(data))


@given(st.binary(max_size=300))
def test_any_bytes_behind_a_magic_number_give_blocks_or_damage(data: bytes) -> None:
    found = list(read_blocks(MAGIC + data))
    assert sum(each.size if isinstance(each, Damage) else each.header.size for each in found) >= len(MAGIC + data)


def test_a_capture_inside_of_frames_is_not_mistaken_for_this_one() -> None:
    inner = capture(SOME).replace(MARK, MAGIC + b"another!")
    outer = bytearray(capture([record(frame(3, inner)), *SOME]))
    starts = offsets(bytes(outer))
    outer[starts[1] + 70] ^= 1
    found = list(read_blocks(outer))
    assert [each.offset for each in found] == starts
    assert [isinstance(each, Damage) for each in found] == [False, True, *[False] * (len(starts) - 2)]


@given(st.integers(0, 2000), st.integers(1, 4))
def test_reading_starts_at_the_first_block_from_any_offset_on(start: int, a_block: int) -> None:
    data = capture(SOME, a_block=a_block)
    assert [block.offset for block in read_blocks(data, start, mark=MARK)] == [
        at for at in offsets(data) if at >= start
    ]


def test_damage_stands_among_the_records_where_it_is() -> None:
    data = bytearray(capture(SOME))
    data[offsets(bytes(data))[2] + 70] ^= 1
    found = list(read_records(data))
    assert [each for each in found if isinstance(each, Record)] == SOME[:3] + SOME[6:]
    assert isinstance(found[3], Damage)
