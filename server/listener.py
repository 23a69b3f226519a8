"""The sockets of a segment store: bytes in, sessions run, bytes out.

All connections of a loop share one receive buffer; what a read brings is decoded and carried out before the next read
begins, and its replies leave in one write. A connection whose peer does not read is not read from either, until the
peer has caught up: at most one read's worth of requests is kept meanwhile.

Invariants: memory held for a peer is bounded by `LimitSettings`, whatever it sends or does not read; a peer's mistake
ends its own connection only. Source: `PravegaConnectionListener`, `ConnectionTracker`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from segstore.server.session import Ending, Session
from segstore.wire import Command, FrameDecoder, WireError, decode, encode
from segstore.wire.block_decoder import Append, AppendBlockDecoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from segstore.server.service import StoreService

__all__ = ["Connection", "ConnectionHub"]

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_JOIN_BELOW_BYTES = 64 * 1024
_FLUSH_ABOVE_BYTES = 1024 * 1024
_SWEEP_S = 0.5


class ConnectionHub:
    """The connections of one listener or several, and what they share.

    Attributes:
        service: what carries out their requests.
        connections: all that are open.
        outstanding_bytes: replies that peers have not read yet and frames that have come in part.
    """

    def __init__(self, service: StoreService) -> None:
        self.service = service
        self.limits = service.settings.limits
        self.connections: set[Connection] = set()
        self.receive_buffer = bytearray(_RECEIVE_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self.outstanding_bytes = 0
        self._to_flush: dict[Connection, None] = {}
        self._watched: dict[Connection, float] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._running: Connection | None = None
        self._all_closed: asyncio.Future[None] | None = None

    # --- flushing ---------------------------------------------------------------------------------------------------

    def reply_queued(self, connection: Connection) -> None:
        """A session has a reply. What is queued outside of a read leaves when the loop comes round."""
        if connection is self._running:
            return
        if not self._to_flush and self._running is None:
            asyncio.get_running_loop().call_soon(self.flush)
        self._to_flush[connection] = None

    def enter(self, connection: Connection) -> None:
        self._running = connection

    def leave(self) -> None:
        """A read has been carried out: answer those whom it woke, and write."""
        self.service.answer_waiting()
        self._running = None
        self.flush()

    def flush(self) -> None:
        while self._to_flush:
            connection, _ = self._to_flush.popitem()
            connection.flush()

    # --- deadlines --------------------------------------------------------------------------------------------------

    def watch(self, connection: Connection, deadline_s: float) -> None:
        """Has `connection.deadline_missed` called if it is still watched at `deadline_s` of the loop's time."""
        self._watched[connection] = deadline_s
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def unwatch(self, connection: Connection) -> None:
        self._watched.pop(connection, None)

    def _sweep(self) -> None:
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for connection in [each for each, deadline in self._watched.items() if deadline <= now]:
            del self._watched[connection]
            connection.deadline_missed()
        if self._watched:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    # --- ending -----------------------------------------------------------------------------------------------------

    async def close(self, drain_s: float) -> None:
        """Ends all connections: what is queued is written, and what is not read by the peer in time is dropped."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if not self.connections:
            return
        self._all_closed = asyncio.get_running_loop().create_future()
        for connection in tuple(self.connections):
            connection.end("the store shuts down", Ending.FLUSHED)
        await asyncio.wait([self._all_closed], timeout=drain_s)
        for connection in tuple(self.connections):
            connection.abort()
        await self._all_closed

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)


class Connection(asyncio.BufferedProtocol):
    """One peer: its transport, its decoders, its session."""

    __slots__ = (
        "_accounted",
        "_backlog",
        "_blocks",
        "_decoder",
        "_first_frame",
        "_hub",
        "_paused",
        "_transport",
        "admin",
        "session",
    )

    def __init__(self, hub: ConnectionHub, *, admin: bool = False) -> None:
        self._hub = hub
        self.admin = admin
        self._decoder = FrameDecoder(max_frame_bytes=hub.limits.max_frame_bytes)
        self._blocks: AppendBlockDecoder | None = None if admin else AppendBlockDecoder()
        self._backlog: deque[Command | Append] = deque()
        self._paused = False
        self._first_frame = True
        self._accounted = 0
        self._transport: asyncio.Transport | None = None
        self.session: Session | None = None

    # --- transport --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        hub, limits = self._hub, self._hub.limits
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases
        peer = _address(transport.get_extra_info("peername"))
        self.session = Session(hub.service, peer, admin=self.admin, on_reply=lambda: hub.reply_queued(self))
        hub.service.counters.connections += 1
        if limits.max_connections is not None and len(hub.connections) >= limits.max_connections:
            hub.service.counters.connections_refused += 1
            log.warning("connection from %s refused: %d are open", peer, limits.max_connections)
            transport.abort()
            return
        hub.connections.add(self)
        hub.service.counters.connections_open += 1
        transport.set_write_buffer_limits(high=limits.connection_outstanding_bytes)
        hub.watch(self, asyncio.get_running_loop().time() + limits.first_frame_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        hub = self._hub
        hub.unwatch(self)
        self._account(0)
        self._backlog.clear()
        if self in hub.connections:
            hub.service.counters.connections_open -= 1
        if self.session is not None:
            hub.enter(self)
            self.session.close()
            hub.leave()
        self._transport = None
        hub.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._hub.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        self._hub.service.counters.bytes_in += nbytes
        problem: WireError | None = None
        commands: Sequence[Any]
        try:
            commands = self._decoder.feed(self._hub.receive_buffer, nbytes)
        except WireError as error:
            commands, problem = error.decoded, error
            self._hub.service.counters.malformed_frames += 1
        if self._blocks is not None:
            try:
                commands = self._blocks.feed_all(commands)
            except WireError as error:
                commands, problem = error.decoded, error
                self._hub.service.counters.protocol_violations += 1
        self._run(commands)
        if problem is not None:
            self.end(f"it broke the protocol: {problem}")
        elif self._decoder.buffered_bytes or self._first_frame or self._accounted:
            self._watch_frame(bool(commands))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._hub.watch(self, asyncio.get_running_loop().time() + self._hub.limits.stalled_peer_timeout_s)

    def resume_writing(self) -> None:
        self._paused = False
        self._hub.unwatch(self)
        if self._backlog:
            backlog, self._backlog = tuple(self._backlog), deque()
            self._run(backlog)
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- running ----------------------------------------------------------------------------------------------------

    def _run(self, items: Sequence[Command | Append]) -> None:
        """Carries out what a read brought. Once the peer has too much to read, keeps the others for later."""
        session, hub = self.session, self._hub
        if session is None or session.ended:
            return
        if self._backlog:
            self._keep(items)
            return
        hub.enter(self)
        try:
            for index, item in enumerate(items):
                session.receive(item)
                if session.ended:
                    break
                if session.out_bytes > _FLUSH_ABOVE_BYTES:
                    self._write()
                    if self._transport_is_full():
                        self._keep(items[index + 1 :])
                        break
        except Exception:
            hub.service.counters.internal_errors += 1
            log.exception("connection from %s: a request failed in a way that nobody foresaw", session.peer)
            session.end("a request failed in a way that nobody foresaw")
        finally:
            hub.leave()
        self.flush()

    def _transport_is_full(self) -> bool:
        return self._paused

    def _keep(self, items: Iterable[Command | Append]) -> None:
        """Keeps requests for later, with payloads of their own: the receive buffer belongs to the next read."""
        self._backlog.extend(_own(item) for item in items)

    def flush(self) -> None:
        """Writes what is queued and ends the connection if its session has ended."""
        session, transport = self.session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        if session.ending is Ending.DROPPED:
            session.take_out()
            self._log_end(session)
            transport.close()
            return
        self._write()
        if session.ending is Ending.FLUSHED:
            self._log_end(session)
            transport.close()

    def _write(self) -> None:
        session, transport = self.session, self._transport
        if session is None or transport is None or not session.out:
            return
        size = session.out_bytes
        self._hub.service.counters.bytes_out += size
        out = session.take_out()
        if len(out) == 1:
            transport.write(out[0])
        elif size <= _JOIN_BELOW_BYTES:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)

    def _log_end(self, session: Session) -> None:
        log.warning("connection from %s closed: %s", session.peer, session.why)

    # --- deadlines and shares ---------------------------------------------------------------------------------------

    def _watch_frame(self, progress: bool) -> None:
        """Times the frame that has come in part, and counts its bytes."""
        hub, buffered = self._hub, self._decoder.buffered_bytes
        if progress:
            self._first_frame = False
        if not buffered:
            if progress and not self._paused:
                hub.unwatch(self)
        elif progress or not self._accounted:
            hub.watch(self, asyncio.get_running_loop().time() + hub.limits.frame_timeout_s)
        self._account(buffered)
        limit = hub.limits.total_outstanding_bytes
        if hub.outstanding_bytes > limit and buffered > limit // max(1, len(hub.connections)):
            hub.service.counters.deadlines_missed += 1
            self.end(f"{hub.outstanding_bytes} bytes are held for all peers, {buffered} of them for this one's frame")

    def _account(self, nbytes: int) -> None:
        self._hub.outstanding_bytes += nbytes - self._accounted
        self._accounted = nbytes

    def deadline_missed(self) -> None:
        limits = self._hub.limits
        self._hub.service.counters.deadlines_missed += 1
        if self._paused:
            self.end(f"it read nothing for {limits.stalled_peer_timeout_s:g} s")
            self.abort()
        elif self._decoder.buffered_bytes and not self._first_frame:
            self.end(f"a frame was not complete after {limits.frame_timeout_s:g} s")
        else:
            self.end(f"no frame came in {limits.first_frame_timeout_s:g} s")

    def end(self, why: str, ending: Ending = Ending.DROPPED) -> None:
        if self.session is not None:
            self.session.end(why, ending)
        self.flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _own(item: Command | Append) -> Command | Append:
    """The same command with buffers of its own."""
    if isinstance(item, Append):
        return Append(
            item.segment,
            item.writer_id,
            item.event_number,
            item.event_count,
            bytes(item.data),
            item.expected_offset,
            item.request_id,
        )
    return decode(encode(item))


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
