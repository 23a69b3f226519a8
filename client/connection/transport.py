"""One connection to a segment store: framing, Hello exchange, keep-alives, and dispatch of replies to each `Flow`.

A flow is one user of the connection. Reads go into a buffer that the connections of a pool share, or, if a frame longer
than this buffer is incomplete, into the memory of that frame. Replies are delivered to their flow before the next read.
Output is buffered in the connection's `Outbox`.

Invariants: a reply reaches only the flow that it is addressed to; a reply for an unknown flow is dropped and counted,
and the connection stays open; `on_lost` is called at most once for a flow, and no callback follows it or `close`; a
closed flow refuses to send. Closing is idempotent and cuts the socket after its deadline.

Follows `FlowHandler`, `Flow`, `FlowClientConnection` and `ClientConnectionImpl` (Pravega's client). Deliberate
differences: a peer that sends invalid frames or requests is disconnected; a refusal of a read that carries the read's
offset in place of its request id (seed 36.30) reaches that read's flow.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final, Protocol, cast
from uuid import UUID

from segstore.client.config import ClientSettings
from segstore.client.connection.outbox import Appender, EventCounters, Outbox
from segstore.client.errors import (
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    IncompatibleVersion,
    ProtocolViolation,
)
from segstore.wire import AuthTokenCheckFailed, Command, DataAppended, FrameDecoder, Hello, KeepAlive, WireError
from segstore.wire.codec import FrameMemory
from segstore.wire.codec.generate import FrameRows
from segstore.wire.protocol import HELLO, compatible
from segstore.wire.request_id import FLOWS_DISABLED, next_sequence, pack

log = logging.getLogger(__name__)

Ack = tuple[bytes, int, int, int, int]
"""The fields of a DataAppended in wire order: the writer's id as bytes, the event number, the previously acknowledged
event number, the request id, the segment's length."""
Acknowledged = Callable[[bytes, int, int, int, int], None]
"""Receives the fields of an `Ack`."""

RECEIVE_BYTES: Final = 64 * 1024
"""Size of the buffer for the reads of all connections of a pool."""

_REMEMBERED_READS: Final = 1000
_LINGER_S: Final = 2.0
"""Time for a closed connection to flush its output."""


class ConnectionState(Enum):
    """CONNECTING until the peer's Hello has come, then READY, then CLOSED."""

    CONNECTING = auto()
    READY = auto()
    CLOSED = auto()


_READY: Final = ConnectionState.READY


class Connection(asyncio.BufferedProtocol):
    """One connection.

    Attributes:
        name: "host:port" of the peer.
        state: see `ConnectionState`.
        flows: its flows by number.
        outbox: its queued output.
        ready: resolves with the peer's Hello, or fails with the error that prevents it.
        gone: resolves when the socket is closed.
        closed_here: whether this side closed it, and not because of a fault of the peer.
    """

    def __init__(
        self,
        name: str,
        settings: ClientSettings,
        buffer: bytearray,
        memory: FrameMemory,
        counters: EventCounters,
        timers: asyncio.AbstractEventLoop,
        on_end: Callable[[Connection], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.state = ConnectionState.CONNECTING
        self.flows: dict[int, Flow] = {}
        self.outbox: Final = Outbox(settings, counters, timers)
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.closed_here = False
        self._loop = loop
        self._settings = settings
        self._buffer = memoryview(buffer)
        self._counters = counters
        self._timers = timers
        self._on_end = on_end
        self._hello: Hello | None = None
        self._decoder = FrameDecoder(max_frame_bytes=settings.max_frame_bytes, acks_in_rows=True, memory=memory)
        self._transport: asyncio.Transport | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._recent = False
        self._abandoned_reads: deque[int] = deque(maxlen=_REMEMBERED_READS)

    @property
    def hello(self) -> Hello:
        """The peer's Hello. Only a connection that is or was ready has it."""
        assert self._hello is not None
        return self._hello

    @property
    def usable(self) -> bool:
        return self.state is not ConnectionState.CLOSED

    @property
    def opened(self) -> bool:
        """Whether it has a socket."""
        return self._transport is not None

    # --- transport ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases
        if not self.usable:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        self.outbox.opened(self._transport)
        self.outbox.send(HELLO)
        self.outbox.write()

    def connection_lost(self, exc: Exception | None) -> None:
        error: ClientError
        if self.state is ConnectionState.CONNECTING:
            error = ConnectFailed(f"{self.name} closed the connection before its Hello", endpoint=self.name)
        else:
            error = ConnectionLost(f"the connection to {self.name} was lost", endpoint=self.name)
        self._transport = None
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self.end(error.caused_by(exc))
        if not self.gone.done():
            self.gone.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._decoder.room
        return self._buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        self._recent = True
        self._counters.bytes_in += nbytes
        problem: WireError | None = None
        try:
            room = self._decoder.room
            replies = self._decoder.feed(self._buffer if room is None else room, nbytes)
        except WireError as error:
            replies, problem = list(error.decoded), error
        self._dispatch(replies)
        if problem is not None and self.usable:
            violation = ProtocolViolation(f"{self.name} sends what is no reply: {problem}", endpoint=self.name)
            self.end(violation.caused_by(problem))

    def pause_writing(self) -> None:
        self.outbox.pause()

    def resume_writing(self) -> None:
        self.outbox.resume()

    # --- in -------------------------------------------------------------------------------------------------------

    def _dispatch(self, replies: Iterable[Any]) -> None:
        flows = self.flows
        owner = flows.get(FLOWS_DISABLED)
        for reply in replies:
            kind: type[Any] = type(reply)
            if kind is FrameRows and self.state is _READY:  # the most frequent reply
                acknowledge(reply, flows, self._counters)
                continue
            if kind is not DataAppended or self.state is not _READY:
                if not self.usable:
                    return
                if kind is Hello:
                    self._take_hello(cast("Hello", reply))
                    owner = flows.get(FLOWS_DISABLED)
                    continue
                if kind is KeepAlive:
                    continue
                if kind is FrameRows:
                    kind = DataAppended
                if not (kind.is_reply or kind.is_failure) or self.state is not _READY:
                    self.end(ProtocolViolation(f"{self.name} sends {kind.type_name}", endpoint=self.name))
                    return
            flow = flows.get(reply.request_id >> 32) if owner is None else owner
            if kind is AuthTokenCheckFailed and owner is None:
                flow = self._refused(reply.request_id, flow)
            if flow is None:
                self._counters.dropped_replies += 1
                continue
            try:
                flow.on_reply(reply)
            except Exception as error:  # noqa: BLE001 — any failure ends this flow and no other
                flow.fail(error)

    def _refused(self, request_id: int, flow: Flow | None) -> Flow | None:
        """The flow whose token was refused. A read's refusal may carry its offset as request id."""
        for reader in self.flows.values():
            if reader.reading_at == request_id:
                return reader
        if request_id in self._abandoned_reads:
            self._abandoned_reads.remove(request_id)
            return None
        return flow

    def _take_hello(self, hello: Hello) -> None:
        if not compatible(hello, HELLO):
            self.end(
                IncompatibleVersion(
                    f"{self.name} speaks wire versions {hello.low_version} to {hello.high_version}, "
                    f"this client {HELLO.low_version} to {HELLO.high_version}",
                    endpoint=self.name,
                    theirs=(hello.low_version, hello.high_version),
                    ours=(HELLO.low_version, HELLO.high_version),
                )
            )
            return
        self._hello = hello
        if self.state is ConnectionState.CONNECTING:
            self.state = ConnectionState.READY
            self._keep_alive_timer = self._timers.call_later(self._settings.keep_alive_first_s, self._keep_alive)
            if not self.ready.done():
                self.ready.set_result(None)

    # --- flows ------------------------------------------------------------------------------------------------------

    def add_flow(self, flow: Flow) -> None:
        """Adds a flow. Raises ValueError if its number is in use, ConnectionLost if the connection has ended."""
        if not self.usable:
            raise ConnectionLost(f"the connection to {self.name} is gone", endpoint=self.name)
        if flow.flow_id in self.flows:
            raise ValueError(f"flow {flow.flow_id} exists on this connection to {self.name}")
        if FLOWS_DISABLED in self.flows or (self.flows and flow.flow_id == FLOWS_DISABLED):
            raise ValueError(f"a connection without flows, to {self.name}, has one user")
        self.flows[flow.flow_id] = flow

    def forget(self, flow: Flow) -> None:
        """Removes a flow that its user has closed."""
        self.flows.pop(flow.flow_id, None)
        self.outbox.forget(flow.flow_id)
        if flow.reading_at is not None:
            self._abandoned_reads.append(flow.reading_at)
        if flow.flow_id == FLOWS_DISABLED:
            self.close(Closed(f"the connection to {self.name} was closed", endpoint=self.name))

    def _keep_alive(self) -> None:
        """Sends a KeepAlive every `keep_alive_s`, unless something was received since."""
        self._keep_alive_timer = self._timers.call_later(self._settings.keep_alive_s, self._keep_alive)
        if self._recent:
            self._recent = False
            return
        if self._transport is not None and self._transport.get_write_buffer_size() > 0:
            self.end(ConnectionLost(f"{self.name} does not read what is written", endpoint=self.name))
            return
        self._counters.keep_alives += 1
        self.outbox.send(KeepAlive())

    # --- end ------------------------------------------------------------------------------------------------------

    def end(self, error: ClientError) -> None:
        """Aborts the connection and notifies every flow; later calls have no effect."""
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    def close(self, error: ClientError) -> None:
        """As `end`, but flushes queued output first; `gone` resolves afterwards, and `cut` ends the wait."""
        if self.usable:
            self.closed_here = True
            self.outbox.drain()
        self._end(error)
        if self._transport is not None and self._linger_timer is None:
            self._linger_timer = self._loop.call_later(_LINGER_S, self.cut)
            self._transport.close()

    def cut(self) -> None:
        """Aborts the socket and drops unwritten output."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: ClientError) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        self.state = ConnectionState.CLOSED
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None
        self.outbox.close()
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # marks it as retrieved, as there may be no waiter
        flows = tuple(self.flows.values())
        self.flows.clear()
        for flow in flows:
            flow.end()
            flow.report(error)
        self._on_end(self)


class FlowHandler(Protocol):
    """Callbacks of a flow's user. They run inside the event loop's read and must not block.

    A handler that also has `on_ack`, an `Acknowledged`, receives acknowledgements of appends through it.
    """

    def on_reply(self, reply: Command) -> None:
        """Receives a reply; payloads of up to RECEIVE_BYTES in it are valid until this returns, longer ones as long as
        they are held."""

    def on_lost(self, error: ClientError) -> None:
        """Called when the connection was lost or the flow failed; no callback follows."""


class Flow:
    """One user's side of a connection. Made by the pool.

    Attributes:
        flow_id: the flow number; 0 if flows are disabled and the connection is not shared.
        asked: whether a turn has been requested.
        bytes_in_flight: appended bytes not yet acknowledged.
        closed: whether it was closed or lost.
        appender: the writer whose appends the flow carries; set before its first turn is requested.
        endpoint: "host:port" of the peer.
        connection: the underlying connection.
        handler: receives the replies.
        reading_at: offset of its pending read, or None. A refusal may carry this in place of a request
            id (seed 36.30).
        on_reply: the handler's `on_reply`.
        on_ack: the handler's `on_ack`, or else a function that passes a DataAppended to `on_reply`.
    """

    def __init__(
        self, flow_id: int, connection: Connection, handler: FlowHandler, on_close: Callable[[Flow], None]
    ) -> None:
        self.flow_id: Final = flow_id
        self.endpoint: Final = connection.name
        self.asked = self.closed = False
        self.bytes_in_flight = 0
        self.appender: Appender | None = None
        self.connection: Final = connection
        self._outbox: Final = connection.outbox
        self.handler: Final = handler
        self.on_reply: Final = handler.on_reply
        self.on_ack: Final[Acknowledged] = getattr(handler, "on_ack", None) or _as_reply(handler.on_reply)
        self.reading_at: int | None = None
        self._sequence: int | None = None
        self._on_close = on_close

    @property
    def hello(self) -> Hello:
        """The peer's Hello, received before the flow was created."""
        return self.connection.hello

    @property
    def owns_connection(self) -> bool:
        """Whether flows are disabled, so that all replies on the connection belong to this flow."""
        return self.flow_id == FLOWS_DISABLED

    def next_request_id(self) -> int:
        """Returns the request id made of the flow's number and its next sequence number, from 0."""
        self._sequence = 0 if self._sequence is None else next_sequence(self._sequence)
        return pack(self.flow_id, self._sequence)

    def send(self, command: Command) -> None:
        """Sends any command except an append. Raises Closed, and WireError if it cannot be encoded."""
        self._check()
        self._outbox.send(command)

    def ask_turn(self) -> None:
        """Schedules one turn of the appender, in this loop iteration or once the peer reads again. Raises Closed."""
        if self.closed:
            self._check()
        if not self.asked:
            self.asked = True
            outbox = self._outbox
            outbox.turns.append(self)
            if not outbox.turn_due:
                outbox.schedule()

    def turn_now(self) -> None:
        """Like `ask_turn`, but the turn comes immediately if the connection is idle. Raises Closed."""
        if self.closed or self.asked:
            self.ask_turn()
        else:
            self.asked = True
            self._outbox.turn_now(self)

    def acknowledged(self, size: int) -> None:
        """Subtracts `size` from the bytes in flight."""
        if not self.closed:
            self.bytes_in_flight -= size
            self._outbox.bytes_in_flight -= size

    def close(self) -> None:
        """Releases the flow number; later replies to it are dropped. Without flows, closes the connection."""
        if not self.closed:
            self.end()
            self.connection.forget(self)

    def end(self) -> None:
        """Marks the flow as closed and notifies the pool. Called by the connection."""
        if not self.closed:
            self.closed = True
            self._outbox.bytes_in_flight -= self.bytes_in_flight
            self.bytes_in_flight = 0
            self._on_close(self)

    def fail(self, cause: Exception) -> None:
        """Ends the flow because a callback of its user raised."""
        self.connection._counters.failed_flows += 1
        error = ProtocolViolation(f"a flow to {self.endpoint} failed: {cause}", endpoint=self.endpoint)
        self.close()
        self.report(error.caused_by(cause))

    def report(self, error: ClientError) -> None:
        """Notifies the user of the flow's end."""
        try:
            self.handler.on_lost(error)
        except Exception:
            text = "the user of flow %d to %s failed when notified that it is lost"
            log.exception(text, self.flow_id, self.endpoint, extra={"endpoint": str(self.endpoint)})

    def _check(self) -> None:
        if self.closed:
            raise Closed(f"flow {self.flow_id} to {self.endpoint} is closed", endpoint=self.endpoint)


def _as_reply(on_reply: Callable[[Command], None]) -> Acknowledged:
    """Adapts `on_reply` to `on_ack`. Not a bound method of the flow, which would make a reference cycle."""

    def on_ack(writer: bytes, number: int, previous: int, request_id: int, length: int) -> None:
        on_reply(DataAppended(request_id, UUID(bytes=writer), number, previous, length))

    return on_ack


def acknowledge(acks: FrameRows, flows: Mapping[int, Flow], counters: EventCounters) -> None:
    """Calls `on_ack` of the flow of each acknowledgement. An exception ends its flow and no other.

    acks: frames of DataAppended, as a decoder returns them; the caller keeps the bytes unchanged until this returns.
    """
    owner = flows.get(FLOWS_DISABLED)
    for ack in acks.fields:
        flow = flows.get(ack[3] >> 32) if owner is None else owner
        if flow is None or flow.closed:
            counters.dropped_replies += 1
            continue
        on_ack = flow.on_ack
        try:
            on_ack(*ack)
        except Exception as error:  # noqa: BLE001 — any failure ends this flow and no other
            flow.fail(error)
