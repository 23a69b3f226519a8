"""Reader groups and subscribers: configurations with an id and a generation.

A reader group has a stream of its own, `_RG` and its name, through which its readers coordinate. If configured, a group
subscribes to its streams; then its position delays their retention.

Invariant: replacing a configuration requires the current generation and id, and each replacement increments the
generation. Follows the reader-group part of `StreamMetadataTasks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
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
from segstore.server.controller.state import READER_GROUP_PREFIX, Core, Stream, require
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.group_states import SharedState, shared_state
from segstore.server.controller.streams.streams import Streams
from segstore.wire.names import is_user_stream_name

_STREAM_CONFIG = StreamConfig(rollover_bytes=4 * 1024 * 1024)
"""Configuration of a group's own stream: one segment, as in `StreamMetadataTasks`."""


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

        Raises `IllegalState` for a state that no group has written.
        """
        require(scope=scope, reader_group=name)
        state = await shared_state(self._core.segments, self._core.state.scope(scope), name)
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
        self, scope: str, stream: str, subscriber: str, group_id: str, generation: int, cut: Mapping[int, int]
    ) -> None:
        found = self._stream(scope, stream)
        held = found.subscribers.get(subscriber)
        if held is None:
            raise errors.NotFound("subscriber", f"{subscriber} of stream {found.full_name}")
        self._check_id("subscriber", subscriber, self._core.state.reader_group(*op.split_name(subscriber)), group_id)
        if held.generation != generation:
            raise errors.GenerationMismatch(subscriber, generation, held.generation)
        self._streams.check_progress(found, held.cut, cut)
        self._core.record(op.SubscriberMoved(scope, stream, subscriber, dict(cut)))

    def _stream(self, scope: str, stream: str) -> Stream:
        """Returns the stream. Raises `NotFound` for its scope if that does not exist."""
        self._core.state.scope(scope)
        return self._streams.get(scope, stream)

    def _check_id(self, kind: str, name: str, held: ReaderGroupConfig, group_id: str) -> None:
        """Refuses an id other than the group's; it is parsed only here, as in Pravega."""
        if parse_group_id(held.group_id) != parse_group_id(group_id):
            raise errors.NotFound(kind, f"{name} with id {group_id}")
