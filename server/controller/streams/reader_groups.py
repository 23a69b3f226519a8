"""Reader groups and subscribers: configurations with an id and a generation.

A reader group has a stream of its own, `_RG` and its name, through which its readers coordinate. If configured, a group
subscribes to its streams; then its position delays their retention.

Invariant: replacing a configuration requires the current generation and id, and each replacement increments the
generation. Follows the reader-group part of `StreamMetadataTasks`.

The state that the readers of a group share is read from the group's table or stream: groups of Rust and Python clients
have a table of entries; groups of Java clients have a stream of updates, whose mark shows where the last whole state
is. Refused: a state that no group has written, or that exceeds about `_MOST_BYTES`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple
from uuid import UUID

import msgspec

from segstore.server.controller import errors
from segstore.server.controller.policies import (
    NO_ID,
    ReaderGroupConfig,
    StreamConfig,
    SubscriberRetention,
    parse_group_id,
)
from segstore.server.controller.segment_admin import SegmentAdmin
from segstore.server.controller.state import READER_GROUP_PREFIX, TABLE_SUFFIX, Core, Scope, Stream, require
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.streams import Streams
from segstore.wire import NoSuchSegment
from segstore.wire.inspect import payload_parts
from segstore.wire.names import is_user_stream_name, segment_name
from segstore.wire.reader_groups import GroupState, StoredGroup, decode_key

_STREAM_CONFIG = StreamConfig(rollover_bytes=4 * 1024 * 1024)
"""Configuration of a group's own stream: one segment, as in `StreamMetadataTasks`."""

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


class ReaderGroups:
    def __init__(self, core: Core, streams: Streams) -> None:
        self._core = core
        self._streams = streams

    async def create(self, scope: str, name: str, config: ReaderGroupConfig) -> ReaderGroupConfig:
        """Creates a group with its stream, unless it exists; returns the group's configuration."""
        if not is_user_stream_name(name):
            raise errors.InvalidName("reader group", name)
        core = self._core
        async with core.lock("reader group", scope, name):
            held = core.state.scope(scope).reader_groups.get(name)
            if held is not None:
                return held
            if config.retention is not SubscriberRetention.NONE:
                for full_name in config.starting_cuts:
                    core.state.stream(*op.split_name(full_name))
            group_id = config.group_id
            if group_id == NO_ID:
                group_id = str(UUID(int=core.random.getrandbits(128), version=4))
            config = msgspec.structs.replace(config, group_id=group_id, generation=0)
            with suppress(errors.AlreadyExists):  # an older client may have created the stream itself
                await self._streams.create(scope, READER_GROUP_PREFIX + name, _STREAM_CONFIG)
            core.state.scope(scope)  # it may have been deleted while the store worked
            core.record(op.ReaderGroupSet(scope, name, config))
        return config

    def get(self, scope: str, name: str) -> ReaderGroupConfig:
        """Returns the group. Raises `NotFound` for its scope if that does not exist."""
        require(scope=scope, reader_group=name)
        self._core.state.scope(scope)
        return self._core.state.reader_group(scope, name)

    async def shared_state(self, scope: str, name: str) -> SharedState:
        """Returns the state that a group's readers share, in any client's format.

        Raises `IllegalState` for a state that no group has written, and `SegmentStoreFailed`.
        """
        require(scope=scope, reader_group=name)
        segments, contents = self._core.segments, self._core.state.scope(scope)
        if READER_GROUP_PREFIX + name in contents.streams:
            return await _from_stream(segments, contents, name)
        # The first partition of a key-value table has the name of the table that a group would have.
        state = None if name in contents.tables else await _from_table(segments, scope, name)
        if state is None:
            raise errors.NotFound("reader group", f"{scope}/{name}")
        return state

    def update(self, scope: str, name: str, config: ReaderGroupConfig) -> int:
        """Replaces a configuration; returns its generation."""
        held = self.get(scope, name)
        if held.generation != config.generation:
            raise errors.GenerationMismatch(f"{scope}/{name}", config.generation, held.generation)
        if held.group_id != config.group_id:
            raise errors.IllegalState(f"the id of reader group {scope}/{name} is not {config.group_id}")
        updated = msgspec.structs.replace(config, generation=held.generation + 1)
        self._core.record(op.ReaderGroupSet(scope, name, updated))
        return updated.generation

    async def delete(self, scope: str, name: str, group_id: str) -> None:
        """Deletes a group with its stream; the id must be the group's."""
        core = self._core
        async with core.lock("reader group", scope, name):
            self._check_id("reader group", f"{scope}/{name}", self.get(scope, name), group_id)
            stream = READER_GROUP_PREFIX + name
            if self._streams.exists(scope, stream):
                await self._streams.seal(scope, stream)
                await self._streams.delete(scope, stream)
            core.record(op.ReaderGroupDeleted(scope, name))

    # Subscribers -----------------------------------------------------------------------------------------------

    def subscribers(self, scope: str, stream: str) -> list[str]:
        """Returns the groups, as "scope/name", that delay a stream's retention."""
        return sorted(self._stream(scope, stream).subscribers)

    def move(
        self, scope: str, name: str, subscriber: str, group_id: str, generation: int, cut: Mapping[int, int]
    ) -> None:
        stream = self._stream(scope, name)
        held = stream.subscribers.get(subscriber)
        if held is None:
            raise errors.NotFound("subscriber", f"{subscriber} of stream {stream.full_name}")
        self._check_id("subscriber", subscriber, self._core.state.reader_group(*op.split_name(subscriber)), group_id)
        if held.generation != generation:
            raise errors.GenerationMismatch(subscriber, generation, held.generation)
        self._streams.check_progress(stream, held.cut, cut)
        self._core.record(op.SubscriberMoved(scope, name, subscriber, dict(cut)))

    def _stream(self, scope: str, stream: str) -> Stream:
        """Returns the stream. Raises `NotFound` for its scope if that does not exist."""
        self._core.state.scope(scope)
        return self._streams.get(scope, stream)

    def _check_id(self, kind: str, name: str, held: ReaderGroupConfig, group_id: str) -> None:
        """Refuses an id other than the group's; it is parsed only here, as in Pravega."""
        if parse_group_id(held.group_id) != parse_group_id(group_id):
            raise errors.NotFound(kind, f"{name} with id {group_id}")


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
        for entry in page:
            key, value = bytes(entry.key.data), bytes(entry.value.data)
            size += len(key) + len(value)
            try:
                outer, inner = decode_key(key)
                if inner is not None:
                    stored.take(outer, inner, value)
            except ValueError as error:
                raise errors.IllegalState(f"{segment} has an entry that no reader group has: {error}") from error
        if not token or not page:
            break
        if size > _MOST_BYTES:
            raise _too_large(segment)
        await asyncio.sleep(0)
    streams = [] if stored.config is None else sorted(stored.config.starts)
    return SharedState("table", streams, stored.readers, stored.unassigned, set(stored.future), {})


async def _from_stream(segments: SegmentAdmin, scope: Scope, group: str) -> SharedState:
    stream = scope.streams[READER_GROUP_PREFIX + group]
    segment = stream.segment_name(stream.current.segments[0])
    info = await segments.segment_info(segment)
    start = max(info.start_offset, await segments.attribute(segment, _MARK) or 0)
    if info.write_offset - start > _MOST_BYTES:
        raise _too_large(segment)
    data = await segments.read_segment(segment, start, info.write_offset - start)
    replayed = await asyncio.to_thread(_replayed, data, segment)
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
