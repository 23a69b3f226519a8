"""Counts of the events and bytes each writer has appended to each stream segment (79.8).

Kept only where somebody can ask: a store without a control API has none of it. What is counted are appends over
connections to the segments of streams; those of transactions and of large events, whose segments are merged later, show
in the segment's own totals only.

Invariants: counts are of this process, from its start; those of deleted segments are removed before the number of
counts has doubled; at most `max_counts` are kept, and set-ups beyond them are counted as `uncounted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

import msgspec

from segstore.wire.names import is_index, parent_of, stream_of

_LOOK_AT: Final = 1024


class WriterCount(msgspec.Struct, gc=False):
    """Of one writer in one segment: events and bytes that were stored, on how many connections it is set up now, how
    often it was set up, and its name, where that was found out."""

    events: int = 0
    bytes: int = 0
    connected: int = 0
    set_ups: int = 0
    name: str | None = None


class WriterCounts:
    """The counts of the stores of a process. exists: whether a segment is there.

    Attributes:
        uncounted: set-ups for which there was no room.
    """

    def __init__(self, exists: Callable[[str], bool], max_counts: int = 1_000_000) -> None:
        self.uncounted = 0
        self._exists = exists
        self._max = max_counts
        self._size = 0
        self._look_at = min(_LOOK_AT, max_counts)
        self._segments: dict[str, dict[bytes, WriterCount]] = {}

    def set_up(self, segment: str, writer_id: UUID) -> WriterCount | None:
        """The count of a writer that was set up; None if it is not counted.

        Whoever asked takes one off `connected` when the set-up is over.
        """
        writers = self._segments.get(segment)
        count = None if writers is None else writers.get(writer_id.bytes)
        if count is None:
            if parent_of(segment) is not None or is_index(segment) or stream_of(segment) is None:
                return None
            if self._size >= self._look_at:
                self._forget()
            if self._size >= self._max:
                self.uncounted += 1
                return None
            count = WriterCount()
            self._segments.setdefault(segment, {})[writer_id.bytes] = count
            self._size += 1
        count.set_ups += 1
        count.connected += 1
        return count

    def of(self, segment: str) -> dict[bytes, WriterCount]:
        """The writers of a segment, by the bytes of their ids; read-only."""
        return self._segments.get(segment, {})

    def all(self) -> Iterator[WriterCount]:
        """Every count there is."""
        for writers in self._segments.values():
            yield from writers.values()

    def _forget(self) -> None:
        for segment in [each for each in self._segments if not self._exists(each)]:
            self._size -= len(self._segments.pop(segment))
        self._look_at = min(max(_LOOK_AT, 2 * self._size), self._max)
