"""Reads that wait at the tail of a segment.

A read that finds no data is registered under the caller's token. A change of the segment wakes readers: it moves them
to `woken`, with the reason. The caller takes them with `take_woken` and answers them. There are no callbacks, so a
change never runs other code before it is complete.

Invariant: a token is registered at most once, and a segment is watched exactly while a reader waits there.

Follows `FutureReadResultEntryCollection` and `StreamSegmentReadIndex.triggerFutureReads`.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segstore.server.store.segment import Segment

Token = Hashable
"""Identifies a waiting reader; chosen by the caller, unique among the waiting readers."""

TailReaders = dict[Token, int]
"""The readers at the tail of one segment, in order of arrival, with the offsets that they wait for."""


class WakeReason(Enum):
    """Why a reader was woken, which decides the reply."""

    DATA = auto()
    """Read again, with `woken=True`: bytes were appended, and the reply reports that it reached the tail."""
    SEALED = auto()
    """SegmentIsSealed: no more bytes will be appended."""
    DELETED = auto()
    """An empty SegmentRead at the tail."""
    TRUNCATED = auto()
    """SegmentIsTruncated: read again, which raises it."""
    NOT_OWNED = auto()
    """WrongHost: this store has lost the container."""


class Waiters:
    """All readers that wait in one or several containers.

    Attributes:
        woken: readers to be answered, in the order in which they were woken, and why; taken with `take_woken`.
    """

    __slots__ = ("_waiting", "woken")

    def __init__(self) -> None:
        self._waiting: dict[Token, Segment] = {}
        self.woken: dict[Token, WakeReason] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self.woken)

    def add(self, segment: Segment, offset: int, token: Token) -> None:
        """Registers `token`, which does not wait yet, to wait for the byte at `offset`."""
        assert token not in self._waiting, "a token waits once"
        if segment.waiters is None:
            segment.watch({token: offset})
        else:
            segment.waiters[token] = offset
        self._waiting[token] = segment

    def cancel(self, token: Token) -> bool:
        """Removes `token`, which may be waiting, or woken and not taken yet; returns False if it is unknown."""
        if self.woken.pop(token, None) is not None:
            return True
        segment = self._waiting.pop(token, None)
        if segment is None:
            return False
        assert segment.waiters is not None, "it is watched"
        del segment.waiters[token]
        if not segment.waiters:
            segment.watch(None)
        return True

    def take_woken(self) -> list[tuple[Token, WakeReason]]:
        """Removes and returns the readers to be answered now."""
        woken, self.woken = self.woken, {}
        return list(woken.items())

    def wake(self, segment: Segment, reason: WakeReason, *, below: int | None = None) -> None:
        """Wakes the readers that wait for an offset below `below`, or all."""
        readers = segment.waiters
        if readers is None:
            return
        for token in [token for token, offset in readers.items() if below is None or offset < below]:
            del readers[token], self._waiting[token]
            self.woken[token] = reason
        if not readers:
            segment.watch(None)
