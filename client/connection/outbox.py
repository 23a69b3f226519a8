"""The send buffer of one connection: batches commands and appends into one write per loop iteration.

Users request a turn to append. All turns of a loop iteration go into one write, and no user gets a turn while the peer
is not reading.

Invariants: sends are written in order; each request gets one turn, unless its flow is closed first; unwritten data is
bounded by `write_buffer_bytes` plus what one turn adds. After `close` nothing is written and no timer is left.

With `append_batching` "turn" each append is a block of its own; "blocks" leaves blocks to `AppendBlockEncoder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

import msgspec

from segstore.client.config import ClientSettings
from segstore.client.connection.in_flight import InFlightAppend
from segstore.client.connection.polling import AckPolling
from segstore.wire import Buffer, Command, FrameTooLarge
from segstore.wire.blocks import BATCH_MS, BLOCK_BYTES, AppendBlockEncoder, BlockSizeTracker, framed, frames_of_append
from segstore.wire.protocol import gathered

if TYPE_CHECKING:
    from segstore.client.connection.transport import Flow

_LARGE_BYTES: Final = 4096
"""From this size, passing a payload on by reference is cheaper than copying it."""


class Appender(Protocol):
    """A segment writer, as the outbox sees it.

    Attributes:
        writer_bytes: its id as bytes, which `UUID.bytes` allocates on each access.
        frame_events: whether each item of an append is one event, which is stored behind its header.
    """

    @property
    def segment(self) -> str: ...
    @property
    def writer_id(self) -> UUID: ...
    @property
    def writer_bytes(self) -> bytes: ...
    @property
    def request_id(self) -> int: ...
    @property
    def frame_events(self) -> bool: ...

    def take_turn(self, now_s: float, most_bytes: int) -> Iterable[InFlightAppend]:
        """Returns the appends to send now, at loop time `now_s`: about `most_bytes`. Requests another turn for more."""


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
        polling: keeps the event loop awake for the acknowledgement of a single append.
        turns: flows that requested a turn, each once; adding one requires setting `turn_due`.
        turn_due: whether turns, and the write after them, are scheduled.
    """

    def __init__(self, settings: ClientSettings, counters: EventCounters, timers: asyncio.AbstractEventLoop) -> None:
        self.bytes_in_flight = 0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._blocks = settings.append_batching == "blocks"
        self._most_bytes = max(settings.write_buffer_bytes, 1)
        """What one turn of a writer may add."""
        self._largest = settings.max_frame_bytes - BLOCK_BYTES
        self._counters = counters
        self._timers = timers
        self.polling = AckPolling(settings.max_ack_polls, self._loop.call_soon)
        self._sizings: dict[int, BlockSizeTracker] = {}
        self._encoder = AppendBlockEncoder(
            self._sizings.get if self._blocks else None, leftover_ms=BATCH_MS, max_frame_bytes=settings.max_frame_bytes
        )
        self._out: list[Buffer] = []
        self.turns: list[Flow] = []
        self.turn_due = False
        self._writable: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._block_timer: asyncio.TimerHandle | None = None

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
        """Drops the sizing of a closed flow."""
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

    def turn_now(self, flow: Flow) -> None:
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
            self._run_turns()
        self.turn_due = False
        if self.closed:
            return
        self.write()
        if self._blocks:
            self._arm_block_timer()
        if self.turns and self._writable is None:
            self.schedule()

    def _run_turns(self) -> None:
        """Runs the turns that flows have requested. An exception ends its flow and no other."""
        turns, self.turns = self.turns, []
        now_s = self._loop.time()
        for flow in turns:
            flow.asked = False
            appender = flow.appender
            if flow.closed or appender is None:
                continue
            try:
                for append in appender.take_turn(now_s, self._most_bytes):
                    self._add(flow, appender, append)
            except Exception as error:  # noqa: BLE001 — any failure ends this flow and no other
                flow.fail(error)

    def _add(self, flow: Flow, appender: Appender, append: InFlightAppend) -> None:
        """Queues an append. Raises FrameTooLarge."""
        size = append.size
        if size > self._largest:
            raise FrameTooLarge(
                f"an append of {size} bytes does not fit a frame, which holds {self._largest}",
                limit=self._largest,
                actual=size,
            )
        pieces = framed(append.data) if appender.frame_events else append.data
        last, request_id = append.last, appender.request_id
        count = last - append.first + 1
        if self._blocks:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            now_ms = self._timers.time() * 1000
            segment, writer = appender.segment, appender.writer_id
            self._out += self._encoder.append(segment, writer, last, count, data, request_id, now_ms)
        else:
            self._out += frames_of_append(appender.writer_bytes, pieces, size, count, last, request_id)
        flow.bytes_in_flight += size
        self.bytes_in_flight += size

    def set_sizing(self, flow_id: int, sizing: BlockSizeTracker) -> None:
        """Sets the policy for the sizes of a flow's append blocks."""
        self._sizings[flow_id] = sizing

    def remove(self, appender: Appender) -> None:
        """Removes a writer; its buffered appends are sent."""
        if not self.closed:
            self._out += self._encoder.remove(appender.segment, appender.writer_id)
            if self._out:
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
