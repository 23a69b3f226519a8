"""The writers that a connection has set up, their appends, and counts of these (79.8).

A writer is one record: the block decoder creates it when a set-up is decoded, the session makes it ready when the
set-up is executed, and every append uses it.

Counts are kept only if there is a control API to query them. They cover appends over connections to the segments of
streams. Appends to transactions and large events, whose segments are merged later, appear only in the target segment's
totals.

Invariants: counts cover this process since its start; counts of deleted segments are removed before the number of
counts has doubled; at most `max_counts` are kept, and further set-ups are counted as `uncounted`.

Source: `WriterState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from segstore.wire import Command
from segstore.wire.blocks import Append, BlockWriter, Row, Run
from segstore.wire.names import is_index, parent_of, stream_of

WRITER_BYTES: Final = 400
"""Approximate size of a writer that was set up."""

Item = Command | Append | list[Run]
"""Received items, to be executed in order."""

_LOOK_AT: Final = 1024


class WriterCount(msgspec.Struct, gc=False):
    """Counts of one writer in one segment: events and bytes stored, connections on which it is set up now, set-ups so
    far, and its name if known."""

    events: int = 0
    bytes: int = 0
    connected: int = 0
    set_ups: int = 0
    name: str | None = None

    def stored(self, rows: Sequence[Row]) -> None:
        """Counts appends that were stored."""
        self.events += sum([row[1] for row in rows])
        self.bytes += sum([len(row[2]) for row in rows])


class WriterCounts:
    """The counts of the stores of a process. exists: whether a segment exists.

    Attributes:
        uncounted: set-ups beyond the limit.
    """

    def __init__(self, exists: Callable[[str], bool], max_counts: int = 1_000_000) -> None:
        self.uncounted = 0
        self._exists = exists
        self._max = max_counts
        self._size = 0
        self._look_at = min(_LOOK_AT, max_counts)
        self._segments: dict[str, dict[bytes, WriterCount]] = {}

    def set_up(self, segment: str, writer_id: UUID) -> WriterCount | None:
        """Returns the count of a writer that was set up; None if it is not counted.

        The caller decrements `connected` when the set-up ends.
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
        """Returns the counts of a segment's writers, by the bytes of their ids; read-only."""
        return self._segments.get(segment, {})

    def all(self) -> Iterator[WriterCount]:
        """Yields all counts."""
        for writers in self._segments.values():
            yield from writers.values()

    def clear(self) -> None:
        """Forgets all counts; connections that are still open are not counted any more."""
        self._segments.clear()
        self._size = self.uncounted = 0

    def _forget(self) -> None:
        for segment in [name for name in self._segments if not self._exists(name)]:
            self._size -= len(self._segments.pop(segment))
        self._look_at = min(max(_LOOK_AT, 2 * self._size), self._max)


class Writer(BlockWriter):
    """A writer of one segment on one connection.

    Attributes:
        id_bytes: the bytes of its id.
        is_set_up: whether the session takes appends from it; the attributes below are set only then.
        container_id: number of the container that the segment belongs to.
        last_stored: the last event number that was stored, and acknowledged.
        count: the counter of its appends; None if they are not counted.
    """

    __slots__ = ("container_id", "count", "id_bytes", "is_set_up", "last_stored")

    def __init__(self, segment: str, writer_id: UUID) -> None:
        super().__init__(segment, writer_id)
        self.id_bytes = writer_id.bytes
        self.is_set_up = False

    def set_up(self, container_id: int, last_stored: int, count: WriterCount | None) -> None:
        """The segment's container knows the writer, with `last_stored` as its last number."""
        self.container_id = container_id
        self.last_stored = last_stored
        self.count = count
        self.is_set_up = True
