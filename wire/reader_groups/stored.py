"""The state of a reader group as the entries of its table hold it, without changes. Pure.

A group consists of maps in one table: online readers with their segments and offsets, unassigned segments, and
future segments with the predecessors that must be read first. Refused: entries that are malformed
(`ValueError`); unknown maps are ignored. Follows `ReaderGroupState` (pravega-client-rust).
"""

from __future__ import annotations

from typing import Final, TypeVar

from segstore.wire.reader_groups.table import (
    TOMBSTONE,
    check_segment,
    decode_offset,
    decode_offsets,
    decode_predecessors,
    decode_streams,
    decode_value,
)

CONFIG: Final = "config"
ASSIGNED: Final = "assigned_segments"
UNASSIGNED: Final = "unassigned_segments"
FUTURE: Final = "future_segments"
ONLY: Final = "default"
"""The only key of the map `CONFIG`."""

V = TypeVar("V")


class StoredGroup:
    """The state of one group.

    Attributes:
        streams: the group's streams, as "scope/stream".
        readers: online reader → segment → offset.
        unassigned: segment → offset.
        future: segment → ids of the predecessors that must be read first.
    """

    def __init__(self) -> None:
        self.streams: list[str] = []
        self.readers: dict[str, dict[str, int]] = {}
        self.unassigned: dict[str, int] = {}
        self.future: dict[str, set[int]] = {}

    def take(self, outer: str, inner: str, value: bytes | None) -> None:
        """Applies an entry read from the table; value None if it was removed. Unknown maps are ignored.

        Raises ValueError for a malformed value or segment name.
        """
        kind, data = (TOMBSTONE, b"") if value is None else decode_value(value)
        gone = kind == TOMBSTONE
        if outer in (UNASSIGNED, FUTURE) and not gone:
            check_segment(inner)
        if outer == CONFIG and inner == ONLY:
            self.streams = [] if gone else decode_streams(data)
        elif outer == ASSIGNED:
            _put(self.readers, inner, None if gone else decode_offsets(data))
        elif outer == UNASSIGNED:
            _put(self.unassigned, inner, None if gone else decode_offset(data))
        elif outer == FUTURE:
            _put(self.future, inner, None if gone else set(decode_predecessors(data)))


def _put(entries: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
