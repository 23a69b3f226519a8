"""Writes to one segment, each event once and in order, whatever happens to connections.

    CONNECTING ─▶ SETTING_UP ─▶ OPEN        lost, wrong host, token expired: back to CONNECTING
         any of these ─▶ OVER               sealed or gone: the unacknowledged events are handed over, in order
         any of these ─▶ FAILED, CLOSED

An event waits in the queue until the writer is open and it is its turn on the connection; then it gets its number and
is in flight until an ack covers it. SetupAppend is answered with the last number that the store has of this writer: an
implicit ack; what lies above is sent again, before anything new: its first append alone, and the others when that is
acknowledged. The writer keeps one writer id and one request id.

Invariants: each event's future is done exactly once; when nothing was acknowledged for `request_timeout_ms` the writer
is set up anew, and when that failed `retry`'s number of times without progress, all that waits fails. Cancelling who
waits never takes back an event.

Buffers: payloads are the caller's and must not change until their future is done. Follows `SegmentOutputStreamImpl`
(Pravega's client). Deliberate differences: events written in one turn of the loop travel as one append (see
`append_batching`); attempts are counted until an ack or a set-up made progress.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from random import Random
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID, uuid4

from segstore.client.errors import (
    ClientError,
    Closed,
    EventTooLarge,
    ProtocolViolation,
    RequestRejected,
    RequestTimedOut,
    Retriable,
    RetriesExhausted,
    SegmentOver,
    TokenExpired,
    WrongStore,
    failure,
)
from segstore.client.flow import Flow
from segstore.client.in_flight import Append, BadAck, InFlight, Pending
from segstore.client.locations import Locations
from segstore.client.pool import ConnectionPool, Endpoint
from segstore.wire import AppendSetup, Buffer, Command, DataAppended, SetupAppend, WireError
from segstore.wire.blocks import BlockSizeTracker
from segstore.wire.request_id import FLOWS_DISABLED, pack

__all__ = ["SegmentWriter", "WriterState"]


class WriterState(Enum):
    CONNECTING = auto()
    SETTING_UP = auto()
    OPEN = auto()
    OVER = auto()
    FAILED = auto()
    CLOSED = auto()


_ENDED: Final = frozenset({WriterState.OVER, WriterState.FAILED, WriterState.CLOSED})
_RECOVERABLE: Final = (Retriable, TokenExpired, ProtocolViolation)
_EVENT_HEADER_BYTES: Final = 8


class SegmentWriter:
    """A writer of one segment.

    Attributes:
        segment, writer_id: whose and where.
        state: where it stands.
        segment_length: as the last ack said, -1 before the first.
        set_ups: how often it was set up.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        locations: Locations,
        segment: str,
        *,
        writer_id: UUID | None = None,
        on_over: Callable[[SegmentWriter, SegmentOver], None] | None = None,
        random: Random | None = None,
    ) -> None:
        """Starts to set itself up at once.

        on_over: called when the segment is sealed or gone, instead of failing what is not acknowledged; its owner takes
        that with `take_pending`, now or later, and what is written until then waits for it.
        """
        self.segment: Final = segment
        self.writer_id: Final = writer_id or uuid4()
        self.state = WriterState.CONNECTING
        self.segment_length = -1
        self.set_ups = 0
        self._pool = pool
        self._settings = pool.settings
        self._locations = locations
        self._random = random or Random()
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._pooled = self._settings.enable_connection_pooling
        self._flow_id = pool.lease() if self._pooled else FLOWS_DISABLED
        self._request_id = pack(self._flow_id, 0)
        self._flow: Flow | None = None
        self._endpoint: Endpoint | None = None
        self._token = ""
        self._set_up: asyncio.Future[None] | None = None
        self._events = InFlight()
        self._failures = 0
        self._turn_asked = False
        self._trying = False
        """Only the first of the appends that are sent again is under way: the others wait for its ack."""
        self._error: ClientError | None = None
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._room: asyncio.Future[None] | None = None
        self._sizing: BlockSizeTracker | None = None
        self._blocks = self._settings.append_batching == "blocks"
        self._ack_timer: asyncio.TimerHandle | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._recover(None)

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, data: Buffer, *, events: int = 1, tag: Any = None) -> asyncio.Future[None]:
        """Queues one append; its future is done when it is stored, or has the error.

        Never waits: see `room`. Raises EventTooLarge, and the error with which the writer ended.
        """
        size = len(data)
        limit = self._settings.max_event_bytes + _EVENT_HEADER_BYTES
        if size > limit:
            raise EventTooLarge(
                f"{size} bytes for {self.segment}, {limit} are allowed", segment=self.segment, limit=limit, actual=size
            )
        if self._error is not None:
            raise self._again()
        done: asyncio.Future[None] = self._loop.create_future()
        self._events.add(Pending(data, events, tag, done))
        self._ask_turn()
        return done

    def adopt(self, pending: Iterable[Pending]) -> None:
        """Queues what another segment's writer did not get acknowledged, futures and all."""
        for item in pending:
            if self._error is not None:
                _fail(item.done, self._again())
            else:
                self._events.add(item)
        self._ask_turn()

    @property
    def held_bytes(self) -> int:
        """Of events that are queued or in flight."""
        return self._events.held_bytes

    @property
    def last_number(self) -> int:
        """Of the last event that is known to be stored, -1 if none."""
        return self._events.last_stored

    @property
    def in_flight(self) -> int:
        """Events that were sent and not acknowledged."""
        return sum(append.last - append.first + 1 for append in self._events.sent)

    @property
    def unsettled(self) -> int:
        """Appends that are neither acknowledged nor failed nor handed over."""
        return self._events.added - self._events.settled

    @property
    def has_room(self) -> bool:
        return self._events.held_bytes < self._settings.max_in_flight_bytes or self._error is not None

    async def room(self) -> None:
        """Returns when less than `max_in_flight_bytes` is held, or the writer has failed."""
        while not self.has_room:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    async def flush(self) -> None:
        """Returns when everything written before is acknowledged or was handed over.

        Raises the error with which the writer ended.
        """
        if self._error is not None:
            if not isinstance(self._error, Closed) or self.unsettled:
                raise self._again()
        elif self.unsettled:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append((self._events.added, flushed))
            await flushed

    def take_pending(self) -> list[Pending]:
        """What is not acknowledged, in order; it is no longer this writer's. For the owner of a writer that is OVER."""
        taken = self._events.take_all()
        self._settle()
        return taken

    # --- sending ----------------------------------------------------------------------------------------------------

    def _ask_turn(self) -> None:
        if self._turn_asked or self.state is not WriterState.OPEN:
            return
        flow = self._flow
        if flow is not None and not flow.closed and self._events.queued:
            self._turn_asked = True
            flow.ask_turn(self._take_turn)

    def _take_turn(self) -> None:
        """Its turn on the connection: numbers and sends what is queued, up to what a turn may add."""
        self._turn_asked = False
        if self._trying:
            return
        events, settings = self._events, self._settings
        most_events = 1 if self._blocks else settings.max_batch_events
        left = max(settings.write_buffer_bytes, 1)
        while events.queued and self.state is WriterState.OPEN:
            if left <= 0:
                self._ask_turn()
                return
            append = events.take(most_events, settings.max_batch_bytes)
            left -= append.size
            self._send(append)

    def _send(self, append: Append) -> None:
        flow = self._flow
        assert flow is not None
        append.sent_s = self._loop.time()
        count = append.last - append.first + 1
        flow.append(self.segment, self.writer_id, append.last, count, append.data, append.size, self._request_id)
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_at(append.sent_s + self._ack_limit_s, self._ack_due)

    @property
    def _ack_limit_s(self) -> float:
        return self._settings.request_timeout_ms / 1000

    def _ack_due(self) -> None:
        self._ack_timer = None
        oldest = self._events.oldest
        if oldest is None or self.state is not WriterState.OPEN:
            return
        due_s = oldest.sent_s + self._ack_limit_s
        if self._loop.time() < due_s:
            self._ack_timer = self._loop.call_at(due_s, self._ack_due)
        else:
            self._lost(self._timed_out(f"did not acknowledge event {oldest.last} of"))

    def _timed_out(self, what: str) -> RequestTimedOut:
        limit = self._settings.request_timeout_ms
        return RequestTimedOut(
            f"{self._endpoint} {what} {self.segment} within {limit:.0f} ms",
            endpoint=str(self._endpoint),
            segment=self.segment,
            request_id=self._request_id,
            limit=limit,
        )

    # --- replies ----------------------------------------------------------------------------------------------------

    def on_reply(self, reply: Command) -> None:
        try:
            if type(reply) is DataAppended:
                self._on_ack(reply)
            elif type(reply) is AppendSetup:
                self._on_set_up(reply)
            else:
                error = failure(reply, endpoint=str(self._endpoint), segment=self.segment)
                if isinstance(error, SegmentOver):
                    self._over(error)
                else:
                    self._lost(error)
        except BadAck as cause:
            self._violated(cause)

    def on_lost(self, error: ClientError) -> None:
        self._lost(error)

    def _on_ack(self, ack: DataAppended) -> None:
        if self.state is not WriterState.OPEN:
            return  # of a set-up before: the answer to the new one covers it
        if ack.writer_id != self.writer_id:
            raise BadAck(f"acknowledges events of writer {ack.writer_id}")
        stored, size = self._events.acknowledged(ack.event_number, ack.previous_event_number)
        self.segment_length = max(self.segment_length, ack.current_segment_write_offset)
        if self._sizing is not None:
            self._sizing.record_ack(ack.event_number)
        if self._flow is not None:
            self._flow.acknowledged(size)
        self._stored(stored)
        if self._trying:
            self._trying = False
            for append in self._events.sent:
                self._send(append)
            self._ask_turn()

    def _on_set_up(self, reply: AppendSetup) -> None:
        if self.state is not WriterState.SETTING_UP or reply.writer_id != self.writer_id:
            raise BadAck(f"answers a set-up of writer {reply.writer_id}")
        stored, _ = self._events.set_up(reply.last_event_number)
        flow = self._flow
        assert flow is not None
        self.state = WriterState.OPEN
        self.set_ups += 1
        if self._events.oldest is None:
            self._failures = 0
        self._stored(stored)
        if self._blocks:
            self._sizing = BlockSizeTracker(self._loop.time() * 1000)
            flow.connection.set_sizing(self._flow_id, self._sizing)
        # One alone first: the refusal of a first append is lost if the store closes because of a second.
        oldest = self._events.oldest
        self._trying = oldest is not None
        if oldest is not None:
            self._send(oldest)
        self._ask_turn()
        self._end_set_up()

    def _stored(self, items: list[Pending]) -> None:
        for item in items:
            if not item.done.done():
                item.done.set_result(None)
        if items:
            self._failures = 0
            self._settle()

    def _settle(self) -> None:
        settled = self._events.settled
        while self._flushes and self._flushes[0][0] <= settled:
            _, flushed = self._flushes.popleft()
            if not flushed.done():
                flushed.set_result(None)
        if self._room is not None and self.has_room:
            room, self._room = self._room, None
            room.set_result(None)

    # --- trouble ----------------------------------------------------------------------------------------------------

    def _violated(self, cause: BadAck) -> None:
        error = ProtocolViolation(
            f"{self._endpoint} {cause}, to writer {self.writer_id} of {self.segment}",
            endpoint=str(self._endpoint),
            segment=self.segment,
            request_id=self._request_id,
        )
        error.__cause__ = cause
        flow = self._flow
        self._lost(error)
        if flow is not None:
            flow.connection.end(error)

    def _drop_flow(self) -> None:
        flow, self._flow = self._flow, None
        self._turn_asked = False
        self._sizing = None
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if flow is not None and not flow.closed:
            flow.connection.remove_writer(self.segment, self.writer_id)
            flow.close()

    def _lost(self, error: ClientError) -> None:
        """The flow is of no more use; what can be tried again is."""
        if self.state in _ENDED:
            return
        was = self.state
        self._drop_flow()
        if not isinstance(error, _RECOVERABLE):
            self._fail(error)
        elif was is WriterState.SETTING_UP:
            if self._set_up is not None and not self._set_up.done():
                self._set_up.set_exception(error)  # for the recovery that waits for it
        elif was is WriterState.OPEN:
            self.state = WriterState.CONNECTING
            self._recover(error)

    def _recover(self, error: ClientError | None) -> None:
        self._recovery = self._loop.create_task(self._recovering(error), name=f"setting up a writer of {self.segment}")

    async def _recovering(self, error: ClientError | None) -> None:
        try:
            while self.state not in _ENDED:
                if error is not None:
                    await self._wait_after(error)
                try:
                    await self._set_up_once()
                    return
                except _RECOVERABLE as problem:
                    error = problem
                    self._drop_flow()
                    if self.state not in _ENDED:
                        self.state = WriterState.CONNECTING
        except SegmentOver as problem:
            self._over(problem)
        except ClientError as problem:
            self._fail(problem)
        except WireError as problem:
            rejected = RequestRejected(f"{self.segment} cannot be written to: {problem}", segment=self.segment)
            rejected.__cause__ = problem
            self._fail(rejected)

    async def _wait_after(self, error: ClientError) -> None:
        """Learns from a failure and waits out its back-off; raises RetriesExhausted after too many."""
        retry = self._settings.retry
        self._failures += 1
        if isinstance(error, TokenExpired):
            self._locations.expired(self.segment, self._token)
        elif self._endpoint is not None and (isinstance(error, WrongStore) or self._failures > 1):
            self._locations.forget(self.segment, self._endpoint)
        if retry.exhausted(self._failures):
            raise RetriesExhausted(
                f"the writer of {self.segment} failed {self._failures} times: {error}",
                segment=self.segment,
                endpoint=error.endpoint,
                actual=self._failures,
            ) from error
        await asyncio.sleep(retry.delay_ms(self._failures, self._random) / 1000)

    async def _set_up_once(self) -> None:
        self._endpoint = endpoint = await self._locations.endpoint_of(self.segment)
        self._token = await self._locations.token_for(self.segment)
        if self._pooled:
            flow = await self._pool.flow(endpoint, self, flow_id=self._flow_id)
        else:
            flow = await self._pool.unpooled(endpoint, self)
        if self.state in _ENDED:
            flow.close()
            return
        self._flow = flow
        self.state = WriterState.SETTING_UP
        self._set_up = self._loop.create_future()
        flow.send(SetupAppend(self._request_id, self.writer_id, self.segment, self._token))
        try:
            async with asyncio.timeout(self._ack_limit_s):
                await self._set_up
        except TimeoutError as cause:
            raise self._timed_out("did not set up the writer of") from cause

    # --- end --------------------------------------------------------------------------------------------------------

    def _over(self, error: SegmentOver) -> None:
        if self.state in _ENDED:
            return
        if self._on_over is None:
            self._fail(error)
            return
        self._drop_flow()
        self.state = WriterState.OVER
        self._end_set_up()
        self._on_over(self, error)

    def fail(self, error: ClientError) -> None:
        """Ends the writer and everything that waits for it, as its owner says."""
        self._fail(error)

    def _fail(self, error: ClientError, state: WriterState = WriterState.FAILED) -> None:
        if self.state in (WriterState.FAILED, WriterState.CLOSED):
            return
        self._drop_flow()
        self.state = state
        self._error = error
        self._end_set_up()
        flushes, self._flushes = self._flushes, deque()
        for _, flushed in flushes:
            _fail(flushed, self._again())
        for item in self.take_pending():
            _fail(item.done, self._again())

    def _end_set_up(self) -> None:
        if self._set_up is not None and not self._set_up.done():
            self._set_up.set_result(None)

    def _again(self) -> ClientError:
        """The error that ended the writer, as one more of its kind: several must not share one traceback."""
        error = self._error
        assert error is not None
        fresh = type(error)(error.message, **error.facts())
        fresh.__cause__ = error.__cause__
        return fresh

    async def aclose(self) -> None:
        """Flushes for up to `close_timeout_ms`, then frees everything; what is left by then fails. Can be called twice.

        Raises what `flush` raises, RequestTimedOut if the time was not enough.
        """
        if self.state is WriterState.CLOSED:
            return
        limit = self._settings.close_timeout_ms
        try:
            async with asyncio.timeout(limit / 1000):
                await self.flush()
        except TimeoutError as cause:
            raise RequestTimedOut(
                f"{self.unsettled} appends to {self.segment} were not acknowledged within {limit:.0f} ms",
                segment=self.segment,
                endpoint=None if self._endpoint is None else str(self._endpoint),
                limit=limit,
            ) from cause
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Frees everything at once; what is not acknowledged fails."""
        if self.state is not WriterState.CLOSED:
            self._fail(Closed(f"the writer of {self.segment} was closed", segment=self.segment), WriterState.CLOSED)
            self.state = WriterState.CLOSED
            if self._pooled:
                self._pool.release(self._flow_id)
        recovery, self._recovery = self._recovery, None
        if recovery is not None and recovery is not asyncio.current_task():
            recovery.cancel()
            await asyncio.gather(recovery, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()


def _fail(future: asyncio.Future[None], error: ClientError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # who does not look at it hears of it when flushing or closing
