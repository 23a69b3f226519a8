"""State of one table segment: a hash table, or a fixed-key table with sorted keys.

Invariant: `_index` maps each key of the table to the offset of its entry in the segment. The segment's bytes are the
bytes that the reference would write, so versions, lengths and positions match exactly.

Nothing here writes. `plan_update` and `plan_remove` check a request and return the bytes to append; the container
appends them to the segment in a journaled operation like any other, and notifies the table with `appended`. Recovery
needs only the latter. Only removal from a fixed-key table writes no bytes; its keys are passed to `forget`. Values
stay in the segment and are read from there.

Conditions are checked against the state before the batch, and a batch is applied as a whole or not at all.

Order of checks, after `check_key_versions` by the container. Hash table: conditions (a missing key wins over a wrong
version, wherever it is in the batch) → sizes → sealed → offset. Fixed-key table: key lengths → sizes → sealed →
conditions (always a bad version, never a missing key) → offset.

Refused: ranges on hash tables, tokens and deltas on fixed-key tables, `must_be_empty` for a fixed-key table.

Source: `HashTableSegmentLayout`, `FixedKeyLengthTableSegmentLayout`, `ContainerKeyIndex`, `TableCompactor`,
`PravegaRequestProcessor`. Deliberate differences: entry counts do not lag, a removal is visible at once, compaction
runs in small steps after changes instead of in the background and counts bytes instead of entries, an empty key can be
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from segstore.server.store.chunks import Buffer, SegmentData
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
    check_lengths_to_read,
    check_lengths_to_write,
    check_sizes,
)
from segstore.server.store.tables.delta import TableDelta, read_delta
from segstore.server.store.tables.iteration import (
    HASH_TOKEN_BYTES,
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
    entries_between,
    entry_at,
    entry_size,
    serialize_entry,
    serialize_removal,
)

# The reference reads a fixed-key table by leaves of its index; a leaf has 32 KiB of keys with 8 bytes each.
_LEAF_BYTES = 32 * 1024

_COMPACTION_DUE_BYTES = 4 * 1024 * 1024
_COMPACTION_STEP_BYTES = 64 * 1024


def _key_bytes(key: bytes) -> int:
    """Returns the estimated memory of a key, in the index and in the order (kept once the table is iterated)."""
    return TABLE_KEY_BYTES + 2 * len(key)


class TableWrite(NamedTuple):
    """A planned change. `data` is appended to the segment; `versions` are the versions of its entries.

    `forgotten` are keys for `TableSegment.forget`: removal from a fixed-key table writes nothing.
    """

    data: bytes
    versions: list[int]
    forgotten: tuple[bytes, ...]


class TableSegment:
    """The table in one segment. `log`: the segment's bytes, at first without entries.

    A key length of zero makes a hash table.

    Attributes:
        index_bytes: estimated memory of its keys, without the log.
        live_bytes: total size of the entries of all keys.
    """

    def __init__(self, name: str, log: SegmentData, key_length: int = 0) -> None:
        self.name = name
        self.log = log
        self.key_length = key_length
        self._index: dict[bytes, int] = {}
        self._order = SortedKeys(self._index, None if self.key_length else hash_order)
        self.live_bytes = 0
        self.index_bytes = 0
        # A start offset known to be an entry's, and whether bytes other than entries were appended.
        self._aligned_start = log.start_offset
        self._foreign = False

    @property
    def is_fixed_key(self) -> bool:
        return self.key_length > 0

    def info(self) -> tuple[int, int, int, int]:
        """Returns the log's start offset and length, the number of entries, and the key length."""
        return self.log.start_offset, self.log.length, len(self._index), self.key_length

    def check_delete(self, must_be_empty: bool) -> None:
        """Raises `Unsupported` or `TableNotEmpty` if the table may not be deleted."""
        if must_be_empty and self.is_fixed_key:
            raise Unsupported("mustBeEmpty not supported on Fixed-Key-Length Table Segments.", segment=self.name)
        if must_be_empty and self._index:
            raise TableNotEmpty(self.name)

    # Changes

    def plan_update(
        self, entries: Iterable[tuple[Buffer, Buffer, int]], offset: int = -1, *, sealed: bool = False
    ) -> TableWrite:
        """Plans to write `entries` (key, value, version); copies the buffers and changes nothing.

        `offset` is the length that the table must have, negative for any; `sealed` is whether the segment is
        sealed. Raises `IllegalArgument`, `KeyMissing`, `KeyBadVersion`, `SegmentSealed`,
        `BadOffset`.
        """
        copied = [(bytes(key), value, version) for key, value, version in entries]
        conditions = [(key, version) for key, _, version in copied]
        self._check(conditions, [len(value) for _, value, _ in copied], "Entry Key Length", offset, sealed)
        parts = [serialize_entry(key, value) for key, value, _ in copied]
        ends = accumulate(map(len, parts), initial=self.log.length)
        return TableWrite(b"".join(parts), list(ends)[:-1], ())

    def plan_remove(self, keys: Iterable[tuple[Buffer, int]], offset: int = -1, *, sealed: bool = False) -> TableWrite:
        """Plans to remove `keys` (key, version), as `plan_update`; removing a missing key is allowed."""
        conditions = [(bytes(key), version) for key, version in keys]
        self._check(conditions, None, "Key Length", offset, sealed)
        removed = [key for key, _ in conditions]
        if self.is_fixed_key:
            return TableWrite(b"", [], tuple(removed))
        return TableWrite(b"".join(map(serialize_removal, removed)), [], ())

    def appended(self, start: int) -> None:
        """Updates the index for the entries of the segment from `start` on. Ignores bytes that form no entry."""
        index, end = self._index, self.log.length
        try:
            entries = list(entries_between(self.log, start, end, least_key_bytes=0))
        except Unmapped:
            entries = []
        if (entries[-1].end if entries else start) != end:
            self._foreign = True
            return
        for entry in entries:
            if entry.value is None:
                self.forget((entry.key,))
                continue
            position = index.get(entry.key)
            if position is None:
                self._order.add(entry.key)
                self.index_bytes += _key_bytes(entry.key)
            else:
                self.live_bytes -= self._entry_bytes(position)
            index[entry.key] = entry.offset
            self.live_bytes += entry.end - entry.offset

    def forget(self, keys: Iterable[bytes]) -> None:
        """Removes keys from the index; ignores keys that it does not have."""
        for key in keys:
            position = self._index.pop(key, None)
            if position is not None:
                self.live_bytes -= self._entry_bytes(position)
                self._order.discard(key)
                self.index_bytes -= _key_bytes(key)

    def positions(self) -> tuple[tuple[bytes, int], ...]:
        """Returns each key with its entry's offset, which a fixed-key table's bytes alone do not determine."""
        return tuple(self._index.items())

    def restore(self, positions: Iterable[tuple[bytes, int]], live_bytes: int) -> None:
        """Restores the table's state; the segment must hold its bytes."""
        self._index = dict(positions)
        self._order = SortedKeys(self._index, None if self.key_length else hash_order)
        self.live_bytes = live_bytes
        self.index_bytes = sum(map(_key_bytes, self._index))
        self._aligned_start, self._foreign = -1, False

    def plan_compaction(self) -> tuple[bytes, int] | None:
        """Plans to move live entries from the log's head to its tail, with their versions: returns the bytes to append,
        and the offset to truncate at afterwards; None if it is not due.

        Compaction is due if the log has more than 4 MiB and less than 75 % of it are live entries. A table to which
        events were appended, or that was truncated like a stream segment, is not compacted.
        """
        start, end = self.log.start_offset, self.log.length
        if end - start <= _COMPACTION_DUE_BYTES or 100 * self.live_bytes >= MIN_UTILIZATION_PERCENT * (end - start):
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
        except Unmapped:  # an empty key's entry: what is before it is moved; then compaction stops
            self._foreign = True
        if offset == start:
            return None
        moved.sort(key=lambda entry: entry.version)
        self._aligned_start = offset
        data = b"".join(serialize_entry(entry.key, entry.value or b"", entry.version) for entry in moved)
        return data, offset

    # Reads

    def get(self, keys: Iterable[Buffer]) -> list[tuple[bytes, int, bytes]]:
        """Returns (key, version, value) for each key, in order; version -1 and an empty value for a missing key.

        Raises `IllegalArgument` for a key that a fixed-key table cannot hold and `Unanswered` for an entry whose
        bytes were truncated.
        """
        copied = [bytes(key) for key in keys]
        if self.is_fixed_key:
            check_lengths_to_read(self.name, self.key_length, copied)
        return [self._entry(key) if key in self._index else (key, KEY_MUST_NOT_EXIST, b"") for key in copied]

    def iterate(
        self, count: int, token: Buffer = b"", from_key: Buffer = b"", to_key: Buffer = b"", *, with_values: bool = True
    ) -> tuple[list[tuple[bytes, int, bytes]], bytes]:
        """Returns a page of about `count` entries (key, version, value) and the token for the next page; both empty at
        the end. with_values: else all values are empty, and more keys are on a page.

        A fixed-key table ignores `count` within a leaf of its index, as the reference does: resume with a range.
        Raises `IllegalArgument` and `Unmapped` for ranges, lengths and tokens that the table cannot read.
        """
        token, from_key, to_key = bytes(token), bytes(from_key), bytes(to_key)
        if self.is_fixed_key:
            keys, leaf, size = self._range(token, from_key, to_key), _LEAF_BYTES // (self.key_length + 8), 0
        elif from_key or to_key:
            raise IllegalArgument("Range Iterators not supported for HashTableSegments.", segment=self.name)
        else:
            start = (int.from_bytes(hash_of_token(token), "big") + 1).to_bytes(16, "big") if token else b""
            keys, leaf, size = self._order.walk(start), 1, HASH_TOKEN_BYTES
        size += self._reply_bytes()
        items: list[tuple[bytes, int, bytes]] = []
        for key in keys if count > 0 else ():
            item = self._entry(key) if with_values else (key, self._version(self._index[key]), b"")
            items.append(item)
            size += KEY_OVERHEAD + len(key) + (VALUE_OVERHEAD + len(item[2]) if with_values else 0)
            if size >= PAGE_BYTES or (len(items) >= count and len(items) % leaf == 0):
                break
        if not items:
            return items, b""
        last = items[-1][0]
        return items, fixed_key_token(last) if self.is_fixed_key else hash_token(hash_order(last))

    def delta(self, from_position: int, count: int) -> TableDelta:
        """Returns the changes since `from_position`, about `count` entries at most.

        Raises `Unsupported` for a fixed-key table, `IllegalArgument` for a position outside the table and
        `Unmapped` for a position inside an entry or in the truncated part.
        """
        if self.is_fixed_key:
            raise Unsupported("entryDeltaIterator", segment=self.name)
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
        """Whether an iteration from the log's start reaches every entry of the index; checked once per start."""
        start = self.log.start_offset
        try:
            met = sum(
                self._index.get(entry.key) == entry.offset
                for entry in entries_between(self.log, start, self.log.length)
            )
        except Unmapped:  # the start is inside an entry
            met = -1
        self._foreign = met != len(self._index)
        self._aligned_start = start
        return not self._foreign

    # Pages

    def _reply_bytes(self) -> int:
        return len(self.name.encode("utf-8", "surrogatepass")) + REPLY_OVERHEAD

    def _range(self, token: bytes, from_key: bytes, to_key: bytes) -> Iterator[bytes]:
        """Yields the keys of a fixed-key table from one to another, in order; b"" stands for the first or the last."""
        if token:
            raise IllegalArgument("ContinuationToken not supported for FixedKeyLengthTableSegments.", segment=self.name)
        first = from_key or b"\x00" * self.key_length
        last = to_key or b"\xff" * self.key_length
        check_attribute_length(self.name, self.key_length, first)
        check_attribute_length(self.name, self.key_length, last)
        if first > last:
            raise IllegalArgument("firstKey must be smaller than or equal to lastKey.", segment=self.name)
        return takewhile(lambda key: key <= last, self._order.walk(first))
