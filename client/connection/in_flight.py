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
from segstore.wire.codec import or_in_c

Then = Callable[[ClientError | None], object]
"""Called once: with None when an event is stored, or with the error if it never will be."""


class BadAck(Exception):
    """An acknowledgement that the protocol does not allow; the text gives the reason."""


class OtherWriter(BadAck):
    """The store has event numbers that this writer has not sent: another writer uses its id."""


_SHORT: Final = 16_384
"""Length of a list whose first items are removed at little cost."""
MANY_ITEMS: Final = 1024
"""After this many items are queued for a segment, a stream writer yields to the loop. Sooner means smaller appends;
later, objects that have left the processor's cache."""
LEAST_COST: Final = 64
"""Least cost of an event, in bytes of a `Budget`, so that many small events of many segments are bounded, too."""
assert not _SHORT % MANY_ITEMS, "`add_behind` adds to no list that is full"


class Pending(msgspec.Struct, gc=False):
    """A queued or in-flight item: one event, or several appended together.

    data: the bytes to store, or an event that is framed when it is sent. events: their number. tag: opaque to this
    module, such as the routing key's position. done: a future or function notified once, when the item is stored or
    never will be. The garbage collector does not track items, which are many: no cycle through `done` outlives the
    notification. So a writer that is dropped without being closed is not collected while items wait.
    """

    data: Buffer
    events: int
    tag: Any
    done: asyncio.Future[None] | Then


class InFlightAppend(msgspec.Struct):
    """An append of one or more items: events `first` to `last`, last sent at loop time `sent_s`."""

    first: int
    last: int
    items: list[Pending]
    size: int
    sent_s: float


class Budget(msgspec.Struct):
    """Bytes that the pool's writers may queue before one yields to the event loop: `left` of `most`. An event of fewer
    than `LEAST_COST` bytes costs that many.

    Without this, callers that never wait would fill the memory limit before the first event is sent. largest: size of
    the largest event that one append may carry.
    """

    most: int
    left: int
    largest: int


class InFlight:
    """Events of one writer.

    overhead: bytes that each item takes in the segment beside its data. most_held: limit of `held_bytes`.

    Attributes:
        added_bytes: total size of all items that were ever added.
        full_at: the total from which there is no room for more; grows as items are settled.
        settled: number of items returned to the caller.
        last_stored: number of the last event known to be stored, or -1.
        segment_length: as of the last acknowledgement, -1 before the first.
        queued: the first items never sent, in order; empty only without such items.
        newest: the list to which items are added: `queued`, or the last of several lists.
        oldest: the first append in flight, or None.
    """

    __slots__ = (
        "_behind",
        "_last_taken",
        "_later",
        "_most_held",
        "_sent_before",
        "added_bytes",
        "full_at",
        "last_stored",
        "newest",
        "oldest",
        "overhead",
        "queued",
        "segment_length",
        "settled",
    )

    def __init__(self, overhead: int = 0, most_held: int = 0) -> None:
        self.overhead: Final = overhead
        self._most_held = most_held
        self.queued: list[Pending] = []
        self.newest = self.queued
        self._later: list[list[Pending]] = []
        """The lists behind `queued`, once there are many items."""
        self.oldest: InFlightAppend | None = None
        self._behind: deque[InFlightAppend] = deque()
        """The appends in flight except the oldest. Unused by the many writers with one append in flight."""
        self._last_taken = 0
        self._sent_before = 0
        """The last number in flight at the latest set-up; the store may have received it twice."""
        self.added_bytes = 0
        self.full_at = most_held
        self.settled = 0
        self.last_stored = -1
        self.segment_length = -1

    @property
    def held_bytes(self) -> int:
        """Total size of all queued and in-flight items."""
        return self.added_bytes + self._most_held - self.full_at

    @property
    def unsettled(self) -> int:
        """Number of items that are queued or in flight."""
        return sum(map(len, (self.queued, *self._later))) + sum(len(append.items) for append in self.sent)

    @property
    def sent(self) -> Iterator[InFlightAppend]:
        """The appends in flight, in order."""
        if self.oldest is not None:
            yield self.oldest
            yield from self._behind

    @property
    def oldest_is_new(self) -> bool:
        """Whether the oldest append in flight was sent only once."""
        return self.oldest is not None and self.oldest.first > self._sent_before

    def carried(self) -> Pending:
        """Removes the first item never sent, which was stored by other means and takes no event number.

        Raises IndexError if nothing is queued.
        """
        item = self.queued.pop(0)
        if self._later and not self.queued:
            self.queued = self._later.pop(0)
        self.full_at += len(item.data) + self.overhead
        self.settled += 1
        return item

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
        while (append := self.oldest) is not None and append.last <= number:
            self.oldest = self._behind.popleft() if self._behind else None
            stored += append.items
            size += append.size
        if append is not None:
            before = append.size
            while append.first + append.items[0].events - 1 <= number:
                item = append.items.pop(0)
                append.first += item.events
                append.size -= len(item.data) + self.overhead
                stored.append(item)
            size += before - append.size
        self.last_stored = max(self.last_stored, number)
        self.full_at += size
        self.settled += len(stored)
        return stored, size

    def take_all(self) -> list[Pending]:
        """Removes and returns all unacknowledged items, in order."""
        taken = [item for append in self.sent for item in append.items]
        for items in (self.queued, *self._later):
            taken += items
        self.oldest = None
        self._behind.clear()
        self._later.clear()
        self.queued = self.newest = []
        self.full_at = self.added_bytes + self._most_held
        self.settled += len(taken)
        return taken


def add(queue: InFlight, item: Pending) -> bool:
    """Queues an item; returns whether nothing was queued before."""
    queue.added_bytes += len(item.data) + queue.overhead
    if len(queue.newest) >= _SHORT:
        queue.newest = []
        queue._later.append(queue.newest)
    queue.newest.append(item)
    return len(queue.queued) == 1 and queue.newest is queue.queued


Route = tuple[InFlight, float, Any]
"""The queue of a segment's writer, the position of a routing key, and what else its owner keeps there."""


@or_in_c(InFlight, Pending, Budget, slots=("newest", "added_bytes", "overhead", "full_at", "left", "largest"))
def add_behind(
    routes: dict[str | None, Route],
    key: str | None,
    event: bytes,
    new_future: Callable[[], asyncio.Future[None]],
    budget: Budget,
) -> asyncio.Future[None] | None:
    """Queues an event behind queued events if the caller need not wait; returns its future.

    Returns None, and queues nothing, if there is anything else to decide: the key has no route, nothing is queued,
    another `MANY_ITEMS` items are queued, the event is too large, the writer is full, or the budget is spent.
    """
    route = routes.get(key)
    if route is None or type(event) is not bytes:
        return None
    queue, position, _ = route
    done = new_future()  # before the look at the queue, because a finalizer may run here
    size = len(event)
    added, cost = queue.added_bytes + size + queue.overhead, max(size, LEAST_COST)
    newest = queue.newest
    if not len(newest) % MANY_ITEMS or added >= queue.full_at or cost >= budget.left or size > budget.largest:
        return None
    newest.append(Pending(event, 1, position, done))
    queue.added_bytes = added
    budget.left -= cost
    return done


def take(queue: InFlight, most_events: int, most_bytes: int, now_s: float = 0.0) -> tuple[InFlightAppend, list[Buffer]]:
    """Moves the next append from the queue to the appends in flight; returns it with the data of its items.

    Takes at least one item, whatever its size. Raises IndexError if nothing is queued.
    """
    items, pieces, events, size = take_items(queue.queued, most_events, most_bytes, queue.overhead)
    if queue._later and not queue.queued:
        queue.queued = queue._later.pop(0)
    first = queue._last_taken + 1
    queue._last_taken += events
    append = InFlightAppend(first, queue._last_taken, items, size, now_s)
    if queue.oldest is None:
        queue.oldest = append
    else:
        queue._behind.append(append)
    return append, pieces


def acknowledged(queue: InFlight, number: int, previous: int) -> tuple[list[Pending], int]:
    """Returns the items that an ack covers and their size; the ack before it was `previous`. Raises BadAck."""
    append = queue.oldest
    if append is not None and append.last == number and previous < append.first:  # nearly every ack
        queue.oldest = queue._behind.popleft() if queue._behind else None
        queue.last_stored = number
        queue.full_at += append.size
        queue.settled += len(append.items)
        return append.items, append.size
    lowest = queue._last_taken + 1 if append is None else append.first
    if previous >= number:
        raise BadAck(f"acknowledges event {number} after event {previous}")
    if lowest <= previous:
        raise BadAck(f"claims to have acknowledged event {previous} before, but event {lowest} is unacknowledged")
    if number > queue._last_taken:
        raise BadAck(f"acknowledges event {number}, but the last sent is {queue._last_taken}")
    return queue._release(number)


def take_items(
    queue: list[Pending], most_events: int, most_bytes: int, overhead: int
) -> tuple[list[Pending], list[Buffer], int, int]:
    """Removes the first item and further items that fit; returns them, their data, their events, and their bytes.

    overhead: bytes of each item beside its data.
    """
    events, size = queue[0].events, len(queue[0].data) + overhead
    count = 1
    while count < len(queue) and events < most_events and size + len(queue[count].data) + overhead <= most_bytes:
        events += queue[count].events
        size += len(queue[count].data) + overhead
        count += 1
    items = queue[:count]
    del queue[:count]
    return items, [item.data for item in items], events, size


@or_in_c(Pending, asyncio.Future, asyncio.InvalidStateError, slots=("done",))
def resolve_stored(items: list[Pending], failed: Callable[[Exception], object]) -> None:
    """Notifies all items that they are stored. failed: gets a function's error."""
    for item in items:
        done = item.done
        if isinstance(done, asyncio.Future):
            if not done.done():
                done.set_result(None)
            continue
        try:
            done(None)
        except Exception as problem:  # noqa: BLE001 — one item's failure must not affect the others
            failed(problem)
