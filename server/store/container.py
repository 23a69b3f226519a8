"""One segment container: its segments, and every change to them.

A request is first decided against the state (errors are raised here and nothing has changed), then expressed as
operations, and each operation is applied by `ContainerState` and given to the journal. Only the append, the most
frequent request, needs no operation: live or recovered, its effect is `Segment.append`.

Invariant: nothing here waits or reads a clock; the time comes with the request. The only I/O is in reads: with a data
directory, bytes that are no longer in memory are read from chunk files, synchronously. A request that raises leaves the
state unchanged, with the reference's two exceptions: a merge seals its source first, and a conditional update on an
attribute that was never looked up notes it as absent.

Follows `StreamSegmentContainer`, `SegmentMetadataUpdateTransaction`, `MetadataStore` and
`StreamSegmentReadIndex`. Deliberate differences: a merged or deleted segment is gone at once for every request;
transient segments that were not used for a while are listed for deletion by clock time (seed 43.6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from segstore.server.store import operations as op
from segstore.server.store.attributes import (
    COMMON_KEYS,
    CREATION_EPOCH,
    CREATION_TIME,
    EVENT_COUNT,
    INDEX_ENTRY_SIZE,
    NULL_VALUE,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    SEGMENT_TYPE,
    AttributeUpdate,
    MissingValue,
    UpdateType,
    evaluate,
    is_core,
)
from segstore.server.store.chunks import Buffer, ChunkPool
from segstore.server.store.errors import (
    AttributeLimit,
    BadAttribute,
    BadOffset,
    IllegalArgument,
    NoSuchSegment,
    SegmentExists,
    SegmentSealed,
    SegmentTruncated,
    Unmapped,
)
from segstore.server.store.index import ENTRY_BYTES, INDEX_DELAY_MS, pack_entry
from segstore.server.store.memory import ATTRIBUTE_BYTES, SEGMENT_BYTES, TABLE_KEY_BYTES, name_bytes
from segstore.server.store.operations import OperationJournal
from segstore.server.store.segment import Kind, Segment
from segstore.server.store.state import ContainerState
from segstore.server.store.tables import (
    MAX_FIXED_KEY_BYTES,
    TableSegment,
    TableWrite,
    check_key_versions,
    table_attributes,
)
from segstore.server.store.waiting import Token, Waiters
from segstore.wire.blocks import Row
from segstore.wire.names import SegmentName, index_name, is_transient, transient_name

MAX_ATTRIBUTES: Final = 1_000_000
MAX_TRANSIENT_ATTRIBUTES: Final = 16
"""A transient segment that has more attributes than this, core ones included, takes no update any more."""

MAX_READ_BYTES: Final = 2 * 1024 * 1024
MIN_READ_BYTES: Final = 8

_FIRST_EPOCH: Final = 1


def read_length(suggested: int) -> int:
    """Returns the maximum length of a reply to ReadSegment, given the suggested length of the request."""
    return min(MAX_READ_BYTES, max(MIN_READ_BYTES, suggested))


class ReadResult(NamedTuple):
    """Bytes of a segment from `offset`, in read-only views that stay valid and unchanged as long as they are held.

    If the read reached the end of the data, `at_tail` is set for an open segment, else `end_of_segment`.
    """

    offset: int
    data: list[memoryview]
    at_tail: bool
    end_of_segment: bool


class Container(ContainerState):
    """One container, alive.

    `journal` gets each change after it was made. `peer_of` returns the container of a segment, None if it is not
    owned here; without `peer_of`, index segments are in this container.
    """

    def __init__(
        self,
        container_id: int = 0,
        *,
        pool: ChunkPool | None = None,
        waiters: Waiters | None = None,
        journal: OperationJournal | None = None,
        peer_of: Callable[[str], Container | None] | None = None,
        reuse_names: bool = False,
        strict_transient_attributes: bool = False,
        max_attributes: int = MAX_ATTRIBUTES,
    ) -> None:
        super().__init__(pool=pool, waiters=waiters, journal=journal, reuse_names=reuse_names)
        self.container_id = container_id
        self._peer_of = peer_of
        self._strict_transient_attributes = strict_transient_attributes
        self._max_attributes = max_attributes

    def move(self, waiters: Waiters, peer_of: Callable[[str], Container | None]) -> None:
        """Moves to another store of the same cluster. There must be no waiters."""
        self.waiters = waiters
        self._peer_of = peer_of

    # Creating and deleting

    def create_segment(
        self, name: str, *, scale_type: int = 0, target_rate: int = 0, rollover_size: int = 0, now_ms: int
    ) -> None:
        """A new stream segment, without its index segment.

        Raises `SegmentExists`, `StoreFull`; `Unmapped` for "".
        """
        values = (
            (SCALE_POLICY_TYPE, scale_type),
            (SCALE_POLICY_RATE, target_rate),
            (ROLLOVER_SIZE, max(0, rollover_size)),
        )
        self._create(name, Kind.STREAM, values, now_ms)

    def create_index_segment(self, name: str, *, now_ms: int) -> None:
        """Creates an index segment; `name` is its own name.

        Raises `SegmentExists`, but never `StoreFull`, because its stream segment exists already.
        """
        self._create(name, Kind.STREAM, ((INDEX_ENTRY_SIZE, ENTRY_BYTES),), now_ms, decided=True)

    def create_transient_segment(self, parent: str, writer_id: UUID, random_hex32: str, *, now_ms: int) -> str:
        """A new transient segment, whose name is returned; its parent need not exist. Raises `SegmentExists`."""
        name = transient_name(parent, writer_id, random_hex32)
        self._create(name, Kind.TRANSIENT, ((CREATION_EPOCH, _FIRST_EPOCH),), now_ms)
        return name

    def create_table_segment(self, name: str, *, key_length: int = 0, rollover_size: int = 0, now_ms: int) -> None:
        """A new table segment; a key length above 0 makes it a fixed-key table.

        Raises `SegmentExists`; `Unmapped` for a key length above 256.
        """
        if key_length > MAX_FIXED_KEY_BYTES:  # the reference checks it before it looks up the name
            raise Unmapped(f"key length {key_length} is above {MAX_FIXED_KEY_BYTES}")
        key_length = max(key_length, 0)
        values = tuple(table_attributes(key_length, rollover_size).items())
        self._create(name, Kind.FIXED_KEY_TABLE if key_length else Kind.TABLE, values, now_ms)

    def delete_segment(self, name: str) -> None:
        """The segment is gone. Its name can be used again only if no request ever worked on it.

        Raises `NoSuchSegment`.
        """
        segment = self.segment(name)
        self._commit(op.SegmentDeleted(name, segment.mapped or segment.length > 0))

    def expired_transients(self, now_ms: int, idle_ms: int) -> list[str]:
        """Returns the transient segments that were unused for `idle_ms` or predate a recovery."""
        return [
            name
            for name, used_ms in self._transients.items()
            if used_ms is None or now_ms - max(used_ms, self.segments[name].last_modified_ms) >= idle_ms
        ]

    # Looking

    def segment(self, name: str) -> Segment:
        """The segment; it changes only through this container. Raises `NoSuchSegment`."""
        segment = self.segments.get(name)
        if segment is None:
            raise NoSuchSegment(name)
        return segment

    def get_attribute(self, name: str, attribute_id: UUID) -> int:
        """Returns an attribute's value, or -2^63 if it is absent. Raises `NoSuchSegment`."""
        value = self.segment(name).attribute(attribute_id)
        return NULL_VALUE if value is None else value

    def read(self, name: str, offset: int, max_length: int, *, woken: bool = False) -> ReadResult | None:
        """Returns at most `max_length` bytes from `offset`, or None at the tail: `wait` for more.

        `woken`: the read waited and was woken for data, so it reached the tail, which the answer must report. Raises
        `NoSuchSegment`; `SegmentTruncated` below the start; `Unmapped` for a negative offset, or
        `IllegalArgument` if this is the first request that works on it; `Unmapped` beyond the end of a sealed
        segment.
        """
        segment = self.segment(name)
        if not segment.mapped:
            self._map(segment, offset, "startOffset: startOffset must be a non-negative number.")
        length = segment.length
        if offset < 0 or (segment.sealed and offset > length):
            raise Unmapped(f"a read at offset {offset} of {length} bytes", segment=name)
        if offset < segment.start_offset:
            raise SegmentTruncated(name, start_offset=segment.start_offset, offset=offset)
        if offset >= length:
            return ReadResult(offset, [], False, True) if segment.sealed else None
        size = min(max_length, length - offset)
        data = segment.read(offset, size)
        if woken:
            return ReadResult(offset, data, True, False)
        short = size < max_length
        return ReadResult(offset, data, short and not segment.sealed, short and segment.sealed)

    def wait(self, name: str, offset: int, token: Token) -> None:
        """Wakes `token` when the byte at `offset` exists, or can never exist.

        Raises `NoSuchSegment`. Forgotten by `waiters.cancel`.
        """
        self.waiters.add(self.segment(name), offset, token)

    # Changing

    def seal_segment(self, name: str, *, now_ms: int) -> None:
        """Raises `NoSuchSegment`, `SegmentSealed`."""
        segment = self.segment(name)
        segment.mapped = True
        if segment.sealed:
            raise SegmentSealed(name)
        self._commit(op.Sealed(name, now_ms))

    def truncate_segment(self, name: str, offset: int) -> None:
        """Discards the bytes before `offset`; works on sealed segments, too.

        Raises `NoSuchSegment`; `Unmapped` for a negative offset, or `IllegalArgument` if this is the first
        request that works on the segment; `SegmentTruncated` below the start or beyond the end.
        """
        segment = self.segment(name)
        self._map(segment, offset, "offset must be a non-negative number.")
        if offset < 0:
            raise Unmapped(f"a truncation at offset {offset}", segment=name)
        if not segment.start_offset <= offset <= segment.length:
            raise SegmentTruncated(name, start_offset=segment.start_offset, offset=offset)
        self._commit(op.Truncated(name, offset))

    def update_policy(self, name: str, *, scale_type: int, target_rate: int, now_ms: int) -> None:
        """Sets the scaling policy. Raises `NoSuchSegment`, `SegmentSealed`."""
        updates = (
            AttributeUpdate(SCALE_POLICY_TYPE, UpdateType.REPLACE, scale_type),
            AttributeUpdate(SCALE_POLICY_RATE, UpdateType.REPLACE, target_rate),
        )
        self.update_attributes(name, updates, now_ms=now_ms)

    def update_attribute(self, name: str, attribute_id: UUID, new: int, expected: int, *, now_ms: int) -> None:
        """Sets one attribute if its value is `expected` (-2^63: an extended attribute that is absent).

        Raises `NoSuchSegment`, `SegmentSealed`, `BadAttribute`, `AttributeLimit`, `StoreFull`.
        """
        update = AttributeUpdate(attribute_id, UpdateType.REPLACE_IF_EQUALS, new, expected)
        self.update_attributes(name, (update,), now_ms=now_ms)

    def update_attributes(self, name: str, updates: Iterable[AttributeUpdate], *, now_ms: int) -> None:
        """Applies all updates or, if it raises, no update. Raises the errors of `update_attribute`."""
        segment = self.segment(name)
        segment.mapped = True
        if segment.sealed:
            raise SegmentSealed(name)
        self._commit(op.AttributesUpdated(name, self._decide(segment, tuple(updates)), now_ms))

    def setup_append(self, name: str, writer_id: UUID, *, now_ms: int) -> int:
        """The number of the writer's last event, -2^63 if it never wrote. Works on sealed segments too.

        Raises `NoSuchSegment`, `AttributeLimit`, `StoreFull`; `Unmapped` for a fixed-key table.
        """
        segment = self.segment(name)
        segment.mapped = True
        if name in self._transients:
            self._transients[name] = now_ms
        self._check_attribute_ids(segment, writer_id)
        value = segment.attribute(writer_id)
        if value is None and not segment.sealed and not is_core(writer_id):
            self._check_attribute_count(segment, writer_id)
            self._commit(op.AttributesUpdated(name, ((writer_id, NULL_VALUE),), segment.last_modified_ms))
        return NULL_VALUE if value is None else value

    def append(
        self,
        name: str,
        writer: bytes,
        rows: Sequence[Row],
        last_event_number: int,
        now_ms: int,
        expected_offset: int = -1,
    ) -> int:
        """Writes appends of one writer at the end and returns the length before. The buffers are copied.

        `writer`: the bytes of its id. `last_event_number`: the writer's last event as its connection knows it.
        `expected_offset`: condition for a single append; below 0: unconditional.

        Raises, in this order, `NoSuchSegment`, `SegmentSealed`, `AttributeLimit`, `BadAttribute` (another connection
        wrote as this writer), `BadOffset`, `StoreFull`; then nothing is written.
        """
        segment = self.segments.get(name)
        if segment is None:
            raise NoSuchSegment(name)
        start = segment.length
        if segment.gate:
            if segment.sealed:
                raise SegmentSealed(name)
            self._check_transient(segment, UUID(bytes=writer))
        if segment.attributes.get(writer) != last_event_number:
            self._check_writer(segment, UUID(bytes=writer), last_event_number)
        if expected_offset >= 0 and expected_offset != start:
            raise BadOffset(name, expected=expected_offset, actual=start)
        if now_ms >= segment.index_due_ms:
            self._write_index_entry(segment, now_ms + INDEX_DELAY_MS)
        segment.append(writer, rows, now_ms)
        if segment.gate:
            self._pass_gate(segment, start)
        if self._journal is not None:  # a batch is durable as a whole: one record is enough
            begin = op.begin_of_appended(name)
            self._journal.add_record(op.record_of_rows(self.container_id, begin, rows, now_ms, writer))
        return start

    def merge(
        self,
        target_name: str,
        source_name: str,
        updates: Iterable[AttributeUpdate] = (),
        *,
        now_ms: int,
        source_container: Container | None = None,
    ) -> int:
        """Moves all bytes of the source to the end of the target and returns the target's new length.

        The source is sealed first, even if the merge is refused later. An empty source is only deleted; the updates are
        still applied. The target's event count grows by the source's, or by one for a transient source.

        Raises, in this order: `NoSuchSegment` for the source (unless its name is transient), for the target, for the
        source; `Unmapped` for a truncated source; `SegmentSealed` for the target; `BadAttribute`; and, after the
        merge, `NoSuchSegment` for an empty transient source, because the reference looks it up in the wrong place.
        """
        home = self if source_container is None else source_container
        events = 1
        if not is_transient(source_name):
            events = home.segment(source_name).event_count or 0
        target = self.segment(target_name)
        target.mapped = True
        source = home.segment(source_name)
        if not source.sealed:
            home.seal_segment(source_name, now_ms=now_ms)
        if source.length and source.start_offset:
            raise Unmapped(f"segment {source_name!r} is truncated and cannot be merged", segment=source_name)
        if target.sealed:
            raise SegmentSealed(target_name)
        counted = (*updates, AttributeUpdate(EVENT_COUNT, UpdateType.ACCUMULATE, events))
        values = self._decide(target, counted)
        home.settle_index(source_name)
        if now_ms >= target.index_due_ms:
            self._write_index_entry(target, now_ms + INDEX_DELAY_MS)
        if source.length == 0:
            self._commit(op.AttributesUpdated(target_name, values, now_ms))
            home._commit(op.SegmentDeleted(source_name, retired=True))
            if is_transient(source_name):
                raise NoSuchSegment(source_name)
        elif home is self:
            self._commit(op.SegmentMerged(target_name, source_name, values, now_ms))
        else:
            data = source.read_bytes(0, source.length)
            self._commit(op.SegmentMerged(target_name, source_name, values, now_ms, data))
            home._commit(op.SegmentDeleted(source_name, retired=True))
        return target.length

    # Tables

    def table(self, name: str) -> TableSegment:
        """The table in a segment, for reading. Raises `NoSuchSegment`; `Unmapped` if the segment is no table."""
        segment = self.segment(name)
        segment.mapped = True
        if segment.table is None:
            raise Unmapped(f"segment {name!r} is not a table segment", segment=name)
        return segment.table

    def update_table(
        self, name: str, entries: Iterable[tuple[Buffer, Buffer, int]], *, offset: int = -1, now_ms: int
    ) -> list[int]:
        """Writes entries (key, value, version) and returns their versions.

        Raises as `TableSegment.plan_update`, and `StoreFull`.
        """
        entries = list(entries)
        check_key_versions(version for _, _, version in entries)
        write = self.table(name).plan_update(entries, offset, sealed=self.segments[name].sealed)
        self.pool.check(len(write.data))
        self.pool.memory.check(len(entries) * TABLE_KEY_BYTES)
        self._write_table(name, write, now_ms)
        return write.versions

    def remove_table_keys(
        self, name: str, keys: Iterable[tuple[Buffer, int]], *, offset: int = -1, now_ms: int
    ) -> None:
        """Removes keys (key, version).

        Raises as `TableSegment.plan_remove`, and `StoreFull` if the reserve for removals is used up.
        """
        keys = list(keys)
        check_key_versions(version for _, version in keys)
        write = self.table(name).plan_remove(keys, offset, sealed=self.segments[name].sealed)
        self.pool.check(len(write.data), frees=True)
        self._write_table(name, write, now_ms)

    def delete_table_segment(self, name: str, *, must_be_empty: bool) -> None:
        """Raises `NoSuchSegment`, `Unmapped`, `TableNotEmpty`, `Unsupported`."""
        self.table(name).check_delete(must_be_empty)
        self.delete_segment(name)

    # The index

    def settle_index(self, name: str | None = None, now_ms: int | None = None, most: int | None = None) -> int:
        """Writes the index entries that are due for one segment or for all; returns their number.

        Without a time, all entries are due. At most `most` segments are visited, in the order in which they are due. A
        timer calls this to wake readers at the tail of an index; other requests do not need the timer, because
        `SegmentStore` settles an index before it reads it.
        """
        written = 0
        for segment in list(islice(self._unindexed.values(), most)) if name is None else [self._unindexed.get(name)]:
            if segment is not None and (now_ms is None or now_ms >= segment.index_due_ms):
                del self._unindexed[segment.name]
                assert segment.index_due_ms, "an entry is due for each segment in it"
                self._write_index_entry(segment, 0)
                written += 1
        return written

    # Inside

    def _create(
        self, name: str, kind: Kind, values: tuple[tuple[UUID, int], ...], now_ms: int, *, decided: bool = False
    ) -> None:
        if not name:
            raise Unmapped("a segment needs a name")
        if name in self.segments or name in self._retired:
            raise SegmentExists(name)
        if not decided:
            self.pool.memory.check(SEGMENT_BYTES + name_bytes(name))
        # Tables are the only kind without a creation time in the reference.
        created = () if kind & Kind.TABLE else ((CREATION_TIME, now_ms),)
        self._commit(op.SegmentCreated(name, kind.value, (*values, *created, (SEGMENT_TYPE, kind.value)), now_ms))

    @staticmethod
    def _map(segment: Segment, offset: int, refusal: str) -> None:
        """A request with an offset works on the segment. The reference finds an offset that is negative only later, and
        has an answer for it while it still waits for the segment's number."""
        if not segment.mapped:
            segment.mapped = True
            if offset < 0:
                raise IllegalArgument(refusal, segment=segment.name)

    def _write_table(self, name: str, write: TableWrite, now_ms: int) -> None:
        if write.data:
            self._commit(op.Appended(name, write.data, 0, now_ms))
        if write.forgotten:
            self._commit(op.TableKeysForgotten(name, write.forgotten, now_ms))
        compaction = self.table(name).plan_compaction()
        if compaction is not None:
            data, offset = compaction
            if data:
                self._commit(op.Appended(name, data, 0, now_ms))
            self._commit(op.Truncated(name, offset))

    def _decide(self, segment: Segment, updates: tuple[AttributeUpdate, ...]) -> tuple[tuple[UUID, int], ...]:
        """The values after the updates. A value that was never looked up is recorded as absent, and checked again."""
        attribute_ids = [update.attribute_id for update in updates]
        self._check_attribute_count(segment, *attribute_ids)
        self._check_attribute_ids(segment, *attribute_ids)
        try:
            return tuple(evaluate(segment.name, segment.attribute, updates))
        except MissingValue:
            extended = {attribute_id.bytes: attribute_id for attribute_id in attribute_ids if not is_core(attribute_id)}
            absent = tuple((extended[key], NULL_VALUE) for key in extended if key not in segment.attributes)
            if not absent:
                raise
            self._commit(op.AttributesUpdated(segment.name, absent, segment.last_modified_ms))
            return tuple(evaluate(segment.name, segment.attribute, updates))

    def _check_attribute_count(self, segment: Segment, *attribute_ids: UUID) -> None:
        """Raises `AttributeLimit` or `StoreFull` if the segment has no room for its new attributes.

        The reference limits only transient segments; attributes of other segments go to its storage.
        """
        self._check_transient(segment, *attribute_ids)
        held = segment.attributes
        fresh = len({attribute_id.bytes for attribute_id in attribute_ids}.difference(held, COMMON_KEYS))
        if fresh:
            limited = len(held) - sum(key in held for key in COMMON_KEYS)
            if limited + fresh > self._max_attributes:
                raise AttributeLimit(segment.name, limit=self._max_attributes)
            self.pool.memory.check(fresh * ATTRIBUTE_BYTES)

    def _check_transient(self, segment: Segment, *attribute_ids: UUID) -> None:
        if not segment.is_transient:
            return
        if len(segment.attributes) > MAX_TRANSIENT_ATTRIBUTES:
            raise AttributeLimit(segment.name, limit=MAX_TRANSIENT_ATTRIBUTES)
        if self._strict_transient_attributes:
            owner = SegmentName.parse(segment.name).transient_writer_id
            if any(key != owner and not is_core(key) for key in attribute_ids):
                raise AttributeLimit(segment.name, limit=1)

    @staticmethod
    def _check_attribute_ids(segment: Segment, *attribute_ids: UUID) -> None:
        """Refuses attributes of a fixed-key table other than core attributes: its attributes are its keys."""
        table = segment.table
        if table is not None and table.is_fixed_key and not all(map(is_core, attribute_ids)):
            raise Unmapped(f"the attributes of {segment.name!r} are its keys", segment=segment.name)

    def _check_writer(self, segment: Segment, writer_id: UUID, last_event_number: int) -> None:
        previous = segment.attribute(writer_id)
        if previous is None:
            if is_core(writer_id):
                raise BadAttribute(segment.name, attribute_id=writer_id, previous=NULL_VALUE)
            self._check_attribute_count(segment, writer_id)
            previous = NULL_VALUE
        if previous != last_event_number:
            raise BadAttribute(segment.name, attribute_id=writer_id, previous=previous)

    def _write_index_entry(self, segment: Segment, next_due_ms: int) -> None:
        """Writes the index entry if it is due, else marks the segment as changed. Call before its length changes.

        next_due_ms: when the next entry is due; 0 if nothing changes. No entry is written if the index is missing,
        sealed, not made for entries, or already has this event count.
        """
        due_ms, segment.index_due_ms = segment.index_due_ms, next_due_ms
        if next_due_ms:  # move it to the end: the sweep begins with the segments that are due first
            self._unindexed.pop(segment.name, None)
            self._unindexed[segment.name] = segment
        if not due_ms:
            return
        name = index_name(segment.name)
        home = self if name in self.segments or self._peer_of is None else self._peer_of(name)
        index = None if home is None else home.segments.get(name)
        if home is None or index is None or index.sealed or index.attribute(INDEX_ENTRY_SIZE) != ENTRY_BYTES:
            return
        known, events = index.event_count, segment.event_count or 0
        if known is None or events > known:
            entry = pack_entry(segment.length, events, due_ms)
            if home._journal is None:  # where appends are rare, each of them brings an entry
                home._apply_index_entry(index, entry, events, due_ms)
            else:
                home._commit(op.IndexAppended(index.name, entry, events, due_ms))
