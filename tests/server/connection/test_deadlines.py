"""Deadlines are decided from what a connection waits for, without a clock."""

from __future__ import annotations

from segstore.server import LimitSettings
from segstore.server.connection.deadlines import Missed, Waits
from tests.looped import looped

LIMITS = LimitSettings(first_frame_timeout_s=30, frame_timeout_s=60, stalled_peer_timeout_s=10, linger_s=5)


def due(waits: Waits) -> tuple[float, Missed] | None:
    return waits.next_deadline(LIMITS)


def fresh(now_s: float = 100.0) -> Waits:
    """A connection that has sent its first frame."""
    waits = Waits(now_s)
    waits.received(now_s, frames=True, partial=False)
    return waits


def test_a_peer_that_sends_nothing_misses_its_first_frame() -> None:
    assert due(Waits(100.0)) == (130.0, Missed.FIRST_FRAME)


def test_bytes_that_make_no_frame_do_not_prolong_the_first() -> None:
    waits = Waits(100.0)
    for second in range(101, 129):
        waits.received(float(second), frames=False, partial=True)
        assert due(waits) == (130.0, Missed.FIRST_FRAME)


def test_an_idle_connection_that_has_sent_a_frame_has_no_deadline() -> None:
    assert due(fresh()) is None


def test_trickled_bytes_do_not_prolong_a_frame() -> None:
    waits = fresh()
    waits.received(200.0, frames=False, partial=True)
    waits.received(230.0, frames=False, partial=True)
    waits.received(259.0, frames=False, partial=True)
    assert due(waits) == (260.0, Missed.FRAME)


def test_the_next_frame_has_a_time_of_its_own() -> None:
    waits = fresh()
    waits.received(200.0, frames=False, partial=True)
    waits.received(250.0, frames=True, partial=True)
    assert due(waits) == (310.0, Missed.FRAME)
    waits.received(251.0, frames=True, partial=False)
    assert due(waits) is None


def test_an_append_block_must_be_ended_in_time_whatever_passes_in_between() -> None:
    waits = fresh()
    waits.received(200.0, frames=True, partial=False, block_open=True)
    waits.received(250.0, frames=True, partial=True, block_open=True)
    assert due(waits) == (260.0, Missed.BLOCK)


def test_a_block_that_follows_another_has_a_time_of_its_own() -> None:
    waits = fresh()
    waits.received(200.0, frames=True, partial=False, block_open=True)
    waits.received(250.0, frames=True, partial=False, block_open=True, appends=True)
    assert due(waits) == (310.0, Missed.BLOCK)
    waits.received(251.0, frames=True, partial=False, block_open=False, appends=True)
    assert due(waits) is None


def test_the_time_of_a_frame_starts_again_when_the_store_reads_again() -> None:
    waits = fresh()
    waits.received(200.0, frames=True, partial=True, block_open=True)
    waits.paused(210.0)
    assert due(waits) == (220.0, Missed.READING)
    waits.resumed(219.0)
    assert due(waits) == (279.0, Missed.FRAME)
    assert waits.block_since == 219.0


def test_being_stalled_and_waiting_for_a_frame_hide_neither_each_other() -> None:
    waits = fresh()
    waits.paused(200.0)
    waits.received(201.0, frames=True, partial=True)  # what the kernel had before reading stopped
    assert due(waits) == (210.0, Missed.READING)
    waits.resumed(202.0)
    assert due(waits) == (262.0, Missed.FRAME)


def test_a_peer_that_reads_slowly_gets_its_time_anew() -> None:
    waits = fresh()
    waits.paused(200.0)
    waits.progressed(209.0)
    assert due(waits) == (219.0, Missed.READING)


def test_pausing_twice_keeps_the_first_time() -> None:
    waits = fresh()
    waits.paused(200.0)
    waits.paused(205.0)
    assert due(waits) == (210.0, Missed.READING)


def test_resuming_what_was_not_paused_changes_nothing() -> None:
    waits = fresh()
    waits.received(200.0, frames=False, partial=True)
    waits.progressed(201.0)
    waits.resumed(230.0)
    assert due(waits) == (260.0, Missed.FRAME)


def test_a_connection_that_closes_has_only_the_time_to_do_so() -> None:
    waits = Waits(100.0)
    waits.paused(101.0)
    waits.closing(102.0)
    waits.closing(106.0)
    assert due(waits) == (107.0, Missed.CLOSING)


@looped("missed", Missed)
def test_what_was_missed_is_said_with_its_setting(missed: Missed) -> None:
    sentence = missed.sentence(LIMITS)
    assert "{" not in sentence
    assert any(f" {number} s" in sentence for number in (30, 60, 10, 5))
