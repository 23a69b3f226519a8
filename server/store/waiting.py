"""Readers that wait at the tail of a segment, and who is to be told what.

A read that finds no data yet is registered under a token of the caller's. A change of the segment moves the tokens that
it concerns, with the reason, to ``woken``; whoever made the change drains that list and answers. Nothing is called back
from here, so a change never runs foreign code half way.

Invariant: a token is known at most once; a segment's gate has the WAITERS bit exactly while somebody waits there.

Follows ``FutureReadResultEntryCollection`` and ``StreamSegmentReadIndex.triggerFutureReads``.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from segstore.server.store.segment import Gate, Segment, Token

__all__ = ["Waiters", "WakeReason", "Woken"]


class WakeReason(Enum):
    """Why a reader waits no longer, which says what it is answered."""

    DATA = auto()
    """Read again, with ``woken=True``: bytes have come, and the answer says that it reached the tail."""
    SEALED = auto()
    """SegmentIsSealed: no bytes will come."""
    DELETED = auto()
    """An empty SegmentRead at the tail."""
    TRUNCATED = auto()
    """SegmentIsTruncated: read again, which raises it."""
    NOT_OWNED = auto()
    """WrongHost: the container has left this store."""


class Woken(NamedTuple):
    token: Token
    reason: WakeReason


class Waiters:
    """All readers that wait in one or several containers.

    Attributes:
        woken: those to be answered, oldest first; the caller drains it with ``take_woken``.
    """

    __slots__ = ("_segments", "woken")

    def __init__(self) -> None:
        self._segments: dict[Token, Segment] = {}
        self.woken: list[Woken] = []

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: Segment, offset: int, token: Token) -> None:
        """Let ``token`` wait for the byte at ``offset``. ``ValueError`` if it waits already."""
        if token in self._segments:
            raise ValueError(f"{token!r} waits already")
        self._segments[token] = segment
        if segment.waiters is None:
            segment.waiters = []
            segment.gate |= Gate.WAITERS.value
        segment.waiters.append((offset, token))

    def cancel(self, token: Token) -> bool:
        """Forget ``token``, whether it still waits or was woken and not answered yet; whether it still waited."""
        segment = self._segments.pop(token, None)
        if segment is None:
            self.woken = [woken for woken in self.woken if woken.token != token]
            return False
        assert segment.waiters is not None
        self._keep(segment, [waiter for waiter in segment.waiters if waiter[1] != token])
        return True

    def take_woken(self) -> list[Woken]:
        """Those to be answered now; the list is the caller's."""
        woken, self.woken = self.woken, []
        return woken

    def wake(self, segment: Segment, reason: WakeReason, *, below: int | None = None) -> None:
        """Wake those who wait for an offset below ``below``, or all."""
        waiters = segment.waiters
        if waiters is None:
            return
        stay: list[tuple[int, Token]] = []
        for waiter in waiters:
            if below is not None and waiter[0] >= below:
                stay.append(waiter)
            else:
                del self._segments[waiter[1]]
                self.woken.append(Woken(waiter[1], reason))
        self._keep(segment, stay)

    @staticmethod
    def _keep(segment: Segment, waiters: list[tuple[int, Token]]) -> None:
        if waiters:
            segment.waiters = waiters
        else:
            segment.waiters = None
            segment.gate &= ~Gate.WAITERS.value
