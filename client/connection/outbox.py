"""The send buffer of one connection: batches commands and appends into one write per loop iteration.

Users request a turn to append. All turns of a loop iteration go into one write, and no user gets a turn while the peer
is not reading.

Invariants: sends are written in order; each request gets one turn, unless its flow is closed first; unwritten data is
bounded by `write_buffer_bytes` plus what one turn adds. After `close` nothing is written and no timer is left.

With `append_batching` "turn" each append is a block of its own; "blocks" leaves blocks to `AppendBlockEncoder`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from segstore.client.config import ClientSettings
from segstore.client.connection.in_flight import InFlight, InFlightAppend, Pending
from segstore.client.connection.polling import AckPolling
from segstore.client.errors import Closed
from segstore.wire import Buffer, Command, FrameTooLarge
from segstore.wire.blocks import (
    APPEND_LAYOUT,
    BATCH_MS,
    BLOCK_BYTES,
    AppendBlockEncoder,
    BlockSizing,
    framed,
    frames_of_append,
)
from segstore.wire.codec import or_in_c
from segstore.wire.protocol import gathered

_LARGE_BYTES: Final = 4096
"""From this size, passing a payload on by reference is cheaper than copying it."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The clock and timers of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], Any], /) -> Timer: ...


class Sender(ABC):
    """A flow, as its outbox and the acknowledgements of its appends see it.

    Attributes:
        flow_id: the flow number; 0 if flows are disabled and the connection is not shared.
        endpoint: "host:port" of the peer.
        asked: whether a turn has been requested.
        bytes_in_flight: appended bytes not yet acknowledged.
        closed: whether it was closed or lost.
        turn: called when the flow may send appends; set by the user that requests turns.
        appends: the appends of the flow's user, if it is a writer that is set up.
    """

    __slots__ = ("appends", "asked", "bytes_in_flight", "closed", "endpoint", "flow_id", "turn")

    def __init__(self, flow_id: int, endpoint: str) -> None:
        self.flow_id: Final = flow_id
        self.endpoint: Final = endpoint
        self.asked = False
        self.bytes_in_flight = 0
        self.closed = False
        self.turn: Callable[[], None] | None = None
        self.appends: Appends | None = None

    @abstractmethod
    def fail(self, cause: Exception) -> None:
        """Ends the flow because its turn raised."""


class EventCounters(msgspec.Struct):
    """Event counters since the pool was created."""

    connections_opened: int = 0
    connections_failed: int = 0
    connections_lost: int = 0
    reconnects: int = 0
    dropped_replies: int = 0
    failed_flows: int = 0
    keep_alives: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Outbox:
    """The sending side of a connection.

    Attributes:
        bytes_in_flight: appended bytes of all flows not yet acknowledged.
        closed: whether the outbox is closed and writes nothing more.
        now_s: loop time at the start of the current turn.
        polling: keeps the event loop awake for the acknowledgement of a single append.
        most_bytes: bytes that one turn of a writer may add; left_bytes: bytes that the current turn may still add.
        batch_events, batch_bytes: limits of one append.
        turns: flows that requested a turn, each once; adding one requires setting `turn_due`.
        turn_due: whether turns, and the write after them, are scheduled.
    """

    __slots__ = (
        "_block_timer",
        "_blocks",
        "_counters",
        "_encoder",
        "_largest",
        "_loop",
        "_out",
        "_sizings",
        "_timers",
        "_transport",
        "_writable",
        "batch_bytes",
        "batch_events",
        "bytes_in_flight",
        "closed",
        "left_bytes",
        "most_bytes",
        "now_s",
        "polling",
        "turn_due",
        "turns",
    )

    def __init__(self, settings: ClientSettings, counters: EventCounters, timers: Timers) -> None:
        self.bytes_in_flight = 0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.now_s = self._loop.time()
        self._blocks = settings.append_batching == "blocks"
        self.most_bytes = self.left_bytes = max(settings.write_buffer_bytes, 1)
        self._largest = settings.max_frame_bytes - BLOCK_BYTES
        self.batch_bytes = min(settings.max_batch_bytes, settings.max_event_bytes, self._largest)
        self.batch_events = 1 if self._blocks else settings.max_batch_events
        self._counters = counters
        self._timers = timers
        self.polling = AckPolling(settings.max_ack_polls, self._loop.call_soon)
        self._sizings: dict[int, BlockSizing] = {}
        self._encoder = AppendBlockEncoder(
            self._sizings.get if self._blocks else None, leftover_ms=BATCH_MS, max_frame_bytes=settings.max_frame_bytes
        )
        self._out: list[Buffer] = []
        self.turns: list[Sender] = []
        self.turn_due = False
        self._writable: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._block_timer: Timer | None = None

    @property
    def paused(self) -> bool:
        """Whether writing is paused because the peer is not reading fast enough."""
        return self._writable is not None

    # --- the connection's ---------------------------------------------------------------------------------------------

    def opened(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def pause(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)
        if self.turns:
            self.schedule()

    def forget(self, flow_id: int) -> None:
        """Removes a closed flow from the pending turns."""
        self._sizings.pop(flow_id, None)

    def drain(self) -> None:
        """Writes everything sent so far."""
        self._out += self._encoder.flush()
        self.write()

    def close(self) -> None:
        """Closes the outbox and drops unwritten bytes."""
        self.closed = True
        if self._block_timer is not None:
            self._block_timer.cancel()
            self._block_timer = None
        self.turns.clear()
        self._out.clear()
        self.resume()
        self._transport = None

    # --- its users' ---------------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Queues any command except an append."""
        self._out += self._encoder.command(command)
        self.schedule()

    def turn_now(self, flow: Sender) -> None:
        """Like `ask_turn`, but runs the turn immediately if nothing is queued or in flight, and polls for its
        acknowledgement (see `polling`): a single append then saves a loop iteration and a wake-up, while under load
        appends still batch."""
        self.turns.append(flow)
        if self.turn_due or self.bytes_in_flight or self._out or self._writable is not None or self.closed:
            self.schedule()
        else:
            self.turn_due = True  # keeps others from scheduling a write meanwhile
            self._turn()
            self.polling.start(self)

    async def writable(self) -> None:
        """Waits until writing is not paused or the connection has ended. The caller sets a deadline."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def schedule(self) -> None:
        """Schedules the pending turns."""
        if not self.turn_due and not self.closed:
            self.turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self.turns and self._writable is None:
            turns, self.turns = self.turns, []
            self.now_s = self._loop.time()
            run_turns(self, turns)
        self.turn_due = False
        if self.closed:
            return
        self.write()
        if self._blocks:
            self._arm_block_timer()
        if self.turns and self._writable is None:
            self.schedule()

    def write(self) -> None:
        """Passes everything queued to the socket."""
        transport = self._transport
        if not self._out or transport is None or transport.is_closing():
            return
        parts, self._out = gathered(self._out, _LARGE_BYTES), []
        self._counters.bytes_out += sum(map(len, parts))
        transport.writelines(parts)

    def _arm_block_timer(self) -> None:
        deadline = self._encoder.deadline()
        if deadline is None or self._block_timer is not None or self.closed:
            return
        delay = max(deadline / 1000 - self._timers.time(), 0.0)
        self._block_timer = self._timers.call_later(delay, self._block_due)

    def _block_due(self) -> None:
        self._block_timer = None
        if not self.closed:
            self._out += self._encoder.tick(self._timers.time() * 1000)
            self.write()
            self._arm_block_timer()


class Appends:
    """Sends one writer's appends on one flow, after its SetupAppend was sent there.

    Attributes:
        outbox: the outbox of the flow's connection.
        queue: the writer's events.
        plain: whether turns and acknowledgements concern nothing but the queue and what awaits them: the writer is
            open, resends nothing, and chooses no block sizes. C then takes turns and acknowledgements without a call of
            the writer's methods.
        awaited: whether acknowledgements are awaited, so that each acknowledgement calls the writer's `settle`.
        timer: for the acknowledgement of the oldest append, or None.
    """

    __slots__ = (
        *("_flow", "_frame_events", "_request_id", "_segment", "_writer_bytes", "_writer_id"),
        *("awaited", "outbox", "plain", "queue", "timer"),
    )

    def __init__(
        self,
        flow: Sender,
        outbox: Outbox,
        queue: InFlight,
        segment: str,
        writer_id: UUID,
        request_id: int,
        frame_events: bool = False,
    ) -> None:
        """frame_events: whether each item is one event, which is stored after its header."""
        self._flow = flow
        self.outbox: Final = outbox
        self.queue: Final = queue
        self.plain = self.awaited = False
        self.timer: Timer | None = None
        self._segment = segment
        self._writer_id = writer_id
        self._writer_bytes = writer_id.bytes
        self._request_id = request_id
        self._frame_events = frame_events

    def send(self, append: InFlightAppend, pieces: list[Buffer]) -> None:
        """Queues an append with the data of its items, to be written at the end of the turn.

        Raises Closed, FrameTooLarge.
        """
        flow, outbox, size, last = self._flow, self.outbox, append.size, append.last
        if flow.closed:
            raise Closed(f"flow {flow.flow_id} to {flow.endpoint} is closed", endpoint=flow.endpoint)
        if size > outbox._largest:
            raise FrameTooLarge(
                f"an append of {size} bytes does not fit a frame, which holds {outbox._largest}",
                limit=outbox._largest,
                actual=size,
            )
        count = last - append.first + 1
        if outbox._blocks:
            if self._frame_events:
                pieces = framed(pieces)
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            now_ms = outbox._timers.time() * 1000
            outbox._out += outbox._encoder.append(
                self._segment, self._writer_id, last, count, data, self._request_id, now_ms
            )
        else:
            outbox._out += frames_of_append(
                self._writer_bytes, pieces, count, last, self._request_id, self._frame_events
            )
        flow.bytes_in_flight += size
        outbox.bytes_in_flight += size

    def set_sizing(self, sizing: BlockSizing) -> None:
        """Sets the policy for the sizes of the flow's append blocks."""
        self.outbox._sizings[self._flow.flow_id] = sizing

    def close(self) -> None:
        """Removes the writer; its buffered appends are sent."""
        outbox = self.outbox
        if not outbox.closed:
            outbox._out += outbox._encoder.remove(self._segment, self._writer_id)
            if outbox._out:
                outbox.schedule()


WRITERS: Final = (Sender, Appends, Outbox, InFlight, InFlightAppend, Pending, deque)
"""Classes whose slots the C code accesses."""
WRITER_SLOTS: Final = (
    *("asked", "bytes_in_flight", "closed", "appends", "turn"),
    *("_flow", "_frame_events", "_request_id", "_writer_bytes", "awaited", "outbox", "plain", "queue", "timer"),
    *("_out", "batch_bytes", "batch_events", "bytes_in_flight", "left_bytes", "most_bytes", "now_s"),
    *("turn_due", "turns"),
    *("_behind", "_last_taken", "_later", "added_bytes", "full_at", "last_stored", "newest", "oldest", "overhead"),
    *("queued", "segment_length", "settled"),
    *("first", "last", "items", "size"),
    *("data", "events", "done"),
)
"""Their attributes that C uses."""


@or_in_c(*WRITERS, slots=WRITER_SLOTS, **APPEND_LAYOUT)
def run_turns(outbox: Outbox, flows: list[Sender]) -> None:
    """Runs the turns that flows have requested. An exception ends its flow and no other."""
    for flow in flows:
        flow.asked = False
        outbox.left_bytes = outbox.most_bytes
        try:
            if flow.turn is not None and not flow.closed:
                flow.turn()
        except Exception as error:  # noqa: BLE001 — any failure ends this flow and no other
            flow.fail(error)
