"""The send buffer of one connection: batches commands and appends into one write per loop iteration.

Users request a turn to append. All turns of a loop iteration go into one write, and no user gets a turn while the peer
is not reading.

Invariants: sends are written in order; each request gets one turn, unless its flow is closed first; unwritten data is
bounded by `write_buffer_bytes` plus what one turn adds. After `close` nothing is written and no timer is left.

With `append_batching` "turn" each append is its own block and no block stays open, so its frames are built here;
"blocks" leaves framing to `AppendBlockEncoder`, which both modes agree with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec

from segstore.client.connection.flow import Flow
from segstore.client.connection.in_flight import Append, Pending
from segstore.client.errors import Closed
from segstore.wire import AppendBlock, AppendBlockEnd, Buffer, Command, FrameTooLarge
from segstore.wire.blocks import BATCH_MS, AppendBlockEncoder, BlockSizing

if TYPE_CHECKING:
    from segstore.client.config import ClientSettings

_BLOCK: Final = Layout(">ii16s")
_END_HEAD: Final = Layout(">ii16siii")  # without data
_END: Final = Layout(f">{_END_HEAD.size}sqq")
_HEADER_BYTES: Final = 8
_LARGE_BYTES: Final = 4096
"""From this size, passing a payload on by reference is cheaper than copying it."""
_BLOCK_CODE: Final = AppendBlock.code
_END_CODE: Final = AppendBlockEnd.code
_BLOCK_FIELDS: Final = _BLOCK.size - _HEADER_BYTES
_END_FIELDS: Final = _END.size - _HEADER_BYTES


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The clock and timers of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], Any], /) -> Timer: ...


class Counters(msgspec.Struct):
    """Event counters since the pool was created."""

    connections_opened: int = 0
    connections_failed: int = 0
    connections_lost: int = 0
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
        most_bytes: limit on what one turn of a writer may add.
        batch_events, batch_bytes: limits of one append.
        turns: flows that requested a turn, each once; adding one requires setting `turn_due`.
        turn_due: whether turns, and the write after them, are scheduled.
    """

    __slots__ = (
        "_block_timer",
        "_blocks",
        "_counters",
        "_encoder",
        "_fail",
        "_large",
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
        "most_bytes",
        "now_s",
        "turn_due",
        "turns",
    )

    def __init__(
        self, settings: ClientSettings, counters: Counters, timers: Timers, fail: Callable[[Flow, Exception], None]
    ) -> None:
        """fail: called to end a flow whose turn raised."""
        self.bytes_in_flight = 0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.now_s = self._loop.time()
        self._blocks = settings.append_batching == "blocks"
        self.most_bytes = max(settings.write_buffer_bytes, 1)
        self.batch_bytes = min(settings.max_batch_bytes, settings.max_event_bytes)  # larger ones go elsewhere
        self.batch_events = 1 if self._blocks else settings.max_batch_events
        self._counters = counters
        self._timers = timers
        self._fail = fail
        self._largest = settings.max_frame_bytes - _BLOCK.size
        self._sizings: dict[int, BlockSizing] = {}
        self._encoder = AppendBlockEncoder(
            self._sizings.get if self._blocks else None, leftover_ms=BATCH_MS, max_frame_bytes=settings.max_frame_bytes
        )
        self._out: list[Buffer] = []
        self._large = False
        self.turns: list[Flow] = []
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
        """Closes the outbox and drops what is not yet written."""
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
        parts = self._encoder.command(command)
        if len(parts) > 1:  # payloads are separate parts
            self._large = True
        self._out += parts
        self.schedule()

    def turn_now(self, flow: Flow) -> None:
        """Like `ask_turn`, but runs the turn immediately if nothing is queued or in flight: a single append then saves
        a loop iteration, while under load appends still batch."""
        if self.turn_due or self.bytes_in_flight or self._out or self._writable is not None or self.closed:
            self.turns.append(flow)
            self.schedule()
        else:
            self.turns.append(flow)
            self.turn_due = True  # keeps others from scheduling a write meanwhile
            self._turn()

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
            for flow in turns:
                flow.asked = False
                turn = flow.turn  # a local is faster to call than an attribute
                try:
                    if turn is not None and not flow.closed:
                        turn()
                except Exception as error:  # noqa: BLE001 — any failure ends this flow and no other
                    self._fail(flow, error)
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
        transport, out = self._transport, self._out
        if not out or transport is None or transport.is_closing():
            return
        self._out = []
        if self._large:
            self._large = False
            parts = _gathered(out)
            self._counters.bytes_out += sum(map(len, parts))
            transport.writelines(parts)
        else:
            data = out[0] if len(out) == 1 else b"".join(out)
            self._counters.bytes_out += len(data)
            transport.write(data)

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
    """

    __slots__ = (
        "_count",
        "_end",
        "_flow",
        "_head",
        "_pack",
        "_request_id",
        "_segment",
        "_size",
        "_writer_bytes",
        "_writer_id",
        "outbox",
    )

    def __init__(self, flow: Flow, outbox: Outbox, segment: str, writer_id: UUID, request_id: int) -> None:
        self._flow = flow
        self.outbox: Final = outbox
        self._segment = segment
        self._writer_id = writer_id
        self._writer_bytes = writer_id.bytes
        self._request_id = request_id
        self._of_this_size(0, 1)

    def _of_this_size(self, size: int, count: int) -> None:
        """Precomputes the frame parts shared by all appends of this size and count: most are like the previous one."""
        largest = self.outbox._largest
        if size > largest:
            raise FrameTooLarge(
                f"an append of {size} bytes does not fit a frame, which holds {largest}", limit=largest, actual=size
            )
        writer = self._writer_bytes
        self._size, self._count = size, count
        self._head = _BLOCK.pack(_BLOCK_CODE, _BLOCK_FIELDS + size, writer)
        self._end = _END_HEAD.pack(_END_CODE, _END_FIELDS, writer, size, 0, count)
        self._pack = _packer(size) if size < _LARGE_BYTES else None

    def send(self, append: Pending | Append) -> int:
        """Sends an append; returns its payload size. Raises Closed, FrameTooLarge."""
        flow, outbox, last = self._flow, self.outbox, append.last
        if flow.closed:
            raise Closed(f"flow {flow.flow_id} to {flow.endpoint} is closed", endpoint=flow.endpoint)
        data: Buffer | None = None
        if type(append) is Pending:
            data, count = append.data, append.events
            size = len(data)
        else:
            size, count = append.size, last - append.first + 1
        if outbox._blocks:
            now_ms = outbox._timers.time() * 1000
            outbox._out += outbox._encoder.append(
                self._segment, self._writer_id, last, count, append.data, self._request_id, now_ms
            )
        else:
            if size != self._size or count != self._count:
                self._of_this_size(size, count)
            out = outbox._out
            pack = self._pack
            if type(data) is bytes and pack is not None:
                out.append(pack(self._head, data, self._end, last, self._request_id))
            else:
                items = append.items
                out.append(self._head)
                out += [item.data for item in items]
                out.append(_END.pack(self._end, last, self._request_id))
                if size >= _LARGE_BYTES * len(items):
                    outbox._large = True
        flow.bytes_in_flight += size
        outbox.bytes_in_flight += size
        if not outbox.turn_due:
            outbox.schedule()
        return size

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


@cache
def _packer(size: int) -> Callable[[bytes, bytes, bytes, int, int], bytes]:
    """Returns a packer for one-event appends of a fixed size: block header, event, end header, number, request id."""
    return Layout(f">{_BLOCK.size}s{size}s{_END_HEAD.size}sqq").pack


def _gathered(parts: list[Buffer]) -> list[Buffer]:
    """Joins runs of small parts; the bytes stay the same."""
    out: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _LARGE_BYTES:
            small.append(part)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(part)
    if small:
        out.append(b"".join(small))
    return out
