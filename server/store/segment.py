"""One segment: its bytes, attributes and state.

A segment changes only through its container. Core attributes that nearly every segment has are plain fields, because a
dictionary entry for each would cost more than the segment; `attribute` and `set_attribute` hide the difference.

Invariant: `start_offset <= length`; `gate` is 0 exactly when an append needs no more than its number checked.

Follows `StreamSegmentMetadata` and `SegmentType`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntFlag
from operator import itemgetter
from typing import Final
from uuid import UUID

from segstore.server.store.attributes import (
    CREATION_TIME,
    EVENT_COUNT,
    INDEX_ENTRY_SIZE,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    SEGMENT_TYPE,
    wrap_int64,
)
from segstore.server.store.chunks import ChunkPool, SegmentData
from segstore.server.store.errors import StoreFull
from segstore.server.store.memory import ATTRIBUTE_BYTES, SEGMENT_BYTES, name_bytes
from segstore.server.store.tables import TableSegment
from segstore.server.store.waiting import TailReaders
from segstore.wire.blocks import Row

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


class AppendCheck(IntFlag):
    """Why an append must look closer."""

    SEALED = 1
    TRANSIENT = 2
    WAITERS = 4
    TABLE = 8
    CORE_WRITER = 16
    """A writer was set up whose id is also the id of a core attribute with a field."""


_CORE_FIELDS: Final[dict[UUID, str]] = {
    CREATION_TIME: "creation_time",
    EVENT_COUNT: "event_count",
    SCALE_POLICY_TYPE: "scale_type",
    SCALE_POLICY_RATE: "target_rate",
    ROLLOVER_SIZE: "rollover_size",
    SEGMENT_TYPE: "kind",
    INDEX_ENTRY_SIZE: "index_entry_size",
}


def has_field(attribute_id: UUID) -> bool:
    """Whether `Segment` keeps this attribute in a field."""
    return attribute_id in _CORE_FIELDS


class Segment(SegmentData):
    """State of one segment.

    Attributes:
        name: its full name.
        last_modified_ms: time of the last change, Unix milliseconds.
        sealed: allows only truncation and deletion.
        charged: bytes charged to the pool's account for it, without its chunks.
        gate: reasons for an append to look closer, see `AppendCheck`.
        attributes: all attributes without a field below, including each writer's last event number under the writer's
            id. Keys are the bytes of the ids, because peers cannot predict their hashes. The value -2^63 means: looked
            up and found absent.
        creation_time, event_count, scale_type, target_rate, rollover_size, kind, index_entry_size: core attributes,
            None where absent. `kind` is written once at creation; the attribute can be overwritten, `is_table` and
            `is_transient` stay.
        index: its index segment, if it was last found in the same container, else None. It may be deleted by now.
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
        "creation_time",
        "event_count",
        "gate",
        "index",
        "index_due_ms",
        "index_entry_size",
        "is_table",
        "is_transient",
        "kind",
        "last_modified_ms",
        "mapped",
        "name",
        "rollover_size",
        "scale_type",
        "sealed",
        "table",
        "target_rate",
        "waiters",
    )

    def __init__(self, name: str, kind: int, pool: ChunkPool, now_ms: int, *, indexed: bool) -> None:
        super().__init__(pool)
        self.name = name
        self.kind: int | None = kind
        self.is_table = bool(kind & Kind.TABLE)
        self.is_transient = bool(kind & Kind.TRANSIENT)
        self.last_modified_ms = now_ms
        self.mapped = False
        self.sealed = False
        self.gate = (AppendCheck.TRANSIENT.value if self.is_transient else 0) | (
            AppendCheck.TABLE.value if self.is_table else 0
        )
        self.attributes: dict[bytes, int] = {}
        self.creation_time: int | None = None
        self.event_count: int | None = None
        self.scale_type: int | None = None
        self.target_rate: int | None = None
        self.rollover_size: int | None = None
        self.index_entry_size: int | None = None
        self.index: Segment | None = None
        self.index_due_ms = 0 if indexed else NEVER
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
        self.attributes, self.table, self.index, self.waiters = {}, None, None, None  # a writer may still refer to it
        self.clear()
        self.charge(-self.charged)

    @property
    def indexed(self) -> bool:
        """Whether appends are recorded in an index segment."""
        return self.index_due_ms != NEVER

    def append(self, writer: bytes, rows: Sequence[Row], now_ms: int, decided: bool = False) -> None:
        """Makes all changes of a writer's appends. If an append fails, the earlier appends stay written.

        writer: the bytes of its id; empty for entries of a table. decided: as in `write`. Live appends,
        table writes and recovery all end here.
        """
        number, events, data, _ = rows[-1]
        if len(rows) == 1:
            self.write(data, decided=decided)
        else:
            try:
                self.write_all(list(map(_data_of, rows)), decided=decided)
            except (StoreFull, MemoryError):
                for row in rows:
                    self.append(writer, [row], now_ms, decided)
                return
            events = sum(map(_events_of, rows))
        self.last_modified_ms = now_ms
        if writer:
            if writer not in self.attributes:  # it was set up for an earlier segment of this name
                self.charge(ATTRIBUTE_BYTES)
            self.attributes[writer] = number
            self.event_count = (self.event_count or 0) + events

    def watch(self, readers: TailReaders | None) -> None:
        """Sets the readers that wait for data, or None."""
        self.waiters = readers
        self.gate = self.gate & ~AppendCheck.WAITERS.value if readers is None else self.gate | AppendCheck.WAITERS.value

    def seal(self) -> None:
        """Takes no more changes."""
        self.sealed = True
        self.gate |= AppendCheck.SEALED.value

    def attribute(self, attribute_id: UUID) -> int | None:
        """An attribute's value, or None if it has never been set or looked up."""
        field = _CORE_FIELDS.get(attribute_id)
        if field is None:
            return self.attributes.get(attribute_id.bytes)
        value: int | None = getattr(self, field)
        # Appends add to the event count without a look at its bounds.
        return None if value is None else wrap_int64(value)

    def set_attribute(self, attribute_id: UUID, value: int) -> None:
        field = _CORE_FIELDS.get(attribute_id)
        if field is not None:
            setattr(self, field, value)
            return
        if attribute_id.bytes not in self.attributes:
            self.charge(ATTRIBUTE_BYTES)
        self.attributes[attribute_id.bytes] = value

    def attribute_values(self) -> Iterator[tuple[UUID, int]]:
        """All attributes with their values, core ones first."""
        for attribute_id, field in _CORE_FIELDS.items():
            value = getattr(self, field)
            if value is not None:
                yield attribute_id, wrap_int64(value)
        for key, value in self.attributes.items():
            yield UUID(bytes=key), value

    def attribute_count(self) -> int:
        """Returns the number of attributes as the reference counts them: attributes with the value -2^63 count, too."""
        return len(self.attributes) + sum(getattr(self, field) is not None for field in _CORE_FIELDS.values())
