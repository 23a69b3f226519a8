"""Iterates over a key-value table in key order by merging its partitions.

Invariants: at most one page per partition is held; cancelling a step loses nothing; the token is the last key returned,
so an iteration can continue elsewhere and later, and then sees keys added meanwhile. Follows
`KeyValueTableIteratorImpl` and `SegmentIteratorArgs` (Pravega's client).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from heapq import heappop, heappush
from typing import Generic, NamedTuple, Self, TypeVar

import msgspec

from segstore.client.connection import SegmentRequests
from segstore.client.errors import ProtocolViolation
from segstore.client.lifecycle import all_of
from segstore.client.routing import SegmentRange
from segstore.client.tables.segment import Item, TableSegment

T = TypeVar("T")


class Bounds(NamedTuple):
    """The first and the last key to return; empty if the first is greater than the last."""

    first: bytes
    last: bytes

    @property
    def empty(self) -> bool:
        return self.first > self.last

    def behind(self, key: bytes) -> Bounds:
        """Returns the bounds that remain after this key."""
        following = int.from_bytes(key) + 1
        if following >> 8 * len(key):
            return Bounds(b"\xff", b"")
        return Bounds(max(following.to_bytes(len(key)), self.first), self.last)


class _Cursor(msgspec.Struct):
    partition: SegmentRange
    segment: TableSegment
    bounds: Bounds
    items: deque[Item] = msgspec.field(default_factory=deque)


class TableIterator(Generic[T]):
    """An iteration over a table, for `async for`. Created by `KeyValueTable`. Raises the errors of its `get`.

    Attributes:
        token: continues the iteration after the last returned item; b"" before the first.
    """

    token: bytes

    def __init__(
        self,
        requests: SegmentRequests,
        partitions: Sequence[SegmentRange],
        bounds: Bounds,
        page: int,
        make: Callable[[SegmentRange, Item], T],
        missing_as_gone: Callable[[], AbstractContextManager[None]],
        *,
        with_values: bool,
    ) -> None:
        """missing_as_gone: converts the error for a missing partition."""
        self.token = b""
        self._page = max(page, 1)
        self._make = make
        self._missing_as_gone = missing_as_gone
        self._with_values = with_values
        self._cursors = [_Cursor(partition, TableSegment(requests, partition.name), bounds) for partition in partitions]
        self._unread: set[int] = set() if bounds.empty else set(range(len(self._cursors)))
        self._next: list[tuple[bytes, int]] = []

    async def _read(self, number: int) -> None:
        cursor = self._cursors[number]
        segment, (first, last) = cursor.segment, cursor.bounds
        read = segment.entries if self._with_values else segment.keys
        items = await read(self._page, first, last)
        before = b""
        for item in items:
            if not first <= item.key <= last or item.key <= before:
                raise ProtocolViolation(
                    f"{segment.name} returned keys out of order or that were not requested", segment=segment.name
                )
            before = item.key
        self._unread.discard(number)
        if items:
            cursor.items.extend(items)
            cursor.bounds = cursor.bounds.behind(before)
            heappush(self._next, (items[0].key, number))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._unread:
            with self._missing_as_gone():
                await all_of([self._read(number) for number in self._unread])
        if not self._next:
            raise StopAsyncIteration
        key, number = heappop(self._next)
        cursor = self._cursors[number]
        item = cursor.items.popleft()
        if cursor.items:
            heappush(self._next, (cursor.items[0].key, number))
        elif not cursor.bounds.empty:
            self._unread.add(number)
        self.token = key
        return self._make(cursor.partition, item)
