"""The synchronous classes of `segstore.client.batch`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from segstore.client import EventRangeReader as AsyncEventRangeReader
from segstore.client.batch import EventRange
from segstore.client.stream import StreamEvent
from segstore.client.sync.proxies import EnteredProxy, Iteration, step


class EventRangeReader(EnteredProxy[AsyncEventRangeReader]):
    """A reader of one range. Use with `with` and `for`, or call `close`.

    Attributes:
        range: the range that it reads.
    """

    @property
    def range(self) -> EventRange:
        return self._inner.range

    def read_slice(self) -> list[StreamEvent]:
        """Returns the next events, in order; [] at the end of the range. Cheaper than `for` for many events.

        Raises SegmentTruncated, SegmentMissing, EventTooLarge, TokenRefused, RetriesExhausted, ProtocolViolation, and
        Closed.
        """
        return self._lease.run(self._inner.read_slice)

    def slices(self) -> Iterator[list[StreamEvent]]:
        """Iterates over `read_slice` to the end of the range."""
        return Iteration(self._lease.call(self._inner.slices), self._lease)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        return step(self._inner, self._lease)

    def close(self) -> None:
        """Releases the flow. Can be called twice."""
        self._lease.run(self._inner.aclose)
