"""The state machine behind a `SegmentWriter`: its sends, the replies and the failures that it handles.

An event is queued until the writer is open and gets a turn on the connection. It then gets its number and is in flight
until an ack covers it. The reply to SetupAppend (`WriterSetup`) holds the last number that the store has from this
writer, an implicit ack; all later events are resent before any new events: the first append alone, the other appends
once it is acknowledged. The writer keeps one writer id and one request id.

Events too large for an append are passed to `carry` once all earlier events are acknowledged, and later events wait
until they are stored. If the segment is sealed meanwhile, that is handled afterwards: `carry` may have stored the event
before.

If a store refuses the number of an append that was sent only once, or has numbers that were never sent, another writer
is using this writer's id, and the writer fails (`WriterFenced`).

Invariants: each event's waiter is notified exactly once; if nothing is acknowledged for `request_timeout_ms` the writer
is set up again, and if that fails `retry`'s number of times without progress, all waiters fail. Cancelling a waiter
never withdraws an event.

Buffers: payloads belong to the caller and must not change until they are stored. Follows `SegmentOutputStreamImpl`
(Pravega's client). Deliberate differences: events written in one loop iteration are sent as one append (see
`append_batching`); after a reconnect the oldest append is resent alone; attempts are counted until an ack or a set-up
makes progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID, uuid4

from segstore.client.connection import (
    BadAck,
    ConnectionPool,
    Flow,
    InFlight,
    InFlightAppend,
    Locations,
    OtherWriter,
    Pending,
    Waiter,
    notify_stored,
)
from segstore.client.errors import ClientError, EventTooLarge, ProtocolViolation, SegmentOver, WriterFenced, failure
from segstore.client.segment.setup import RECOVERABLE, WriterSetup
from segstore.client.segment.states import WriterEvent, WriterState, after
from segstore.wire import AppendSetup, Buffer, Command, DataAppended, InvalidEventNumber
from segstore.wire.blocks import BLOCK_BYTES, EVENT_HEADER_BYTES, BlockSizeTracker

_OPEN: Final = WriterState.OPEN
_ENDED: Final = frozenset({WriterState.OVER, WriterState.FAILED, WriterState.CLOSED})

Carry = Callable[[str, Buffer], Awaitable[None]]
"""Stores an event too large for an append at the end of a segment. Raises ClientError, SegmentOver among them."""


class WriterMachine:
    """The state machine of a segment writer, and `append`.

    Attributes:
        segment, writer_id: the segment and the writer's id; writer_bytes: its id as bytes.
        request_id: the request id of its set-ups and appends.
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
        self._sizing: BlockSizeTracker | None = None
        self._setup = WriterSetup(self, pool, locations, segment, self.writer_id)
        self.request_id: Final = self._setup.request_id
        self._setup.start(None)

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
        if isinstance(error, SegmentOver):
            self._over(error)
        elif error is not None:
            self._fail(error)
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
            self.on_lost(self._setup.timed_out(f"did not acknowledge event {oldest.last} of"))

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
                error = failure(reply, endpoint=str(self._setup.endpoint), segment=self.segment)
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
        self._setup.answered()
        self._wake()
        if self._pool.settings.append_batching == "blocks":
            self._sizing = BlockSizeTracker(self._loop.time() * 1000)
            self._flow.connection.outbox.set_sizing(self._flow.flow_id, self._sizing)
        # Resend one append alone: if the store closes the connection on a second, its refusal of the first is lost.
        self._trying = bool(self._events.sent)
        if self._trying:
            self._resend()
        else:
            self._setup.idle()
            self._ask_turn()
        if stored:
            self._stored(stored)

    def _stored(self, waiters: list[Waiter]) -> None:
        notify_stored(waiters, self._callback_failed)
        if self._changed is not None and self._events.has_room:
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

    def began(self, flow: Flow) -> bool:
        """See `SetUpOwner`."""
        if self.state in _ENDED:
            return False
        self._flow = flow
        flow.appender = self
        self.state = after(self.state, WriterEvent.SENT)
        return True

    def failed_once(self) -> bool:
        """See `SetUpOwner`."""
        self._drop_flow()
        if self.state in _ENDED:
            return False
        self.state = after(self.state, WriterEvent.LOST)
        return True

    def gave_up(self, error: ClientError) -> None:
        """See `SetUpOwner`."""
        if isinstance(error, SegmentOver):
            self._over(error)
        else:
            self._fail(error)

    # --- failures -----------------------------------------------------------------------------------------------------

    def _refused(self, cause: BadAck) -> None:
        if isinstance(cause, OtherWriter):
            self._fail(self._fenced(cause))
        else:
            self._violated(cause)

    def _violated(self, cause: BadAck) -> None:
        endpoint = str(self._setup.endpoint)
        error = ProtocolViolation(
            f"{endpoint} {cause}, to writer {self.writer_id} of {self.segment}",
            endpoint=endpoint,
            segment=self.segment,
            request_id=self._setup.request_id,
        ).caused_by(cause)
        flow = self._flow
        self.on_lost(error)
        if flow is not None:
            flow.connection.end(error)

    def _fenced(self, cause: Exception) -> WriterFenced:
        return WriterFenced(
            f"another writer appends to {self.segment} as {self.writer_id}, according to {self._setup.endpoint}",
            endpoint=str(self._setup.endpoint),
            segment=self.segment,
            request_id=self._setup.request_id,
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
        if not isinstance(error, RECOVERABLE):
            self._fail(error)
        elif was is WriterState.SETTING_UP:
            self._setup.answered(error)
        elif was is _OPEN:
            self.state = after(was, WriterEvent.LOST)
            self._setup.start(error, self._events.settled)

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
        self._setup.answered()
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
        self._setup.answered()
        for item in self.take_pending():
            self._reject(item.done, self._again())

    def _again(self) -> ClientError:
        """Returns a copy of the error that ended the writer."""
        assert self._error is not None
        return self._error.again()
