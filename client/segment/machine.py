"""The state machine behind a `SegmentWriter`: its sends, the replies and the failures that it handles.

To set up the writer, an attempt looks up the segment's store and token, opens a flow there, and sends SetupAppend.
After a failure it invalidates the location or token if that was the cause, waits for the back-off and tries again.

An event is queued until the writer is open and gets a turn on the connection. It then gets its number and is in flight
until an ack covers it. The reply to SetupAppend holds the last number that the store has from this writer, an implicit
ack; all later events are resent before any new events: the first append alone, the other appends once it is
acknowledged. The writer keeps one writer id and one request id.

Events too large for an append are passed to `carry` once all earlier events are acknowledged, and later events wait
until they are stored. If the segment is sealed meanwhile, that is handled afterwards: `carry` may have stored the event
before.

If a store refuses the number of an append that was sent only once, or has numbers that were never sent, another writer
is using this writer's id, and the writer fails (`WriterFenced`).

Invariants: each event's waiter is notified exactly once; at most one attempt to set up runs at a time, each with a
deadline; if nothing is acknowledged for `request_timeout_ms` the writer is set up again, and if that fails `retry`'s
number of times, or for `recovery_timeout_ms`, without progress, all waiters fail. Cancelling a waiter never withdraws
an event.

Buffers: payloads belong to the caller and must not change until they are stored. Follows `SegmentOutputStreamImpl`
(Pravega's client), seeds 36.4, 36.9, 36.23 and 36.26. Deliberate differences: events written in one loop iteration are
sent as one append (see `append_batching`); after a reconnect the oldest append is resent alone; attempts are counted
until an ack or a set-up makes progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID, uuid4

from segstore.client.attempts import HELD_S, Attempts
from segstore.client.connection import (
    BadAck,
    ConnectionPool,
    Endpoint,
    Flow,
    InFlight,
    InFlightAppend,
    Locations,
    OtherWriter,
    Pending,
    Waiter,
    learn,
    notify_stored,
)
from segstore.client.errors import (
    ClientError,
    EventTooLarge,
    ProtocolViolation,
    RequestRejected,
    RequestTimedOut,
    Retriable,
    SegmentOver,
    TokenExpired,
    WriterFenced,
    failure,
)
from segstore.client.segment.states import WriterEvent, WriterState, after
from segstore.wire import AppendSetup, Buffer, Command, DataAppended, InvalidEventNumber, SetupAppend, WireError
from segstore.wire.blocks import BLOCK_BYTES, EVENT_HEADER_BYTES, BlockSizeTracker
from segstore.wire.names import MAX_INT64
from segstore.wire.request_id import pack

_OPEN: Final = WriterState.OPEN
_ENDED: Final = frozenset({WriterState.OVER, WriterState.FAILED, WriterState.CLOSED})
_RECOVERABLE: Final = (Retriable, TokenExpired, ProtocolViolation)
"""Errors after which another attempt to set up may succeed."""

Carry = Callable[[str, Buffer], Awaitable[None]]
"""Stores an event too large for an append at the end of a segment. Raises ClientError, SegmentOver among them."""


class WriterMachine:
    """The state machine of a segment writer, and `append`.

    Attributes:
        segment, writer_id: the segment and the writer's id; writer_bytes: its id as bytes.
        request_id: the request id of its set-ups and appends.
        endpoint: the store of the last attempt to set up.
        frame_events: whether each item is one event, which is stored behind its header.
        state: the current state.
        set_ups: number of successful set-ups.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        locations: Locations,
        segment: str,
        *,
        writer_id: UUID | None = None,
        on_over: Callable[[Any, SegmentOver], None] | None = None,
        carry: Carry | None = None,
        frame_events: bool = False,
    ) -> None:
        """Starts set-up immediately.

        on_over: called if the segment is sealed or missing, instead of failing unacknowledged events. The owner
        collects these with `take_pending`, now or later; events written until then are included.
        carry: stores events too large for an append; without it they are refused. frame_events: each append is one
        event, which is stored behind its header.
        """
        self.segment: Final = segment
        self.writer_id: Final = writer_id or uuid4()
        self.writer_bytes: Final = self.writer_id.bytes
        self.state = WriterState.CONNECTING
        self.set_ups = 0
        self._pool = pool
        self._locations = locations
        self._on_over = on_over
        self._carry = carry
        self._carrying: asyncio.Task[None] | None = None
        self._deferred_end: SegmentOver | None = None
        self._loop = asyncio.get_running_loop()
        self.frame_events: Final = frame_events
        settings, overhead = pool.settings, EVENT_HEADER_BYTES if frame_events else 0
        self._largest = settings.max_event_bytes + EVENT_HEADER_BYTES - overhead
        self._flow: Flow | None = None
        self._timer: asyncio.TimerHandle | None = None
        """For the acknowledgement of the oldest append; None if there is none."""
        self._events = InFlight(
            overhead,
            settings.max_in_flight_bytes,
            1 if settings.append_batching == "blocks" else settings.max_batch_events,
            min(settings.max_batch_bytes, settings.max_event_bytes, settings.max_frame_bytes - BLOCK_BYTES),
        )
        self._resends = False
        """Whether appends in flight are resent in the next turn."""
        self._trying = False
        """Whether only the first append to resend is in flight; the others wait for its ack."""
        self._error: ClientError | None = None
        self._failed_from = 0
        """Number of items settled before the error that ended the writer."""
        self._changed: asyncio.Future[None] | None = None
        """Resolves at the next change that a coroutine may wait for; None while there are no waiters."""
        self._flushed_at = MAX_INT64
        """The lowest number of settled items that a flush waits for."""
        self._sizing: BlockSizeTracker | None = None
        self._flow_id = pool.lease()
        self.request_id: Final = pack(self._flow_id, 0)
        self.endpoint: Endpoint | None = None
        self._token = ""
        self._attempts: Attempts | None = None
        """The retry budget; set during attempts to set up, and after a failure until there is progress."""
        self._settled = 0
        """Number of items settled at the last set-up."""
        self._idle_since_s: float | None = None
        """When the writer was set up and had nothing to store."""
        self._answer: asyncio.Future[None] | None = None
        self._setting_up: asyncio.Task[None] | None = None
        self._set_up(None)

    # --- pending events -----------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """Number of items that are not acknowledged, failed or taken over."""
        return self._events.unsettled

    @property
    def segment_length(self) -> int:
        """As of the last acknowledgement, -1 before the first."""
        return self._events.segment_length

    @property
    def has_room(self) -> bool:
        return self._events.has_room or self._error is not None

    def take_pending(self) -> list[Pending]:
        """Removes and returns unacknowledged items, in order. Called by the owner once the state is OVER."""
        taken = self._events.take_all()
        self._wake()
        return taken

    def _wake(self) -> None:
        """Wakes the coroutines that wait for a change of the writer, which then look at their conditions."""
        changed, self._changed = self._changed, None
        self._flushed_at = MAX_INT64
        if changed is not None:
            changed.set_result(None)

    # --- sending ------------------------------------------------------------------------------------------------------

    def append(self, data: Buffer, done: Waiter, events: int = 1, tag: Any = None, now: bool = False) -> bool:
        """Queues one append; the caller's future or callback is notified when it is stored, or gets the error.

        Never waits; returns whether there is room for more, as `has_room`. Raises EventTooLarge, and the error that
        ended the writer.
        done: a callback is called once, inside the event loop's read: with None when the append is stored, else with
        the error. It may append again; its errors go to the loop's exception handler. now: the caller sends nothing
        else until this is stored, so send it immediately if the connection is idle.
        """
        if len(data) > self._largest and self._carry is None:
            EventTooLarge.check(data, self._largest, segment=self.segment)
        if self._error is not None:
            raise self._again()
        queue = self._events
        if queue.add(data, done, events, tag) and self.state is _OPEN:
            flow = self._flow
            assert flow is not None
            if now:
                flow.turn_now()
            else:
                flow.ask_turn()
        return queue.has_room

    def _ask_turn(self) -> None:
        flow = self._flow
        if flow is not None and not flow.closed and self.state is _OPEN and self._events.queued:
            flow.ask_turn()

    def take_turn(self, now_s: float, most_bytes: int) -> list[InFlightAppend]:
        """See `Appender`. Numbers queued events; resent events come first, and count for no limit."""
        out: list[InFlightAppend] = []
        events = self._events
        if self._resends and self.state is _OPEN:
            self._resends = False
            out += list(events.sent)[: 1 if self._trying else None]
        while events.queued and self.state is _OPEN and not self._trying:
            append = events.queued[0]
            if append.size > self._largest + events.overhead:
                if self._carrying is None and not events.sent:
                    carrying = self._carry_one(append)
                    self._carrying = self._loop.create_task(carrying, name=f"a large event for {self.segment}")
                break
            if most_bytes <= 0:
                self._ask_turn()
                break
            most_bytes -= append.size
            out.append(events.take(now_s))
        if out:
            self._await_ack(now_s)
        return out

    def _await_ack(self, now_s: float) -> None:
        """Starts the timer for the acknowledgement of the oldest append, unless it runs."""
        if self._timer is None:
            self._timer = self._loop.call_at(now_s + self._ack_limit_s, self._ack_due)

    async def _carry_one(self, append: InFlightAppend) -> None:
        """Stores one large event. Nothing else is in flight or sent meanwhile."""
        error: ClientError | None = None
        assert self._carry is not None
        try:
            await self._carry(self.segment, append.data[0])
        except ClientError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 — any failure must reach the waiters
            said = f"a large event for {self.segment} failed: {problem}"
            error = ProtocolViolation(said, segment=self.segment).caused_by(problem)
        self._carrying = None
        late, self._deferred_end = self._deferred_end, None
        if self.state in _ENDED:
            return
        if error is None:
            self._stored(self._events.carried().done)
            error = late
        if error is not None:
            self._end_with(error)
        else:
            self._ask_turn()

    def _resend(self) -> None:
        """Requests a turn that resends appends in flight. Their time begins now: the outbox may be paused."""
        self._resends = True
        now_s = self._loop.time()
        for append in self._events.sent:
            append.sent_s = now_s
        self._await_ack(now_s)
        if self._flow is not None and not self._flow.closed:
            self._flow.ask_turn()

    @property
    def _ack_limit_s(self) -> float:
        return self._pool.settings.request_timeout_ms / 1000

    def _ack_due(self) -> None:
        self._timer, sent = None, self._events.sent
        if not sent or self.state is not _OPEN:
            return
        oldest = sent[0]
        due_s = oldest.sent_s + self._ack_limit_s
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._ack_due)
        else:
            self.on_lost(self._timed_out(f"did not acknowledge event {oldest.last} of"))

    # --- replies ------------------------------------------------------------------------------------------------------

    def on_reply(self, reply: Command) -> None:
        if type(reply) is DataAppended:
            ours = reply.writer_id.int == self.writer_id.int  # UUID.bytes allocates on each access
            writer = self.writer_bytes if ours else reply.writer_id.bytes
            number, length = reply.event_number, reply.current_segment_write_offset
            self.on_ack(writer, number, reply.previous_event_number, reply.request_id, length)
            return
        try:
            if type(reply) is AppendSetup:
                self._on_set_up(reply)
            else:
                error = failure(reply, endpoint=str(self.endpoint), segment=self.segment)
                if isinstance(error, SegmentOver):
                    self._over(error)
                elif type(reply) is InvalidEventNumber and self._events.oldest_is_new:
                    self._fail(self._fenced(error))
                else:  # may be a number stored before a reconnect: the next set-up will show
                    self.on_lost(error)
        except BadAck as cause:
            self._refused(cause)

    def on_ack(self, writer: bytes, number: int, previous: int, request_id: int, length: int) -> None:
        flow = self._flow
        if self.state is not _OPEN or flow is None:  # ack of an earlier set-up; the next set-up reply covers it
            return
        events = self._events
        try:
            if writer != self.writer_bytes:
                raise BadAck(f"acknowledges events of writer {UUID(bytes=writer)}")
            stored, size = events.acknowledged(number, previous)
        except BadAck as cause:
            self._refused(cause)
            return
        if length > events.segment_length:
            events.segment_length = length
        if self._sizing is not None:
            self._sizing.record_ack(number)
        flow.acknowledged(size)
        if stored:
            self._stored(stored)
        if self._trying:
            self._trying = False
            if self.state is _OPEN:  # a callback for the first may have closed the writer
                self._resend()
        elif events.queued and not events.sent and not flow.asked:
            self._ask_turn()  # a large event may have been waiting for this ack

    def _on_set_up(self, reply: AppendSetup) -> None:
        if self.state is not WriterState.SETTING_UP or reply.writer_id != self.writer_id:
            raise BadAck(f"answers a set-up of writer {reply.writer_id}")
        stored, _ = self._events.set_up(reply.last_event_number)
        assert self._flow is not None
        self.state = after(self.state, WriterEvent.ANSWERED)
        self.set_ups += 1
        self._answered()
        self._wake()
        if self._pool.settings.append_batching == "blocks":
            self._sizing = BlockSizeTracker(self._loop.time() * 1000)
            self._flow.connection.outbox.set_sizing(self._flow.flow_id, self._sizing)
        # Resend one append alone: if the store closes the connection on a second, its refusal of the first is lost.
        self._trying = bool(self._events.sent)
        if self._trying:
            self._resend()
        else:
            self._idle_since_s = self._loop.time()
            self._ask_turn()
        if stored:
            self._stored(stored)

    def _stored(self, waiters: list[Waiter]) -> None:
        notify_stored(waiters, self._callback_failed)
        if self._changed is not None and (self._events.has_room or self._events.settled >= self._flushed_at):
            self._wake()

    def _reject(self, done: Waiter, error: ClientError) -> None:
        if isinstance(done, asyncio.Future):
            if not done.done():
                done.set_exception(error)
                done.exception()  # marked as retrieved; flush and close report it too
            return
        try:
            done(error)
        except Exception as problem:  # noqa: BLE001 — the callback's failure must not affect the segment
            self._callback_failed(problem)

    def _callback_failed(self, problem: Exception) -> None:
        """Reports what the callback of an append raised."""
        context = {"message": f"the callback of an append to {self.segment} failed", "exception": problem}
        self._loop.call_exception_handler(context)

    # --- set-up -------------------------------------------------------------------------------------------------------

    def _set_up(self, error: ClientError | None) -> None:
        """Starts attempts to set up the writer. error: the failure that made this necessary, if any."""
        settled, idle_since_s = self._events.settled, self._idle_since_s
        is_held = idle_since_s is not None and self._loop.time() - idle_since_s >= HELD_S
        if is_held or settled > self._settled:
            self._attempts = None
        self._settled, self._idle_since_s = settled, None
        attempts = self._attempt(error)
        self._setting_up = self._loop.create_task(attempts, name=f"setting up a writer of {self.segment}")

    async def _attempt(self, error: ClientError | None) -> None:
        """Attempts to set up the writer until that succeeds, or ends it."""
        pool, what = self._pool, f"the writer of {self.segment}"
        attempts = self._attempts or Attempts(pool.settings, what, segment=self.segment, random=pool.random)
        self._attempts = attempts
        try:
            while True:
                if error is not None:
                    in_doubt = attempts.failures > 0
                    learn(self._locations, self.segment, error, self.endpoint, self._token, in_doubt=in_doubt)
                    await asyncio.sleep(attempts.failed(error))
                try:
                    async with attempts.one():
                        await self._attempt_once()
                    break
                except _RECOVERABLE as problem:
                    error = problem
                    self._drop_flow()
                    if self.state in _ENDED:
                        break
                    self.state = after(self.state, WriterEvent.LOST)
        except ClientError as problem:
            self._end_with(problem)
        except WireError as problem:
            text = f"{self.segment} cannot be written to: {problem}"
            self._fail(RequestRejected(text, segment=self.segment).caused_by(problem))
        except Exception as problem:  # noqa: BLE001 — any failure must reach the waiters
            text = f"setting up a writer of {self.segment} failed: {problem!r}"
            self._fail(ProtocolViolation(text, segment=self.segment).caused_by(problem))
        if not attempts.failures:
            self._attempts = None
        if self._setting_up is asyncio.current_task():
            self._setting_up = None

    async def _attempt_once(self) -> None:
        self.endpoint = endpoint = await self._locations.endpoint_of(self.segment)
        self._token = await self._locations.token_for(self.segment)
        flow = await self._pool.flow(endpoint, self, flow_id=self._flow_id)
        if self.state in _ENDED:
            flow.close()
            return
        self._flow = flow
        flow.appender = self
        self.state = after(self.state, WriterEvent.SENT)
        self._answer = answer = self._loop.create_future()
        flow.send(SetupAppend(self.request_id, self.writer_id, self.segment, self._token))
        try:
            async with asyncio.timeout(self._ack_limit_s):
                await answer
        except TimeoutError as cause:
            raise self._timed_out("did not set up the writer of") from cause
        finally:
            self._answer = None

    def _answered(self, error: ClientError | None = None) -> None:
        """Ends the current attempt: its reply has arrived, or it is no longer needed. error: fails the attempt."""
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    # --- failures -----------------------------------------------------------------------------------------------------

    def _timed_out(self, what: str) -> RequestTimedOut:
        """Returns the error for a store that did not do something in time."""
        limit = self._pool.settings.request_timeout_ms
        return RequestTimedOut(
            f"{self.endpoint} {what} {self.segment} within {limit:.0f} ms",
            endpoint=str(self.endpoint),
            segment=self.segment,
            request_id=self.request_id,
            limit=limit,
        )

    def _end_with(self, error: ClientError) -> None:
        if isinstance(error, SegmentOver):
            self._over(error)
        else:
            self._fail(error)

    def _refused(self, cause: BadAck) -> None:
        if isinstance(cause, OtherWriter):
            self._fail(self._fenced(cause))
        else:
            self._violated(cause)

    def _violated(self, cause: BadAck) -> None:
        endpoint = str(self.endpoint)
        error = ProtocolViolation(
            f"{endpoint} {cause}, to writer {self.writer_id} of {self.segment}",
            endpoint=endpoint,
            segment=self.segment,
            request_id=self.request_id,
        ).caused_by(cause)
        flow = self._flow
        self.on_lost(error)
        if flow is not None:
            flow.connection.end(error)

    def _fenced(self, cause: Exception) -> WriterFenced:
        return WriterFenced(
            f"another writer appends to {self.segment} as {self.writer_id}, according to {self.endpoint}",
            endpoint=str(self.endpoint),
            segment=self.segment,
            request_id=self.request_id,
            writer_id=self.writer_id,
        ).caused_by(cause)

    def _drop_flow(self) -> None:
        flow, self._flow = self._flow, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if flow is not None:
            flow.appender = None
            if not flow.closed:
                flow.connection.outbox.remove(self)
                flow.close()

    def on_lost(self, error: ClientError) -> None:
        """Abandons the flow and retries if the error allows it."""
        if self.state in _ENDED:
            return
        was = self.state
        self._drop_flow()
        if not isinstance(error, _RECOVERABLE):
            self._fail(error)
        elif was is WriterState.SETTING_UP:
            self._answered(error)
        elif was is _OPEN:
            self.state = after(was, WriterEvent.LOST)
            self._set_up(error)

    def _over(self, error: SegmentOver) -> None:
        if self.state in _ENDED:
            return
        if self._on_over is None:
            self._fail(error)
            return
        self._drop_flow()
        if self._carrying is not None:
            self.state = after(self.state, WriterEvent.LOST)
            self._deferred_end = error
            return
        self.state = after(self.state, WriterEvent.SEGMENT_OVER)
        self._answered()
        self._wake()
        self._on_over(self, error)

    def _fail(self, error: ClientError, event: WriterEvent = WriterEvent.FAILED) -> None:
        if self.state in (WriterState.FAILED, WriterState.CLOSED):
            return
        self._drop_flow()
        if self._carrying is not None:
            self._carrying.cancel()
        self.state = after(self.state, event)
        self._error, self._failed_from = error, self._events.settled
        self._answered()
        for item in self.take_pending():
            self._reject(item.done, self._again())

    def _again(self) -> ClientError:
        """Returns a copy of the error that ended the writer."""
        assert self._error is not None
        return self._error.again()
