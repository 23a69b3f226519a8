"""State of one table segment: a hash table, or a fixed-key table with sorted keys.

Invariant: ``_index`` maps each key of the table to the offset of its entry in the segment, and the segment's bytes are
those that the reference would have written, so versions, lengths and positions agree with it to the byte.

Nothing here writes. ``plan_update`` and ``plan_remove`` check a request and give the bytes to append; the container
appends them to the segment as it appends anything, in an operation that its journal stores, and tells the table with
``appended``, which is all that recovery needs to do again. Only removal from a fixed-key table leaves no bytes; its
keys are told with ``forget``. Values stay in the segment and are read from there.

Conditions are checked against the state before the batch, and a batch is applied as a whole or not at all.

Order of refusals. Hash table: a key's version that is none → conditions (a missing key wins over a wrong version,
wherever it stands) → sizes → sealed → offset. Fixed-key table: a version that is none → key lengths → sizes → sealed
→ conditions (always a bad version, never a missing key) → offset.

Refused: ranges on hash tables, tokens and deltas on fixed-key tables, deletion of a fixed-key table if empty, key
lengths above 256.

Source: ``HashTableSegmentLayout``, ``FixedKeyLengthTableSegmentLayout``, ``ContainerKeyIndex``,
``TableCompactor``, ``PravegaRequestProcessor``. Deliberate differences: entry counts do
not lag, a removal is seen at once, compaction is planned in small steps after a change instead of in the background and
looks at bytes instead of entries, an empty key can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from segstore.server.store.chunks import Buffer
from segstore.server.store.errors import (
    BadOffset,
    IllegalArgument,
    KeyBadVersion,
    KeyMissing,
    SegmentSealed,
    TableNotEmpty,
    Unanswered,
    Unmapped,
    Unsupported,
)
from segstore.server.store.memory import TABLE_KEY_BYTES
from segstore.server.store.tables.checks import (
    KEY_MUST_NOT_EXIST,
    MIN_UTILIZATION_PERCENT,
    check_attribute_length,
    check_key_length,
    check_key_versions,
    check_lengths_to_read,
    check_lengths_to_write,
    check_sizes,
)
from segstore.server.store.tables.delta import TableDelta, read_delta
from segstore.server.store.tables.iteration import (
    KEY_OVERHEAD,
    PAGE_BYTES,
    REPLY_OVERHEAD,
    VALUE_OVERHEAD,
    SortedKeys,
    fixed_key_token,
    hash_of_token,
    hash_order,
    hash_token,
)
from segstore.server.store.tables.log import (
    NO_VERSION,
    LogEntry,
    TableLog,
    entries_between,
    entry_at,
    entry_size,
    locate_entries,
    serialize_entry,
    serialize_removal,
)

# The reference reads a fixed-key table leaf by leaf of its index, a leaf being 32 KiB of keys with 8 bytes each.
_LEAF_BYTES = 32 * 1024

_COMPACTION_DUE_BYTES = 4 * 1024 * 1024
_COMPACTION_STEP_BYTES = 64 * 1024


def _key_bytes(key: bytes) -> int:
    """Estimated memory of a key: in the index, and in the order once the table is iterated."""
    return TABLE_KEY_BYTES + 2 * len(key)


class TableWrite(NamedTuple):
    """A planned change. ``data`` is appended to the segment, ``versions`` are those of the entries in it.

    ``forgotten`` are keys to hand to ``TableSegment.forget``: a fixed-key table writes nothing when it removes.
    """

    data: bytes
    versions: list[int]
    forgotten: tuple[bytes, ...]


class TableCompaction(NamedTuple):
    """``data`` is appended to the segment, then the segment is truncated at ``offset``."""

    data: bytes
    offset: int


class TableInfo(NamedTuple):
    start_offset: int
    length: int
    entry_count: int
    key_length: int


class TableSegment:
    """The table that lies in one segment; ``log`` are the segment's bytes, entries at first none.

    Raises ``Unmapped`` for a key length above 256; zero and below make a hash table.

    Attributes:
        index_bytes: estimated memory of its keys, without the log.
    """

    __slots__ = (
        "_aligned_start",
        "_foreign",
        "_index",
        "_live_bytes",
        "_order",
        "index_bytes",
        "key_length",
        "log",
        "name",
    )

    def __init__(self, name: str, log: TableLog, key_length: int = 0) -> None:
        check_key_length(key_length)
        self.name = name
        self.log = log
        self.key_length = max(key_length, 0)
        self._index: dict[bytes, int] = {}
        self._order = SortedKeys(self._index, None if self.key_length else hash_order)
        self._live_bytes = 0
        self.index_bytes = 0
        # The start offset that is known to be an entry's, and whether other bytes than entries were appended.
        self._aligned_start = log.start_offset
        self._foreign = False

    @property
    def is_fixed_key(self) -> bool:
        return self.key_length > 0

    def info(self) -> TableInfo:
        """What GetTableSegmentInfo answers."""
        return TableInfo(self.log.start_offset, self.log.length, len(self._index), self.key_length)

    def check_delete(self, must_be_empty: bool) -> None:
        """Raises ``Unsupported`` or ``TableNotEmpty`` where the table may not be deleted."""
        if must_be_empty and self.is_fixed_key:
            raise Unsupported(
                "mustBeEmpty not supported on Fixed-Key-Length Table Segments.",
                segment=self.name,
                operation="deleteTableSegment",
            )
        if must_be_empty and self._index:
            raise TableNotEmpty(self.name)

    # Changes

    def plan_update(
        self, entries: Iterable[tuple[Buffer, Buffer, int]], offset: int = -1, *, sealed: bool = False
    ) -> TableWrite:
        """How to write ``entries`` (key, value, version); buffers are copied and nothing changes.

        ``offset`` is the length that the table must have, any negative number for none; ``sealed`` says whether the
        segment is. Raises ``Unmapped``, ``IllegalArgument``, ``KeyMissing``, ``KeyBadVersion``, ``SegmentSealed``,
        ``BadOffset``.
        """
        copied = [(bytes(key), value, version) for key, value, version in entries]
        conditions = [(key, version) for key, _, version in copied]
        self._check(conditions, [len(value) for _, value, _ in copied], "Entry Key Length", offset, sealed)
        parts = [serialize_entry(key, value) for key, value, _ in copied]
        ends = accumulate(map(len, parts), initial=self.log.length)
        return TableWrite(b"".join(parts), list(ends)[:-1], ())

    def plan_remove(self, keys: Iterable[tuple[Buffer, int]], offset: int = -1, *, sealed: bool = False) -> TableWrite:
        """How to remove ``keys`` (key, version), as ``plan_update``; missing keys are removed like others."""
        conditions = [(bytes(key), version) for key, version in keys]
        self._check(conditions, None, "Key Length", offset, sealed)
        removed = [key for key, _ in conditions]
        if self.is_fixed_key:
            return TableWrite(b"", [], tuple(removed))
        return TableWrite(b"".join(map(serialize_removal, removed)), [], ())

    def appended(self, offset: int, data: Buffer) -> None:
        """``data`` was written to the segment at ``offset``. Bytes that are no entries make no difference."""
        entries = locate_entries(data)
        if entries is None:
            self._foreign = True
            return
        index = self._index
        for entry in entries:
            position = index.get(entry.key)
            if position is not None:
                self._live_bytes -= self._entry_bytes(position)
            if entry.removal:
                if position is not None:
                    del index[entry.key]
                    self._order.discard(entry.key)
                    self.index_bytes -= _key_bytes(entry.key)
                continue
            if position is None:
                self._order.add(entry.key)
                self.index_bytes += _key_bytes(entry.key)
            index[entry.key] = offset + entry.at
            self._live_bytes += entry.size

    def forget(self, keys: Iterable[bytes]) -> None:
        """Keys were removed from a fixed-key table; those that it does not hold make no difference."""
        for key in keys:
            position = self._index.pop(key, None)
            if position is not None:
                self._live_bytes -= self._entry_bytes(position)
                self._order.discard(key)
                self.index_bytes -= _key_bytes(key)

    def positions(self) -> tuple[tuple[bytes, int], ...]:
        """Each key with the offset of its entry: what the segment's bytes alone do not tell of a fixed-key table."""
        return tuple(self._index.items())

    @property
    def live_bytes(self) -> int:
        """Bytes of the entries of all keys."""
        return self._live_bytes

    def restore(self, positions: Iterable[tuple[bytes, int]], *, live_bytes: int | None = None) -> None:
        """Take ``positions`` for the table's state; the segment holds the bytes that they were taken from.

        ``live_bytes`` is what it was then; without it every entry is looked at.
        """
        self._index = dict(positions)
        self._order = SortedKeys(self._index, None if self.key_length else hash_order)
        self._live_bytes = sum(map(self._entry_bytes, self._index.values())) if live_bytes is None else live_bytes
        self.index_bytes = sum(map(_key_bytes, self._index))
        self._aligned_start, self._foreign = -1, False

    def plan_compaction(self) -> TableCompaction | None:
        """A step that moves live entries from the log's head to its tail, with their versions; None if not due.

        Due when more than 4 MiB are kept and less than 75 % of them are entries of keys. Left alone: a table that
        events were appended to, or that was truncated as a stream segment.
        """
        start, end = self.log.start_offset, self.log.length
        if end - start <= _COMPACTION_DUE_BYTES or 100 * self._live_bytes >= MIN_UTILIZATION_PERCENT * (end - start):
            return None
        if self._foreign or (start != self._aligned_start and not self._is_whole()):
            return None
        moved: list[LogEntry] = []
        offset = start
        try:
            for entry in entries_between(self.log, start, end):
                if self._index.get(entry.key) == entry.offset:
                    moved.append(entry)
                offset = entry.end
                if offset - start >= _COMPACTION_STEP_BYTES:
                    break
        except Unmapped:  # an empty key's entry: what lies before it is moved, then no more
            self._foreign = True
        if offset == start:
            return None
        moved.sort(key=lambda entry: entry.version)
        self._aligned_start = offset
        data = b"".join(serialize_entry(entry.key, entry.value or b"", entry.version) for entry in moved)
        return TableCompaction(data, offset)

    # Reads

    def get(self, keys: Iterable[Buffer]) -> list[tuple[bytes, int, bytes]]:
        """(key, version, value) for each key, in order; version -1 and an empty value where it is missing.

        Raises ``IllegalArgument`` for a key that a fixed-key table cannot hold and ``Unanswered`` for an entry whose
        bytes were truncated away.
        """
        copied = [bytes(key) for key in keys]
        if self.is_fixed_key:
            check_lengths_to_read(self.name, self.key_length, copied)
        return [self._entry(key) if key in self._index else (key, KEY_MUST_NOT_EXIST, b"") for key in copied]

    def iterate_keys(
        self, count: int, token: Buffer = b"", from_key: Buffer = b"", to_key: Buffer = b""
    ) -> tuple[list[tuple[bytes, int]], bytes]:
        """A page of about ``count`` keys (key, version) and the token to go on with, both empty at the end.

        A fixed-key table ignores ``count`` within a leaf of its index, as the reference does: resume with a range.
        Raises ``IllegalArgument`` and ``Unmapped`` for ranges, lengths and tokens that the table cannot read.
        """
        keys, next_token = self._page(count, bytes(token), bytes(from_key), bytes(to_key), with_values=False)
        return [(key, version) for key, version, _ in keys], next_token

    def iterate_entries(
        self, count: int, token: Buffer = b"", from_key: Buffer = b"", to_key: Buffer = b""
    ) -> tuple[list[tuple[bytes, int, bytes]], bytes]:
        """As ``iterate_keys``, with values."""
        return self._page(count, bytes(token), bytes(from_key), bytes(to_key), with_values=True)

    def delta(self, from_position: int, count: int) -> TableDelta:
        """What changed from ``from_position`` on, about ``count`` entries at most.

        Raises ``Unsupported`` for a fixed-key table, ``IllegalArgument`` for a position outside of the table and
        ``Unmapped`` for one inside of an entry or truncated away.
        """
        if self.is_fixed_key:
            raise Unsupported("entryDeltaIterator", segment=self.name, operation="readTableEntriesDelta")
        length = self.log.length
        if from_position > length:
            raise IllegalArgument(
                f"fromPosition ({from_position}) can not exceed the length ({length}) of the TableSegment.",
                segment=self.name,
            )
        if from_position < 0:
            raise IllegalArgument("startOffset: startOffset must be a non-negative number.", segment=self.name)
        return read_delta(self.log, from_position, count, size=self._reply_bytes())

    def _check(
        self,
        conditions: Sequence[tuple[bytes, int]],
        value_sizes: Sequence[int] | None,
        what: str,
        offset: int,
        sealed: bool,
    ) -> None:
        check_key_versions(version for _, version in conditions)
        if self.is_fixed_key:
            check_lengths_to_write(self.name, self.key_length, conditions, what)
        else:
            self._check_conditions(conditions)
        check_sizes(self.name, [key for key, _ in conditions], value_sizes)
        if sealed:
            raise SegmentSealed(self.name)
        if self.is_fixed_key:
            self._check_conditions(conditions)
        if offset >= 0 and offset != self.log.length:
            raise BadOffset(self.name, expected=offset, actual=self.log.length)

    def _check_conditions(self, conditions: Sequence[tuple[bytes, int]]) -> None:
        bad = False
        for key, expected in conditions:
            if expected == NO_VERSION:
                continue
            position = self._index.get(key)
            if position is not None:
                bad = bad or self._version(position) != expected
            elif expected != KEY_MUST_NOT_EXIST:
                if not self.is_fixed_key:
                    raise KeyMissing(self.name)
                bad = True
        if bad:
            raise KeyBadVersion(self.name)

    # The index and the log

    def _version(self, position: int) -> int:
        if self.log.start_offset == 0:  # nothing was compacted, so every entry's version is its own offset
            return position
        return self._read(position).version

    def _entry(self, key: bytes) -> tuple[bytes, int, bytes]:
        entry = self._read(self._index[key])
        return key, entry.version, entry.value or b""

    def _read(self, position: int) -> LogEntry:
        if position < self.log.start_offset:
            raise Unanswered(f"the entry at {position} was truncated away", segment=self.name)
        return entry_at(self.log, position)

    def _entry_bytes(self, position: int) -> int:
        return entry_size(self.log, position) if position >= self.log.start_offset else 0

    def _is_whole(self) -> bool:
        """Whether a walk over the log from its start meets every entry of the index; looked up once a start."""
        start = self.log.start_offset
        try:
            met = sum(
                self._index.get(entry.key) == entry.offset
                for entry in entries_between(self.log, start, self.log.length)
            )
        except Unmapped:  # the start lies inside of an entry
            met = -1
        self._foreign = met != len(self._index)
        self._aligned_start = start
        return not self._foreign

    # Pages

    def _reply_bytes(self) -> int:
        return len(self.name.encode("utf-8", "surrogatepass")) + REPLY_OVERHEAD

    def _page(
        self, count: int, token: bytes, from_key: bytes, to_key: bytes, *, with_values: bool
    ) -> tuple[list[tuple[bytes, int, bytes]], bytes]:
        if self.is_fixed_key:
            return self._fixed_key_page(count, token, from_key, to_key, with_values=with_values)
        if from_key or to_key:
            raise IllegalArgument("Range Iterators not supported for HashTableSegments.", segment=self.name)
        start = b""
        if token:
            start = (int.from_bytes(hash_of_token(token), "big") + 1).to_bytes(16, "big")
        size = self._reply_bytes()
        items: list[tuple[bytes, int, bytes]] = []
        last = b""
        if count > 0:
            for order, key in self._order.walk(start):
                item = self._item(key, with_values)
                items.append(item)
                size += self._item_bytes(item, with_values)
                last = hash_token(order)
                if len(items) >= count or size + len(last) >= PAGE_BYTES:
                    break
        return items, last

    def _fixed_key_page(
        self, count: int, token: bytes, from_key: bytes, to_key: bytes, *, with_values: bool
    ) -> tuple[list[tuple[bytes, int, bytes]], bytes]:
        if token:
            raise IllegalArgument("ContinuationToken not supported for FixedKeyLengthTableSegments.", segment=self.name)
        first = from_key or b"\x00" * self.key_length
        last = to_key or b"\xff" * self.key_length
        check_attribute_length(self.name, self.key_length, first)
        check_attribute_length(self.name, self.key_length, last)
        if first > last:
            raise IllegalArgument("firstKey must be smaller than or equal to lastKey.", segment=self.name)
        leaf = _LEAF_BYTES // (self.key_length + 8)
        size = self._reply_bytes()
        items: list[tuple[bytes, int, bytes]] = []
        if count > 0:
            for _, key in self._order.walk(first):
                if key > last:
                    break
                item = self._item(key, with_values)
                items.append(item)
                size += self._item_bytes(item, with_values)
                if size >= PAGE_BYTES or (len(items) >= count and len(items) % leaf == 0):
                    break
        return items, fixed_key_token(items[-1][0]) if items else b""

    def _item(self, key: bytes, with_values: bool) -> tuple[bytes, int, bytes]:
        return self._entry(key) if with_values else (key, self._version(self._index[key]), b"")

    @staticmethod
    def _item_bytes(item: tuple[bytes, int, bytes], with_values: bool) -> int:
        return KEY_OVERHEAD + len(item[0]) + (VALUE_OVERHEAD + len(item[2]) if with_values else 0)
