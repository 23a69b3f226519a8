"""A reader in a reader group: reads the segments assigned to it and rebalances them with the other readers.

An event counts as handled once the next event is requested, or once the reader goes offline without an error. The group
records each reader's position after its last handled event; so if a reader dies before that, events are read again
(at-least-once), and no event is skipped. Every `refresh_ms` of the group, positions are recorded and segments
rebalanced.

Invariants: a segment is not released, nor are its successors started, while the user holds its last event, so events of
each routing key stay in order across readers; the read-ahead buffer holds at most `read_ahead_bytes` plus one read per
segment; cancelling `read` loses nothing; after `aclose` no task is left. Writes the same records to the group as
`EventStreamReaderImpl` (Pravega's client). Deliberate differences: it continues a truncated segment at its new start
and counts the skipped bytes; it finishes segments between any two events, not only at checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Self
from uuid import uuid4

from segstore.client.attempts import Attempts
from segstore.client.controller import Cluster, Successor, parts_of
from segstore.client.errors import (
    Closed,
    NoSuchReaderGroup,
    NoSuchStream,
    ReaderOffline,
    RequestRejected,
    SegmentMissing,
    SegmentTruncated,
)
from segstore.client.groups.changes import (
    CheckpointTaken,
    GroupChange,
    GroupListener,
    SegmentEnded,
    SegmentsAcquired,
    SegmentsReleased,
)
from segstore.client.groups.configuring import renew
from segstore.client.groups.positions import covering, cuts_of
from segstore.client.groups.shared import SharedGroup
from segstore.client.groups.state import Draft, is_over, segments_of, share
from segstore.client.lifecycle import OpenedBefore, finish, within
from segstore.client.segment import SegmentReader
from segstore.client.stream import EventAssembler, FramedEvent, ReadAhead, successors_of
from segstore.wire.blocks import EVENT_HEADER_BYTES
from segstore.wire.reader_groups import SILENT, CheckpointPublished, GroupConfig, GroupState

log = logging.getLogger(__name__)

_AT_ONCE: Final = 200
"""Maximum number of segments acquired or released by one change."""

_UNBOUNDED: Final = sys.maxsize

Following = dict[str, list[Successor]]
"""The successors of segments that have ended."""


class Position(NamedTuple):
    """An offset in a segment, which is given by its qualified name."""

    segment: str
    offset: int


class GroupEvent(FramedEvent, frozen=True, gc=False):
    """An event, the offset of its header, and the qualified name of its segment."""

    @property
    def position(self) -> Position:
        """The position after this event."""
        return Position(self.segment, self.offset + EVENT_HEADER_BYTES + len(self.data))


def _stream_of(segment: str) -> str:
    return segment.rpartition("/")[0]


class GroupReader(OpenedBefore):
    """A reader of a group. Use with `async with` and `async for`, or `open`, `read` and `aclose`.

    Attributes:
        name: the reader's name, unique in its group while it is online.
        truncated_bytes: number of bytes truncated before they could be read.
    """

    name: Final[str]
    truncated_bytes: int

    def __init__(
        self, cluster: Cluster, shared: SharedGroup, name: str, *, listener: GroupListener | None = None
    ) -> None:
        """listener: called inside `read`, between two events; `read` raises its errors."""
        self.name = name
        self.truncated_bytes = 0
        self._cluster = cluster
        self._pool = pool = cluster.pool
        self._locations = cluster.locations
        self._shared = shared
        self._positions: dict[str, int] = {}
        """Position after the last handled event, of each segment being read."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        telemetry = cluster.telemetry
        observer = None if telemetry is None else telemetry.receiving(_stream_of, shared.group)
        self._ahead: ReadAhead[str, GroupEvent] = ReadAhead(pool.settings.read_ahead_bytes, observer)
        self._in_hand: tuple[str, int] | None = None
        """The segment of the event that the user holds, and the offset after it."""
        self._given_up: dict[str, int] = {}
        """Segments that are finished, but not yet recorded as such in the group."""
        self._ended: dict[str, float] = {}
        """Segments whose last events were returned, and for how long nothing was read up to their ends, in seconds."""
        self._listener = listener
        self._changes: deque[GroupChange] = deque()
        """Changes that the listener has not been called with yet."""
        self._wanted: list[str] = []
        """Checkpoints that wait for this reader."""
        self._taken: dict[str, dict[str, int]] = {}
        """Positions at checkpoints that are taken, but not yet recorded in the group."""
        self._checkpointed_s = time.monotonic()
        """When this reader last knew of a checkpoint, or began to read."""
        self._last_read: str | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._over = False
        self._closed = False

    @property
    def segments(self) -> list[str]:
        """The segments that this reader is reading."""
        return sorted(self._positions)

    @property
    def positions(self) -> dict[str, int]:
        """The position after the last handled event of each segment being read."""
        return dict(self._positions)

    async def open(self) -> None:
        """Joins the group and acquires segments. Raises ReaderExists, NoSuchReaderGroup, and the errors of requests.

        If cancelled, it leaves the group again, within `close_timeout_ms`.
        """
        if self._closed or self._keeper is not None:
            raise Closed(f"the reader {self.name} was already opened", reader=self.name)

        def join(draft: Draft) -> float:
            draft.join(self.name)
            draft.acquire(self.name, min(share(draft.state, self.name).acquire, _AT_ONCE))
            draft.report(self.name, 0)
            config = draft.state.config
            assert config is not None
            # The state may have been written by another client; without a pause this one would never rest.
            return config.refresh_ms if config.refresh_ms > 0 else GroupConfig({}).refresh_ms

        try:
            await self._shared.fetch()
            leave = partial(Draft.quit, reader=self.name, positions={})
            refresh_ms = await self._shared.change_or_undo(join, leave, f"joining as {self.name}")
        except BaseException:
            await self._shared.aclose()
            raise
        self._begin_with_new({})
        self._keeper = asyncio.get_running_loop().create_task(
            self._sync(refresh_ms / 1000), name=f"keeping the reader {self.name}"
        )

    # --- segments ---------------------------------------------------------------------------------------------------

    def _begin_with_new(self, idle_since_s: Mapping[str, float]) -> int:
        """Starts reading all segments of this reader that are not being read yet; returns their number.

        idle_since_s: of successors: since when nothing was read in the segments that led to them.
        """
        mine = self._mine(self._shared.state)
        known = self._positions | self._given_up
        new = {segment: offset for segment, offset in mine.items() if segment not in known}
        now_s = time.monotonic()
        for segment, offset in new.items():
            self._positions[segment] = offset
            self._tasks[segment] = asyncio.get_running_loop().create_task(
                self._follow(segment, offset, idle_since_s.get(segment, now_s)), name=f"reading {segment}"
            )
        if new:
            self._notice(SegmentsAcquired(new))
        return len(new)

    def _mine(self, state: GroupState) -> dict[str, int]:
        return segments_of(self._shared.group, state, self.name)

    async def _follow(self, segment: str, offset: int, idle_since_s: float) -> None:
        end = self._shared.state.ends.get(segment, _UNBOUNDED)
        attempts = Attempts(self._pool.settings, f"reading {segment}", segment=segment, random=self._pool.random)
        limit = self._pool.settings.max_large_event_bytes
        with self._ahead.producing(f"reading {segment}", segment=segment):
            while 0 <= offset < end:  # readers in Java record -1 at the end
                async with SegmentReader(self._pool, self._locations, segment, offset) as reader:
                    try:
                        decoder = EventAssembler(segment, offset, limit, GroupEvent, segment)
                        await self._ahead.fill(segment, reader, decoder, end)
                        break
                    except SegmentTruncated as truncated:
                        begins = truncated.details.get("start_offset", -1)
                        if begins <= reader.offset:
                            raise
                        if reader.offset > offset:
                            attempts.progress()
                        self.truncated_bytes += begins - reader.offset
                        offset = begins
                        pause_s = attempts.failed(truncated)
                    except SegmentMissing:
                        break  # fully truncated; if the stream is gone, the request for successors fails
                    finally:
                        if reader.has_progressed:
                            idle_since_s = time.monotonic()
                await asyncio.sleep(pause_s)
            self._ahead.mark(segment, partial(self._at_end, segment, time.monotonic() - idle_since_s))

    async def _stop(self, segments: Iterable[str]) -> None:
        """Stops reading segments about to be released, and drops their unread events."""
        stopped = set(segments)
        tasks = [self._tasks.pop(segment) for segment in stopped]
        given_up = {segment: self._positions.pop(segment) for segment in sorted(stopped)}
        self._given_up.update(given_up)
        if given_up:
            self._notice(SegmentsReleased(given_up))
        for task in tasks:
            task.cancel()
        self._ahead.drop(stopped.__contains__)
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the group --------------------------------------------------------------------------------------------------

    async def _sync(self, refresh_s: float) -> None:
        """Syncs with the group, periodically and whenever a segment has ended."""
        with self._ahead.producing(f"the reader {self.name}"):
            while True:
                with suppress(TimeoutError):  # the period has passed
                    async with asyncio.timeout(refresh_s):
                        await self._due.wait()
                self._due.clear()
                await self._keep()

    async def _keep(self) -> None:
        """Records positions, checkpoints and finished segments, and releases or acquires segments."""
        now_s = time.monotonic()
        ended = {segment: now_s - idle_s for segment, idle_s in islice(self._ended.items(), _AT_ONCE)}
        following = {segment: await self._following(segment, since_s) for segment, since_s in ended.items()}
        idle_since_s = {
            successor.segment.name: ended[segment]
            for segment, successors in following.items()
            for successor in successors
        }
        state = await self._shared.fetch()
        missing = self._positions.keys() - self._mine(state).keys()
        if missing:
            raise ReaderOffline(f"the reader {self.name} of {self._shared.group} lost {min(missing)}", reader=self.name)
        if state.updating:
            await renew(self._cluster, self._shared)
        awaited = state.checkpoints.awaited(self.name)
        if not awaited:
            await self._give_up(min(share(state, self.name).release, _AT_ONCE) - len(self._given_up))
        self._taken = {name: positions for name, positions in self._taken.items() if name in awaited}
        if self._over:
            self._taken |= {name: {} for name in awaited}
        taken = dict(self._taken)
        free = await self._shared.change(partial(self._settle, following, taken))
        for name in taken:
            del self._taken[name]
        if free:
            self._given_up.clear()
            for segment, successors in following.items():
                del self._ended[segment]
                self._positions.pop(segment, None)
                self._tasks.pop(segment, None)
                self._notice(SegmentEnded(segment, tuple(successor.segment.name for successor in successors)))
        self._settled(self._begin_with_new(idle_since_s))
        if taken:
            await self._publish()
        await self._shared.compact_if_due()

    def _settle(self, following: Following, taken: dict[str, dict[str, int]], draft: Draft) -> bool:
        """Changes the group's state; returns whether segments could come and go: not while a checkpoint waits."""
        positions = self._positions | self._given_up
        for name, then in taken.items():
            draft.take_checkpoint(name, self.name, then)
        draft.record(self.name, positions)
        free = not draft.awaited(self.name)
        if free:
            for segment, successors in following.items():
                draft.end(self.name, segment, successors)
            draft.release(self.name, self._given_up)
            if not self._given_up:
                draft.acquire(self.name, min(share(draft.state, self.name).acquire, _AT_ONCE))
            config = draft.state.config
            if config is not None and 0 < config.checkpoint_ms < 1000 * (time.monotonic() - self._checkpointed_s):
                draft.begin_automatic_checkpoint(uuid4())
        draft.report(self.name, self._lag())
        return free

    def _settled(self, begun: int) -> None:
        """Applies the group's state to this reader. begun: number of segments that it has just got."""
        state = self._shared.state
        self._over = is_over(state, self.name)
        if self._over:
            self._ahead.came.set()
        if state.checkpoints.waiting:
            self._checkpointed_s = time.monotonic()
        self._want(state.checkpoints.awaited(self.name))
        if begun >= _AT_ONCE or (self._ended and not self._wanted):
            self._due.set()

    def _lag(self) -> int:
        """A reader's lag as readers in Java report it; with another measure, they would give up their segments."""
        return 0 if self._last_read is None else int(time.time() * 1000) - parts_of(self._last_read)[2]

    async def _publish(self) -> None:
        """Reports the group's last checkpoint to the controller, if data is kept behind it."""
        state, group = self._shared.state, self._shared.group
        config, last = state.config, state.checkpoints.last
        if config is None or last is None or config.retention != "automatic" or state.checkpoints.published:
            return
        for cut in cuts_of(await covering(self._cluster, last, state.ends)).values():
            try:
                await self._cluster.controller.update_subscriber_cut(cut.scope, cut.stream, group, config, cut)
            except (RequestRejected, NoSuchStream) as refused:  # the stream keeps more than it has to
                text = "the checkpoint of %s does not bound the retention of %s/%s: %r"
                log.warning(text, group, cut.scope, cut.stream, refused, extra={"stream": cut.stream})
        await self._shared.change(lambda draft: draft.add(CheckpointPublished(True)))

    def _want(self, checkpoints: Iterable[str]) -> None:
        new = [name for name in checkpoints if name not in self._taken and name not in self._wanted]
        if new:
            self._wanted += new
            self._ahead.came.set()

    def _notice(self, change: GroupChange) -> None:
        if self._listener is not None:
            self._changes.append(change)
            self._ahead.came.set()

    async def _give_up(self, count: int) -> None:
        """Stops reading up to `count` segments of which the user holds no event; none if it is negative."""
        busy = {*self._ended, self._in_hand[0] if self._in_hand is not None else None}
        free = [segment for segment in reversed(self._positions) if segment not in busy]
        await self._stop(free[: max(0, count)])

    async def _following(self, segment: str, idle_since_s: float) -> list[Successor]:
        return [] if segment in self._shared.state.ends else await successors_of(self._cluster, segment, idle_since_s)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self) -> GroupEvent | None:
        """Returns the next event; None when all streams of the group were read to their ends, or to the group's.

        Marks the previous event as handled, then calls the listener. Only one call may be pending.

        Raises ReaderOffline if another client took this reader offline, NoSuchReaderGroup, TokenRefused,
        RetriesExhausted, ProtocolViolation, Closed, and the errors of `SegmentReader.read`.
        """
        self._handled()
        ahead = self._ahead
        self._between_events()
        while not ahead.current:
            if ahead.advance():
                break
            if self._closed:
                raise Closed(f"the reader {self.name} was closed", reader=self.name)
            if self._over:
                return None
            if ahead.error is not None:
                raise ahead.error
            await ahead.next_came()
            self._between_events()
        event = ahead.current.pop()
        self._last_read = event.segment
        self._in_hand = (event.segment, event.offset + EVENT_HEADER_BYTES + len(event.data))
        return event

    def _between_events(self) -> None:
        """Calls the listener and takes checkpoints, at the position after the last handled event."""
        listener = self._listener
        if self._closed:
            return
        while self._changes and listener is not None:
            listener(self._changes.popleft())
        while self._wanted:
            name, positions = self._wanted.pop(0), self._positions | self._given_up
            if listener is not None and SILENT not in name:
                listener(CheckpointTaken(name, dict(positions)))
            self._taken[name] = positions
            self._due.set()

    def _at_end(self, segment: str, idle_s: float) -> None:
        self._ended[segment] = idle_s
        self._due.set()

    def _handled(self) -> None:
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is not None and in_hand[0] in self._positions:
            self._positions[in_hand[0]] = in_hand[1]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupEvent:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    # --- end --------------------------------------------------------------------------------------------------------

    async def reader_offline(self, *, handled: bool = True) -> None:
        """Returns the reader's segments to the group and closes it; a no-op if it is already offline.

        handled: whether the last event counts as handled; if not, it will be read again. Raises RequestTimedOut and the
        errors of requests; the group then still counts the reader as online. Cancelling does not stop it.
        """
        if self._closed:
            return
        if handled:
            self._handled()
        self._closed = True
        await finish(self._leave(), f"taking the reader {self.name} offline")

    async def _leave(self) -> None:
        positions = await self.abort()
        limit_ms = self._pool.settings.close_timeout_ms
        facts = {**self._shared.facts, "reader": self.name}
        try:
            async with within(limit_ms, f"the reader {self.name} did not go offline", **facts):
                await self._shared.fetch()
                await self._shared.change(partial(Draft.quit, reader=self.name, positions=positions))
        except (ReaderOffline, NoSuchReaderGroup):
            return  # another client took it offline
        finally:
            await self._shared.aclose()

    async def aclose(self) -> None:
        """Same as `reader_offline`."""
        await self.reader_offline()

    async def abort(self) -> dict[str, int]:
        """Stops reading without notifying the group, like a crash; returns its positions.

        Its segments become available to other readers after `ReaderGroup.reader_offline`.
        """
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
        for task in self._tasks.values():
            task.cancel()
        positions = self._positions | self._given_up
        self._ahead.came.set()
        await asyncio.gather(*filter(None, [keeper]), *self._tasks.values(), return_exceptions=True)
        self._ahead.clear()
        self._tasks.clear()
        await self._shared.aclose()
        return positions

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await self.reader_offline(handled=error is None)
