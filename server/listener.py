"""One connection of a segment store on its socket: bytes in, its session run, bytes out.

All connections of a loop share one receive buffer; what a read brings is decoded and carried out before the next read
begins, and its replies leave in one write. A connection whose peer does not read is not read from either, until the
peer has caught up: at most one read's worth of requests is kept meanwhile, in order.

Where the store is durable, replies are held back until everything is durable that was carried out before they were
made (`store.committer`), and a peer that brings more than the disk takes is not read for a while.

Invariants: memory held for a peer is bounded by `LimitSettings`, whatever it sends or does not read, and told to the
hub; a peer's mistake ends its own connection only; a connection that was told to close is closed within `linger_s`.

Source: `PravegaConnectionListener`, `ServerConnectionInboundHandler`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial as bound
from typing import TYPE_CHECKING, Any, cast

import msgspec

from segstore.server.deadlines import Missed, Waits
from segstore.server.session import Ending, Session
from segstore.wire import WireError
from segstore.wire.block_decoder import Append, AppendBlockDecoder
from segstore.wire.trace_blocks import Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.server.hub import ConnectionHub
    from segstore.server.store.committer import Gate
    from segstore.wire import Buffer, Command

__all__ = ["Connection", "own"]

log = logging.getLogger(__name__)

_NOT_YET = Ending.NOT_YET
_SMALL_BYTES = 16 * 1024
_KEPT_ITEM_BYTES = 256
"""What a request that is kept for later takes beside its payload, roughly."""


class Connection(asyncio.BufferedProtocol):
    """One peer: its transport, its decoders, its session.

    Attributes:
        admin: whether it came in on the admin port.
        session: the peer's state; None before the transport is there.
        waits: since when it waits for what.
        held_bytes: what the hub counts for it.
    """

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_backlog_bytes",
        "_blocks",
        "_catching_up",
        "_decoder",
        "_delayed_bytes",
        "_gate",
        "_held",
        "_held_back_bytes",
        "_hub",
        "_loop",
        "_number",
        "_paused",
        "_problem",
        "_progress_bytes",
        "_recorder",
        "_shrunk",
        "_stalled",
        "_transport",
        "admin",
        "held_bytes",
        "session",
        "waits",
    )

    def __init__(self, hub: ConnectionHub, *, admin: bool = False) -> None:
        limits = hub.limits
        self._hub = hub
        self._gate = hub.gate
        self._held: deque[tuple[int, list[Buffer], int]] = deque()
        self._held_back_bytes = 0
        self._stalled = False
        self._loop = asyncio.get_running_loop()
        self.admin = admin
        self._decoder = hub.service.frame_decoder(join_appends=not admin)
        self._blocks = None if admin else AppendBlockDecoder(max_state_bytes=limits.connection_writer_bytes)
        self._backlog: list[Command | Append] = []
        self._backlog_bytes = 0
        self._delayed_bytes = 0  # of what faults let wait
        self._paused = False
        self._shrunk = False
        self._catching_up = False
        self._progress_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._recorder = hub.recorder
        self._number = 0
        self._problem = ""
        self.held_bytes = 0
        self.session: Session | None = None
        self.waits = Waits(self._loop.time())

    # --- transport --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        hub = self._hub
        limits, counters = hub.limits, hub.service.counters
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases
        peer = _address(transport.get_extra_info("peername"))
        self.session = Session(
            hub.service, peer, admin=self.admin, on_reply=bound(hub.reply_queued, self), blocks=self._blocks
        )
        if self._recorder is not None:
            store = _address(transport.get_extra_info("sockname"))
            self._number = self._recorder.opened(peer=peer, store=store, **({"port": "admin"} if self.admin else {}))
        counters.connections += 1
        why = "" if self._gate is None else self._gate.failure
        why = why or ("the store shuts down" if hub.closing else hub.admit(self, _descriptor(transport)))
        if why:
            counters.connections_refused += 1
            log.warning("connection from %s refused: %s", peer, why)
            self.session.end(why)
            transport.abort()
            return
        counters.connections_open += 1
        transport.set_write_buffer_limits(high=limits.connection_outstanding_bytes)
        hub.watch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        hub, session = self._hub, self.session
        self._transport = None
        self._backlog.clear()
        self._held.clear()
        self._held_back_bytes = 0
        if self._gate is not None:
            self._gate.stalled.pop(self, None)
        self._tell(0)
        if self in hub.connections:
            hub.service.counters.connections_open -= 1
        if session is not None:
            hub.enter(self)
            try:
                session.close()
            finally:
                hub.leave()
            if self._recorder is not None:
                why = session.why or self._problem or (str(exc) if exc is not None else "")
                ours = bool(session.why or self._problem)
                self._recorder.closed(self._number, Direction(ours), **({"reason": why} if why else {}))
        hub.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._hub.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        hub, decoder, blocks = self._hub, self._decoder, self._blocks
        session, counters = self.session, hub.service.counters
        counters.bytes_in += nbytes
        if self._recorder is not None:
            self._recorder.received(self._number, hub.receive_view[:nbytes])
        if session is None or session.ending is not _NOT_YET:
            return
        plain = self._take_plain(nbytes)
        if plain == nbytes:
            self._finish_plain()
            return
        problem: WireError | None = None
        commands: Sequence[Any]
        try:
            commands = decoder.feed(hub.receive_buffer, nbytes, plain)
        except WireError as error:
            commands, problem = error.decoded, error
            counters.malformed_frames += 1
        items = commands
        if blocks is not None:
            try:
                items = blocks.feed_all(commands)
            except WireError as error:
                items, problem = error.decoded, error
                counters.protocol_violations += 1
        if items:
            self._run(items)
        elif plain:
            self._finish_plain()
        if problem is not None:
            self._refuse(problem)
            return
        partial = decoder.buffered_bytes > 0
        block_open = blocks is not None and blocks.block_open
        waits = self.waits
        if partial or block_open or waits.for_bytes:
            appends = block_open and (plain > 0 or any(type(item) is Append for item in items))
            now = self._loop.time()
            frames = plain > 0 or bool(commands)
            waits.received(now, frames=frames, partial=partial, block_open=block_open, appends=appends)
            hub.watch(self)
        # What was written is looked up as it is written; nearly every read of a busy peer leaves nothing else.
        if (
            partial
            or block_open
            or self.held_bytes
            or session.reads
            or session.out_bytes
            or self._backlog_bytes
            or self._delayed_bytes
            or self._held_back_bytes > _SMALL_BYTES
        ):
            self.look_up()

    def eof_received(self) -> bool:
        """The peer sends no more: what it had sent is carried out by now, reads that wait are not answered."""
        self.end("", Ending.FLUSHED)
        # What is held back still leaves, and then the connection is closed; under TLS nothing can any more.
        return bool(self._held) and self._transport is not None and self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        self._paused = True
        transport, session = self._transport, self.session
        if transport is None or session is None:
            return
        session.full = True
        if not transport.is_closing():
            transport.pause_reading()
        self._progress_bytes = transport.get_write_buffer_size()
        self.waits.paused(self._loop.time())
        self._hub.watch(self)

    def resume_writing(self) -> None:
        self._paused = False
        self.waits.resumed(self._loop.time())
        if self._shrunk and self._transport is not None:
            self._shrunk = False
            self._transport.set_write_buffer_limits(high=self._hub.limits.connection_outstanding_bytes)
        if self.session is not None:
            self.session.full = False
        self._catch_up_soon()

    # --- durable stores ---------------------------------------------------------------------------------------------

    def release(self, committed: int) -> int:
        """Writes the replies that were held back and may leave; what the next one waits for, 0 if there is none."""
        held = self._held
        if not held:
            return 0
        _, out, size = held.popleft()
        while held and held[0][0] <= committed:
            _, parts, part_bytes = held.popleft()
            out += parts
            size += part_bytes
        self._held_back_bytes -= size
        transport, session = self._transport, self.session
        if transport is None or session is None:
            return 0
        if not transport.is_closing():
            if len(out) == 1 and self._recorder is None:
                transport.write(out[0])
            else:
                self._transmit(transport, out, large=size > _SMALL_BYTES)
        if self._stalled and not self._is_overfull():
            assert self._gate is not None
            self._gate.stalled.pop(self, None)
            self.go_on()
        if self.held_bytes:
            self.look_up()
        if held:
            return held[0][0]
        if session.ending is not _NOT_YET:
            self.flush()
        return 0

    def failed(self, why: str) -> None:
        """Nothing that is held back will leave."""
        self._held.clear()
        self._held_back_bytes = 0
        self.end(why)

    def go_on(self) -> None:
        """There is room for what the peer sends."""
        self._stalled = False
        now, waits = self._loop.time(), self.waits
        if waits.frame_since is not None:
            waits.frame_since = now
        if waits.block_since is not None:
            waits.block_since = now
        self._catch_up_soon()

    def _is_overfull(self) -> bool:
        """Whether the disk should catch up before more is carried out for this peer."""
        gate = self._gate
        return gate is not None and (gate.full or self._held_back_bytes > self._hub.limits.connection_outstanding_bytes)

    def _stall_if_overfull(self) -> None:
        gate, transport = self._gate, self._transport
        if gate is None or self._stalled or transport is None or transport.is_closing() or not self._is_overfull():
            return
        self._stalled = True
        gate.stalled[self] = None
        transport.pause_reading()

    # --- running ----------------------------------------------------------------------------------------------------

    def _run(self, items: Sequence[Command | Append]) -> None:
        """Carries out what a read brought. Once the peer has too much to read, keeps the others for later."""
        session, hub = self.session, self._hub
        assert session is not None
        gate = self._gate
        if gate is not None and (gate.full or self._held_back_bytes):
            self._stall_if_overfull()
        if self._paused or self._stalled or self._backlog:
            self._keep(items)
            if session.out:
                self._finish_plain()  # these appends were stored before: their replies do not wait for the others
            return
        hub.enter(self)
        try:
            done, total = 0, len(items)
            while done < total and session.ending is _NOT_YET:  # the fence may have ended it
                done = session.receive_all(items, done)
                if done == total or session.ending is not _NOT_YET:
                    break
                self._write()
                self.look_up()
                if self._is_paused():
                    self._keep(items[done:])
                    break
        except Exception as error:  # noqa: BLE001 — whatever it is, this connection ends and the others go on
            hub.service.failed(session, error)
        finally:
            hub.leave()
        self.flush()

    def _take_plain(self, nbytes: int) -> int:
        """Carries out the appends that a read begins with, where nothing else has to be thought of; how many bytes.
        Many writers with few appends in flight send nothing else, so this is `_run` with what it needs of it.
        """
        session, hub, blocks, gate = self.session, self._hub, self._blocks, self._gate
        if (
            blocks is None
            or session is None
            or self._transport is None
            or self._paused
            or self._stalled
            or self._backlog
            or self.held_bytes
            or self.waits.for_bytes
            or blocks.block_open
            or hub.fence is not None
            or self._recorder is not None
            or session.out
            or (gate is not None and (gate.full or self._held_back_bytes))
        ):
            return 0
        try:
            return session.append_plain(self._decoder, hub.receive_view, nbytes)
        except Exception as error:  # noqa: BLE001 — as in `_run`
            hub.service.failed(session, error)
            return nbytes  # it is over

    def _finish_plain(self) -> None:
        """Writes the acknowledgements of `_take_plain`, where nothing that follows in the read is carried out now."""
        self.flush()
        if self._hub.service.store.waiters.woken:
            self._hub.leave()

    def _is_paused(self) -> bool:
        return self._paused or self._stalled

    def _keep(self, items: Sequence[Command | Append]) -> None:
        """Keeps requests for later, with payloads of their own: the receive buffer belongs to the next read."""
        for item in items:
            kept, size = own(item)
            self._backlog.append(kept)
            self._backlog_bytes += size + _KEPT_ITEM_BYTES

    def _catch_up_soon(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            # Not now: a transport may say that it has room while it is being written to.
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Answers woken reads and carries out what was kept, as far as the peer reads; then reads on."""
        self._catching_up = False
        session, transport, hub = self.session, self._transport, self._hub
        if session is None or transport is None or transport.is_closing() or session.ended or self._is_paused():
            return
        if session.woken:
            hub.enter(self)
            try:
                hub.service.answer_later(session)
            except Exception as error:  # noqa: BLE001 — as in `_run`
                hub.service.failed(session, error)
            finally:
                hub.leave()
            self.flush()
        if self._backlog and not self._is_paused() and not session.ended:
            backlog, self._backlog, self._backlog_bytes = self._backlog, [], 0
            self._run(backlog)
        if not self._is_paused() and not transport.is_closing():
            if session.woken:
                self._catch_up_soon()
            transport.resume_reading()
        self.look_up()

    # --- out --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes what is queued and ends the connection if its session has ended."""
        session, transport = self.session, self._transport
        if session is None or transport is None:
            return
        if transport.is_closing():
            session.take_out()
            return
        if session.ending is Ending.DROPPED:
            session.take_out()
        else:
            self._write()
        if session.ending is not _NOT_YET:
            if self._held:
                self._wait_to_close(session)
            else:
                self._close(session, transport)
            return
        if session.woken and not self._paused:
            self._catch_up_soon()
        if self.held_bytes or transport.get_write_buffer_size():
            self.look_up()

    def _write(self) -> None:
        session, transport = self.session, self._transport
        if session is None or transport is None or not session.out:
            return
        size, large = session.out_bytes, session.out_has_payload
        self._hub.service.counters.bytes_out += size
        out = session.take_out()
        gate = self._gate
        if gate is not None and (self._held or gate.mark > gate.committed):
            self._hold(out, size, gate)
            return
        self._transmit(transport, out, large=large)

    def _hold(self, out: list[Buffer], size: int, gate: Gate) -> None:
        """Holds replies back until all is durable that was carried out so far."""
        held, mark = self._held, gate.mark
        if not held:
            gate.hold(self, mark)
        held.append((mark, out, size))
        self._held_back_bytes += size

    def _transmit(self, transport: asyncio.Transport, out: list[Buffer], *, large: bool) -> None:
        if len(out) > 1:
            out = _gather(out) if large else [b"".join(out)]
        if self._recorder is not None:
            self._recorder.sent(self._number, out)
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)

    def _wait_to_close(self, session: Session) -> None:
        """Nothing more is carried out; replies that are held back leave first."""
        session.stop_waiting()
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self.waits.closing(self._loop.time())
        self._hub.watch(self)
        self.look_up()

    def _close(self, session: Session, transport: asyncio.Transport) -> None:
        """Closes: what was written before still goes out, if the peer takes it in time."""
        if session.why:
            level = logging.INFO if self._hub.closing else logging.WARNING
            log.log(level, "connection from %s closed: %s", session.peer, session.why, extra={"peer": session.peer})
        session.stop_waiting()
        self._backlog.clear()
        self._backlog_bytes = 0
        transport.close()
        self.waits.closing(self._loop.time())
        self._hub.watch(self)
        self.look_up()

    # --- what the hub asks ------------------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        """Whether its peer has sent nothing but a Hello, or not even that."""
        return self.session is not None and not self.session.has_asked

    def look_up(self) -> None:
        """Tells the hub what is held for this peer now."""
        transport, session, blocks = self._transport, self.session, self._blocks
        if transport is None or session is None:
            return
        held = transport.get_write_buffer_size() + self._decoder.buffered_bytes + session.waiting_bytes
        if blocks is not None and blocks.block_open:
            held += blocks.block_bytes
        held += session.out_bytes + self._backlog_bytes + self._delayed_bytes
        if self._held_back_bytes > _SMALL_BYTES:  # acknowledgements come and go: they are not worth an account
            held += self._held_back_bytes
        if held != self.held_bytes:
            self._tell(held)
            if held:
                self._hub.watch(self)  # it looks again, so what the peer reads meanwhile does not count for long

    def _tell(self, held: int) -> None:
        difference, self.held_bytes = held - self.held_bytes, held
        self._hub.account(self, difference)

    def shrink(self, share: int) -> None:
        """No more than `share` bytes of replies may wait for this peer, until it has read them."""
        transport = self._transport
        if transport is not None and not self._paused and transport.get_write_buffer_size() > share:
            self._shrunk = True
            transport.set_write_buffer_limits(high=share)

    def missed(self, missed: Missed, now_s: float) -> None:
        """A deadline has passed: the connection ends, unless the peer was only slow to read."""
        transport, session = self._transport, self.session
        if transport is None or session is None:
            return
        if self._stalled and missed in (Missed.FRAME, Missed.BLOCK):
            return  # the rest of it may be there, but this side does not read
        if missed is Missed.READING:
            size = transport.get_write_buffer_size()
            if size < self._progress_bytes:
                self._progress_bytes = size
                self.waits.progressed(now_s)
                return
        self._hub.service.counters.deadlines_missed += 1
        why = missed.sentence(self._hub.limits)
        if missed is Missed.READING or missed is Missed.CLOSING:
            self.cut(why)
        else:
            self.end(why)

    def end(self, why: str, ending: Ending = Ending.DROPPED) -> None:
        """Ends the connection from outside."""
        if self.session is not None:
            self.session.end(why, ending)
        self.flush()

    def cut(self, why: str) -> None:
        """Ends the connection at once: what was written and not read is lost."""
        if self.session is not None:
            self.session.end(why)
            log.warning("connection from %s cut: %s", self.session.peer, why, extra={"peer": self.session.peer})
        self.abort()
        self._tell(0)

    def abort(self) -> None:
        """Cuts the connection without a word."""
        if self.session is not None:
            self.session.end("")
            self.session.stop_waiting()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _refuse(self, problem: WireError) -> None:
        """Ends the connection of a peer that broke the protocol."""
        assert self.session is not None
        if not self.session.ended:
            peer, facts = self.session.peer, problem.facts()
            said = f"it broke the protocol: {problem}"
            if (spoken := _spoken(problem.code)) is not None:
                said += f"; it seems to speak {spoken}"
            self._problem = said
            self.session.end("")
            log.warning("connection from %s closed: %s", peer, said, extra={"peer": peer, **facts})
        self.flush()


def _spoken(code: int | None) -> str | None:
    """What a peer took this port for, if its first bytes, read as a type code, say so."""
    first = b"" if code is None else code.to_bytes(4, "big", signed=True)
    if first == b"PRI ":
        return "HTTP/2, as to a controller, which has a port of its own"
    if first in (b"GET ", b"POST", b"PUT "):
        return "HTTP"
    return None


def _gather(parts: list[Buffer]) -> list[Buffer]:
    """The same bytes, small neighbours joined: the system takes a limited number of buffers at a time."""
    out: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < _SMALL_BYTES:
            small.append(part)
            continue
        if small:
            out.append(b"".join(small))
            small.clear()
        out.append(part)
    if small:
        out.append(b"".join(small))
    return out


def own(value: Any) -> tuple[Any, int]:
    """The same value with buffers of its own, and how many bytes these have."""
    if isinstance(value, memoryview):
        return bytes(value), value.nbytes
    if isinstance(value, tuple):
        made = [own(each) for each in value]
        return tuple(each for each, _ in made), sum(size + 64 for _, size in made)
    if isinstance(value, msgspec.Struct):
        made = [own(getattr(value, name)) for name in value.__struct_fields__]
        return type(value)(*(each for each, _ in made)), sum(size for _, size in made)
    return value, len(value) if isinstance(value, (str, bytes)) else 0


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


def _descriptor(transport: asyncio.Transport) -> int:
    """Of the transport's socket; -1 for a transport without one."""
    socket = transport.get_extra_info("socket")
    return -1 if socket is None else socket.fileno()
