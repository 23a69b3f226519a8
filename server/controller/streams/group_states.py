"""The state shared by the readers of a group, read from the group's table or stream.

Groups of Rust and Python clients have a table of entries; groups of Java clients have a stream of updates, whose mark
shows where the last whole state is. Invariant: about `_MOST_BYTES` are read at most. Refused: a state that no group has
written, or that exceeds this limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple
from uuid import UUID

from segstore.server.controller import errors
from segstore.server.controller.segment_admin import SegmentAdmin
from segstore.server.controller.state import READER_GROUP_PREFIX, TABLE_SUFFIX, Scope
from segstore.wire import NoSuchSegment
from segstore.wire.inspect import payload_parts
from segstore.wire.names import segment_name
from segstore.wire.reader_groups import GroupState, StoredGroup, decode_key

_MARK: Final = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5")
"""murmur3_128 of "RevisionStreamClientMark", seeded with the hash of "SegmentAttribute"."""

_MOST_BYTES: Final = 16 * 1024 * 1024
_PAGE: Final = 1_000


class SharedState(NamedTuple):
    """The state of a group. readers: online reader → segment → offset. unassigned: segment → offset.

    future: segments that wait until other segments are read to their ends. ends: segment → offset at which the group
    ends in it. streams: as "scope/stream", sorted.
    """

    kind: Literal["table", "stream"]
    streams: list[str]
    readers: Mapping[str, Mapping[str, int]]
    unassigned: Mapping[str, int]
    future: set[str]
    ends: Mapping[str, int]


async def shared_state(segments: SegmentAdmin, scope: Scope, group: str) -> SharedState | None:
    """Reads the state of a group; None if there is no such group.

    Raises `IllegalState` for a state that no group has written, and `SegmentStoreFailed`.
    """
    if READER_GROUP_PREFIX + group in scope.streams:
        return await _from_stream(segments, scope, group)
    # The first partition of a key-value table has the name of the table that a group would have.
    return None if group in scope.tables else await _from_table(segments, scope.name, group)


async def _from_table(segments: SegmentAdmin, scope: str, group: str) -> SharedState | None:
    segment = segment_name(scope, f"{group}{TABLE_SUFFIX}", 0, 0)
    stored, token, size = StoredGroup(), b"", 0
    while True:
        try:
            page, token = await segments.read_entries(segment, _PAGE, token)
        except errors.SegmentStoreFailed as error:
            if isinstance(getattr(error.__cause__, "reply", None), NoSuchSegment):
                return None
            raise
        pairs = [(bytes(each.key.data), bytes(each.value.data)) for each in page]
        _take(stored, pairs, segment)
        size += sum(len(key) + len(value) for key, value in pairs)
        if not token or not page:
            break
        if size > _MOST_BYTES:
            raise _too_large(segment)
    streams = [] if stored.config is None else sorted(stored.config.starts)
    return SharedState("table", streams, stored.readers, stored.unassigned, set(stored.future), {})


def _take(stored: StoredGroup, pairs: Iterable[tuple[bytes, bytes]], segment: str) -> None:
    for key, value in pairs:
        try:
            outer, inner = decode_key(key)
            if inner is not None:
                stored.take(outer, inner, value)
        except ValueError as error:
            raise errors.IllegalState(f"{segment} has an entry that no reader group has: {error}") from error


async def _from_stream(segments: SegmentAdmin, scope: Scope, group: str) -> SharedState:
    stream = scope.streams[READER_GROUP_PREFIX + group]
    segment = stream.segment_name(stream.current.segments[0])
    info = await segments.segment_info(segment)
    start = max(info.start_offset, await segments.attribute(segment, _MARK) or 0)
    if info.write_offset - start > _MOST_BYTES:
        raise _too_large(segment)
    replayed = _replayed(await segments.read_segment(segment, start, info.write_offset - start), segment)
    config = scope.reader_groups.get(group)
    streams = [] if config is None else sorted(config.starting_cuts)
    future, ends = set(replayed.future), replayed.ends
    return SharedState("stream", streams, replayed.reported(), replayed.unassigned, future, ends)


def _replayed(data: bytes, segment: str) -> GroupState:
    replayed = GroupState(keeps_checkpoints=False)
    for part in payload_parts(data):
        try:
            if part.kind != "event":
                raise ValueError(f"{part.kind} of {part.size} bytes")
            replayed.apply_record(bytes(part.data))
        except ValueError as error:
            raise errors.IllegalState(f"{segment} has an event that no reader group has: {error}") from error
    return replayed


def _too_large(segment: str) -> errors.IllegalState:
    return errors.IllegalState(f"the state of the reader group in {segment} is too large to be read here")
