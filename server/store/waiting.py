"""Readers that wait at the tail of a segment, and who is to be told what.

A read that finds no data yet is registered under a token of the caller's. A change of the segment moves the tokens that
it concerns, with the reason, to ``woken``; whoever made the change drains that list and answers. Nothing is called back
from here, so a change never runs foreign code half way.

Invariant: a token is known at most once; a segment's gate has the WAITERS bit exactly while somebody waits there.

Follows ``FutureReadResultEntryCollection`` and ``StreamSegmentReadIndex.triggerFutureReads``.
"""

from __future__ import annotations

from enum import Enum, auto
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final, NamedTuple

from segstore.server.store.segment import Gate, Segment, Token

__all__ = ["TailReaders", "Waiters", "WakeReason", "Woken"]

_SPARE: Final = 16


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


class TailReaders:
    """Those who wait at the tail of one segment: a heap by offset, so that an append looks only at those it wakes.

    Invariant: ``offsets`` holds exactly those who wait, in order of arrival; the heap holds them all, and at most as
    many again that wait no longer.
    """

    __slots__ = ("_arrivals", "_heap", "offsets")

    def __init__(self) -> None:
        self.offsets: dict[Token, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Token]] = []
        self._arrivals = 0

    def add(self, offset: int, token: Token) -> None:
        self._arrivals += 1
        self.offsets[token] = (offset, self._arrivals)
        heappush(self._heap, (offset, self._arrivals, token))

    def discard(self, token: Token) -> None:
        del self.offsets[token]
        if len(self._heap) > 2 * len(self.offsets) + _SPARE:
            self._heap = [(offset, arrival, each) for each, (offset, arrival) in self.offsets.items()]
            heapify(self._heap)

    def take(self, below: int | None) -> list[Token]:
        """Those who wait for an offset below ``below``, or all, oldest first; they wait no longer."""
        if below is None:
            tokens = list(self.offsets)
            self.offsets, self._heap = {}, []
            return tokens
        taken: list[tuple[int, Token]] = []
        heap = self._heap
        while heap and heap[0][0] < below:
            offset, arrival, token = heappop(heap)
            if self.offsets.get(token) == (offset, arrival):
                del self.offsets[token]
                taken.append((arrival, token))
        taken.sort(key=itemgetter(0))
        return [token for _, token in taken]


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
            segment.waiters = TailReaders()
            segment.gate |= Gate.WAITERS.value
        segment.waiters.add(offset, token)

    def cancel(self, token: Token) -> bool:
        """Forget ``token``, whether it still waits or was woken and not answered yet; whether it still waited."""
        segment = self._segments.pop(token, None)
        if segment is None:
            if self.woken:
                self.woken = [woken for woken in self.woken if woken.token != token]
            return False
        assert segment.waiters is not None
        segment.waiters.discard(token)
        self._keep(segment, segment.waiters)
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
        for token in waiters.take(below):
            del self._segments[token]
            self.woken.append(Woken(token, reason))
        self._keep(segment, waiters)

    @staticmethod
    def _keep(segment: Segment, waiters: TailReaders) -> None:
        if not waiters.offsets:
            segment.waiters = None
            segment.gate &= ~Gate.WAITERS.value
