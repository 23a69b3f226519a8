"""The state of a reader group as Pravega's Java client stores it: updates in the group's stream.

The stream is `_RG` and the group's name: records of updates, each written only if nothing was written since the state
was last read; else the change is decided again from the newer state.

Invariant: a change is made from the newest state, at most once. Refused: records that no client of the group writes
(ProtocolViolation). Follows `ReaderGroupImpl` and `ReaderGroupStateManager` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from segstore.client.connection import Locations
from segstore.client.controller import Cluster
from segstore.client.errors import NoSuchStream, ProtocolViolation
from segstore.client.stream import Revision, RevisionedStream, StateSynchronizer
from segstore.wire.reader_groups import GroupState, InitialState, Update, encode_update

_PREFIX: Final = "_RG"
_FIRST_TRIES: Final = 3
_COMPACT_BYTES: Final = 512 * 1024
_COMPACT_SHARE: Final = 0.05
"""The probability of a compaction when it is due, so that readers do not do it together."""


class _Rules:
    def create(self, initial: bytes) -> GroupState:
        state = GroupState()
        state.apply_bytes(initial)
        return state

    def apply(self, state: GroupState, update: bytes) -> GroupState:
        changed = state.copy()
        changed.apply_bytes(update)
        return changed

    def compact(self, state: GroupState) -> bytes:
        return state.encode()


@dataclass(eq=False)
class WatchedCheckpoint:
    """A checkpoint. positions: known once it was complete in any state that was read."""

    name: str
    positions: Mapping[str, int] | None = None


class _Synchronizer(StateSynchronizer[GroupState]):
    """A group's state. Also sees checkpoints that are complete only between two states that callers see."""

    def __init__(self, stream: RevisionedStream, watched: set[WatchedCheckpoint]) -> None:
        super().__init__(stream, _Rules())
        self._watched = watched

    def _take(self, revision: Revision, record: bytes) -> None:
        super()._take(revision, record)
        for checkpoint in self._watched:
            if checkpoint.positions is None and self.state is not None:
                checkpoint.positions = self.state.checkpoints.complete(checkpoint.name)


class GroupLog:
    """The state of one group in its stream. Its methods raise NoSuchStream if that does not exist.

    Attributes:
        facts: where the state is, for errors.
        watched: checkpoints to look for in each state.
    """

    def __init__(self, cluster: Cluster, locations: Locations, scope: str, group: str, *, recovers: bool) -> None:
        """locations: used for the stream. recovers: used by a reader, which retries for longer than a call."""
        self.facts: Final[Mapping[str, Any]] = {"stream": f"{scope}/{_PREFIX}{group}"}
        self.watched: set[WatchedCheckpoint] = set()
        self._cluster = cluster
        self._locations = locations
        self._scope = scope
        self._group = group
        self._recovers = recovers
        self._synchronizer: _Synchronizer | None = None

    async def _opened(self) -> _Synchronizer:
        if self._synchronizer is None:
            segments = await self._cluster.controller.current_segments(self._scope, _PREFIX + self._group)
            if not segments:
                raise NoSuchStream(f"stream {self.facts['stream']} has no segment", **self.facts)
            pool, name = self._cluster.pool, segments[0].name
            stream = RevisionedStream(pool, self._locations, name, recovers=self._recovers)
            self._synchronizer = _Synchronizer(stream, self.watched)
        return self._synchronizer

    async def fetch(self) -> GroupState | None:
        """Reads new records; returns the state, None if no client has written the first record."""
        return await (await self._opened()).fetch()

    async def initialise(self, initial: InitialState) -> GroupState:
        """Writes the group's first state, unless another client has; returns the state. Raises ProtocolViolation."""
        synchronizer = await self._opened()
        for _ in range(_FIRST_TRIES):
            await synchronizer.initialise(encode_update(initial))
            if synchronizer.state is not None:
                return synchronizer.state
        raise ProtocolViolation(f"{self.facts['stream']} refuses its first record, and has none", **self.facts)

    async def update(self, decide: Callable[[GroupState], Sequence[Update]]) -> GroupState:
        """Writes the updates that `decide` returns, which is called again on a conflict; returns the new state."""
        synchronizer = await self._opened()
        return await synchronizer.update(lambda state: [encode_update(update) for update in decide(state)])

    async def compact_if_due(self) -> GroupState | None:
        """Writes the whole state now and then, so that new readers read only what follows; returns it if so."""
        synchronizer = await self._opened()
        due = synchronizer.bytes_since_compaction > _COMPACT_BYTES
        if not due or self._cluster.pool.random.random() >= _COMPACT_SHARE:
            return None
        await synchronizer.compact()
        return synchronizer.state

    async def delete(self) -> None:
        """Deletes the group with its stream."""
        controller = self._cluster.controller
        config = await controller.reader_group_config(self._scope, self._group)
        await controller.delete_reader_group(self._scope, self._group, config.id)

    async def aclose(self) -> None:
        """Releases the flows. Can be called twice."""
        synchronizer, self._synchronizer = self._synchronizer, None
        if synchronizer is not None:
            await synchronizer.aclose()
