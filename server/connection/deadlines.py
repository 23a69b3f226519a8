"""Deadlines of one connection: what it is waiting for, since when, and which deadline expires first.

Pure: a record of the connection's state, in seconds of whatever clock the caller has, and one function of it. Nothing
here sets timers; the hub asks now and then which deadlines have passed.

Invariants: every wait has its own beginning, so none hides another; a frame's time runs from its first byte, whatever
comes after that, and stands still while the store does not read the peer; a connection that has sent a frame, holds
none in part and has read its replies has no deadline.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore.server.config import LimitSettings


class Missed(Enum):
    """What did not happen in time."""

    FIRST_FRAME = "no frame came in {first_frame_timeout_s:g} s"
    FRAME = "a frame was not whole after {frame_timeout_s:g} s"
    BLOCK = "an append block was not ended after {frame_timeout_s:g} s"
    READING = "it read nothing of its replies for {stalled_peer_timeout_s:g} s"
    CLOSING = "it did not take its last replies in {linger_s:g} s"

    def sentence(self, limits: LimitSettings) -> str:
        """Why the connection ends."""
        return self.value.format_map(limits.model_dump())


class Waits:
    """Beginnings of what one connection waits for; None where it does not.

    Attributes:
        first_frame_since: it was opened and no whole frame has come.
        frame_since: the first byte of a frame came whose last has not.
        block_since: an append block was opened and not ended.
        reading_since: the peer was last seen to read, and the store does not read it until it has caught up.
        closing_since: the connection was told to close.
    """

    __slots__ = ("block_since", "closing_since", "first_frame_since", "frame_since", "paused_since", "reading_since")

    def __init__(self, now_s: float) -> None:
        self.first_frame_since: float | None = now_s
        self.frame_since: float | None = None
        self.block_since: float | None = None
        self.reading_since: float | None = None
        self.paused_since = now_s
        self.closing_since: float | None = None

    @property
    def for_bytes(self) -> bool:
        """Whether it waits for the peer to send the rest of something."""
        return self.first_frame_since is not None or self.frame_since is not None or self.block_since is not None

    def received(
        self, now_s: float, *, frames: bool, partial: bool, block_open: bool = False, appends: bool = False
    ) -> None:
        """Bytes came: whether they made frames and appends whole, and whether a frame or a block is left in part."""
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
        """The store stops reading the peer, which has too much to read itself."""
        if self.reading_since is None:
            self.paused_since = self.reading_since = now_s

    def progressed(self, now_s: float) -> None:
        """The peer was seen to read, though not enough yet."""
        if self.reading_since is not None:
            self.reading_since = now_s

    def resumed(self, now_s: float) -> None:
        """The store reads the peer again: what it could not send meanwhile is not its fault."""
        if self.reading_since is None:
            return
        self.reading_since = None
        lost = now_s - self.paused_since
        if self.frame_since is not None:
            self.frame_since += lost
        if self.block_since is not None:
            self.block_since += lost

    def closing(self, now_s: float) -> None:
        """The connection was told to close."""
        if self.closing_since is None:
            self.closing_since = now_s

    def next_deadline(self, limits: LimitSettings) -> tuple[float, Missed] | None:
        """The earliest time at which something is missed, and what; None if nothing is waited for."""
        if self.closing_since is not None:
            return self.closing_since + limits.linger_s, Missed.CLOSING
        if self.reading_since is not None:
            return self.reading_since + limits.stalled_peer_timeout_s, Missed.READING
        first: tuple[float, Missed] | None = None
        if self.first_frame_since is not None:
            first = self.first_frame_since + limits.first_frame_timeout_s, Missed.FIRST_FRAME
        if self.frame_since is not None:
            at = self.frame_since + limits.frame_timeout_s
            if first is None or at < first[0]:
                first = at, Missed.FRAME
        if self.block_since is not None:
            at = self.block_since + limits.frame_timeout_s
            if first is None or at < first[0]:
                first = at, Missed.BLOCK
        return first
