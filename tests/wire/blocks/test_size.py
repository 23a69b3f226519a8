"""How large an append block should be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.blocks import BATCH_MS, MAX_BLOCK_BYTES, BlockSizeTracker


def busy(tracker: BlockSizeTracker, appends: int, size: int, gap_ms: float, outstanding: int) -> None:
    now_ms = 0.0
    for number in range(1, appends + 1):
        now_ms += gap_ms
        tracker.record_append(number, size, now_ms)
        if number > outstanding:
            tracker.record_ack(number - outstanding)


@pytest.mark.seed("36.18")
def test_nothing_is_batched_with_at_most_one_append_in_flight() -> None:
    tracker = BlockSizeTracker(0.0)
    assert tracker.block_size() == 0
    tracker.record_append(1, 5000, 1.0)
    assert tracker.block_size() == 0
    tracker.record_append(2, 5000, 2.0)
    assert tracker.block_size() > 0
    assert tracker.record_ack(1) == 1
    assert tracker.block_size() == 0
    assert tracker.record_ack(2) == 0
    assert tracker.block_size() == 0


def test_the_first_sizes_follow_from_the_averages_at_the_start() -> None:
    tracker = BlockSizeTracker(0.0)
    tracker.record_append(1, 1024, 10.0)
    tracker.record_append(2, 1024, 20.0)
    # 20 outstanding on average at the start, half of them; 10 ms apart, so 2 in 20 ms; of 1,024 bytes.
    assert tracker.block_size() == 2 * 1024


@pytest.mark.seed("36.18")
def test_half_of_the_outstanding_appends_fill_a_block() -> None:
    tracker = BlockSizeTracker(0.0)
    busy(tracker, 20_000, 100, 0.1, 40)
    assert tracker.block_size() == pytest.approx(20 * 100, rel=0.02)


@pytest.mark.seed("36.18")
def test_a_block_takes_at_most_what_the_batch_time_brings() -> None:
    tracker = BlockSizeTracker(0.0)
    busy(tracker, 20_000, 100, 4.0, 1000)
    assert tracker.block_size() == pytest.approx(BATCH_MS / 4.0 * 100, rel=0.02)


@pytest.mark.seed("36.18")
def test_a_block_takes_at_least_one_append_however_slow_they_come() -> None:
    tracker = BlockSizeTracker(0.0)
    busy(tracker, 20_000, 100, 1000.0, 50)
    assert tracker.block_size() == pytest.approx(100, rel=0.02)


@pytest.mark.seed("36.18")
def test_a_block_has_a_largest_size() -> None:
    assert MAX_BLOCK_BYTES == 523_264
    tracker = BlockSizeTracker(0.0)
    busy(tracker, 5_000, 8 * 1024 * 1024, 0.01, 500)
    assert tracker.block_size() == 523_264


def test_one_huge_append_moves_the_average_by_its_root() -> None:
    tracker = BlockSizeTracker(0.0)
    tracker.record_append(1, 1024, 10.0)
    tracker.record_append(2, 1024 * 1024, 20.0)
    # The root goes from 32 to 0.99 × 32 + 0.01 × 1024.
    assert tracker.block_size() == int(2 * (0.99 * 32 + 0.01 * 1024) ** 2)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**24), st.floats(-1e12, 1e12)),
        max_size=60,
    )
)
def test_whatever_is_recorded_the_size_is_within_its_bounds(calls: list[tuple[bool, int, int, float]]) -> None:
    tracker = BlockSizeTracker(0.0)
    for append, number, size, now_ms in calls:
        if append:
            tracker.record_append(number, size, now_ms)
        else:
            tracker.record_ack(number)
        assert 0 <= tracker.block_size() <= MAX_BLOCK_BYTES
