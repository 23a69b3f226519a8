"""The send buffer of one connection: batches commands and appends into one write per loop iteration.

Users that append ask for a turn, so what was written in one turn of the loop travels together, and all users of a
connection are held back while its peer does not read.

Invariants: what was sent first is written first; a flow that asked gets one turn, unless it was closed before; memory
for what waits to be written is bounded by `write_buffer_bytes` and what one turn adds. After `close` nothing is
written and no timer is left.

With `append_batching` "turn" an append is a block of its own and no block is ever left open, so its frames are made
here; "blocks" leaves them to `AppendBlockEncoder`, which both agree with.
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
"""A payload of so many bytes is cheaper to hand over by itself than to copy."""
_BLOCK_CODE: Final = AppendBlock.code
_END_CODE: Final = AppendBlockEnd.code
_BLOCK_FIELDS: Final = _BLOCK.size - _HEADER_BYTES
_END_FIELDS: Final = _END.size - _HEADER_BYTES


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Time and timers, as an event loop has them."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], Any], /) -> Timer: ...


class Counters(msgspec.Struct):
    """What happened since the pool was made."""

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
        bytes_in_flight: appended bytes that were not acknowledged, of all flows.
        closed: whether nothing is written any more.
        now_s: the loop's time at which the turn under way began.
        most_bytes: what one turn of a writer may add.
        batch_events, batch_bytes: the limits of one append.
        turns: the flows that asked for one, each once; who adds one sees to it that `turn_due` is set.
        turn_due: whether it is arranged that they get them, and that what was sent is written.
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
        self,
        settings: ClientSettings,
        counters: Counters,
        timers: Timers,
        fail: Callable[[Flow, Exception], None],
    ) -> None:
        """fail: ends a flow whose turn went wrong."""
        self.bytes_in_flight = 0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.now_s = self._loop.time()
        self._blocks = settings.append_batching == "blocks"
        self.most_bytes = max(settings.write_buffer_bytes, 1)
        self.batch_bytes = min(settings.max_batch_bytes, settings.max_event_bytes)  # a larger event goes its own way
        self.batch_events = 1 if self._blocks else settings.max_batch_events
        self._counters = counters
        self._timers = timers
        self._fail = fail
        self._largest = settings.max_frame_bytes - _BLOCK.size
        self._sizings: dict[int, BlockSizing] = {}
        self._encoder = AppendBlockEncoder(
            self._sizings.get if self._blocks else None,
            leftover_ms=BATCH_MS,
            max_frame_bytes=settings.max_frame_bytes,
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
        """Whether the peer has too much to read."""
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
        """A flow was closed."""
        self._sizings.pop(flow_id, None)

    def drain(self) -> None:
        """Writes all that was sent."""
        self._out += self._encoder.flush()
        self.write()

    def close(self) -> None:
        """Drops what is not written yet."""
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
        """Any command but an append."""
        parts = self._encoder.command(command)
        if len(parts) > 1:  # a payload is by itself
            self._large = True
        self._out += parts
        self.schedule()

    def turn_now(self, flow: Flow) -> None:
        """As `ask_turn`, but the flow's turn comes before this returns if nothing waits to be written and nothing is in
        flight: who waits for one append alone gains a turn of the loop, and where there is more to send it gathers."""
        if self.turn_due or self.bytes_in_flight or self._out or self._writable is not None or self.closed:
            self.turns.append(flow)
            self.schedule()
        else:
            self.turns.append(flow)
            self.turn_due = True  # nothing schedules another one meanwhile
            self._turn()

    async def writable(self) -> None:
        """Returns when the peer reads or the connection has ended. The caller has a deadline."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def schedule(self) -> None:
        """Arranges for the turns."""
        if not self.turn_due and not self.closed:
            self.turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self.turns and self._writable is None:
            turns, self.turns = self.turns, []
            self.now_s = self._loop.time()
            for flow in turns:
                flow.asked = False
                turn = flow.turn  # a method that is called where it lies is looked up more slowly
                try:
                    if turn is not None and not flow.closed:
                        turn()
                except Exception as error:  # noqa: BLE001 — whatever it is, it ends this flow and no other
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
        """Hands what was sent to the socket."""
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
    """The appends of one writer on one flow, after its SetupAppend was sent there.

    Attributes:
        outbox: of the flow's connection.
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
        """Makes what is the same in the frames of all appends of so many bytes and events: many are like the last."""
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
        """Sends an append; how many bytes it has. Raises Closed, FrameTooLarge."""
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
        """What decides the sizes of the flow's append blocks from now on."""
        self.outbox._sizings[self._flow.flow_id] = sizing

    def close(self) -> None:
        """Forgets the writer; what was held of its appends goes out."""
        outbox = self.outbox
        if not outbox.closed:
            outbox._out += outbox._encoder.remove(self._segment, self._writer_id)
            if outbox._out:
                outbox.schedule()


@cache
def _packer(size: int) -> Callable[[bytes, bytes, bytes, int, int], bytes]:
    """An append of one event of so many bytes: the block's head, the event, the end's head, number, request id."""
    return Layout(f">{_BLOCK.size}s{size}s{_END_HEAD.size}sqq").pack


def _gathered(parts: list[Buffer]) -> list[Buffer]:
    """The same bytes; small ones that follow each other are joined."""
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
