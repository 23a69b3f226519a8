"""Deltas of a hash table: changes since a position of its log.

Invariant: a client that applies consecutive deltas, and clears its copy when a delta asks for it, has the table's
contents, except that removals of keys from earlier deltas are not reported (as in the reference; its clients read from
0 or look up keys).

Source: `TableEntryDeltaIterator` and `PravegaRequestProcessor`. Refused: bytes that are not an entry
(`Unmapped`). Deliberate difference: a delta from before the log's start begins at the start and sets
`should_clear` instead of failing.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.server.store.chunks import SegmentData
from segstore.server.store.tables.iteration import KEY_OVERHEAD, PAGE_BYTES, VALUE_OVERHEAD
from segstore.server.store.tables.log import entries_between

_MOST_WALKED = 16_384


class TableDelta(NamedTuple):
    """Entries (key, version, value), each key once, without keys that were removed again.

    `last_position` is the start of the next delta; 0 if nothing was read.
    """

    entries: list[tuple[bytes, int, bytes]]
    should_clear: bool
    reached_end: bool
    last_position: int


def read_delta(log: SegmentData, position: int, count: int, *, size: int) -> TableDelta:
    """Returns the delta from `position` with at most `count` keys; `size`: of the reply without entries.

    `position` is at most the log's length. The delta ends early if many entries have the same keys.
    """
    start = max(position, log.start_offset)
    length = log.length
    entries: dict[bytes, tuple[bytes, int, bytes]] = {}
    last = 0
    for walked, entry in enumerate(entries_between(log, start, length)):
        if len(entries) >= count or size >= PAGE_BYTES or walked >= _MOST_WALKED:
            break
        last = entry.end
        key_bytes = KEY_OVERHEAD + len(entry.key) + VALUE_OVERHEAD
        if entry.value is None:
            entries.pop(entry.key, None)
            size -= key_bytes
            continue
        old = entries.get(entry.key)
        size += key_bytes + len(entry.value)
        if old is not None and old[1] < entry.version:
            size -= key_bytes + len(old[2])
        entries[entry.key] = (entry.key, entry.version, entry.value)
    if last == 0:
        return TableDelta([], should_clear=False, reached_end=True, last_position=0)
    return TableDelta(list(entries.values()), position < start, last >= length, last)
