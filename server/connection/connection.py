"""One connection of a segment store on its socket: bytes in, its session run, bytes out.

All connections of a hub share one receive buffer. Usually the requests of a read are all executed before the next read,
and the replies are sent in one write. A connection executes at most one step (`executing`) in a loop iteration; the
rest continues in the next ones. A connection whose peer does not read its replies is not read from until the peer has
caught up. Meanwhile at most the bytes of one read are held, in order. Whatever was read is executed, even if the peer
has closed the connection since; then the replies are dropped as they are made.

With a durable store, replies are held until every operation executed before them is durable (`held`), and a peer that
sends more than the disk can take is not read for a while. `states` has the life of a connection.

Invariants: memory held for a peer is bounded by `LimitSettings`, whatever it sends or does not read, and reported to
the hub; a peer's mistake ends its own connection only; a connection asked to close is closed within `linger_s`.

Source: `PravegaConnectionListener`, `ServerConnectionInboundHandler`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial as bound
from typing import TYPE_CHECKING, Any, cast

from segstore.server.connection.deadlines import Missed, Waits
from segstore.server.connection.executing import Execution
from segstore.server.connection.receiving import LONG_BYTES
from segstore.server.connection.sending import SMALL_BYTES, HeldReplies, Output
from segstore.server.connection.states import ConnectionEvent, ConnectionState, SessionEnding, after
from segstore.server.faults import Lane, Send
from segstore.server.net import end_by_reset
from segstore.server.recording import RecordedConnection
from segstore.wire import WireError
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from segstore.server.connection.executing import LaneHost
    from segstore.server.connection.hub import ConnectionHub
    from segstore.server.connection.receiving import Received
    from segstore.server.connection.session import Session
    from segstore.server.faults import Effect
    from segstore.wire import Buffer

log = logging.getLogger(__name__)

_NOT_YET = SessionEnding.NOT_YET
_DROPPED = SessionEnding.DROPPED
_OF_BYTES = (Missed.FIRST_FRAME, Missed.FRAME, Missed.BLOCK)


class Connection(asyncio.BufferedProtocol):
    """The connection of a peer: its transport, decoders and session.

    Attributes:
        admin: whether it came in on the admin port.
        bytes_in, bytes_out: number of bytes read and written.
        received, session: requests that are not executed yet, and the peer's state, from `connection_made` on.
        transport: None before the connection is made and after it is cut or lost.
        waits: the pending waits, with their start times.
        held_bytes: memory held for the peer, as counted by the hub.
        number: its number, over all stores that share a recorder or fault rules; None without either.
    """

    received: Received
    session: Session
    _execution: Execution
    _lane: LaneHost | None
    _lost_by: Exception | None
    _output: Output

    def __init__(self, hub: ConnectionHub, *, admin: bool = False) -> None:
        self._hub = hub
        self._buffers = hub.buffers
        self._counters = hub.service.counters
        self._held = None if hub.gate is None else HeldReplies(hub.gate, hub.limits.connection_outstanding_bytes)
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.NEW
        self._scheduled = False  # `_catch_up`, for the next loop iteration
        self.admin = admin
        self.bytes_in = self.bytes_out = 0
        self.waits = Waits(self._loop.time())
        self.transport: asyncio.Transport | None = None
        self._recorded: RecordedConnection | None = None
        self.number: int | None = None
        self._problem = ""
        self.held_bytes = 0

    def _take(self, event: ConnectionEvent) -> None:
        self._state = after(self._state, event)

    # --- transport --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        hub = self._hub
        self._take(ConnectionEvent.MADE)
        self.transport = transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases
        peer = _address(transport.get_extra_info("peername"))
        faults, lane, recorded = hub.faults, None, None
        if hub.recorder is not None:
            store, port = _address(transport.get_extra_info("sockname")), {"port": "admin"} if self.admin else {}
            recorded = self._recorded = RecordedConnection(hub.recorder, peer=peer, store=store, **port)
            self.number = recorded.number
        if faults is not None:
            lane = Lane(
                faults, store=hub.number, encode=hub.service.encode, on_effects=self._lane_continues, recorded=recorded
            )
            self.number = lane.number
        self._execution = execution = Execution(
            hub,
            lane,
            peer,
            self.waits,
            self._loop.time,
            admin=self.admin,
            on_reply=bound(hub.reply_queued, self),
            reset=self._reset,
        )
        self.session, self.received, self._lane = execution.session, execution.received, execution.lane
        self._output = Output(transport, self._held, recorded, hub.limits.connection_outstanding_bytes)
        self._counters.connections += 1
        why = "" if hub.gate is None else hub.gate.failure
        why = why or ("the store shuts down" if hub.closing else hub.admit(self))
        if why:
            self._counters.connections_refused += 1
            log.log(logging.INFO if hub.closing else logging.WARNING, "connection from %s refused: %s", peer, why)
            self.session.end(why)
            self.abort()
            return
        self._counters.connections_open += 1
        log.debug("connection from %s to store %d opened", peer, hub.number)
        hub.watch(self)
        if faults is not None and lane is not None:
            faults.toxics.connect(self, store=hub.number, number=lane.number)

    def connection_lost(self, exc: Exception | None) -> None:
        hub = self._hub
        self._take(ConnectionEvent.LOST)
        self.transport, self._lost_by = None, exc
        if self._lane is not None:
            if hub.faults is not None:
                hub.faults.toxics.disconnect(self)
            if self._lane.drop_waiting():
                self.received.drop()
        if self._held is not None:
            self._held.drop(self)
        if self in hub.connections:
            self._counters.connections_open -= 1
        self.session.full = False
        self._drop_out()
        self.look_up()
        self._wind_up()

    def _wind_up(self) -> None:
        """The connection is lost: executes what was received, step by step, and drops the session."""
        hub, session = self._hub, self.session
        if self._can_go_on():
            self._serve()
            self.look_up()
            if self._can_go_on():
                self.catch_up_soon()
                return
        hub.run(self, session.close)
        if self._recorded is not None:
            why = session.why or self._problem
            self._recorded.closed(Direction(bool(why)), why or ("" if self._lost_by is None else str(self._lost_by)))
        self._drop()
        self._lane = self._execution.lane = None  # it refers to this: without a cycle both are freed at once
        self._take(ConnectionEvent.FINISHED)
        log.debug("connection from %s ended: %d bytes in, %d bytes out", session.peer, self.bytes_in, self.bytes_out)
        hub.closed(self)

    @property
    def is_full(self) -> bool:
        """Whether the peer has too many replies to read."""
        return self.session.full

    def rewire(self, transport: asyncio.Transport) -> None:
        """Uses another transport from now on."""
        self.transport = transport
        self._output.rewire(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        buffers = self._buffers
        if buffers.held_bytes:
            buffers.advance()
        return buffers.view

    def buffer_updated(self, nbytes: int) -> None:
        session, received, held, lane = self.session, self.received, self._held, self._lane
        self._counters.bytes_in += nbytes
        self.bytes_in += nbytes
        recorded = self._recorded
        if recorded is not None and recorded.received(self._buffers.view[:nbytes], lasting=nbytes >= LONG_BYTES):
            self._buffers.held_bytes = nbytes
        if session.ending is not _NOT_YET:
            return
        if not received.read(nbytes):
            return  # the peer wrote more before reading was paused
        self._serve()
        left = not received.finish()
        if left and session.ending is _NOT_YET:
            received.hold()
            self._pause_reading()
            if not self.is_paused():
                self.catch_up_soon()
        elif left:
            received.release()
        # What was written is looked up as it is written.
        if (
            left
            or received.has_part
            or session.reads
            or (lane is not None and (self.held_bytes or lane.held_bytes))
            or (held is not None and held.bytes > SMALL_BYTES)
        ):
            self.look_up()
        if held is not None:
            held.gate.catch_up()

    def eof_received(self) -> bool:
        """The peer has sent EOF: its earlier requests are executed and answered first, but for reads that wait."""
        if not self.session.ended and self._has_requests():
            self._take(ConnectionEvent.PEER_ENDED)
            self.waits.received(self._loop.time(), frames=False, partial=False)  # what is incomplete stays so
        else:
            self.end("", SessionEnding.FLUSHED)
        if self._state not in (ConnectionState.HALF_CLOSED, ConnectionState.DRAINING):
            return False
        transport = self.transport  # under TLS nothing can be sent any more
        return transport is not None and transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        if self.transport is None:
            return
        self._output.filled()
        self.session.full = True
        self._pause_reading()
        self.waits.paused(self._loop.time())
        self._hub.watch(self)

    def resume_writing(self) -> None:
        self.session.full = False
        self.waits.resumed(self._loop.time())
        self.catch_up_soon()

    def _pause_reading(self) -> bool:
        """Returns False if the connection closes."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        transport.pause_reading()
        return True

    # --- durable stores ---------------------------------------------------------------------------------------------

    def release(self, out: list[Buffer]) -> None:
        """Writes held replies."""
        held, transport = self._held, self.transport
        if held is None or transport is None or not held.bytes:
            return
        size = sum(map(len, out))
        held.bytes -= size
        if not transport.is_closing():
            self._output.write(out, large=size > SMALL_BYTES)
        if held.is_stalled and not held.is_overfull:
            self.go_on()
        if self.held_bytes:
            self.look_up()
        if not held.bytes and self.session.ending is not _NOT_YET:
            self.flush()

    def failed(self, why: str) -> None:
        """Drops the held replies and ends the connection."""
        if self._held is not None:
            self._held.drop(self)
        self.end(why)

    def go_on(self) -> None:
        """Continues: there is room for the peer's requests."""
        if self._held is not None:
            self._held.go_on(self)
        self.waits.restarted(self._loop.time())
        self.catch_up_soon()

    # --- running ----------------------------------------------------------------------------------------------------

    def _has_requests(self) -> bool:
        """Whether requests are to be executed, now or when a rule lets them."""
        return self.received.is_pending() or (self._lane is not None and self._lane.lane.requests_bytes > 0)

    def _can_go_on(self) -> bool:
        """Whether pending requests can be executed now."""
        return not self.session.ended and self.received.is_pending() and not self.is_paused()

    def is_paused(self) -> bool:
        """Whether no request is to be executed now: the peer or the disk is behind, or the lane holds requests."""
        held, lane = self._held, self._lane
        return self.session.full or (held is not None and held.is_stalled) or (lane is not None and lane.is_paused)

    def _serve(self) -> None:
        """Executes one step of what was read, unless the peer or the disk is behind; writes its replies, and ends the
        connection if its session has ended."""
        hub, execution, held, received = self._hub, self._execution, self._held, self.received
        if held is not None and held.is_overfull and not held.is_stalled and self._pause_reading():
            held.stall(self)
        if not self.session.full and (held is None or not held.is_stalled):
            hub.run(self, execution.run)
        execution.settle()
        if received.has_part:
            hub.watch(self)
        if self._lane is not None and self._lane.is_paused:
            self._pause_reading()
        self.flush()
        if received.problem is not None and not received.backlog:
            self._refuse(received.problem)

    def catch_up_soon(self) -> None:
        """Executes pending requests, if possible, and resumes reading, in a later loop iteration."""
        # Deferred, because a transport may report room while it is being written to.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Answers woken reads and executes one step of pending requests; resumes reading once none is left."""
        self._scheduled = False
        session, transport, received = self.session, self.transport, self.received
        if transport is None:
            if self._state is ConnectionState.LOST:
                self._wind_up()
            return
        if transport.is_closing() or session.ended or self.is_paused():
            return
        if session.woken:
            self._hub.run(self, bound(self._hub.service.answer_later, session))
            self.flush()
        if self._can_go_on():
            self._serve()
            self.waits.restarted(self._loop.time())
        if transport.is_closing():
            return
        left = not received.finish()
        if not left and self._state is ConnectionState.HALF_CLOSED:
            if not self._has_requests():
                self.end("", SessionEnding.FLUSHED)
            return
        self.look_up()
        if self.is_paused():
            return
        if left:
            self.catch_up_soon()
        else:
            transport.resume_reading()

    def _lane_continues(self, effects: list[Effect]) -> None:
        """The wait of a request or a reply in the lane has ended."""
        self._hub.run(self, bound(self._execution.apply, effects))
        self.flush()
        if not all(type(effect) is Send for effect in effects):
            self.waits.restarted(self._loop.time())
        self.catch_up_soon()

    def _reset(self, why: str) -> None:
        """Writes the replies that have passed the lane, and resets the connection."""
        if self.transport is None:
            self.session.end(why)
            return
        self.write()
        end_by_reset(self.transport)
        self.cut(why)

    # --- out --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes queued replies, and ends the connection if its session has ended."""
        session, transport = self.session, self.transport
        if transport is None or transport.is_closing():
            self._drop_out()
            return
        if session.ending is _DROPPED:
            self._drop_out()
        else:
            self.write()
            if self.transport is None:
                return  # a fault rule has reset the connection
        if session.ending is not _NOT_YET:
            self._close(session, transport)
            return
        if session.woken and not session.full:
            self.catch_up_soon()
        if self.held_bytes or transport.get_write_buffer_size():
            self.look_up()

    def write(self) -> None:
        """Writes queued replies, or holds them until they are durable, or drops them if the peer is gone."""
        session, lane = self.session, self._lane
        if self.transport is None:
            self._drop_out()
            return
        if lane is None:
            if not session.out:
                return
            size, large, out = session.out_bytes, session.out_has_payload, session.take_out()
        else:
            lane.take_replies(session)
            size, large, out = lane.out_bytes, True, lane.take_out()
            if not out:
                return
        held = self._held
        self.bytes_out += size
        self._counters.bytes_out += size
        if held is None or not held.hold(self, out, size):
            self._output.write(out, large=large)

    def _drop_out(self) -> None:
        """Drops queued replies."""
        self.session.take_out()
        if self._lane is not None:
            self._lane.drop_out()

    def _close(self, session: Session, transport: asyncio.Transport) -> None:
        """Ends the connection after its session: executes no more requests, and closes when no reply is held. Written
        replies are still sent, if the peer reads them in time.
        """
        lane, held = self._lane, self._held
        if self._state is ConnectionState.CLOSING:
            return
        self.received.drop()
        is_drained = lane is None or lane.lane.is_drained or self._hub.closing
        if session.ending is SessionEnding.FLUSHED and not is_drained:
            self._take(ConnectionEvent.ENDED)
            self.waits.received(self._loop.time(), frames=False, partial=False)  # what was incomplete is dropped
            return  # each reply that may leave comes here again
        if held is not None and held.bytes:
            self._take(ConnectionEvent.ENDED)
            self._pause_reading()
        else:
            self._take(ConnectionEvent.FLUSHED)
            if session.why:
                level = logging.INFO if self._hub.closing else logging.WARNING
                log.log(level, "connection from %s closed: %s", session.peer, session.why, extra={"peer": session.peer})
            transport.close()
        self.waits.closing(self._loop.time())
        self._hub.watch(self)
        self.look_up()

    # --- what the hub asks ------------------------------------------------------------------------------------------

    def look_up(self) -> None:
        """Reports the memory held for this peer to the hub."""
        held = self._execution.held_bytes
        if self.transport is not None:
            held += self._output.held_bytes
        if held != self.held_bytes:
            self._tell(held)
            if held:
                self._hub.watch(self)  # it looks again, so what the peer reads meanwhile does not count for long

    def _tell(self, held: int) -> None:
        difference, self.held_bytes = held - self.held_bytes, held
        self._hub.account(difference)

    def missed(self, missed: Missed, now_s: float) -> None:
        """A deadline has passed: the connection ends, unless the peer was only slow to read."""
        if self.transport is None:
            return
        if missed in _OF_BYTES and (self.is_paused() or self.received.is_pending()):
            return  # the rest of it may be there, but this side does not read
        if missed is Missed.READING and self._output.has_progressed():
            self.waits.progressed(now_s)
            return
        self._counters.deadlines_missed += 1
        why = missed.sentence(self._hub.limits)
        if missed is Missed.READING or missed is Missed.CLOSING:
            self.cut(why)
        else:
            self.end(why)

    def end(self, why: str, ending: SessionEnding = SessionEnding.DROPPED) -> None:
        """Ends the connection from outside."""
        self.session.end(why, ending)
        self.flush()

    def cut(self, why: str) -> None:
        """Ends the connection at once: what was written and not read is lost."""
        session = self.session
        session.end(why)
        log.warning("connection from %s cut: %s", session.peer, why, extra={"peer": session.peer})
        self.abort()

    def abort(self) -> None:
        """Cuts the connection without a word."""
        self.session.end("")
        transport, self.transport = self.transport, None
        if transport is not None:
            self._problem = self._problem or "cut by the store"
            self._take(ConnectionEvent.CUT)
            transport.abort()
        self._drop()

    def _drop(self) -> None:
        """Gives up all that is held for the peer: it gets no more replies, and nothing more is executed for it."""
        self.received.drop()
        self.session.take_out()
        if self._lane is not None:
            self._lane.drop_waiting()
        if self._held is not None:
            self._held.drop(self)
        self._tell(0)

    def _refuse(self, problem: WireError) -> None:
        """Ends the connection of a peer that broke the protocol."""
        if not self.session.ended:
            peer, self._problem = self.session.peer, _broken_protocol(problem)
            self.session.end("")
            log.warning("connection from %s closed: %s", peer, self._problem, extra={"peer": peer, **problem.facts()})
        self.flush()


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


def _broken_protocol(problem: WireError) -> str:
    """Returns why a connection ends whose peer broke the protocol."""
    code = problem.code
    first = b"" if code is None else code.to_bytes(4, "big", signed=True)
    text = f"it broke the protocol: {problem}"
    if first == b"PRI ":
        return f"{text}; it seems to speak HTTP/2, as to a controller, which has a port of its own"
    return f"{text}; it seems to speak HTTP" if first in (b"GET ", b"POST", b"PUT ") else text
