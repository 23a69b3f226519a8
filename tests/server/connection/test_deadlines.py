"""Deadlines are decided from what a connection waits for, without a clock."""

from collections.abc import Callable

from segstore.server import LimitSettings
from segstore.server.connection.deadlines import Missed, Waits
from tests.looped import looped

LIMITS = LimitSettings(first_frame_timeout_s=30, frame_timeout_s=60, stalled_peer_timeout_s=10, linger_s=5)


def got(at_s: float, **what: bool) -> Callable[[Waits], None]:
    return lambda waits: waits.received(at_s, **{"frames": False, "partial": False, **what})


def fresh(*events: Callable[[Waits], None]) -> Waits:
    """A connection that has sent its first frame, and what happened to it since."""
    waits = Waits(100.0)
    for event in (got(100.0, frames=True), *events):
        event(waits)
    return waits


def test_a_peer_must_send_its_first_frame_in_time_whatever_bytes_it_sends() -> None:
    waits = Waits(100.0)
    assert waits.next_deadline(LIMITS) == (130.0, Missed.FIRST_FRAME)
    for second in range(101, 129):
        waits.received(float(second), frames=False, partial=True)
        assert waits.next_deadline(LIMITS) == (130.0, Missed.FIRST_FRAME)


FRAME, BLOCK, READING, CLOSING = Missed.FRAME, Missed.BLOCK, Missed.READING, Missed.CLOSING
part, frame = got(200.0, partial=True), got(250.0, frames=True, partial=True)
block, append = got(200.0, frames=True, block_open=True), got(250.0, frames=True, block_open=True, appends=True)


@looped(
    ("waits", "deadline"),
    [
        (fresh(), None),
        # bytes do not prolong a frame
        (fresh(part, got(230.0, partial=True), got(259.0, partial=True)), (260.0, FRAME)),
        # the next frame has a time of its own
        (fresh(part, frame), (310.0, FRAME)),
        (fresh(part, frame, got(251.0, frames=True)), None),
        # an append block must end in time, whatever passes in between; the next block has a time of its own
        (fresh(block, got(250.0, frames=True, partial=True, block_open=True)), (260.0, BLOCK)),
        (fresh(block, append), (310.0, BLOCK)),
        (fresh(block, append, got(251.0, frames=True, appends=True)), None),
        # times start again when the store reads again
        (fresh(part, lambda waits: waits.paused(210.0)), (220.0, READING)),
        (fresh(part, lambda waits: waits.paused(210.0), lambda waits: waits.resumed(219.0)), (279.0, FRAME)),
        (fresh(block, lambda waits: waits.paused(210.0), lambda waits: waits.resumed(219.0)), (279.0, BLOCK)),
        # what comes while the peer does not read does not hide that
        (fresh(lambda waits: waits.paused(200.0), got(201.0, frames=True, partial=True)), (210.0, READING)),
        # a peer that reads slowly has its time again; pausing twice changes nothing
        (fresh(lambda waits: waits.paused(200.0), lambda waits: waits.progressed(209.0)), (219.0, READING)),
        (fresh(lambda waits: waits.paused(200.0), lambda waits: waits.paused(205.0)), (210.0, READING)),
        # resuming without a pause changes nothing
        (fresh(part, lambda waits: waits.progressed(201.0), lambda waits: waits.resumed(230.0)), (260.0, FRAME)),
        # a connection that closes has only the time to do so
        (
            fresh(lambda waits: waits.paused(101.0), lambda waits: waits.closing(102.0), lambda it: it.closing(106.0)),
            (107.0, CLOSING),
        ),
    ],
)
def test_the_next_deadline_is_that_of_the_wait_that_ends_first(
    waits: Waits, deadline: tuple[float, Missed] | None
) -> None:
    assert waits.next_deadline(LIMITS) == deadline


@looped("missed", Missed)
def test_what_was_missed_is_said_with_its_setting(missed: Missed) -> None:
    sentence = missed.sentence(LIMITS)
    assert "{" not in sentence
    assert any(f" {number} s" in sentence for number in (30, 60, 10, 5))
