"""Reader groups: readers, in any number of processes, that share the segments of one or more streams.

    async with pravega.reader_group("scope", "group", streams=["stream"]) as group:
        async with group.reader("reader-1") as reader:
            async for event in reader:
                print(event.data, event.position)

The group's readers share its state, so that they agree on who reads which segment. There are two forms of a group. In
the default form, shared with Pravega's Java client, the state is in a stream and the controller knows the group's
configuration; in the form shared with the clients in Rust and Python, the state is in a table. Readers of these clients
and of this client can be in one group. The first client to open a group creates it with its starting positions; later
clients join it.

In a checkpoint, each reader was between two events. The initiator adds it to the group's state, which names the online
readers. Each reader takes it at its next `read`, which adds the reader's positions; when the last reader has taken it,
it is complete. A reader that goes offline meanwhile takes it with its last positions. Readers also begin automatic
checkpoints, as often as the group's configuration asks for.

Invariants: an existing group is never re-created, so its form and its positions are kept; a checkpoint that times out
or is cancelled is removed, unless other checkpoints are in progress, because only all can be removed together; then
readers take it, and it has no effect. Refused: a group without streams; checkpoints and resets of a group in a table,
which lacks the data for them. Follows `ReaderGroupManagerImpl` and `ReaderGroupImpl` (Pravega's client).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

from segstore.client.connection import Locations
from segstore.client.controller import Cluster, StreamCut, checked_cut
from segstore.client.errors import ConditionFailed, NoSuchReaderGroup, ReaderOffline
from segstore.client.groups.changes import GroupListener
from segstore.client.groups.configuring import check_ends, initial_state, reset_group
from segstore.client.groups.positions import GroupMetrics, covering, cuts_of, end_of, finished_positions, lag_of
from segstore.client.groups.reader import GroupReader
from segstore.client.groups.shared import GroupForm, SharedGroup
from segstore.client.groups.state import Draft, recorded
from segstore.client.lifecycle import ClosedAfter, OpenedBefore, within
from segstore.client.retry import POLLS
from segstore.client.stream import check_cut
from segstore.wire.reader_groups import GroupConfig

_Place = Literal["head", "tail"] | Mapping[int, int]
GroupStart = Literal["head", "tail"] | Mapping[str, _Place]
"""Where a group starts: "head" or "tail" for all streams, or for each stream "head", "tail" or segment id → offset."""

GroupEnd = Literal["tail"] | Mapping[str, Literal["tail"] | Mapping[int, int]]
"""Where a group ends: the present "tail" for all streams, or for each stream this or segment id → offset. Streams that
are missing from a mapping are read without an end."""

GroupRetention = Literal["none", "manual", "automatic"]
"""Whether the streams of a group keep data that it has not read: no; behind the cuts that `update_retention` reports;
or behind its last checkpoint."""


class Checkpoint(NamedTuple):
    """A checkpoint of a group. cuts: "scope/stream" → cut; a new group can start there (`from_`)."""

    name: str
    cuts: Mapping[str, StreamCut]


class ReaderGroup(OpenedBefore, ClosedAfter):
    """A reader group. Use with `async with`, or `open` and `aclose`.

    Attributes:
        scope, name: the group's scope and name.
    """

    scope: Final[str]
    name: Final[str]

    def __init__(
        self,
        cluster: Cluster,
        state_locations: Locations,
        scope: str,
        name: str,
        *,
        streams: Sequence[str] = (),
        from_: GroupStart = "head",
        to: GroupEnd | None = None,
        refresh_ms: int = 3000,
        checkpoint_ms: int = 30_000,
        retention: GroupRetention = "none",
        shared_with: GroupForm = "java",
    ) -> None:
        """state_locations: of the group's own stream or table; the cluster's locations are for stream segments.

        The options are as for `Client.reader_group`.
        """
        for part in (scope, name):
            if not part or "/" in part:
                raise ValueError(f"{scope}/{name} is not a reader group: {part!r} is empty or has a slash")
        if refresh_ms < 1:
            raise ValueError(f"refresh_ms must be at least 1, not {refresh_ms}")
        if shared_with not in ("java", "rust"):
            raise ValueError(f"a group is shared with 'java' or 'rust', not {shared_with!r}")
        if shared_with == "rust" and retention != "none":
            raise ValueError(f"a group that is shared with clients in Rust has no retention {retention!r}")
        if shared_with == "rust" and to is not None:
            raise ValueError("a group that is shared with clients in Rust has no end")
        self.scope = scope
        self.name = name
        self._shared_with: GroupForm = shared_with
        self._cluster = cluster
        self._state_locations = state_locations
        self._starts = self._starts_of(streams, from_)
        self._ends = {} if to is None else self._checked("end", ("tail",), streams, to)
        self._config = GroupConfig(
            {}, refresh_ms=refresh_ms, checkpoint_ms=checkpoint_ms or -1, retention=retention, generation=0
        )
        self._shared = self._new_shared()

    def _starts_of(self, streams: Sequence[str], from_: GroupStart) -> dict[str, _Place]:
        starts: dict[str, _Place] = {_full(self.scope, stream): "head" for stream in streams}
        return starts | self._checked("start", ("head", "tail"), streams, from_)

    def _checked(self, what: str, words: tuple[str, ...], streams: Sequence[str], requested: Any) -> dict[str, _Place]:
        """Returns the places given for streams. Raises ValueError for other words, and for streams of other groups."""
        own, names = f"{self.scope}/{self.name}", [_full(self.scope, stream) for stream in streams]
        places: dict[str, _Place] = dict.fromkeys(names, requested)
        if isinstance(requested, Mapping):
            places = {_full(self.scope, stream): place for stream, place in requested.items()}
        if not places.keys() <= set(names):
            raise ValueError(f"the group {own} has {what}s for other streams than its own: {', '.join(requested)}")
        for stream, place in places.items():
            if isinstance(place, Mapping):
                scope, _, name = stream.partition("/")
                checked_cut(scope, name, place)
            elif place not in words:
                allowed = ", ".join(map(repr, words))
                raise ValueError(f"the group {own} must {what} at {allowed} or a cut, not {place!r}")
        return places

    def _new_shared(self, *, recovers: bool = False) -> SharedGroup:
        return SharedGroup(self._cluster, self._state_locations, self.scope, self.name, recovers=recovers)

    async def open(self) -> None:
        """Opens the group; creates it if it does not exist and streams were given.

        Raises NoSuchReaderGroup if it does not exist and no streams were given, or if its table was deleted and its
        store has not yet released the name (which takes Pravega's stores minutes); NoSuchStream; CutError for a start
        or an end that leaves out keys or is behind the end of a segment, or an end before the start;
        ConditionFailed if a key-value table has the name of its table; EntryRefused for too many segments in a table;
        and the errors of controller calls and requests.
        """
        try:
            try:
                await self._shared.fetch()
            except NoSuchReaderGroup:
                if not self._starts:
                    raise
                await self._create()
        except BaseException:
            await self._shared.aclose()
            raise

    async def _create(self) -> None:
        cluster = self._cluster
        starts, ends = await self._cuts(self._starts), await self._cuts(self._ends)
        for stream, cut in starts.items():
            if not cut:
                await cluster.controller.head(*stream.split("/", 1))  # raises NoSuchStream
        await check_ends(cluster.controller, starts, ends)
        config = self._config._replace(starts=starts, ends=ends, id=uuid4())
        if self._shared_with == "java":
            # Another client may have created it meanwhile, and its configuration holds.
            config = await cluster.controller.create_reader_group(self.scope, self.name, config)
        await self._shared.initialise(self._shared_with, await initial_state(cluster.controller, config))

    async def _cuts(self, places: Mapping[str, _Place]) -> dict[str, Mapping[int, int]]:
        """Returns the cuts that a configuration has, {} for the head."""
        cuts: dict[str, Mapping[int, int]] = {}
        for stream, place in places.items():
            scope, name = stream.split("/", 1)
            if isinstance(place, Mapping):
                await check_cut(self._cluster, scope, name, place)
                cuts[stream] = dict(place)
            else:
                cuts[stream] = {} if place == "head" else await end_of(self._cluster, scope, name)
        return cuts

    # --- readers ----------------------------------------------------------------------------------------------------

    def reader(self, name: str, *, listener: GroupListener | None = None) -> GroupReader:
        """Returns an unopened reader; its name must be unique in the group while it is online.

        listener: called with each `GroupChange` of the reader, inside `read`, between two events.
        """
        return GroupReader(self._cluster, self._new_shared(recovers=True), name, listener=listener)

    async def readers(self) -> list[str]:
        """Returns the names of all online readers, including other clients' readers."""
        return sorted((await self._shared.fetch()).readers)

    async def reader_offline(self, name: str, positions: Mapping[str, int] | None = None) -> bool:
        """Takes a failed reader offline; returns whether it was online.

        Other readers continue its segments from the positions that it recorded (a reader in Java: at its last
        checkpoint), or from `positions` (segment → offset) if given. If the reader is still alive, it ends with
        ReaderOffline.
        """
        was_online = False

        def quit_it(draft: Draft) -> None:
            nonlocal was_online
            was_online = name in draft.state.readers or was_online
            draft.quit(name, positions or {})

        await self._shared.fetch()
        with suppress(ReaderOffline):
            await self._shared.change(quit_it)
        return was_online

    # --- state ------------------------------------------------------------------------------------------------------

    async def config(self) -> GroupConfig:
        """Returns the group's configuration."""
        config = (await self._shared.fetch()).config
        assert config is not None
        return config

    async def streams(self) -> list[str]:
        """Returns the group's streams, as "scope/stream"."""
        return sorted((await self.config()).starts)

    async def cuts(self) -> dict[str, StreamCut]:
        """Returns the recorded positions of the group: "scope/stream" → segment id → offset.

        The result can be passed as `from_` of another group.
        """
        state = await self._shared.fetch()
        finished = await finished_positions(self._cluster, state.future)
        return cuts_of(finished | await covering(self._cluster, recorded(state), state.ends))

    async def metrics(self) -> GroupMetrics:
        """Returns how far the recorded positions are behind the ends of the streams, by segment.

        Readers record their positions every `refresh_ms`.
        """
        return await lag_of(self._cluster, await self._shared.fetch())

    async def reset(self, from_: GroupStart | None = None, *, to: GroupEnd | None = None) -> None:
        """Puts the group at other positions of its streams, which ends its readers with ReaderOffline.

        from_: as of a new group; None for the last checkpoint that all readers have taken, or else for the group's
        start. to: as of a new group, given with `from_`; None keeps the group's ends, {} removes them. Raises CutError
        as `open`, and ConditionFailed for a group whose state is in a table, and if the streams were read to their ends
        before the last checkpoint.
        """
        if from_ is None and to is not None:
            raise ValueError("a reset to another end needs the start, too: from_")
        streams = await self.streams()
        self._shared.refuse_in_table("resets")
        starts = None if from_ is None else await self._cuts(self._starts_of(streams, from_))
        ends = None if to is None else await self._cuts(self._checked("end", ("tail",), streams, to))
        await reset_group(self._cluster, self._shared, starts, ends)

    async def update_retention(self, cuts: Mapping[str, Mapping[int, int]]) -> None:
        """Reports that the group needs nothing before these cuts, by stream, if its retention is "manual".

        Raises RequestRejected for other cuts than the stream's, or of another retention (SUBSCRIBER_NOT_FOUND).
        """
        config = await self.config()
        self._shared.refuse_in_table("retention")
        if config.retention != "manual":
            own = f"{self.scope}/{self.name}"
            raise ConditionFailed(f"the retention of the reader group {own} is {config.retention!r}, not 'manual'")
        for name, cut in cuts.items():
            scope, stream = _full(self.scope, name).split("/", 1)
            checked = checked_cut(scope, stream, cut)
            await self._cluster.controller.update_subscriber_cut(scope, stream, self._shared.group, config, checked)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    async def checkpoint(self, name: str | None = None, *, timeout_ms: float = 60_000) -> Checkpoint:
        """Returns positions of all readers, each taken between two events, inside the reader's next `read`.

        Readers notice it within `refresh_ms`; their listeners are called with `CheckpointTaken`. name: None for a
        random name. Raises RequestTimedOut, which names the readers that did not take it, ConditionFailed if the name
        is in progress or was taken last, if too many checkpoints are in progress, or if the group's state is in a
        table, and the errors of requests.
        """
        cluster, shared, checkpoint = self._cluster, self._shared, str(uuid4()) if name is None else name

        def begin(draft: Draft) -> dict[str, set[int]]:
            draft.begin_checkpoint(checkpoint)
            return draft.state.future

        def late() -> str:
            waiting = sorted(shared.state.checkpoints.waiting.get(checkpoint, ()))
            return f"the readers {', '.join(waiting)} did not take the checkpoint {checkpoint}"

        cancel = partial(Draft.cancel_checkpoint, name=checkpoint)
        await shared.fetch()
        shared.refuse_in_table("checkpoints")
        with shared.watching(checkpoint) as taken:
            future = await shared.change_or_undo(begin, cancel, f"the checkpoint {checkpoint}")
            end = cancel
            try:
                positions = await finished_positions(cluster, future)
                async with within(timeout_ms, late, **shared.facts, checkpoint=checkpoint):
                    complete = await self._taken(checkpoint, taken)
                    positions |= await covering(cluster, complete, shared.state.ends)
                end = partial(Draft.end_checkpoint, name=checkpoint)
            finally:
                await shared.change(end)
        return Checkpoint(checkpoint, cuts_of(positions))

    async def _taken(self, checkpoint: str, taken: Callable[[], Mapping[str, int] | None]) -> Mapping[str, int]:
        """Waits until each online reader has taken a checkpoint; returns their positions."""
        shared, polls = self._shared, 0
        while (positions := taken()) is None:
            if checkpoint not in shared.state.checkpoints.waiting:
                raise ConditionFailed(f"another client removed the checkpoint {checkpoint}", **shared.facts)
            polls += 1
            await asyncio.sleep(POLLS.delay_ms(polls, self._cluster.pool.random) / 1000)
            await shared.fetch()
        return positions

    async def checkpoints(self, every_s: float, *, timeout_ms: float = 60_000) -> AsyncIterator[Checkpoint]:
        """Yields a checkpoint, and another each time that `every_s` seconds have passed. Raises as `checkpoint`."""
        while True:
            yield await self.checkpoint(timeout_ms=timeout_ms)
            await asyncio.sleep(every_s)

    # --- shutdown ---------------------------------------------------------------------------------------------------

    async def delete(self) -> None:
        """Deletes the group, which ends its readers. Raises NoSuchReaderGroup."""
        await self._shared.delete()

    async def aclose(self) -> None:
        """Releases this object's resources; the group and its readers continue. Can be called twice."""
        await self._shared.aclose()


def _full(scope: str, stream: str) -> str:
    return stream if "/" in stream else f"{scope}/{stream}"
