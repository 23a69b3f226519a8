"""The writers that a connection has set up, what they append, and counts of it (79.8).

A writer is one record: the block decoder makes it when a set-up is decoded, the session makes it ready when the set-up
is executed, and every append goes through it. ``store_plain`` stores nearly all of them; the session decides about the
others.

Counts are kept only if there is a control API to query them. They cover appends over connections to the segments of
streams. Appends to transactions and large events, whose segments are merged later, appear only in the target segment's
totals.

Invariants: counts cover this process since its start; counts of deleted segments are removed before the number of
counts has doubled; at most `max_counts` are kept, and further set-ups are counted as `uncounted`.

Source: `WriterState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from segstore.server.store import APPEND_SLOTS, Container, Segment, append_rows, begin_of_appended, record_of_rows
from segstore.wire import Command
from segstore.wire.blocks import Acknowledge, Append, BlockWriter, Run
from segstore.wire.codec import or_in_c
from segstore.wire.names import is_index, parent_of, stream_of

WRITER_BYTES: Final = 400
"""What a writer that was set up takes, roughly."""

Item = Command | Append | list[Run]
"""What a peer has sent, to be executed in order."""

STORE_SLOTS: Final = (
    *(*APPEND_SLOTS, "gate", "index_due_ms", "index", "index_entry_size", "mapped"),
    *("id_bytes", "is_set_up", "last_stored", "container", "container_id", "found", "add_record", "record_begin"),
)
"""Slots of a segment, then of a writer, that `store_plain` uses in C."""

_LOOK_AT: Final = 1024


class WriterCount(msgspec.Struct, gc=False):
    """Counts of one writer in one segment: events and bytes stored, connections on which it is set up now, set-ups so
    far, and its name if known."""

    events: int = 0
    bytes: int = 0
    connected: int = 0
    set_ups: int = 0
    name: str | None = None


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
        for segment in [each for each in self._segments if not self._exists(each)]:
            self._size -= len(self._segments.pop(segment))
        self._look_at = min(max(_LOOK_AT, 2 * self._size), self._max)


class Writer(BlockWriter):
    """A writer of one segment on one connection.

    Attributes:
        id_bytes: the bytes of its id.
        is_set_up: whether the session takes appends from it; the others are set only then.
        container, container_id: where the segment lies.
        found: the segment itself; None if the container had none at the last `move_to`.
        add_record, record_begin: the journal of the container, None if it has none, and what a record of appends to the
            segment begins with.
        last_stored: the last event number that was stored, and acknowledged.
        count: the counter of its appends; None if they are not counted.
    """

    __slots__ = (
        "add_record",
        "container",
        "container_id",
        "count",
        "found",
        "id_bytes",
        "is_set_up",
        "last_stored",
        "record_begin",
    )

    def __init__(self, segment: str, writer_id: UUID) -> None:
        super().__init__(segment, writer_id)
        self.id_bytes = writer_id.bytes
        self.is_set_up = False

    def set_up(self, container: Container, last_stored: int, count: WriterCount | None) -> None:
        """The segment's store knows the writer, with `last_stored` as its last number."""
        self.move_to(container)
        self.last_stored = last_stored
        self.count = count
        self.is_set_up = True

    def move_to(self, container: Container) -> None:
        """The segment lies in another container, or is another one of the same name."""
        self.container = container
        self.container_id = container.container_id
        self.found = container.segments.get(self.segment)
        self.add_record = container.add_record
        self.record_begin = b"" if self.add_record is None else begin_of_appended(self.segment)


def count_stored(runs: Iterable[Run]) -> None:
    """Counts appends that were stored."""
    for writer, rows in runs:
        if isinstance(writer, Writer) and (count := writer.count) is not None:
            count.events += sum(row[1] for row in rows)
            count.bytes += sum(len(row[2]) for row in rows)


@or_in_c(Segment, Writer, slots=STORE_SLOTS)
def store_plain(
    runs: Sequence[Run],
    start: int,
    containers: Mapping[int, Container],
    now_ms: int,
    acknowledge: Acknowledge,
    acks: bytearray,
) -> tuple[int, int]:
    """Stores runs from `start` up to one that is not plain; returns its position and how many appends were stored.

    A run is plain if its writer is set up, its segment was found and has no gate, its number is the writer's next, and
    the segment's last chunk has room: nothing is to be decided then. The acknowledgements are added to `acks`, and
    records to the journal. containers: those of the store.
    """
    stored = 0
    for at in range(start, len(runs)):
        writer, rows = runs[at]
        if type(writer) is not Writer or not writer.is_set_up:
            return at, stored
        segment, previous = writer.found, writer.last_stored
        if (
            containers.get(writer.container_id) is not writer.container
            or segment is None
            or segment.gate
            or segment.attributes.get(writer.id_bytes) != previous
            or rows[0][0] < previous
        ):
            return at, stored
        if now_ms >= segment.index_due_ms:
            writer.container.update_index(segment, now_ms)
        offset, journal = segment.length, writer.add_record
        if not append_rows(segment, writer.id_bytes, rows, now_ms):
            return at, stored
        if journal is not None:
            journal(record_of_rows(writer.container_id, writer.record_begin, rows, now_ms, writer.id_bytes))
        writer.last_stored = acknowledge(rows, writer.id_bytes, previous, offset, acks)
        stored += len(rows)
    return len(runs), stored
