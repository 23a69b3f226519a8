"""Segment writers that are set up on flows of one connection, which has no socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from segstore.client.connection import Appends, BadAck, Flow, InFlight
from segstore.client.connection.outbox import EventCounters, Outbox, run_turns
from segstore.client.connection.polling import AckPolling
from segstore.client.segment import SegmentWriter
from segstore.client.segment.states import WriterState
from segstore.wire import DataAppended, encode
from tests.wire.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.client.errors import ClientError

__all__ = ["SIZES_OF_TURNS", "TIMER", "Writers", "with_acks", "with_turns"]

TIMER: Any = SimpleNamespace(cancel=int)


SIZES_OF_TURNS = (0, 1, 2, 3, 4096, 5)
"""Of the events that `with_turns` appends for each writer."""


class _Writer(SegmentWriter):
    """A writer that notes which acknowledgements it refuses, and does not connect again."""

    __slots__ = ("refused",)

    def _refused(self, cause: BadAck) -> None:
        self.refused(str(cause))

    def on_lost(self, error: ClientError) -> None:
        self.refused(str(error))
        self._drop_flow()
        self.state = WriterState.CONNECTING


class Writers:
    """Writers on flows of one connection.

    Attributes: notes, what callbacks were called with and what was reported, in order.
    """

    def __init__(self, count: int, *, most_bytes: int = 100, batch_events: int = 9, batch_bytes: int = 60) -> None:
        self.counters = EventCounters()
        self.notes: list[Any] = []
        self.outbox = self._outbox(most_bytes, batch_events, batch_bytes)
        self.flows: dict[int, Flow] = {}
        self.writers = [self._writer(number, bool(number % 2)) for number in range(1, count + 1)]

    def _outbox(self, most_bytes: int, batch_events: int, batch_bytes: int) -> Outbox:
        outbox = Outbox.__new__(Outbox)
        outbox.bytes_in_flight, outbox.closed, outbox.now_s = 0, False, 0.5
        outbox.most_bytes = outbox.left_bytes = most_bytes
        outbox.batch_events, outbox.batch_bytes = batch_events, batch_bytes
        outbox._out, outbox.turns, outbox.turn_due, outbox._writable = [], [], False, None
        outbox._blocks, outbox._largest = False, 10_000
        outbox._loop = SimpleNamespace(  # type: ignore[assignment]
            call_soon=lambda _: self.notes.append("scheduled"), time=lambda: 0.5
        )
        outbox._transport, outbox.polling = None, AckPolling(0, self.notes.append)
        outbox._encoder = SimpleNamespace(remove=lambda *_: [])  # type: ignore[assignment]
        return outbox

    def _writer(self, number: int, framed: bool) -> SegmentWriter:
        writer = _Writer.__new__(_Writer)
        writer.refused = self.notes.append
        writer.segment, writer._writer_bytes = f"s/{number}", bytes([number]) * 16  # type: ignore[misc]
        writer._events = InFlight(8 if framed else 0, 200)
        writer._error = writer._carry = writer._carrying = writer._sizing = writer._waits = None
        writer._largest, writer._trying, writer.state, writer._frame_events = 5_000, False, WriterState.OPEN, framed
        settings = SimpleNamespace(request_timeout_ms=1000)
        writer._pool = SimpleNamespace(settings=settings)  # type: ignore[assignment]
        writer._loop = SimpleNamespace(  # type: ignore[assignment]
            call_at=lambda *_: TIMER, call_exception_handler=lambda what: self.notes.append(str(what["exception"]))
        )
        connection: Any = SimpleNamespace(name="a:1", outbox=self.outbox, _counters=self.counters, forget=self._forget)
        flow = writer._flow = Flow(number, connection, writer, lambda _: None)
        flow.turn = writer._take_turn
        writer_id: Any = SimpleNamespace(bytes=writer._writer_bytes)
        request_id = number << 32 | 5
        writer._appends = flow.appends = Appends(
            flow, self.outbox, writer._events, writer.segment, writer_id, request_id, framed
        )
        writer._look()
        self.flows[number] = flow
        return writer

    def _forget(self, flow: Flow) -> None:
        self.notes.append(("closed", flow.flow_id))

    def callback(self, name: int, again: Callable[[], object] | None = None) -> Callable[[Any], None]:
        """Returns what is called when an item is stored: it notes that, calls `again`, and raises if it is a 9th."""

        def done(error: Any) -> None:
            self.notes.append((name, error))
            if again is not None:
                again()
            if name % 9 == 8:
                raise ValueError(f"the callback of {name}")

        return done

    def ack(self, number: int, wrong: str = "") -> bytes:
        """The frame that acknowledges the oldest append in flight on a flow. wrong: what is wrong with it."""
        queue = self.writers[number - 1]._events
        last = 5 if queue.oldest is None else queue.oldest.last
        writer = UUID(bytes=bytes([number + (wrong == "writer")]) * 16)
        previous = 1000 if wrong == "previous" else -1
        flow = 77 if wrong == "flow" else number
        frame = encode(DataAppended(flow << 32 | 5, writer, last + (wrong == "number"), previous, 10 * last))
        return frame[:-1] if wrong == "short" else b"odd code" + frame[8:] if wrong == "odd" else frame

    def plain(self, which: int, is_plain: bool) -> None:
        """Sets whether the appends of a writer are plain."""
        appends = self.writers[which]._appends
        if appends is not None:
            appends.plain = is_plain

    def wait(self, which: int) -> None:
        """Lets something wait for a writer's acknowledgements."""
        waits: Any = SimpleNamespace(settled=lambda *given, has_room: self.notes.append((given, has_room)), some=True)
        self.writers[which]._waits = waits
        self.writers[which]._look()

    def close(self, which: int) -> None:
        """Ends a writer, as if it failed."""
        self.writers[which]._drop_flow()
        self.writers[which].take_pending()

    def run(self, run_turns: Callable[..., object]) -> None:
        """Runs the turns that were asked for."""
        turns, self.outbox.turns = self.outbox.turns, []
        self.outbox.turn_due = True
        run_turns(self.outbox, turns)
        self.outbox.turn_due = False

    def state(self) -> Any:
        """All that calls may change."""
        outbox, queues = self.outbox, [each._events for each in self.writers]
        written = b"".join(map(_shown, outbox._out))
        asked = [each.flow_id for each in outbox.turns]
        sums = outbox.bytes_in_flight, outbox.turn_due, asked, written, self.counters.dropped_replies
        flows = [(each.asked, each.bytes_in_flight, each.closed) for each in self.flows.values()]
        return sums, flows, [queue_state(each) for each in queues], [each.state for each in self.writers], self.notes


def queue_state(queue: InFlight) -> Any:
    """All that a queue has, without the callbacks of its items."""
    items = [[(_shown(each.data), each.events, each.tag) for each in some] for some in (queue.queued, *queue._later)]
    sent = [
        (each.first, each.last, each.size, each.sent_s, [(_shown(item.data), item.events) for item in each.items])
        for each in queue.sent
    ]
    numbers = [getattr(queue, name) for name in sorted(InFlight.__slots__) if type(getattr(queue, name)) is int]
    return items, sent, numbers, queue.newest is (queue._later[-1] if queue._later else queue.queued)


def _shown(data: Any) -> bytes:
    """What is compared: data of all kinds with the same bytes are equal."""
    return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else repr(data).encode()


def with_turns(made: Writers) -> tuple[Any, ...]:
    """Arguments of `run_turns`: all writers have asked for a turn."""
    for number, writer in enumerate(made.writers):
        writer._appends.timer = TIMER  # type: ignore[union-attr, assignment]
        for size in SIZES_OF_TURNS:
            writer.append(bytes(size), made.callback(10 * number + size % 10))
    return made.outbox, made.outbox.turns


def with_acks(made: Writers) -> tuple[Any, ...]:
    """Arguments of `acknowledge`: of all that the writers have sent."""
    with_turns(made)
    made.run(run_turns)
    return rows_of([made.ack(number) for number in made.flows]), made.flows, made.counters
