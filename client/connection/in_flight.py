"""Event queue, event numbers and in-flight appends of a segment writer. Pure state: no I/O, no clock.

Invariants: events leave in the order in which they came; numbers rise by one an event, from the time an append is
made, and an append that is made again after a new set-up keeps its own; an event is queued, in flight or handed out.
`acknowledged` and `set_up` refuse what the protocol does not allow with `BadAck` and change nothing then.

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
"""What is called once when an event is stored, with None, or never will be, with the error."""


class BadAck(Exception):
    """An acknowledgement that the protocol does not allow; the text says why."""


class OtherWriter(BadAck):
    """The store has numbers of this writer's that it has not sent: somebody else has its id."""


class Pending(msgspec.Struct):
    """An event, or several that are appended together, on the way. Alone in its append it is that append as well.

    data: its bytes as the segment will hold them. events: how many they are. tag: the owner's, such as the routing
    key's position. done: a future or a function that hears once that it is stored, or never will be. last, sent_s: as
    those of `Append`, once it is in flight alone.
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
    """What one append of several carries: the events `first` to `last`, sent last at `sent_s` by the loop's clock."""

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
        held_bytes: of all that is queued or in flight.
        added, settled: how many items came in and went out.
        last_stored: number of the last event that is known to be stored, -1 if none.
        first_queued: of what was never sent, what came first; None if there is nothing.
        queued_behind: the others. Many writers have one item at a time, and do not touch this then.
        oldest, newest: the appends in flight that were sent first and last, None if there are none.
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
        """The appends in flight but for the oldest: many writers have one, and do not touch this then."""
        self._last_taken = 0
        self._sent_before = 0
        """The last number that was in flight when the writer was set up; the store may have had it twice."""
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
        """Whether something was never sent."""
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
        """The next append of what is queued; it is in flight from now on. One item is taken whatever its size."""
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
        """An append of the first item and those that follow it; the item where none does."""
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
        """The first of what was never sent was stored by other means; it goes out, and takes no number."""
        item = self.first_queued
        if item is None:
            raise IndexError("nothing is queued")
        self.first_queued = self.queued_behind.popleft() if self.queued_behind else None
        self.held_bytes -= len(item.data)
        self.settled += 1
        return item

    def acknowledged_alone(self, number: int, previous: int) -> Pending | None:
        """The item that an ack covers, if it is one alone in its append and nothing is wrong with the ack; else nothing
        was done. So it is with nearly every ack where many writers have few appends in flight each."""
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
        """What an ack covers, and its bytes; the ack before it was `previous`. Raises BadAck."""
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
            raise BadAck(f"acknowledges event {number}, and {previous} before it")
        if lowest <= previous:
            raise BadAck(f"acknowledged event {previous} before, of which event {lowest} was not part")
        if number > self._last_taken:
            raise BadAck(f"acknowledges event {number}, the last sent is {self._last_taken}")
        return self._release(number)

    def set_up(self, last: int) -> tuple[list[Pending], int]:
        """What a set-up acknowledges: the store has this writer's events up to `last`. Raises OtherWriter."""
        if last > self._last_taken:
            if self.oldest is not None:
                raise OtherWriter(f"has event {last}, the last sent is {self._last_taken}")
            self._last_taken = last  # a writer of this id has written before
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
        """Hands out everything that is not acknowledged, in order."""
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
