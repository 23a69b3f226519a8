"""One segment: its bytes, attributes and state.

A segment changes only through its container.

Invariant: `start_offset <= length`; `gate` is set unless an append needs no more than its number checked.

Follows `StreamSegmentMetadata` and `SegmentType`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntFlag
from operator import itemgetter
from typing import Final
from uuid import UUID

from segstore.server.store.attributes import COMMON_KEYS, EVENT_COUNT, wrap_int64
from segstore.server.store.chunks import ChunkPool, SegmentData
from segstore.server.store.memory import ATTRIBUTE_BYTES, SEGMENT_BYTES, name_bytes
from segstore.server.store.tables import TableSegment
from segstore.server.store.waiting import TailReaders
from segstore.wire.blocks import Row
from segstore.wire.names import is_user_stream_segment

_EVENTS: Final = EVENT_COUNT.bytes
_events_of = itemgetter(1)
_data_of = itemgetter(2)

NEVER: Final = (1 << 63) - 1
"""A time that does not come."""


class Kind(IntFlag):
    """Kind of a segment, as stored in core attribute 9."""

    STREAM = 0
    TABLE = 0b0000_0001
    FIXED_KEY_TABLE = 0b0000_0101
    TRANSIENT = 0b1000_0000


class Segment(SegmentData):
    """State of one segment.

    Attributes:
        name: its full name.
        last_modified_ms: time of the last change, Unix milliseconds.
        sealed: allows only truncation and deletion.
        charged: bytes charged to the pool's account for it, without its chunks.
        gate: whether an append must look closer: the segment is sealed, transient, a table, or has waiting readers.
        attributes: all attributes, including each writer's last event number under the writer's id. Keys are the bytes
            of the ids, because peers cannot predict their hashes. The value -2^63 means: looked up and found absent.
            The event count may exceed 64 bits here.
        is_table, is_transient: of the kind at creation; the attribute with the kind can be overwritten.
        index_due_ms: when an append must look at the index again; `NEVER` for a segment without an index.
        waiters: readers that wait for data, or None.
        table: the table whose log is this segment, or None.
        mapped: whether a request worked on the segment since its creation; requests that only query its state do not
            count. The name of a mapped segment is used up, and a negative offset closes the connection instead of being
            answered.
    """

    __slots__ = (
        "attributes",
        "charged",
        "gate",
        "index_due_ms",
        "is_table",
        "is_transient",
        "last_modified_ms",
        "mapped",
        "name",
        "sealed",
        "table",
        "waiters",
    )

    def __init__(self, name: str, kind: int, pool: ChunkPool, now_ms: int) -> None:
        super().__init__(pool)
        self.name = name
        self.is_table = bool(kind & Kind.TABLE)
        self.is_transient = bool(kind & Kind.TRANSIENT)
        self.last_modified_ms = now_ms
        self.mapped = False
        self.sealed = False
        self.gate = self.is_transient or self.is_table
        self.attributes: dict[bytes, int] = {}
        self.index_due_ms = 0 if is_user_stream_segment(name) else NEVER
        self.waiters: TailReaders | None = None
        self.table: TableSegment | None = None
        self.charged = 0
        self.charge(SEGMENT_BYTES + name_bytes(name))

    def charge(self, size: int) -> None:
        """Charges `size` more bytes, in addition to the chunks; a negative size returns bytes."""
        self.charged += size
        self._pool.memory.charge(size)

    def discard(self) -> None:
        """The segment was deleted: returns its memory. It must not be written to any more."""
        self.attributes, self.table, self.waiters = {}, None, None  # a writer may still refer to it
        self.clear()
        self.charge(-self.charged)

    def append(self, writer: bytes, rows: Sequence[Row], now_ms: int, decided: bool = False) -> None:
        """Makes all changes of a writer's appends. If it fails (`MemoryError`, `StoreFull`), nothing is written.

        writer: the bytes of its id; empty for entries of a table. decided: as in `write`. Live appends,
        table writes and recovery all end here.
        """
        number, events, data, _ = rows[-1]
        if len(rows) == 1:
            self.write(data, decided=decided)
        else:
            self.write_all(list(map(_data_of, rows)), decided=decided)
            events = sum(map(_events_of, rows))
        self.last_modified_ms = now_ms
        if writer:
            attributes = self.attributes
            count = attributes.get(_EVENTS, 0) + events
            if writer not in attributes:  # it was set up for an earlier segment of this name
                self.charge(ATTRIBUTE_BYTES)
            attributes[writer] = number
            attributes[_EVENTS] = count  # after the number, so it stands where both are one attribute

    def watch(self, readers: TailReaders | None) -> None:
        """Sets the readers that wait for data, or None."""
        self.waiters = readers
        self.gate = readers is not None or self.sealed or self.is_transient or self.is_table

    def seal(self) -> None:
        """Takes no more changes."""
        self.sealed = True
        self.gate = True

    def attribute(self, attribute_id: UUID) -> int | None:
        """An attribute's value, or None if it has never been set or looked up."""
        value = self.attributes.get(attribute_id.bytes)
        # Appends add to the event count without a look at its bounds.
        return None if value is None else wrap_int64(value)

    @property
    def event_count(self) -> int | None:
        """The number of its events; None before the first append."""
        return self.attribute(EVENT_COUNT)

    def set_attribute(self, attribute_id: UUID, value: int) -> None:
        key = attribute_id.bytes
        if key not in self.attributes and key not in COMMON_KEYS:
            self.charge(ATTRIBUTE_BYTES)
        self.attributes[COMMON_KEYS.get(key, key)] = value

    def attribute_values(self) -> Iterator[tuple[UUID, int]]:
        """All attributes with their values."""
        for key, value in self.attributes.items():
            yield UUID(bytes=key), wrap_int64(value)
