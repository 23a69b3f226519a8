"""Event queue, event numbers and in-flight appends of a segment writer. Pure state: no I/O, no clock.

Invariants: events are sent in the order in which they were added; each event gets the next number when its append is
built, and keeps it if the append is resent after a new set-up; an event is either queued, in flight or returned to the
caller. `acknowledged` and `set_up` raise `BadAck` for a violation of the protocol, and then change nothing.

Follows `SegmentOutputStreamImpl.State` (Pravega's client).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from segstore.client.errors import ClientError
from segstore.wire import Buffer

Then = Callable[[ClientError | None], object]
"""Called once: with None when an event is stored, or with the error if it never will be."""
Waiter = asyncio.Future[None] | Then
"""Notified once, when an item is stored or never will be."""


_Future: Final = asyncio.Future


class BadAck(Exception):
    """An acknowledgement that the protocol does not allow; the text gives the reason."""


class OtherWriter(BadAck):
    """The store has event numbers that this writer has not sent: another writer uses its id."""


MANY_ITEMS: Final = 1024
"""After this many items are queued for a segment, a stream writer yields to the loop. Sooner means smaller appends;
later, objects that have left the processor's cache."""
LEAST_COST: Final = 64
"""The least that is charged to a `Budget` at a time, so that small events of many segments are bounded, too."""
_LAST_EVENT: Final = 1 << 62
_BEHIND_BYTES: Final = 16_384
"""After this many bytes, the events that `add_behind` has added are charged to the budget."""


class Pending(msgspec.Struct, gc=False):
    """An item that is not stored yet: one event, or several appended together.

    data: the bytes to store, or an event that is framed when it is sent. events: their number. tag: opaque to this
    module, such as the routing key's position. done: its waiter.
    """

    data: Buffer
    events: int
    tag: Any
    done: Waiter


class InFlightAppend:
    """Items that are sent together: one item, or several items of one event.

    Attributes:
        data, tags, done: of each item, see `Pending`.
        events_each: number of events of an item.
        size: bytes that the items take in the segment.
        behind_at: the size above which `add_behind` adds nothing.
        first, last: numbers of the events, once they are sent; sent_s: loop time when they were last sent.
    """

    def __init__(self, data: Buffer, done: Waiter, events_each: int, tag: Any, size: int) -> None:
        """Arguments: of the first item."""
        self.data = [data]
        self.tags = [tag]
        self.done = [done]
        self.events_each: Final = events_each
        self.size = size
        self.behind_at = self.first = self.last = 0
        self.sent_s = 0.0

    @property
    def items(self) -> Iterator[Pending]:
        for data, tag, done in zip(self.data, self.tags, self.done, strict=True):
            yield Pending(data, self.events_each, tag, done)

    def release(self, count: int, overhead: int) -> tuple[list[Waiter], int]:
        """Removes the first items, which are stored; returns their waiters and size."""
        done = self.done[:count]
        size = sum(map(len, self.data[:count])) + overhead * len(done)
        del self.data[:count], self.tags[:count], self.done[:count]
        self.first += len(done) * self.events_each
        self.size -= size
        return done, size


class Budget(msgspec.Struct):
    """What all stream writers of a pool accept before one of them yields to the loop: `most` bytes, of which `left` are
    left. Without this, callers that never wait would fill the memory limit before the first event is sent.
    """

    most: int
    left: int


class InFlight:
    """Events of one writer.

    overhead: bytes that each item takes in the segment beside its data. most_held: limit of `held_bytes`. most_events,
    most_bytes: limits of one append; an item that alone is longer is an append of its own.

    Attributes:
        full_at: the total size of all items ever added from which there is no room for more; grows as items are
            settled.
        settled: number of items returned to the caller.
        last_stored: number of the last event known to be stored, or -1.
        segment_length: as of the last acknowledgement, -1 before the first.
        queued: the appends never sent, in order.
        newest: the last of them, to which items are added; None if there are none.
        sent: the appends in flight, in order.
    """

    def __init__(self, overhead: int, most_held: int, most_events: int, most_bytes: int) -> None:
        self.overhead: Final = overhead
        self._most_held: Final = most_held
        self._most_events: Final = most_events
        self._most_bytes: Final = most_bytes
        self.queued: deque[InFlightAppend] = deque()
        self.newest: InFlightAppend | None = None
        self.sent: deque[InFlightAppend] = deque()
        self._last_taken = 0
        self._sent_before = 0
        """The last number in flight at the latest set-up; the store may have received it twice."""
        self._before_newest = 0
        """Total size of all items ever added, without the items in `newest`."""
        self._charged = 0
        self.full_at = most_held
        self.settled = 0
        self.last_stored = -1
        self.segment_length = -1

    @property
    def added_bytes(self) -> int:
        """Total size of all items that were ever added."""
        return self._before_newest + (0 if self.newest is None else self.newest.size)

    @property
    def held_bytes(self) -> int:
        """Total size of all queued and in-flight items."""
        return self.added_bytes + self._most_held - self.full_at

    @property
    def has_room(self) -> bool:
        """Whether less than `most_held` is held."""
        newest = self.newest
        return self._before_newest + (0 if newest is None else newest.size) < self.full_at

    @property
    def unsettled(self) -> int:
        """Number of items that are queued or in flight."""
        return sum(len(append.done) for append in (*self.queued, *self.sent))

    @property
    def oldest_is_new(self) -> bool:
        """Whether the oldest append in flight was sent only once."""
        return bool(self.sent) and self.sent[0].first > self._sent_before

    @property
    def has_many(self) -> bool:
        """Whether about `MANY_ITEMS` items or more are queued."""
        return len(self.queued) * self._most_events > MANY_ITEMS

    def add(self, data: Buffer, done: Waiter, events: int = 1, tag: Any = None) -> bool:
        """Queues an item; returns whether nothing was queued before."""
        size, append = len(data) + self.overhead, self.newest
        if (
            append is not None
            and append.size + size <= self._most_bytes
            and len(append.done) < self._most_events
            and events == append.events_each == 1
        ):
            append.data.append(data)
            append.tags.append(tag)
            append.done.append(done)
            append.size += size
            return False
        if append is not None:
            self._before_newest += append.size
        self.newest = new = InFlightAppend(data, done, events, tag, size)
        self.queued.append(new)
        return append is None

    def charge(self) -> int:
        """Returns the bytes added since the last call, and lets `add_behind` add some more."""
        charged, self._charged = self._charged, self.added_bytes
        append = self.newest
        if append is not None and append.events_each == 1:
            room = self.full_at - self._before_newest - 1
            append.behind_at = min(self._most_bytes, room, append.size + _BEHIND_BYTES)
        return self._charged - charged

    def take(self, now_s: float = 0.0) -> InFlightAppend:
        """Moves the next append from the queue to the appends in flight. Raises IndexError if nothing is queued."""
        append = self._next()
        append.first, append.sent_s = self._last_taken + 1, now_s
        append.last = self._last_taken = self._last_taken + len(append.done) * append.events_each
        self.sent.append(append)
        return append

    def _next(self) -> InFlightAppend:
        append = self.queued.popleft()
        if append is self.newest:
            self._before_newest += append.size
            self.newest = None
        return append

    def carried(self) -> InFlightAppend:
        """Removes the first append never sent, which was stored by other means and takes no event number.

        Raises IndexError if nothing is queued.
        """
        append = self._next()
        self.full_at += append.size
        self.settled += len(append.done)
        return append

    def set_up(self, last: int) -> tuple[list[Waiter], int]:
        """As `acknowledged`, for a set-up: the store has events up to `last`. Raises OtherWriter."""
        if last > self._last_taken:
            if last >= _LAST_EVENT:
                raise OtherWriter(f"has event {last}, which leaves no number for the next")
            if self.sent:
                raise OtherWriter(f"has event {last}, but the last sent is {self._last_taken}")
            self._last_taken = last  # a writer with this id has written before
        self._sent_before = self._last_taken
        return self._release(last)

    def acknowledged(self, number: int, previous: int) -> tuple[list[Waiter], int]:
        """Returns the waiters and the size of the items that an ack covers; the ack before it was `previous`.

        Raises BadAck.
        """
        sent = self.sent
        append = sent[0] if sent else None
        if append is not None and append.last == number and previous < append.first:  # nearly every ack
            sent.popleft()
            self.last_stored = number
            self.full_at += append.size
            self.settled += len(append.done)
            return append.done, append.size
        lowest = self._last_taken + 1 if append is None else append.first
        if previous >= number:
            raise BadAck(f"acknowledges event {number} after event {previous}")
        if lowest <= previous:
            raise BadAck(f"claims to have acknowledged event {previous} before, but event {lowest} is unacknowledged")
        if number > self._last_taken:
            raise BadAck(f"acknowledges event {number}, but the last sent is {self._last_taken}")
        return self._release(number)

    def _release(self, number: int) -> tuple[list[Waiter], int]:
        stored: list[Waiter] = []
        size, sent = 0, self.sent
        while sent and sent[0].first <= number:
            append = sent[0]
            count = (number - append.first + 1) // append.events_each
            done, released = append.release(count, self.overhead)
            stored += done
            size += released
            if append.done:
                break
            sent.popleft()
        self.last_stored = max(self.last_stored, number)
        self.full_at += size
        self.settled += len(stored)
        return stored, size

    def take_all(self) -> list[Pending]:
        """Removes and returns all unacknowledged items, in order."""
        taken = [item for append in (*self.sent, *self.queued) for item in append.items]
        self._before_newest, self.newest = self.added_bytes, None
        self.sent.clear()
        self.queued.clear()
        self.full_at = self._before_newest + self._most_held
        self.settled += len(taken)
        return taken


Route = tuple[InFlight, float, Any]
"""The queue of a segment's writer, the position of a routing key, and what else its owner keeps there."""


def add_behind(
    queue: InFlight, event: bytes, tag: Any, new_future: Callable[[], asyncio.Future[None]]
) -> asyncio.Future[None] | None:
    """Adds an event to the newest append, if there is one and nothing else to decide; returns its future.

    Returns None, and adds nothing, if the append or the writer is full, or the events added are to be charged.
    """
    append = queue.newest
    if append is None:
        return None
    done, size = append.done, append.size + len(event) + queue.overhead
    if size > append.behind_at or len(done) >= queue._most_events:
        return None
    future = new_future()
    append.data.append(event)
    append.tags.append(tag)
    done.append(future)
    append.size = size
    return future


def notify_stored(waiters: list[Waiter], failed: Callable[[Exception], object]) -> None:
    """Notifies waiters that their items are stored. failed: gets what a function raises."""
    for done in waiters:
        if isinstance(done, _Future):
            if not done.done():  # its waiter may have cancelled it
                done.set_result(None)
            continue
        try:
            done(None)
        except Exception as problem:  # noqa: BLE001 — one item's failure must not affect the others
            failed(problem)
