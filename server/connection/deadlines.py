"""Deadlines of one connection: its pending waits, their start times, and the first deadline to expire.

Pure: times are arguments, in seconds of the caller's clock. Nothing here sets timers; the hub checks periodically which
deadlines have passed.

Invariants: every wait has its own start time, so waits do not hide each other; a frame's time runs from its first byte,
and from scratch once the store reads the peer again; a connection that has sent a frame, has no incomplete frame and
has read its replies has no deadline.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore.server.config import LimitSettings


class Missed(Enum):
    """A deadline that has expired."""

    FIRST_FRAME = "no frame came in {first_frame_timeout_s:g} s"
    FRAME = "a frame was incomplete after {frame_timeout_s:g} s"
    BLOCK = "an append block had no end after {frame_timeout_s:g} s"
    READING = "it read none of its replies for {stalled_peer_timeout_s:g} s"
    CLOSING = "it did not read its last replies in {linger_s:g} s"

    def sentence(self, limits: LimitSettings) -> str:
        """Returns why the connection is closed."""
        return self.value.format_map(limits.model_dump())


class Waits:
    """Start times of a connection's waits; None for a wait that is not pending.

    Attributes:
        first_frame_since: the connection was opened; no complete frame has arrived.
        frame_since: the first byte of an incomplete frame arrived.
        block_since: an append block was opened; its end has not arrived.
        reading_since: the peer last read something; the store does not read from it until it has caught up.
        closing_since: closing began.
    """

    def __init__(self, now_s: float) -> None:
        self.first_frame_since: float | None = now_s
        self.frame_since: float | None = None
        self.block_since: float | None = None
        self.reading_since: float | None = None
        self.closing_since: float | None = None

    def received(
        self, now_s: float, *, frames: bool, partial: bool, block_open: bool = False, appends: bool = False
    ) -> None:
        """Records received bytes: whether they completed frames or appends, and whether a frame or block is pending."""
        if frames:
            self.first_frame_since = None
        if not partial:
            self.frame_since = None
        elif frames or self.frame_since is None:
            self.frame_since = now_s
        if not block_open:
            self.block_since = None
        elif appends or self.block_since is None:
            self.block_since = now_s

    def paused(self, now_s: float) -> None:
        """Records that the store stops reading from the peer, which has too many replies to read."""
        if self.reading_since is None:
            self.reading_since = now_s

    def progressed(self, now_s: float) -> None:
        """Records that the peer has read something, but not enough."""
        if self.reading_since is not None:
            self.reading_since = now_s

    def resumed(self, now_s: float) -> None:
        """Records that the peer has read its replies, and the store reads from it again."""
        if self.reading_since is not None:
            self.reading_since = None
            self.restarted(now_s)

    def restarted(self, now_s: float) -> None:
        """Records that the store reads from the peer again; the time before does not count."""
        if self.frame_since is not None:
            self.frame_since = now_s
        if self.block_since is not None:
            self.block_since = now_s

    def closing(self, now_s: float) -> None:
        """Records that closing began."""
        if self.closing_since is None:
            self.closing_since = now_s

    def next_deadline(self, limits: LimitSettings) -> tuple[float, Missed] | None:
        """Returns the earliest deadline and its kind; None without a pending wait."""
        if self.closing_since is not None:
            return self.closing_since + limits.linger_s, Missed.CLOSING
        if self.reading_since is not None:
            return self.reading_since + limits.stalled_peer_timeout_s, Missed.READING
        times = (
            (self.first_frame_since, limits.first_frame_timeout_s, Missed.FIRST_FRAME),
            (self.frame_since, limits.frame_timeout_s, Missed.FRAME),
            (self.block_since, limits.frame_timeout_s, Missed.BLOCK),
        )
        return min(
            ((since + s, missed) for since, s, missed in times if since is not None),
            key=lambda due: due[0],
            default=None,
        )
