"""The state that the readers of a group share, in the group's stream, and changes of it.

The stream is that of Java's clients, `_RG` and the group's name: records of updates, each written only if nothing was
written since the state was last read; else the change is decided again from the newer state. So readers in any language
agree on the state.

Invariants: a change is made from the newest state, at most once. Refused: records that no client of the group writes
(ProtocolViolation). Follows `ReaderGroupImpl` and `ReaderGroupStateManager` (Pravega's client).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from segstore.client.cluster import Cluster
from segstore.client.connection import Locations
from segstore.client.errors import ClientError, NoSuchReaderGroup, NoSuchStream
from segstore.client.groups.state import Draft
from segstore.client.stream import Revision, RevisionedStream, StateSynchronizer
from segstore.wire.reader_groups import GroupState, InitialState, encode_update

log = logging.getLogger(__name__)

T = TypeVar("T")

_PREFIX: Final = "_RG"
_COMPACT_BYTES: Final = 512 * 1024
_COMPACT_SHARE: Final = 0.05
"""The probability of a compaction when it is due, so that readers do not do it together."""


class _Rules:
    """The operations on a state, for `StateSynchronizer`."""

    def create(self, initial: bytes) -> GroupState:
        made = GroupState()
        made.apply_bytes(initial)
        return made

    def apply(self, state: GroupState, update: bytes) -> GroupState:
        made = state.copy()
        made.apply_bytes(update)
        return made

    def compact(self, state: GroupState) -> bytes:
        return state.encode()


@dataclass(eq=False)
class _Watched:
    """A checkpoint; its positions once it was complete in any state that was read."""

    name: str
    positions: Mapping[str, int] | None = None


class _Synchronizer(StateSynchronizer[GroupState]):
    """A group's state. Notes checkpoints that are complete in a state between two that callers see."""

    def __init__(self, stream: RevisionedStream, watched: set[_Watched]) -> None:
        super().__init__(stream, _Rules())
        self._watched = watched

    def _take(self, revision: Revision, record: bytes) -> None:
        super()._take(revision, record)
        for each in self._watched:
            if each.positions is None and self.state is not None:
                each.positions = self.state.checkpoints.complete(each.name)


class SharedGroup:
    """The state of one group.

    Attributes:
        group: "scope/name".
        state: as of the last `fetch` or `change`; must not be modified.
    """

    def __init__(
        self, cluster: Cluster, locations: Locations, scope: str, name: str, *, recovers: bool = False
    ) -> None:
        """locations: used for the group's stream. recovers: used by a reader, which retries for longer than a call."""
        self.scope: Final = scope
        self.name: Final = name
        self.group: Final = f"{scope}/{name}"
        self.state = GroupState()
        self._cluster = cluster
        self._locations = locations
        self._recovers = recovers
        self._random = cluster.pool.random
        self._close_s = cluster.pool.settings.close_timeout_ms / 1000
        self._lock = asyncio.Lock()
        self._synchronizer: _Synchronizer | None = None
        self._watched: set[_Watched] = set()

    @property
    def stream(self) -> str:
        """The group's stream, as "scope/stream"."""
        return f"{self.scope}/{_PREFIX}{self.name}"

    def missing(self) -> NoSuchReaderGroup:
        """Returns the error for a group that does not exist."""
        return NoSuchReaderGroup(f"reader group {self.group} does not exist", stream=self.stream)

    async def _opened(self) -> _Synchronizer:
        if self._synchronizer is None:
            try:
                segments = await self._cluster.controller.current_segments(self.scope, _PREFIX + self.name)
            except NoSuchStream:
                segments = []
            if not segments:
                raise self.missing()
            pool, name = self._cluster.pool, segments[0].name
            stream = RevisionedStream(pool, self._locations, name, recovers=self._recovers)
            self._synchronizer = _Synchronizer(stream, self._watched)
        return self._synchronizer

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Converts a missing stream to NoSuchReaderGroup."""
        try:
            yield
        except NoSuchReaderGroup:
            raise
        except NoSuchStream as error:
            raise self.missing() from error

    # --- the state --------------------------------------------------------------------------------------------------

    async def initialise(self, initial: InitialState) -> None:
        """Writes the group's first state, unless another client has."""
        async with self._lock:
            with self._there():
                synchronizer = await self._opened()
                await synchronizer.initialise(encode_update(initial))
            self._took(synchronizer)

    async def fetch(self) -> GroupState:
        """Reads new records; returns the state.

        Raises NoSuchReaderGroup, also if no client has written the first state, ProtocolViolation, and the errors of
        requests.
        """
        async with self._lock:
            with self._there():
                synchronizer = await self._opened()
                found = await synchronizer.fetch()
            if found is None:
                raise self.missing()
            self._took(synchronizer)
            return self.state

    def _took(self, synchronizer: _Synchronizer) -> None:
        assert synchronizer.state is not None
        self.state = synchronizer.state

    async def change(self, decide: Callable[[Draft], T]) -> T:
        """Lets `decide` change a draft of the state, writes its updates, and returns its result.

        On a conflict with another client it is called again with the newer state. If it raises, nothing changes.
        Raises NoSuchReaderGroup, RetriesExhausted, and the errors of requests.
        """
        decided: list[T] = []

        def updates(state: GroupState) -> Sequence[bytes]:
            draft = Draft(self.group, state)
            decided[:] = [decide(draft)]
            return [encode_update(each) for each in draft.updates]

        async with self._lock:
            with self._there():
                synchronizer = await self._opened()
                await synchronizer.update(updates)
            self._took(synchronizer)
        return decided[0]

    async def change_or_undo(self, decide: Callable[[Draft], T], undo: Callable[[Draft], object], what: str) -> T:
        """As `change`. If cancelled, waits until the change has ended and applies `undo` if it succeeded.

        Both take at most `close_timeout_ms`. what: names the change in a warning if it could not be undone.
        """
        changing = asyncio.get_running_loop().create_task(self.change(decide), name=f"{what} of {self.group}")
        try:
            return await asyncio.shield(changing)
        except asyncio.CancelledError:
            await self._undo(changing, undo, what)
            raise

    async def _undo(self, changing: asyncio.Task[T], undo: Callable[[Draft], object], what: str) -> None:
        try:
            async with asyncio.timeout(self._close_s):
                await asyncio.wait([changing])
                if not changing.cancelled() and changing.exception() is None:
                    await self.change(undo)
        except (ClientError, TimeoutError) as problem:
            said = "%s of %s was cancelled, but may have been applied: %r"
            log.warning(said, what, self.group, problem, extra={"stream": self.stream})
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, checkpoint: str) -> Iterator[Callable[[], Mapping[str, int] | None]]:
        """Yields a function that returns the positions of a checkpoint, segment → offset; None if it is not complete.

        They are known even if other clients have forgotten the checkpoint since it was complete.
        """

        watched = _Watched(checkpoint)

        def taken() -> Mapping[str, int] | None:
            found = watched.positions
            return self.state.checkpoints.complete(checkpoint) if found is None else found

        self._watched.add(watched)
        try:
            yield taken
        finally:
            self._watched.remove(watched)

    # --- the stream -------------------------------------------------------------------------------------------------

    async def compact_if_due(self) -> None:
        """Writes the whole state now and then, so that new readers read only what follows."""
        async with self._lock:
            synchronizer = await self._opened()
            if synchronizer.bytes_since_compaction > _COMPACT_BYTES and self._random.random() < _COMPACT_SHARE:
                with self._there():
                    await synchronizer.compact()
                self._took(synchronizer)

    async def aclose(self) -> None:
        """Releases the flows. Can be called twice."""
        synchronizer, self._synchronizer = self._synchronizer, None
        if synchronizer is not None:
            await synchronizer.aclose()
