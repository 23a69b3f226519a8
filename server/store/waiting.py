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
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from segstore.server.store.segment import Segment

Token = Hashable
"""Identifies a waiting reader; chosen by the caller, unique among the waiting readers."""

TailReaders: TypeAlias = "SortedList[tuple[int, int, Token]]"
"""The readers at the tail of one segment: offset, number of arrival, token."""


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

    __slots__ = ("_arrivals", "_waiting", "woken")

    def __init__(self) -> None:
        self._waiting: dict[Token, tuple[Segment, int, int]] = {}
        """The segment of each reader, its offset and the number of its arrival."""
        self._arrivals = count()
        self.woken: dict[Token, WakeReason] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self.woken)

    def add(self, segment: Segment, offset: int, token: Token) -> None:
        """Registers `token` to wait for the byte at `offset`. Raises `ValueError` if it waits already."""
        if token in self._waiting or token in self.woken:
            raise ValueError(f"{token!r} waits already")
        readers = segment.waiters
        if readers is None:
            readers = SortedList()
            segment.watch(readers)
        arrival = next(self._arrivals)
        readers.add((offset, arrival, token))
        self._waiting[token] = segment, offset, arrival

    def cancel(self, token: Token) -> bool:
        """Removes `token`, which may be waiting, or woken and not taken yet; returns False if it is unknown."""
        if self.woken.pop(token, None) is not None:
            return True
        if token not in self._waiting:
            return False
        segment, offset, arrival = self._waiting.pop(token)
        assert segment.waiters is not None, "it is watched"
        segment.waiters.remove((offset, arrival, token))
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
        size = len(readers) if below is None else readers.bisect_left((below,))
        for _, _, token in sorted(readers[:size], key=itemgetter(1)):
            del self._waiting[token]
            self.woken[token] = reason
        del readers[:size]
        if not readers:
            segment.watch(None)
