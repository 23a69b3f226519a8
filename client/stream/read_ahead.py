"""The read-ahead buffer of a reader of several segments: events read but not yet returned to the caller.

Each read's events stay together: handing one out is taking it from a list, and bytes are counted once a read.

Invariants: what came first goes out first, marks among it; bytes are held until the last event of their read was handed
out or dropped; who adds waits in `room` while the limit or more is held; an event that was handed out is not kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from segstore.client.errors import ProtocolViolation
from segstore.client.segment import SegmentReader
from segstore.client.stream.events import EventAssembler


class Placed(Protocol):
    """An event that knows where its header starts."""

    @property
    def offset(self) -> int: ...


E = TypeVar("E", bound=Placed)
K = TypeVar("K")
M = TypeVar("M")


class _Read(NamedTuple, Generic[K, E]):
    """The events of one read, the last first: which segment's, where the read began and ended."""

    key: K
    events: list[E]
    size: int
    end: int


class ReadAhead(Generic[K, E, M]):
    """Events of type E from segments K in the order in which they came, and marks of type M between them.

    Attributes:
        current: what is left of the read of which events are handed out, the next one last: `current.pop()`.
        held_bytes: of all reads of which something was not handed out.
    """

    __slots__ = ("_limit", "_queue", "_read", "_room", "current", "held_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.current: list[E] = []
        self.held_bytes = 0
        self._limit = limit_bytes
        self._queue: deque[_Read[K, E] | M] = deque()
        self._read: _Read[K, E] | None = None
        self._room = asyncio.Event()

    def __bool__(self) -> bool:
        """Whether something waits behind `current`."""
        return bool(self._queue)

    @property
    def place(self) -> tuple[K, int] | None:
        """Behind the event that was handed out last: its segment and offset; None between two reads."""
        if self._read is None:
            return None
        return self._read.key, self.current[-1].offset if self.current else self._read.end

    def add(self, key: K, events: list[E], begin: int, end: int) -> None:
        """Takes events of one segment that lie, with their headers, between two offsets; the list is its own now."""
        if events:
            events.reverse()
            self._queue.append(_Read(key, events, end - begin, end))
            self.held_bytes += end - begin

    async def fill(self, key: K, reader: SegmentReader, decoder: EventAssembler[E], came: asyncio.Event) -> None:
        """Adds all events of a segment as they are read, while there is room; sets `came` each time.

        Raises what reading does, ProtocolViolation for a segment that ends within an event.
        """
        async for chunk in reader:
            begin = decoder.offset
            self.add(key, decoder.feed(chunk.data), begin, decoder.offset)
            came.set()
            await self.room()
        if decoder.partial:
            raise ProtocolViolation(
                f"{reader.segment} ends within an event", segment=reader.segment, offset=decoder.offset
            )

    def mark(self, mark: M) -> None:
        """Comes out of `advance` behind what was added before."""
        self._queue.append(mark)

    async def room(self) -> None:
        """Returns when less than the limit is held."""
        while self.held_bytes >= self._limit:
            self._room.clear()
            await self._room.wait()

    def take(self) -> list[E]:
        """Hands out all of `current`, in order."""
        events = self.current[::-1]
        self.current.clear()
        return events

    def advance(self) -> M | None:
        """All of `current` was handed out: returns the mark behind it, or fills it from the next read, if any."""
        self._release()
        if not self._queue:
            return None
        following = self._queue.popleft()
        if not isinstance(following, _Read):
            return following
        self._read = following
        self.current = following.events
        return None

    def drop(self, whose: Callable[[K], bool], which: Callable[[M], bool]) -> None:
        """Drops the events of segments, and the marks, for which these say so."""
        if self._read is not None and whose(self._read.key):
            self._release()
        kept: deque[_Read[K, E] | M] = deque()
        for each in self._queue:
            if not isinstance(each, _Read):
                if not which(each):
                    kept.append(each)
            elif whose(each.key):
                self.held_bytes -= each.size
            else:
                kept.append(each)
        self._queue = kept
        self._look()

    def clear(self) -> None:
        """Drops everything."""
        self.drop(lambda _: True, lambda _: True)

    def _release(self) -> None:
        self.current = []
        if self._read is not None:
            self.held_bytes -= self._read.size
            self._read = None
            self._look()

    def _look(self) -> None:
        if self.held_bytes < self._limit:
            self._room.set()
