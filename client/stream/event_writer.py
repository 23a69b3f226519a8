"""Writes events to a stream, each to the segment of its routing key, in order, also while the stream scales.

When a segment is sealed its writer's unacknowledged events, and what is written for its range meanwhile, go to its
successors, in order; what routes elsewhere goes on. So each routing key's events are stored in the order in which they
were written, once.

Segment writers start when the stream's writer is opened, or with `lazy_start` one then and each other with the first
event for it (PIP-79): sends wait for that start and share it, and its failure is theirs; a later send tries again.

Invariants: what was accepted by `submit` is stored, or its future has the error; an `open` that fails leaves nothing
behind; flushing, closing and looking start no writer; a rerouting ends, by its own retries, in successors or in a
failure; after `aclose`, which can be called twice, no task is left. Follows `EventStreamWriterImpl`, `SegmentSelector`
(Pravega's client) and `PartitionedProducerImpl` (Pulsar's).
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final, cast
from uuid import uuid4

from segstore.client.connection import ConnectionPool, Locations, Pending
from segstore.client.control_api import register_writer
from segstore.client.controller import Controller
from segstore.client.errors import (
    ClientError,
    Closed,
    EventTooLarge,
    NoSuchStream,
    ProtocolViolation,
    SegmentOver,
    StreamSealed,
)
from segstore.client.lifecycle import FlushedAfter, OpenedBefore, within
from segstore.client.routing import RangeRouter, SegmentRange
from segstore.client.segment import SegmentWriter, SegmentWriterStats, WriterState, WriterStats
from segstore.client.stream.events import frame_event
from segstore.client.stream.large_events import LargeEvent, LargeEventWriter
from segstore.client.stream.routers import HashedKey, Router
from segstore.client.stream.successors import Successors
from segstore.wire import Buffer
from segstore.wire.names import writer_id

_OPEN: Final = WriterState.OPEN
_SEE_BYTES: Final = 1024 * 1024
"""After so many bytes of events the loop gets to send and to read acknowledgements."""


class EventWriter(OpenedBefore, FlushedAfter):
    """A writer of one stream. Use with `async with`, or `open` and `aclose`.

    Attributes:
        scope, stream: whose.
        name: under which statistics add up; its writer id in each segment is made of it (79.8).
        large_events: what its large events go through, and whether they are there exactly once (43.14).
    """

    def __init__(
        self,
        pool: ConnectionPool,
        controller: Controller,
        locations: Locations,
        scope: str,
        stream: str,
        *,
        lazy_start: bool = False,
        router: Router | None = None,
        name: str | None = None,
        random: Random | None = None,
    ) -> None:
        """lazy_start: each segment's writer starts with the first event for it; one starts with `open` (79.2).

        router: chooses the segment of an event; None for `HashedKey()`. name: None for one of its own making. At a time
        one writer has a name: two would take each other's acknowledgements for their own. With `control_api` in the
        settings a name that is given is registered there by `open`.
        """
        if name is not None and not name:
            raise ValueError("the name of a writer cannot be empty")
        self.scope: Final = scope
        self.stream: Final = stream
        self.name: Final = name or uuid4().hex
        self._register = name is not None
        self._lazy_start = lazy_start
        self._pool = pool
        self._settings = settings = pool.settings
        self._largest = self._largest_append = settings.max_event_bytes
        if settings.enable_large_events:
            self._largest = max(self._largest, settings.max_large_event_bytes)
        self._loop = asyncio.get_running_loop()
        self._controller = controller
        self._locations = locations
        self._random = random or Random()
        self._successors = Successors(controller, settings, self._random)
        self.large_events: Final = LargeEventWriter(pool, locations, random=self._random)
        self._choice = (router or HashedKey()).choice(self._random)
        self._router: RangeRouter | None = None
        self._writers: dict[int, SegmentWriter] = {}
        self._inherited: set[int] = set()
        """Segments whose writers got events of another: if one does not start, no send hears of those."""
        self._replaced: list[SegmentWriter] = []
        self._events = 0
        self._bytes = 0
        self._last_sequence = -1
        self._reroutes: set[asyncio.Task[None]] = set()
        self._rerouted = 0
        self._error: ClientError | None = None
        self._closed = False

    async def open(self) -> None:
        """Asks for the stream's segments and starts their writers, or with `lazy_start` the first that is needed.

        Raises NoSuchStream, StreamSealed, what calls to the controller raise, and why a writer could not start; then
        nothing is left, and this writer is closed.
        """
        if self._closed:
            raise Closed(f"the writer of {self.scope}/{self.stream} was closed")
        if self._router is not None:
            return
        segments = await self._controller.current_segments(self.scope, self.stream)
        if not segments:
            raise StreamSealed(f"stream {self.scope}/{self.stream} is sealed", stream=f"{self.scope}/{self.stream}")
        self._router = router = RangeRouter(segments)
        try:
            given = self._settings
            if self._register and given.control_api is not None:
                await register_writer(given.control_api, self.name, given.request_timeout_ms, given.control_api_token)
            version = -1
            while version != router.version:  # who meets a sealed segment goes on with its successors
                version = router.version
                await self._start([router.route(self._choice.peek(router))] if self._lazy_start else router.segments)
        except BaseException:
            await self.abort()
            raise

    async def _start(self, segments: list[SegmentRange]) -> None:
        for writer in [self._writer_of(each) for each in segments]:
            await writer.started()
        while self._reroutes:
            await asyncio.wait(tuple(self._reroutes))
        if self._error is not None:
            raise self._error

    # --- writing ----------------------------------------------------------------------------------------------------

    async def write(self, event: bytes, *, routing_key: str | None = None) -> None:
        """Returns when the event is stored. Cancelling the wait does not take the event back.

        Raises EventTooLarge, StreamSealed, NoSuchStream, TokenRefused, RetriesExhausted, Closed; the last three also
        when the segment's writer does not start.
        """
        done, ahead = self._accept(event, routing_key, now=True)
        if ahead is not None:
            await self._admitted(ahead)
        await done  # nobody else has this future, so it may be cancelled

    async def submit(self, event: bytes, *, routing_key: str | None = None) -> asyncio.Future[None]:
        """Accepts the event, and returns when there is room for more; the future is done when it is stored, or has the
        error.

        Events are stored in the order of these calls, whoever makes them. Who does not look at futures hears of errors
        from `flush` and `aclose`. Where the event goes, the router says. The first event of a segment waits until its
        writer has started, or raises why it did not. A wait that is cancelled leaves the event accepted.
        """
        done, ahead = self._accept(event, routing_key, now=False)
        if ahead is not None:
            await self._admitted(ahead)
        return done

    def _accept(
        self, event: bytes, routing_key: str | None, *, now: bool
    ) -> tuple[asyncio.Future[None], SegmentWriter | None]:
        """Gives the event its place in a queue: first of all, because waits end in any order. Also returns the writer
        whose `_admitted` is to be waited for, if one is.

        now: its sender waits until it is stored, and so it need not wait for others to leave with.
        """
        size = len(event)
        if size > self._largest:
            raise EventTooLarge(
                f"an event of {size} bytes for {self.scope}/{self.stream}, {self._largest} are allowed",
                stream=f"{self.scope}/{self.stream}",
                limit=self._largest,
                actual=size,
            )
        router = self._router
        if router is None or self._closed:
            router = self._ranges()
        position = self._choice.take(router, routing_key)
        segment = router.route(position)
        writer = self._writers.get(segment.segment_id)
        if writer is None or writer.state is not _OPEN:
            writer = self._writer_of(segment)
        done: asyncio.Future[None] = self._loop.create_future()
        if size <= self._largest_append:
            data: Buffer = frame_event(event)
        else:
            data = cast("Buffer", LargeEvent(bytes(event)))  # only its length is looked at before it is carried
        writer.append(data, done, 1, position, now=now)
        self._events += 1
        self._bytes += size
        pool = self._pool
        pool.unseen_bytes = unseen = pool.unseen_bytes + size
        return done, writer if unseen >= _SEE_BYTES or not writer.set_ups or not writer.has_room else None

    async def _admitted(self, writer: SegmentWriter) -> None:
        """Returns when there is room for more, and the writer of the event that was accepted has started."""
        pool = self._pool
        if pool.unseen_bytes >= _SEE_BYTES:
            # Else who never waits would fill all memory that is allowed before the first event leaves.
            pool.unseen_bytes = 0
            await asyncio.sleep(0)
        while not writer.has_room:
            await writer.room()
        if not writer.set_ups:
            while self._replaced:
                await self._replaced.pop().abort()
            # The event is in its place in the queue: those that come after it while the writer starts stay behind it.
            await writer.started()

    def _ranges(self) -> RangeRouter:
        if self._closed:
            raise Closed(f"the writer of {self.scope}/{self.stream} was closed")
        if self._router is None:
            raise Closed(f"the writer of {self.scope}/{self.stream} is not open: `async with` opens it")
        return self._router

    def _writer_of(self, segment: SegmentRange) -> SegmentWriter:
        writer = self._writers.get(segment.segment_id)
        if writer is not None and self._never_started(segment.segment_id, writer):
            self._replaced.append(writer)
            writer = None
        if writer is None:
            writer = self._writers[segment.segment_id] = SegmentWriter(
                self._pool,
                self._locations,
                segment.name,
                writer_id=writer_id(self.name, segment.name),
                on_over=lambda w, e: self._on_over(segment, w, e),
                carry=self.large_events.write if self._settings.enable_large_events else None,
            )
        return writer

    def _never_started(self, segment_id: int, writer: SegmentWriter) -> bool:
        """Whether its start has failed, and who sent its events was told."""
        return writer.state is WriterState.FAILED and not writer.set_ups and segment_id not in self._inherited

    # --- successors -------------------------------------------------------------------------------------------------

    def _on_over(self, segment: SegmentRange, writer: SegmentWriter, error: SegmentOver) -> None:
        task = asyncio.get_running_loop().create_task(
            self._reroute(segment, writer, error), name=f"finding the successors of {segment.name}"
        )
        self._reroutes.add(task)
        task.add_done_callback(self._reroutes.discard)

    async def _reroute(self, segment: SegmentRange, writer: SegmentWriter, error: SegmentOver) -> None:
        try:
            in_vain = not writer.set_ups or (writer.segment_length < 0 and bool(writer.unsettled))
            successors = await self._successors.of(segment.name, in_vain=in_vain)
            if not successors:
                name = f"{self.scope}/{self.stream}"
                raise StreamSealed(f"stream {name} is sealed", stream=name) from error
            router = self._router
            assert router is not None
            router.replace(segment.segment_id, [each.segment for each in successors])
            # From here to the end nothing waits: what is written later comes after what is handed over.
            by_target: dict[int, tuple[SegmentRange, list[Pending]]] = {}
            for item in writer.take_pending():
                target = router.route(item.tag)
                by_target.setdefault(target.segment_id, (target, []))[1].append(item)
            for target, items in by_target.values():
                successor = self._writer_of(target)
                self._inherited.add(target.segment_id)
                successor.adopt(items)
            if not self._lazy_start:
                for each in router.segments:
                    self._writer_of(each)
        except ClientError as problem:
            self._error = problem
            writer.fail(problem)
        except ValueError as problem:
            failed = NoSuchStream(f"the successors of {segment.name} do not cover it: {problem}", segment=segment.name)
            failed.__cause__ = problem
            self._error = failed
            writer.fail(failed)
        except Exception as problem:  # noqa: BLE001 — whatever it is, those who wait must hear of it
            unknown = ProtocolViolation(f"finding the successors of {segment.name} failed: {problem!r}")
            unknown.__cause__ = problem
            self._error = unknown
            writer.fail(unknown)
        else:
            self._rerouted += 1
            self._last_sequence = self.last_sequence
            del self._writers[segment.segment_id]
            await writer.abort()

    # --- looking ----------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> list[SegmentWriter]:
        return [each for each in self._writers.values() if each.set_ups]

    @property
    def is_connected(self) -> bool:
        """Whether all segment writers that have started are set up at their stores now, and there is one."""
        started = self._started
        return bool(started) and all(each.state is WriterState.OPEN for each in started)

    @property
    def last_sequence(self) -> int:
        """The highest number of an event that any segment is known to have stored of this writer, -1 if none has."""
        return max(self._last_sequence, *(each.last_number for each in self._started), -1)

    def stats(self) -> WriterStats:
        """What was written so far, and how the segment writers stand that have started."""
        segments = {
            each.segment: SegmentWriterStats(
                int(each.state is WriterState.OPEN), each.set_ups, each.unsettled, each.held_bytes, each.last_number
            )
            for each in self._started
        }
        return WriterStats(self.name, self._events, self._bytes, segments)

    # --- flush and end ----------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns when everything written before is stored. Raises the error of what could not be."""
        while True:
            rerouted = self._rerouted
            for segment_id, writer in list(self._writers.items()):
                if writer.state is not WriterState.CLOSED and not self._never_started(segment_id, writer):
                    await writer.flush()
            if self._error is not None:
                raise self._error
            if self._reroutes:
                await asyncio.wait(tuple(self._reroutes))
            elif rerouted == self._rerouted:
                return

    async def aclose(self) -> None:
        """Flushes for up to `close_timeout_ms`, then frees all. Can be called twice. Raises what `flush` does."""
        if self._closed:
            return
        name = f"{self.scope}/{self.stream}"
        try:
            async with within(self._settings.close_timeout_ms, f"events for {name} were not stored", stream=name):
                await self.flush()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Frees everything at once; what is not stored yet may or may not be."""
        self._closed = True
        reroutes = tuple(self._reroutes)
        for task in reroutes:
            task.cancel()
        self._last_sequence = self.last_sequence
        writers, self._writers = self._writers, {}
        replaced, self._replaced = self._replaced, []
        ended = [*writers.values(), *replaced]
        for writer in ended:
            writer.end()  # all of them before the first wait, which may be cancelled
        await asyncio.gather(*reroutes, return_exceptions=True)
        for writer in ended:
            await writer.abort()
