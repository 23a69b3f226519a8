"""Deadlines of one connection: its pending waits, their start times, and the first deadline to expire.

Pure: times are arguments, in seconds of the caller's clock. Nothing here sets timers; the hub checks periodically which
deadlines have passed.

Invariants: every wait has its own start time, so waits do not hide each other; a frame's time runs from its first byte,
and from scratch once the store reads the peer again; a connection that has sent a frame, has no incomplete frame and
has read its replies has no deadline.
"""

from __future__ import annotations

from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore.server.config import LimitSettings


class Missed(Enum):
    """A deadline that has expired: the setting with its time, and the sentence about it."""

    FIRST_FRAME = "first_frame_timeout_s", "no frame came in {:g} s"
    FRAME = "frame_timeout_s", "a frame was incomplete after {:g} s"
    BLOCK = "frame_timeout_s", "an append block had no end after {:g} s"
    READING = "stalled_peer_timeout_s", "it read none of its replies for {:g} s"
    CLOSING = "linger_s", "it did not read its last replies in {:g} s"

    def time_s(self, limits: LimitSettings) -> float:
        """Returns the time from the start of the wait to the deadline."""
        time_s: float = getattr(limits, self.value[0])
        return time_s

    def sentence(self, limits: LimitSettings) -> str:
        """Returns why the connection is closed."""
        return self.value[1].format(self.time_s(limits))


class Waits:
    """A connection's pending waits.

    Attributes:
        since: their start times, by the deadline. FIRST_FRAME: the connection was opened, and no complete frame has
            arrived; FRAME: the first byte of an incomplete frame arrived; BLOCK: an append block was opened, and its
            end has not arrived; READING: the peer last read something, and the store does not read from it until it
            has caught up; CLOSING: closing began.
    """

    def __init__(self, now_s: float) -> None:
        self.since = {Missed.FIRST_FRAME: now_s}

    def received(
        self, now_s: float, *, frames: bool, partial: bool, block_open: bool = False, appends: bool = False
    ) -> None:
        """Records received bytes: whether they completed frames or appends, and whether a frame or block is pending."""
        if frames:
            self.since.pop(Missed.FIRST_FRAME, None)
        for missed, is_pending, has_ended in ((Missed.FRAME, partial, frames), (Missed.BLOCK, block_open, appends)):
            if not is_pending:
                self.since.pop(missed, None)
            elif has_ended or missed not in self.since:
                self.since[missed] = now_s

    def paused(self, now_s: float) -> None:
        """Records that the store stops reading from the peer, which has too many replies to read."""
        self.since.setdefault(Missed.READING, now_s)

    def progressed(self, now_s: float) -> None:
        """Records that the peer has read something, but not enough."""
        self._restart(now_s, Missed.READING)

    def resumed(self, now_s: float) -> None:
        """Records that the peer has read its replies, and the store reads from it again."""
        if self.since.pop(Missed.READING, None) is not None:
            self.restarted(now_s)

    def restarted(self, now_s: float) -> None:
        """Records that the store reads from the peer again; the time before does not count."""
        self._restart(now_s, Missed.FRAME, Missed.BLOCK)

    def closing(self, now_s: float) -> None:
        """Records that closing began."""
        self.since.setdefault(Missed.CLOSING, now_s)

    def next_deadline(self, limits: LimitSettings) -> tuple[float, Missed] | None:
        """Returns the earliest deadline and its kind; None without a pending wait."""
        for missed in (Missed.CLOSING, Missed.READING):  # meanwhile no other wait counts
            if missed in self.since:
                return self.since[missed] + missed.time_s(limits), missed
        deadlines = [(start_s + missed.time_s(limits), missed) for missed, start_s in self.since.items()]
        return min(deadlines, key=itemgetter(0), default=None)

    def _restart(self, now_s: float, *waits: Missed) -> None:
        self.since.update((missed, now_s) for missed in waits if missed in self.since)
