"""Reads that wait at the tail of a segment.

A read that finds no data is registered under the caller's token. A change of the segment queues its tail in `woken`,
with the reason. The caller takes readers with `take_woken`, some at a time, and answers them. There are no callbacks,
so a change never runs other code before it is complete.

Invariant: a token is registered at most once, and a segment is watched exactly while a reader waits there.

Follows `FutureReadResultEntryCollection` and `StreamSegmentReadIndex.triggerFutureReads`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

Token = Hashable
"""Identifies a waiting reader; chosen by the caller, unique among the waiting readers."""

_SPARE: Final = 16


class WatchedSegment(Protocol):
    """A segment. waiters: the readers at its tail, or None; `watch` sets them."""

    waiters: TailReaders | None

    def watch(self, readers: TailReaders | None) -> None: ...


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


class Woken(NamedTuple):
    token: Token
    reason: WakeReason


class TailReaders:
    """The readers at the tail of one segment, in a heap by offset, so that an append visits only readers that it wakes.

    Attributes:
        segment: the segment; None once all were woken. New readers of the segment then get a new tail.
        offsets: token → offset and order of arrival, of readers that wait, or were woken and not taken yet.
        below: readers that wait for an offset below this were woken; None if no reader was woken.

    Invariant: the heap holds all of `offsets` and at most as many removed readers.
    """

    __slots__ = ("_arrivals", "_heap", "below", "offsets", "segment")

    def __init__(self, segment: WatchedSegment) -> None:
        self.segment: WatchedSegment | None = segment
        self.offsets: dict[Token, tuple[int, int]] = {}
        self.below: int | None = None
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

    def has(self, below: int | None) -> bool:
        """Whether a reader waits for an offset below `below`, or for any offset if `below` is None."""
        heap, offsets = self._heap, self.offsets
        while heap and offsets.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        return bool(heap) and (below is None or heap[0][0] < below)

    def take(self, below: int | None, most: int) -> list[Token]:
        """Removes and returns at most `most` readers that wait for an offset below `below`, or for any."""
        taken: list[tuple[int, Token]] = []
        while len(taken) < most and self.has(below):
            _, arrival, token = heappop(self._heap)
            del self.offsets[token]
            taken.append((arrival, token))
        taken.sort(key=itemgetter(0))
        return [token for _, token in taken]


class Waiters:
    """All readers that wait in one or several containers.

    Waking takes constant time for any number of readers: they are looked up when they are taken.

    Attributes:
        woken: (tail, reason), in order, for tails with readers to be answered; `take_woken` returns the readers.
    """

    __slots__ = ("_readers", "woken")

    def __init__(self) -> None:
        self._readers: dict[Token, TailReaders] = {}
        self.woken: deque[tuple[TailReaders, WakeReason]] = deque()

    def __len__(self) -> int:
        return len(self._readers)

    def add(self, segment: WatchedSegment, offset: int, token: Token) -> None:
        """Registers `token` to wait for the byte at `offset`. Raises `ValueError` if it waits already."""
        if token in self._readers:
            raise ValueError(f"{token!r} waits already")
        readers = segment.waiters
        if readers is None:
            readers = TailReaders(segment)
            segment.watch(readers)
        self._readers[token] = readers
        readers.add(offset, token)

    def cancel(self, token: Token) -> bool:
        """Removes `token`, which may be waiting, or woken and not taken yet; returns False if it is unknown."""
        readers = self._readers.pop(token, None)
        if readers is None:
            return False
        readers.discard(token)
        self._keep(readers)
        return True

    def take_woken(self, most: int | None = None) -> list[Woken]:
        """Removes and returns the readers to be answered now, at most `most`; the caller owns the list."""
        most = len(self._readers) if most is None else most
        taken: list[Woken] = []
        while self.woken:
            readers, reason = self.woken[0]
            for token in readers.take(readers.below, most - len(taken)):
                del self._readers[token]
                taken.append(Woken(token, reason))
            self._keep(readers)
            if readers.has(readers.below):
                break
            readers.below = None
            self.woken.popleft()
        return taken

    def wake(self, segment: WatchedSegment, reason: WakeReason, *, below: int | None = None) -> None:
        """Wakes the readers that wait for an offset below `below`, or all."""
        readers = segment.waiters
        if readers is None:
            return
        if below is None:
            self.woken.append((readers, reason))
            segment.watch(None)
            readers.segment = None
        elif readers.below is not None:
            readers.below = max(below, readers.below)
        elif readers.has(below):
            readers.below = below
            self.woken.append((readers, reason))

    def _keep(self, readers: TailReaders) -> None:
        if not readers.offsets and readers.segment is not None:
            readers.segment.watch(None)
            readers.segment = None  # later readers have a tail of their own
