"""Reader groups: readers, in any number of processes, that share the segments of one or more streams.

    async with pravega.reader_group("scope", "group", streams=["stream"]) as group:
        async with group.reader("reader-1") as reader:
            async for event in reader:
                print(event.data, event.position)

A group's state is a table segment in the format of the official Python and Rust clients, so their readers and these can
share a group. The first client to open a group creates it with its starting positions; later ones join it.

Invariant: an existing group is never re-created, so its positions are kept. Refused: a group without streams, or with
more segments than one table update can hold. Follows `ReaderGroup` (pravega-client-rust).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

from segstore.client.cluster import Cluster
from segstore.client.connection import Locations
from segstore.client.controller import StreamCut, checked_cut, name_of
from segstore.client.errors import NoSuchReaderGroup, ReaderOffline
from segstore.client.groups.changes import GroupListener
from segstore.client.groups.checkpoints import Checkpoint, checkpointed
from segstore.client.groups.positions import GroupMetrics, cuts_of, finished_positions, lag_of
from segstore.client.groups.reader import GroupReader
from segstore.client.groups.state import GroupState
from segstore.client.groups.table import GroupTable
from segstore.client.lifecycle import ClosedAfter, OpenedBefore
from segstore.client.stream import check_cut, tail_of
from segstore.wire.reader_groups import GroupConfig

GroupStart = Literal["head", "tail"] | Mapping[str, Literal["head", "tail"] | Mapping[int, int]]
"""Where a group starts: "head" or "tail" for all streams, or for each stream one of these or segment id → offset."""


class ReaderGroup(OpenedBefore, ClosedAfter):
    """A reader group. Use with `async with`, or `open` and `aclose`.

    Attributes:
        scope, name: the group's scope and name.
    """

    def __init__(
        self,
        cluster: Cluster,
        table_locations: Locations,
        scope: str,
        name: str,
        *,
        streams: Sequence[str] = (),
        from_: GroupStart = "head",
        refresh_ms: int = 3000,
    ) -> None:
        """streams: the streams of a new group, as names in its scope or as "scope/stream".

        from_: where a new group starts; streams missing from a mapping start at the head. refresh_ms: how often readers
        of a new group record their positions. table_locations: used for the group's table; those of the cluster are
        used for the stream segments.
        """
        for part in (scope, name):
            if not part or "/" in part:
                raise ValueError(f"{scope}/{name} is not a reader group: {part!r} is empty or has a slash")
        if refresh_ms < 1:
            raise ValueError(f"refresh_ms must be at least 1, not {refresh_ms}")
        for each in from_.values() if isinstance(from_, Mapping) else [from_]:
            if each not in ("head", "tail") and not isinstance(each, Mapping):
                raise ValueError(f"the group {scope}/{name} must start at 'head', 'tail' or a cut, not {each!r}")
        self.scope: Final = scope
        self.name: Final = name
        self._cluster = cluster
        self._table_locations = table_locations
        self._refresh_ms = refresh_ms
        self._starts: dict[tuple[str, str], Literal["head", "tail"] | Mapping[int, int]] = {}
        names = [_full(scope, stream) for stream in streams]
        if isinstance(from_, Mapping):
            given = {_full(scope, each): start for each, start in from_.items()}
            if not given.keys() <= set(names):
                own = ", ".join(from_)
                raise ValueError(f"the group {scope}/{name} has starts for other streams than its own: {own}")
            self._starts = {each: given.get(each, "head") for each in names}
        else:
            self._starts = dict.fromkeys(names, from_)
        for (own, stream), start in self._starts.items():
            if isinstance(start, Mapping):
                checked_cut(own, stream, start)
        self._table = self._new_table()

    def _new_table(self, *, recovers: bool = False) -> GroupTable:
        return GroupTable(self._cluster.pool, self._table_locations, self.scope, self.name, recovers=recovers)

    async def open(self) -> None:
        """Opens the group; creates it if it does not exist and streams were given.

        Raises NoSuchReaderGroup if it does not exist and no streams were given, or if it was deleted and its store has
        not yet released the name (which takes Pravega's stores minutes); NoSuchStream; CutError for a start behind the
        end of a segment; EntryRefused for too many segments; and the errors of controller calls and requests.
        """
        try:
            made = await self._table.create() if self._starts else True
            try:
                state = await self._table.fetch()
            except NoSuchReaderGroup as missing:
                if made:
                    raise
                raise NoSuchReaderGroup(
                    f"the reader group {self.scope}/{self.name} was deleted, and its store cannot create it again yet;"
                    " another name can be used at once",
                    segment=self._table.segment,
                ) from missing
            if state.config is None:
                await self._create()
        except BaseException:
            self._table.close()
            raise

    async def _create(self) -> None:
        if not self._starts:
            raise self._table.missing()
        cuts = await asyncio.gather(
            *[self._cut(scope, stream, start) for (scope, stream), start in self._starts.items()]
        )
        offsets = {
            name_of(scope, stream, segment_id): offset
            for (scope, stream), cut in zip(self._starts, cuts, strict=True)
            for segment_id, offset in cut.items()
        }
        config = GroupConfig(self._starts, self._refresh_ms)
        await self._table.change(lambda state: state.create(config, offsets))

    async def _cut(self, scope: str, stream: str, start: str | Mapping[int, int]) -> Mapping[int, int]:
        if isinstance(start, Mapping):
            await check_cut(self._cluster, scope, stream, start)
            return start
        if start == "head":
            return await self._cluster.controller.head(scope, stream)
        return await tail_of(self._cluster, scope, stream)

    # --- readers ----------------------------------------------------------------------------------------------------

    def reader(self, name: str, *, listener: GroupListener | None = None) -> GroupReader:
        """Returns an unopened reader; its name must be unique in the group while it is online.

        listener: called with each `GroupChange` of the reader, inside `read`, between two events.
        """
        return GroupReader(self._cluster, self._new_table(recovers=True), name, listener=listener)

    async def readers(self) -> list[str]:
        """Returns the names of all online readers, including those of other clients."""
        return sorted((await self._state()).readers)

    async def reader_offline(self, name: str, positions: Mapping[str, int] | None = None) -> bool:
        """Takes a failed reader offline; returns whether it was online.

        Other readers continue its segments from the positions that it recorded, or from `positions` (segment → offset)
        if given. If the reader is still alive, it ends with ReaderOffline.
        """
        was_online = False

        def quit_it(state: GroupState) -> None:
            nonlocal was_online
            was_online = name in state.readers or was_online
            state.quit(name, positions or {})

        await self._table.fetch()
        with suppress(ReaderOffline):
            await self._table.change(quit_it)
        return was_online

    # --- state ------------------------------------------------------------------------------------------------------

    async def _state(self) -> GroupState:
        state = await self._table.fetch()
        if state.config is None:
            raise self._table.missing()
        return state

    async def streams(self) -> list[str]:
        """Returns the group's streams, as "scope/stream"."""
        config = (await self._state()).config
        assert config is not None
        return sorted(f"{scope}/{stream}" for scope, stream in config.streams)

    async def cuts(self) -> dict[str, StreamCut]:
        """Returns the recorded positions of the group: "scope/stream" → segment id → offset.

        The result can be passed as `from_` of another group.
        """
        state = await self._state()
        return cuts_of(await finished_positions(self._cluster, state.future) | state.positions())

    async def metrics(self) -> GroupMetrics:
        """Returns how far the recorded positions are behind the ends of the streams, by segment.

        Readers record their positions every `refresh_ms`.
        """
        return await lag_of(self._cluster, await self._state())

    # --- checkpoints ------------------------------------------------------------------------------------------------

    async def checkpoint(self, name: str = "checkpoint", *, timeout_ms: float = 60_000) -> Checkpoint:
        """Returns positions of all readers, each taken between two events, inside the reader's next `read`.

        Readers notice it within `refresh_ms`; their listeners are called with `CheckpointTaken`. name: may be used
        again when that checkpoint is complete; the group's table keeps each name. Raises RequestTimedOut, which names
        the readers that did not take it (those of the official client never do), ConditionFailed if one of this name is
        in progress, and the errors of requests.
        """
        return await checkpointed(self._cluster, self._table, name, timeout_ms)

    async def checkpoints(self, every_s: float, *, timeout_ms: float = 60_000) -> AsyncIterator[Checkpoint]:
        """Yields a checkpoint, and another each time that `every_s` seconds have passed. Raises as `checkpoint`."""
        while True:
            yield await self.checkpoint(timeout_ms=timeout_ms)
            await asyncio.sleep(every_s)

    # --- shutdown ---------------------------------------------------------------------------------------------------

    async def delete(self) -> None:
        """Deletes the group, which ends its readers. Raises NoSuchReaderGroup."""
        await self._table.delete()

    async def aclose(self) -> None:
        """Releases this object's resources; the group and its readers continue. Can be called twice."""
        self._table.close()


def _full(scope: str, stream: str) -> tuple[str, str]:
    own, found, name = stream.partition("/")
    return (own, name) if found else (scope, stream)
