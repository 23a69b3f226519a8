"""The state of a reader group in the form of Pravega's clients in Rust and Python: entries of a table. Pure.

The state equals the state of the other form, so that readers decide alike, but it is stored as maps in one table: of
online readers with their segments and offsets, unassigned segments, and future segments with the predecessors that must
be read first. A table holds no checkpoints, ends nor generations.

Invariants: unknown maps are ignored; removed entries become tombstones, because the clients in Rust remember versions
and could not write a key again that was really deleted. Refused: entries that are malformed (`ValueError`). Follows
`ReaderGroupState` (pravega-client-rust).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self, TypeVar

from segstore.wire.names import SegmentName
from segstore.wire.reader_groups.state import GroupState
from segstore.wire.reader_groups.table import (
    TOMBSTONE,
    cbor_encode,
    check_segment,
    decode_config,
    decode_offset,
    decode_offsets,
    decode_predecessors,
    decode_value,
    encode_config,
    encode_offset,
    encode_offsets,
    encode_predecessors,
    encode_value,
)

CONFIG: Final = "config"
ASSIGNED: Final = "assigned_segments"
UNASSIGNED: Final = "unassigned_segments"
FUTURE: Final = "future_segments"
DISTANCE: Final = "distance_to_tail"
"""The clients in Rust and Python write this for each reader but do not use it."""

ONLY: Final = "default"
"""The only key of the map `CONFIG`."""

_GONE: Final = encode_value(TOMBSTONE, cbor_encode({}))
_UNKNOWN_DISTANCE: Final = encode_value("u64", cbor_encode((1 << 64) - 1))
_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    CONFIG: lambda config: encode_value("ReaderGroupConfigVersioned", encode_config(config)),
    ASSIGNED: lambda offsets: encode_value("HashMap<ScopedSegment, Offset>", encode_offsets(offsets)),
    DISTANCE: lambda _: _UNKNOWN_DISTANCE,
    UNASSIGNED: lambda offset: encode_value("Offset", encode_offset(offset)),
    FUTURE: lambda before: encode_value("HashSet<i64>", encode_predecessors(sorted(before))),
}

V = TypeVar("V")


class StoredEntry(NamedTuple):
    """An entry: the name of its map, its key in the map, and its value as in the table."""

    outer: str
    inner: str
    value: bytes


class StoredGroup(GroupState):
    """The state of one group. `read` and `ranges` are empty, and `distances` has no more than the readers' names."""

    def take(self, outer: str, inner: str, value: bytes | None) -> None:
        """Applies an entry read from the table; value None if it was removed. Unknown maps are ignored.

        Raises ValueError for a malformed value or segment name.
        """
        kind, data = (TOMBSTONE, b"") if value is None else decode_value(value)
        gone = kind == TOMBSTONE
        if outer in (UNASSIGNED, FUTURE) and not gone:
            check_segment(inner)
        if outer == CONFIG and inner == ONLY:
            self.config = None if gone else decode_config(data)
        elif outer == ASSIGNED:
            _put(self.readers, inner, None if gone else decode_offsets(data))
        elif outer == UNASSIGNED:
            _put(self.unassigned, inner, None if gone else decode_offset(data))
        elif outer == FUTURE and gone:
            self.future.pop(inner, None)
        elif outer == FUTURE:
            self._await(inner, set(decode_predecessors(data)))
        elif outer == DISTANCE:
            _put(self.distances, inner, None if gone else 0)

    def changes_to(self, newer: Self) -> list[StoredEntry]:
        """Returns the entries to write for a state that was made from this state, removed entries last."""
        maps = [
            (outer, old, new) for (outer, old), new in zip(self._maps().items(), newer._maps().values(), strict=True)
        ]
        changed = [
            StoredEntry(outer, inner, _ENCODERS[outer](value))
            for outer, old, new in maps
            for inner, value in new.items()
            if inner not in old or old[inner] != value
        ]
        gone = [StoredEntry(outer, inner, _GONE) for outer, old, new in maps for inner in old if inner not in new]
        return changed + gone

    def _maps(self) -> dict[str, Mapping[str, Any]]:
        return {
            CONFIG: {} if self.config is None else {ONLY: self.config},
            ASSIGNED: self.readers,
            DISTANCE: dict.fromkeys(self.distances),
            UNASSIGNED: self.unassigned,
            FUTURE: self.future,
        }

    def _waiting_for(self, segment: str) -> set[str]:
        """As in the Java form, but only of the segment's own stream."""
        stream = _stream_of(segment)
        following = self._followers[SegmentName.parse(segment).segment_id or 0]
        found = {each for each in following if _stream_of(each) == stream}
        following -= found
        return found


def _stream_of(segment: str) -> str:
    return segment.rpartition("/")[0]


def _put(entries: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
