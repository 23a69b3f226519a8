"""The state of a container, and the effect of each operation on it.

`ContainerState` knows no conditions: it applies operations unchecked. Recovery needs no more, and the live
container adds only the decisions.

Invariant: applying the operations that a container journalled, in order, to an empty state gives the container's state,
but for its waiting readers and for appends that an index does not know of yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from segstore.server.store import operations as op
from segstore.server.store.attributes import ATTRIBUTE_ID_LENGTH, EVENT_COUNT
from segstore.server.store.chunks import ChunkPool
from segstore.server.store.index import INDEX_DELAY_MS
from segstore.server.store.memory import name_bytes
from segstore.server.store.operations import Operation, OperationJournal
from segstore.server.store.segment import NEVER, Segment
from segstore.server.store.tables import TableSegment
from segstore.server.store.waiting import Waiters, WakeReason
from segstore.wire.names import is_index, is_reader_group_table

MAX_RETIRED_NAMES: Final = 25_000
"""Maximum number of retired names that a container remembers. The reference holds at most this many segments in memory,
deleted segments included, and evicts unused segments after a while (`ContainerConfig`, `MetadataCleaner`)."""


class ContainerState:
    """The state of one container.

    Attributes:
        segments: all that exist, by name; for reading only.
        index_count: number of index segments among them.
        pool: where the chunks of its segments come from.
        waiters: readers that wait at a tail, and those to be answered; shared among the containers of a store.
    """

    def __init__(
        self,
        *,
        pool: ChunkPool | None = None,
        waiters: Waiters | None = None,
        journal: OperationJournal | None = None,
        reuse_names: bool = False,
    ) -> None:
        self.segments: dict[str, Segment] = {}
        self.index_count = 0
        self.waiters = Waiters() if waiters is None else waiters
        self.pool = ChunkPool() if pool is None else pool
        self._journal = journal
        self._reuse_names = reuse_names
        self._retired: dict[str, None] = {}
        # Time at which each transient segment was last set up; None: before a recovery.
        self._transients: dict[str, int | None] = {}
        # Segments with appends that their index does not know of yet, in order of the first of them.
        self._unindexed: dict[str, Segment] = {}

    def apply(self, operation: Operation) -> None:
        """Applies a change decided earlier, here or by the container whose journal is read."""
        if not isinstance(operation, op.SegmentCreated | op.SegmentDeleted):
            self.segments[operation.segment].mapped = True
        match operation:
            case op.Appended():
                self._apply_append(operation)
            case op.AttributesUpdated(name, values, now_ms):
                segment = self.segments[name]
                self._set(segment, values, now_ms)
            case op.IndexAppended(name, data, event_count, now_ms):
                self._apply_index_entry(self.segments[name], data, event_count, now_ms)
            case op.SegmentCreated(name, kind, values, now_ms):
                self._apply_create(name, kind, values, now_ms)
            case op.Sealed(name, now_ms):
                segment = self.segments[name]
                segment.seal()
                segment.last_modified_ms = now_ms
                self.waiters.wake(segment, WakeReason.SEALED)
            case op.Truncated(name, offset):
                segment = self.segments[name]
                segment.truncate(offset)
                self.waiters.wake(segment, WakeReason.TRUNCATED, below=offset)
            case op.SegmentMerged(name, source_name, values, now_ms, data):
                segment = self.segments[name]
                before = segment.length
                if data is None:
                    segment.absorb(self.segments[source_name])
                    self._remove(source_name, retired=True)
                else:
                    segment.write(data, decided=True)
                self._update_table(segment, before)
                self._set(segment, values, now_ms)
                self.waiters.wake(segment, WakeReason.DATA, below=segment.length)
            case op.SegmentDeleted(name, retired):
                self._remove(name, retired=retired)
            case op.TableKeysForgotten(name, keys, now_ms):
                segment = self.segments[name]
                if (table := segment.table) is not None:
                    before = table.index_bytes
                    table.forget(keys)
                    segment.charge(table.index_bytes - before)
                segment.last_modified_ms = now_ms

    def recovered(self) -> None:
        """Say that all operations of a journal were applied: transient segments from before have no owner now."""
        self._transients = dict.fromkeys(self._transients)

    def adopt(self, segment: Segment) -> None:
        """Takes a segment from a snapshot."""
        self.segments[segment.name] = segment
        self.index_count += is_index(segment.name)
        if segment.is_transient:
            self._transients[segment.name] = None

    def adopt_names(self, *, retired: Iterable[str] = (), unindexed: Iterable[str] = ()) -> None:
        """Takes used-up names, and names of segments whose index may lack their last appends."""
        for name in retired:
            self._retire(name)
        for name in unindexed:
            segment = self.segments.get(name)
            if segment is not None and segment.index_due_ms != NEVER:
                self._unindexed[name] = segment
                segment.index_due_ms = segment.last_modified_ms + INDEX_DELAY_MS

    def dismiss_readers(self) -> None:
        """Wakes all waiters, which learn that another store owns the container now."""
        for segment in self.segments.values():
            self.waiters.wake(segment, WakeReason.NOT_OWNED)

    def clear(self) -> None:
        """Forgets everything and frees all memory. Waiters learn that another store owns the container."""
        self.dismiss_readers()
        for segment in self.segments.values():
            segment.discard()
        self.pool.memory.charge(-sum(map(name_bytes, self._retired)))
        for held in (self.segments, self._transients, self._unindexed, self._retired):
            held.clear()
        self.index_count = 0

    @property
    def retired_names(self) -> tuple[str, ...]:
        """Names that cannot be used again, oldest first."""
        return tuple(self._retired)

    def is_retired(self, name: str) -> bool:
        return name in self._retired

    @property
    def unindexed_names(self) -> tuple[str, ...]:
        """Segments with appends that their index does not know of yet."""
        return tuple(self._unindexed)

    def _commit(self, operation: Operation) -> None:
        self.apply(operation)
        if self._journal is not None:
            self._journal(operation)

    def _apply_index_entry(self, index: Segment, entry: bytes, event_count: int, now_ms: int) -> None:
        index.write(entry, decided=True)
        index.set_attribute(EVENT_COUNT, event_count)
        index.last_modified_ms, index.mapped = now_ms, True
        if index.waiters is not None:
            self.waiters.wake(index, WakeReason.DATA, below=index.length)

    def _apply_create(self, name: str, kind: int, values: Iterable[tuple[UUID, int]], now_ms: int) -> None:
        segment = Segment(name, kind, self.pool, now_ms)
        for attribute_id, value in values:
            segment.set_attribute(attribute_id, value)
        if segment.is_table:
            segment.table = TableSegment(name, segment, segment.attribute(ATTRIBUTE_ID_LENGTH) or 0)
        if segment.is_transient:
            self._transients[name] = now_ms
        self.segments[name] = segment
        self.index_count += is_index(name)

    def _apply_append(self, operation: op.Appended) -> None:
        segment, writer_id = self.segments[operation.segment], operation.writer_id
        start, writer = segment.length, b"" if writer_id is None else writer_id.bytes
        rows = [(operation.event_number, operation.events, operation.data, 0)]
        segment.append(writer, rows, operation.now_ms, True)
        if segment.gate:
            self._pass_gate(segment, start)

    def _pass_gate(self, segment: Segment, start: int) -> None:
        """Applies an append's side effects on table and readers."""
        self._update_table(segment, start)
        self.waiters.wake(segment, WakeReason.DATA, below=segment.length)

    def _remove(self, name: str, *, retired: bool) -> None:
        segment = self.segments.pop(name)
        self.index_count -= is_index(name)
        self._transients.pop(name, None)
        self._unindexed.pop(name, None)
        if retired and not self._reuse_names and not is_reader_group_table(name):
            self._retire(name)
        self.waiters.wake(segment, WakeReason.DELETED)
        segment.discard()

    def _retire(self, name: str) -> None:
        if name not in self._retired:
            self._retired[name] = None
            self.pool.memory.charge(name_bytes(name))
            if len(self._retired) > MAX_RETIRED_NAMES:
                oldest = next(iter(self._retired))
                del self._retired[oldest]
                self.pool.memory.charge(-name_bytes(oldest))

    @staticmethod
    def _update_table(segment: Segment, start: int) -> None:
        """Updates the segment's table, if any, after bytes were written from `start` on."""
        if (table := segment.table) is not None:
            before = table.index_bytes
            table.appended(start)
            segment.charge(table.index_bytes - before)

    @staticmethod
    def _set(segment: Segment, values: Iterable[tuple[UUID, int]], now_ms: int) -> None:
        for attribute_id, value in values:
            segment.set_attribute(attribute_id, value)
        segment.last_modified_ms = now_ms
