"""Writes events to a stream.

A router chooses the segment of each event; where it routes by key, events of one key stay in order while the stream
scales. When a segment is sealed, its unacknowledged events, and those written to its range meanwhile, go to its
successors in order; other segments are not affected. Each event is stored once; large events are an exception if the
store refuses their counter (`large_events`).

Segment writers start when the stream writer is opened; with `lazy_start` only one does, and each other starts with its
first event (PIP-79). Concurrent sends share such a start and its failure; a later send tries again.

Invariants: an event accepted by `submit` is stored, or its future has the error; a failed `open` leaves nothing behind;
flushing, closing and inspecting start no segment writer; rerouting ends in successors or, after its retries, in a
failure; after `aclose`, which can be called twice, no task is left. Follows `EventStreamWriterImpl`, `SegmentSelector`
(Pravega's client) and `PartitionedProducerImpl` (Pulsar's). Deliberate differences: `note_time` flushes first, and a
writer that reported times is removed from watermarks when it is closed.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final
from uuid import uuid4

from segstore.client.cluster import Cluster
from segstore.client.connection import LEAST_COST, Pending, Route, add_behind
from segstore.client.control_api import register_writer
from segstore.client.errors import (
    ClientError,
    EventTooLarge,
    ProtocolViolation,
    RequestTimedOut,
    SegmentOver,
    StreamSealed,
)
from segstore.client.lifecycle import FlushedAfter, OpenedBefore, frequent, not_open, within
from segstore.client.routing import RangeRouter, SegmentRange
from segstore.client.segment import SegmentWriter, SegmentWriterStats, WriterState, WriterStats
from segstore.client.stream.events import whole_event
from segstore.client.stream.large_events import LargeEventWriter
from segstore.client.stream.routers import HashedKey, Router
from segstore.client.stream.stream_client import StreamClient
from segstore.client.stream.successors import Successors
from segstore.wire.names import writer_id

log = logging.getLogger(__name__)

_OPEN: Final = WriterState.OPEN
_MOST_ROUTES: Final = 4096
_LONGEST_KEPT: Final = 256
"""A writer keeps the routes of the first `_MOST_ROUTES` routing keys of at most this many characters."""


class EventWriter(OpenedBefore, FlushedAfter, StreamClient):
    """A writer of one stream. Use with `async with`, or `open` and `aclose`.

    Attributes:
        name: the writer's name, by which statistics are aggregated; its writer ids are derived from it (79.8).
        large_events: the writer of large events, which also tells whether these are exactly-once (43.14).
    """

    def __init__(
        self,
        cluster: Cluster,
        scope: str,
        stream: str,
        *,
        lazy_start: bool = False,
        router: Router | None = None,
        name: str | None = None,
    ) -> None:
        """lazy_start: `open` starts one segment writer; the others start with their first event (79.2).

        router: chooses the segment of an event; default `HashedKey()`. name: default a generated one. Two writers must
        not use one name at a time: each would take the other's acknowledgements for its own. `open` registers an
        explicit name if the settings have a `control_api`.
        """
        if name is not None and not name:
            raise ValueError("the writer's name cannot be empty")
        super().__init__(cluster, scope, stream)
        self.name: Final = name or uuid4().hex
        self._register = name is not None
        self._lazy_start = lazy_start
        settings, random = self._settings, self._pool.random
        self._largest = settings.max_event_bytes
        if settings.enable_large_events:
            self._largest = max(self._largest, settings.max_large_event_bytes)
        self._new_future = partial(asyncio.Future[None], loop=asyncio.get_running_loop())
        """As the loop's `create_future`, which makes a dictionary of its argument for each."""
        self._budget = self._pool.budget
        self._successors = Successors(self._controller, settings, random)
        self.large_events: Final = LargeEventWriter(self._pool, self._locations)
        self._choice = (router or HashedKey()).choice(random)
        self._router: RangeRouter | None = None
        self._writers: dict[int, SegmentWriter] = {}
        self._routes: dict[str | None, Route] = {}
        """Positions and segment writers of the first routing keys, kept from their writers' start until a reroute. A
        segment writer that is open still owns the position."""
        self._inherited: set[int] = set()
        """Segments whose writers took over another's events: if one fails to start, no send reports those events."""
        self._replaced: list[SegmentWriter] = []
        self._events = 0
        self._bytes = 0
        """Events accepted, except by the segment writers in `_writers`, which count their own."""
        self._last_sequence = -1
        self._reroutes: set[asyncio.Task[None]] = set()
        self._rerouted = 0
        self._reports_times = False
        self._error: ClientError | None = None
        self._unreported = False
        """Whether events were accepted whose failure the caller may not know of: neither `write` nor `flush` raised
        it."""

    async def open(self) -> None:
        """Fetches the stream's segments and starts their writers, or with `lazy_start` only the first one needed.

        Raises NoSuchStream, StreamSealed, the errors of controller calls, and the error of a writer that failed to
        start. The writer is then closed.
        """
        if self._closed:
            raise not_open(f"the writer of {self._name}", closed=True)
        if self._router is not None:
            return
        segments = await self._controller.current_segments(self.scope, self.stream)
        if not segments:
            raise StreamSealed(f"stream {self._name} is sealed", stream=self._name)
        self._router = router = RangeRouter(segments)
        try:
            given = self._settings
            if self._register and given.control_api is not None:
                await register_writer(given.control_api, self.name, given.request_timeout_ms, given.control_api_token)
            version = -1
            while version != router.version:  # a sealed segment was replaced by its successors
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
        """Writes an event and waits until it is stored. Cancelling the wait does not withdraw the event.

        Raises EventTooLarge, StreamSealed, NoSuchStream, TokenRefused, RetriesExhausted, Closed; the last three also
        if the segment's writer does not start.
        """
        done, ahead = self._accept(event, routing_key, True)
        try:
            if ahead is not None:
                await self._admitted(ahead)
            await done  # the future is not shared, so it may be cancelled
        except asyncio.CancelledError:
            self._unreported = True
            raise

    @frequent
    async def submit(self, event: bytes, *, routing_key: str | None = None) -> asyncio.Future[None]:
        """Accepts an event and waits for room; returns a future that completes when it is stored, or has the error.

        Events of a segment are stored in the order of these calls, across all callers. Errors are also raised by
        `flush` and, unless that did, by `aclose`. The router chooses the segment. The first event of a segment waits
        until its writer has started, and raises the error if it does not. If the wait is cancelled, the event stays
        accepted.
        """
        route = self._routes.get(routing_key)
        if route is not None and type(event) is bytes:
            future = add_behind(route[0], event, route[1], self._new_future)
            if future is not None:
                self._unreported = True
                return future
        self._check_loop()
        done, ahead = self._accept(event, routing_key, False)
        self._unreported = True
        if ahead is not None:
            await self._admitted(ahead)
        return done

    def _accept(
        self, event: bytes, routing_key: str | None, now: bool
    ) -> tuple[asyncio.Future[None], SegmentWriter | None]:
        """Queues the event before any wait, because waits end in any order. Also returns the writer to pass to
        `_admitted`, if the caller must wait.

        now: the sender waits until the event is stored, so it is not delayed for batching.
        """
        if type(event) is not bytes:  # saves nearly every event a call
            event = whole_event(event)
        size = len(event)
        if size > self._largest:
            raise EventTooLarge(
                f"an event of {size} bytes for {self._name}, the limit is {self._largest}",
                stream=self._name,
                limit=self._largest,
                actual=size,
            )
        route = self._routes.get(routing_key)
        if route is None or route[2].state is not _OPEN:
            route = self._route(routing_key)
        queue, position, writer = route
        done = self._new_future()
        has_room = writer.append(event, done, 1, position, now)
        budget = self._budget
        budget.left = left = budget.left - max(queue.charge(), LEAST_COST)
        if left <= 0 or queue.has_many or not has_room or not writer.set_ups:
            return done, writer
        return done, None

    def _route(self, routing_key: str | None) -> Route:
        """Returns the segment writer that takes an event, and the event's position."""
        router = self._router
        if router is None or self._closed:
            raise not_open(f"the writer of {self._name}", closed=self._closed)
        position = self._choice.take(router, routing_key)
        segment = router.route(position)
        writer = self._writers.get(segment.segment_id)
        if writer is None or writer.state is not _OPEN:
            writer = self._writer_of(segment)
        route = writer.queue, position, writer
        kept = writer.set_ups and len(self._routes) < _MOST_ROUTES and self._choice.by_key
        if kept and routing_key is not None and len(routing_key) <= _LONGEST_KEPT:
            self._routes[routing_key] = route
        return route

    async def _admitted(self, writer: SegmentWriter) -> None:
        """Waits until there is room for more and the accepted event's segment writer has started."""
        self._budget.left = self._budget.most
        await asyncio.sleep(0)
        while not writer.has_room:
            await writer.room()
        if not writer.set_ups:
            while self._replaced:
                await self._replaced.pop().abort()
            # The event is already queued, so events that arrive while the writer starts stay behind it.
            await writer.started()

    def _writer_of(self, segment: SegmentRange) -> SegmentWriter:
        writer = self._writers.get(segment.segment_id)
        if writer is not None and self._never_started(segment.segment_id, writer):
            self._replaced.append(writer)
            self._count(writer)
            writer = None
        if writer is None:
            writer = self._writers[segment.segment_id] = SegmentWriter(
                self._pool,
                self._locations,
                segment.name,
                writer_id=writer_id(self.name, segment.name),
                on_over=lambda w, e: self._on_over(segment, w, e),
                carry=self.large_events.write if self._settings.enable_large_events else None,
                frame_events=True,
            )
        return writer

    def _never_started(self, segment_id: int, writer: SegmentWriter) -> bool:
        """Whether the writer failed to start and the senders of its events have been notified."""
        return writer.state is WriterState.FAILED and not writer.set_ups and segment_id not in self._inherited

    def _count(self, writer: SegmentWriter) -> None:
        """Counts the events of a segment writer that is removed from `_writers`."""
        events, size = writer.accepted
        self._events += events
        self._bytes += size

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
                raise StreamSealed(f"stream {self._name} is sealed", stream=self._name) from error
            router = self._router
            assert router is not None
            router.replace(segment.segment_id, [each.segment for each in successors])
            # There is no await from here on, so later events are queued behind those taken over.
            by_target: dict[int, tuple[SegmentRange, list[Pending]]] = {}
            for item in writer.take_pending():
                target = router.route(item.tag)
                by_target.setdefault(target.segment_id, (target, []))[1].append(item)
            for target, items in by_target.values():
                successor = self._writer_of(target)
                self._inherited.add(target.segment_id)
                events, size = successor.accepted
                successor.adopt(items)
                after, size_after = successor.accepted
                self._events -= after - events  # both writers count them
                self._bytes -= size_after - size
            if not self._lazy_start:
                for each in router.segments:
                    self._writer_of(each)
        except ClientError as problem:
            self._fail(writer, problem)
        except Exception as problem:  # noqa: BLE001 — any failure must reach the waiters
            unknown = ProtocolViolation(f"finding the successors of {segment.name} failed: {problem!r}")
            self._fail(writer, unknown.caused_by(problem))
        else:
            self._rerouted += 1
            self._last_sequence = self.last_sequence
            self._routes.clear()
            self._count(self._writers.pop(segment.segment_id))
            await writer.abort()

    def _fail(self, writer: SegmentWriter, error: ClientError) -> None:
        self._error = error
        writer.fail(error)

    # --- time -------------------------------------------------------------------------------------------------------

    async def note_time(self, timestamp: int) -> None:
        """Notes a time: all earlier events are of this time or before, all later ones of this time or after.

        Flushes first. timestamp: in any unit that the stream's writers and readers agree on, such as Unix ms. The
        controller combines the times of all writers every few seconds; `TimeWindows` is what readers see. A large event
        counts once a smaller one is stored behind it. Raises as `flush`, RequestRejected for a time before the last,
        and Closed.
        """
        if self._router is None or self._closed:
            raise not_open(f"the writer of {self._name}", closed=self._closed)
        await self.flush()
        position = {number: writer.segment_length for number, writer in self._writers.items() if writer.set_ups}
        self._reports_times = True
        await self._controller.note_time(self.scope, self.stream, self.name, timestamp, position)

    async def _forget_times(self) -> None:
        """Makes watermarks wait for this writer no longer. If the controller cannot be reached, they wait longer."""
        if self._reports_times:
            self._reports_times = False
            try:
                async with asyncio.timeout(self._settings.close_timeout_ms / 1000):
                    await self._controller.remove_writer(self.scope, self.stream, self.name)
            except (ClientError, TimeoutError) as problem:
                log.warning("watermarks of %s may wait for the writer %s: %r", self._name, self.name, problem)

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> list[SegmentWriter]:
        return [each for each in self._writers.values() if each.set_ups]

    @property
    def is_connected(self) -> bool:
        """Whether at least one segment writer has started and all that have are set up at their stores."""
        started = self._started
        return bool(started) and all(each.state is WriterState.OPEN for each in started)

    @property
    def last_sequence(self) -> int:
        """The highest event number of this writer that any segment is known to have stored, -1 if none."""
        return max(self._last_sequence, *(each.last_number for each in self._started), -1)

    def stats(self) -> WriterStats:
        """Returns statistics of accepted events and of the segment writers that have started."""
        segments = {
            each.segment: SegmentWriterStats(
                int(each.state is WriterState.OPEN), each.set_ups, each.unsettled, each.held_bytes, each.last_number
            )
            for each in self._started
        }
        accepted = [each.accepted for each in self._writers.values()]
        events, size = self._events + sum(each[0] for each in accepted), self._bytes + sum(each[1] for each in accepted)
        return WriterStats(self.name, events, size, segments)

    # --- flush and shutdown -----------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Waits until all earlier events are stored. Raises the error of a failed event."""
        self._unreported = False
        try:
            await self._flush()
        except asyncio.CancelledError:
            self._unreported = True
            raise

    async def _flush(self) -> None:
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
        """Flushes for up to `close_timeout_ms`, then closes. Can be called twice.

        Raises what `flush` raises, unless `write` or `flush` has raised the failure of every failed event before; and
        RequestTimedOut if events were not stored in time.
        """
        if self._closed:
            return
        late, unreported = f"events for {self._name} were not stored", self._unreported
        try:
            async with within(self._settings.close_timeout_ms, late, stream=self._name):
                await self.flush()
        except RequestTimedOut:
            raise
        except ClientError:
            if unreported:
                raise
        finally:
            await self.abort()
            await self._forget_times()

    async def abort(self) -> None:
        """Closes immediately; unacknowledged events may or may not be stored."""
        self._closed = True
        reroutes = tuple(self._reroutes)
        for task in reroutes:
            task.cancel()
        self._last_sequence = self.last_sequence
        self._routes.clear()
        writers, self._writers = self._writers, {}
        replaced, self._replaced = self._replaced, []
        for writer in writers.values():
            self._count(writer)
        ended = [*writers.values(), *replaced]
        for writer in ended:
            writer.end()  # end all before the first await, which may be cancelled
        await asyncio.gather(*reroutes, return_exceptions=True)
        for writer in ended:
            await writer.abort()
