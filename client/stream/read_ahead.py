"""The read-ahead buffer of a reader of several segments: events read but not yet returned to the caller.

Events are buffered per read, so returning an event is a list pop and bytes are counted once per read.

Invariants: events and marks leave in the order in which they were added; a read's bytes count until its last event is
returned or dropped; producers wait in `room` while the limit is reached; returned events are not retained.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from segstore.client.errors import ClientError, ProtocolViolation
from segstore.client.lifecycle import check_loop
from segstore.client.segment import SegmentReader
from segstore.client.stream.events import EventAssembler, FramedEvent, StreamEvent

if TYPE_CHECKING:
    from segstore.client.telemetry import Receiving


E = TypeVar("E", bound=FramedEvent | StreamEvent)
K = TypeVar("K")


class _Read(NamedTuple, Generic[K, E]):
    """The events of one read in reverse order, with their segment and the read's start and end offsets."""

    key: K
    events: list[E]
    size: int
    end: int


class _Mark(NamedTuple, Generic[K]):
    key: K
    passed: Callable[[], object]


class ReadAhead(Generic[K, E]):
    """A buffer of events of type E from segments K, in arrival order, with marks between them.

    Attributes:
        current: remaining events of the current read in reverse order; `current.pop()` returns the next.
        held_bytes: total size of reads with events not yet returned.
        error: the first failure of a producer. came: set when a producer has added something or has ended.
    """

    __slots__ = ("_limit", "_loop", "_observer", "_queue", "_read", "_room", "came", "current", "error", "held_bytes")

    def __init__(self, limit_bytes: int, observer: Receiving | None = None) -> None:
        self.current: list[E] = []
        self.held_bytes = 0
        self.error: ClientError | None = None
        self.came = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._limit = limit_bytes
        self._observer = observer
        self._queue: deque[_Read[K, E] | _Mark[K]] = deque()
        self._read: _Read[K, E] | None = None
        self._room = asyncio.Event()

    @property
    def place(self) -> tuple[K, int] | None:
        """Segment and offset after the last returned event; None between two reads."""
        if self._read is None:
            return None
        return self._read.key, self.current[-1].offset if self.current else self._read.end

    def add(self, key: K, events: list[E], begin: int, end: int) -> None:
        """Adds the events of one read, which spans `begin` to `end` in the segment. Takes ownership of the list."""
        if events:
            events.reverse()
            self._queue.append(_Read(key, events, end - begin, end))
            self.held_bytes += end - begin

    @contextmanager
    def producing(self, what: str, **facts: Any) -> Iterator[None]:
        """Keeps the error of a producer, instead of raising it: `what` failed. facts: of an unexpected error."""
        try:
            yield
        except ClientError as error:
            self.error = self.error or error
        except Exception as cause:  # noqa: BLE001 — a reader that silently stopped would look like the stream's end
            self.error = self.error or ProtocolViolation(f"{what} failed: {cause}", **facts).caused_by(cause)
        finally:
            self.came.set()

    async def next_came(self) -> None:
        """Waits until a producer adds something or ends. Raises RuntimeError in another event loop."""
        check_loop(self._loop)
        if self._observer is not None:
            self._observer.waits()
        self.came.clear()
        await self.came.wait()

    async def fill(self, key: K, reader: SegmentReader, decoder: EventAssembler[E], end: int = sys.maxsize) -> None:
        """Adds the events of a segment that begin before `end` as they are read, waiting for room.

        Raises the errors of reading, and ProtocolViolation if the segment ends within an event.
        """
        async for chunk in reader:
            begin, events = decoder.offset, decoder.feed(chunk.view)
            if decoder.offset >= end:
                self.add(key, [event for event in events if event.offset < end], begin, decoder.offset)
                return
            self.add(key, events, begin, decoder.offset)
            self.came.set()
            await self.room()
        if decoder.partial:
            raise ProtocolViolation(
                f"{reader.segment} ends within an event", segment=reader.segment, offset=decoder.offset
            )

    def mark(self, key: K, passed: Callable[[], object]) -> None:
        """Adds a mark behind the events of a segment: `advance` calls `passed` once all earlier events are returned."""
        self._queue.append(_Mark(key, passed))

    async def room(self) -> None:
        """Waits until less than the limit is held."""
        while self.held_bytes >= self._limit:
            self._room.clear()
            await self._room.wait()

    def take(self) -> list[E]:
        """Removes and returns all of `current`, in order."""
        events = self.current[::-1]
        self.current.clear()
        return events

    def advance(self) -> bool:
        """Called when `current` is empty: releases its read, passes marks, and refills `current` if events follow.

        Returns whether there are events.
        """
        self._release()
        while self._queue:
            following = self._queue.popleft()
            if isinstance(following, _Read):
                self._read, self.current = following, following.events
                if self._observer is not None:
                    self._observer.took(following.key, len(following.events))
                return True
            following.passed()
        return False

    def drop(self, whose: Callable[[K], bool]) -> None:
        """Drops the events and marks of the segments that the predicate selects."""
        if self._read is not None and whose(self._read.key):
            self._release()
        dropped = [item for item in self._queue if whose(item.key)]
        self.held_bytes -= sum(item.size for item in dropped if isinstance(item, _Read))
        self._queue = deque(item for item in self._queue if not whose(item.key))
        self._look()

    def clear(self) -> None:
        """Drops everything."""
        self.drop(lambda _: True)

    def _release(self) -> None:
        self.current = []
        if self._read is not None:
            self.held_bytes -= self._read.size
            self._read = None
            self._look()

    def _look(self) -> None:
        if self.held_bytes < self._limit:
            self._room.set()
