"""Event queue, event numbers and in-flight appends of a segment writer. Pure state: no I/O, no clock.

Invariants: events are sent in the order in which they were added; each event gets the next number when its append is
built, and keeps it if the append is resent after a new set-up; an event is either queued, in flight or returned to the
caller. `acknowledged` and `set_up` raise `BadAck` for what the protocol does not allow, and then change nothing.

Follows `SegmentOutputStreamImpl.State` (Pravega's client).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from segstore.client.errors import ClientError
from segstore.wire import Buffer

Then = Callable[[ClientError | None], object]
"""Called once: with None when an event is stored, or with the error if it never will be."""


class BadAck(Exception):
    """An acknowledgement that the protocol does not allow; the text says why."""


class OtherWriter(BadAck):
    """The store has event numbers that this writer has not sent: another writer uses its id."""


class Pending(msgspec.Struct):
    """A queued or in-flight item: one event, or several appended together. Also the append, if it is alone in it.

    data: the bytes to store. events: their number. tag: opaque to this module, such as the routing key's position.
    done: a future or function notified once, when the item is stored or never will be. last, sent_s: as in `Append`,
    once it is in flight alone.
    """

    data: Buffer
    events: int
    tag: Any
    done: asyncio.Future[None] | Then
    last: int = 0
    sent_s: float = 0.0

    @property
    def first(self) -> int:
        return self.last - self.events + 1

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def items(self) -> list[Pending]:
        return [self]


class Append(msgspec.Struct):
    """An append of several items: events `first` to `last`, last sent at loop time `sent_s`."""

    first: int
    last: int
    items: list[Pending]
    size: int
    sent_s: float = 0.0

    @property
    def data(self) -> Buffer:
        items = self.items
        return items[0].data if len(items) == 1 else b"".join([item.data for item in items])


class InFlight:
    """Events of one writer.

    Attributes:
        held_bytes: total size of all queued and in-flight items.
        added, settled: numbers of items added and of items returned to the caller.
        last_stored: number of the last event known to be stored, -1 if none.
        first_queued: the first item never sent, or None.
        queued_behind: the other items never sent. Unused by the many writers that have one item at a time.
        oldest, newest: the first and last append in flight, or None.
    """

    __slots__ = (
        "_behind",
        "_last_taken",
        "_sent_before",
        "added",
        "first_queued",
        "held_bytes",
        "last_stored",
        "newest",
        "oldest",
        "queued_behind",
        "settled",
    )

    def __init__(self) -> None:
        self.first_queued: Pending | None = None
        self.queued_behind: deque[Pending] = deque()
        self.oldest: Pending | Append | None = None
        self.newest: Pending | Append | None = None
        self._behind: deque[Pending | Append] = deque()
        """The appends in flight except the oldest. Unused by the many writers that have one."""
        self._last_taken = 0
        self._sent_before = 0
        """The last number in flight at the latest set-up; the store may have received it twice."""
        self.held_bytes = 0
        self.added = 0
        self.settled = 0
        self.last_stored = -1

    def add(self, item: Pending) -> None:
        if self.first_queued is None:
            self.first_queued = item
        else:
            self.queued_behind.append(item)
        self.added += 1
        self.held_bytes += len(item.data)

    @property
    def queued(self) -> bool:
        """Whether any item was never sent."""
        return self.first_queued is not None

    @property
    def sent(self) -> Iterator[Pending | Append]:
        """The appends in flight, in order."""
        if self.oldest is not None:
            yield self.oldest
            yield from self._behind

    @property
    def oldest_is_new(self) -> bool:
        """Whether the oldest append in flight was sent only once."""
        return self.oldest is not None and self.oldest.first > self._sent_before

    def take(self, most_events: int, most_bytes: int, now_s: float = 0.0) -> Pending | Append:
        """Moves the next append from the queue to the appends in flight. Takes at least one item, whatever its size."""
        item = self.first_queued
        if item is None:
            raise IndexError("nothing is queued")
        behind = self.queued_behind
        append: Pending | Append = item
        if not behind or item.events >= most_events:
            self.first_queued = behind.popleft() if behind else None
            item.last = self._last_taken = self._last_taken + item.events
        else:
            append = self._with_others(item, most_events, most_bytes)
        append.sent_s = now_s
        if self.newest is None:
            self.oldest = append
        else:
            self._behind.append(append)
        self.newest = append
        return append

    def _with_others(self, item: Pending, most_events: int, most_bytes: int) -> Pending | Append:
        """Joins the first item with those that fit behind it; returns the item itself if none does."""
        queue, items, size, events = self.queued_behind, [item], len(item.data), item.events
        following: Pending | None = queue.popleft()
        while following is not None and events < most_events:
            grown = size + len(following.data)
            if grown > most_bytes:
                break
            items.append(following)
            size = grown
            events += following.events
            following = queue.popleft() if queue else None
        self.first_queued = following
        first = self._last_taken + 1
        self._last_taken += events
        if len(items) > 1:
            return Append(first, self._last_taken, items, size)
        item.last = self._last_taken
        return item

    def _drop_oldest(self) -> None:
        if self.oldest is self.newest:
            self.oldest = self.newest = None
        else:
            self.oldest = self._behind.popleft()

    def carried(self) -> Pending:
        """Removes the first item never sent, which was stored by other means and takes no event number."""
        item = self.first_queued
        if item is None:
            raise IndexError("nothing is queued")
        self.first_queued = self.queued_behind.popleft() if self.queued_behind else None
        self.held_bytes -= len(item.data)
        self.settled += 1
        return item

    def acknowledged_alone(self, number: int, previous: int) -> Pending | None:
        """Fast path of `acknowledged`: the item that a valid ack covers, if it is alone in its append, else None and no
        change. Applies to nearly every ack if many writers have few appends in flight each."""
        item = self.oldest
        if type(item) is not Pending or item.last != number or number - previous < item.events:
            return None
        if item is self.newest:
            self.oldest = self.newest = None
        else:
            self.oldest = self._behind.popleft()
        self.last_stored = number
        self.held_bytes -= len(item.data)
        self.settled += 1
        return item

    def acknowledged(self, number: int, previous: int) -> tuple[list[Pending], int]:
        """Returns the items that an ack covers and their size; the ack before it was `previous`. Raises BadAck."""
        append = self.oldest
        if append is not None and append.last == number and previous < append.first:  # nearly every ack
            if append is self.newest:
                self.oldest = self.newest = None
            else:
                self.oldest = self._behind.popleft()
            size, items = append.size, append.items
            self.last_stored = number
            self.held_bytes -= size
            self.settled += len(items)
            return items, size
        lowest = self._last_taken + 1 if append is None else append.first
        if previous >= number:
            raise BadAck(f"acknowledges event {number} after event {previous}")
        if lowest <= previous:
            raise BadAck(f"claims to have acknowledged event {previous} before, but event {lowest} is unacknowledged")
        if number > self._last_taken:
            raise BadAck(f"acknowledges event {number}, but the last sent is {self._last_taken}")
        return self._release(number)

    def set_up(self, last: int) -> tuple[list[Pending], int]:
        """Returns the items that a set-up acknowledges: the store has events up to `last`. Raises OtherWriter."""
        if last > self._last_taken:
            if self.oldest is not None:
                raise OtherWriter(f"has event {last}, but the last sent is {self._last_taken}")
            self._last_taken = last  # a writer with this id has written before
        self._sent_before = self._last_taken
        return self._release(last)

    def _release(self, number: int) -> tuple[list[Pending], int]:
        stored: list[Pending] = []
        size = 0
        while (append := self.oldest) is not None and append.first <= number:
            if append.last <= number:
                self._drop_oldest()
                stored += append.items
                size += append.size
                continue
            if isinstance(append, Pending):
                break
            before = append.size
            while append.first + append.items[0].events - 1 <= number:
                item = append.items.pop(0)
                append.first += item.events
                append.size -= len(item.data)
                stored.append(item)
            size += before - append.size
            break
        self.last_stored = max(self.last_stored, number)
        self.held_bytes -= size
        self.settled += len(stored)
        return stored, size

    def take_all(self) -> list[Pending]:
        """Removes and returns all unacknowledged items, in order."""
        taken = [item for append in self.sent for item in append.items]
        if self.first_queued is not None:
            taken.append(self.first_queued)
        taken += self.queued_behind
        self.oldest = self.newest = None
        self._behind.clear()
        self.first_queued = None
        self.queued_behind.clear()
        self.held_bytes = 0
        self.settled += len(taken)
        return taken
