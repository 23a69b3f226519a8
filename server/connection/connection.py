"""One connection of a segment store on its socket: bytes in, its session run, bytes out.

All connections of a loop share one receive buffer. The bytes of a read are decoded and executed in steps of a few
frames. Usually all are executed before the next read, and the replies are sent in one write. What takes longer than a
slice (`fair_queue`) continues in turn with other connections. A connection whose peer does not read its replies is not
read from until the peer has caught up. Meanwhile at most the bytes of one read and the requests of one step are held,
in order. Whatever was read is executed, even if the peer has closed the connection since.

With a durable store, replies are held until every operation executed before them is durable (`store.committer`), and a
peer that sends more than the disk can take is not read for a while.

Invariants: memory held for a peer is bounded by `LimitSettings`, whatever it sends or does not read, and reported to
the hub; a peer's mistake ends its own connection only; a connection asked to close is closed within `linger_s`.

Source: `PravegaConnectionListener`, `ServerConnectionInboundHandler`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial as bound
from typing import TYPE_CHECKING, Any, cast

from segstore.server.connection.deadlines import Missed, Waits
from segstore.server.connection.lane_host import LaneHost
from segstore.server.connection.session import Ending, Session
from segstore.wire import WireError
from segstore.wire.blocks import Append, AppendBlockDecoder
from segstore.wire.owned import owned
from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.server.connection.hub import ConnectionHub
    from segstore.server.durable import Gate
    from segstore.wire import Buffer, Command

log = logging.getLogger(__name__)

_NOT_YET = Ending.NOT_YET
_SMALL_BYTES = 16 * 1024
_STEP = 256
"""Number of frames decoded at a time."""
_SLICE_ITEMS = 4096
"""Maximum number of requests executed in a slice, however fast they are."""
_AT_ONCE_BYTES = 128 * 1024
"""Maximum number of bytes whose appends are executed at once; together they fit in a slice."""
_COUNTED_BYTES = 4096
"""Executing the appends of a shorter read takes negligible time."""
_LARGE_BYTES = 128 * 1024
"""Up to this size, pending bytes are copied; for more, the connection borrows the receive buffer."""
_HEAVY = 3
"""A strain that takes more than one used-up slice in a row: a single one may be due to preemption of the process."""
_OF_BYTES = (Missed.FIRST_FRAME, Missed.FRAME, Missed.BLOCK)
_KEPT_ITEM_BYTES = 256
"""What a request that is kept for later takes beside its payload, roughly."""


class Connection(asyncio.BufferedProtocol):
    """One peer: its transport, its decoders, its session.

    Attributes:
        admin: whether it came in on the admin port.
        bytes_in, bytes_out: number of bytes read and written.
        session: the peer's state; None before the transport is there.
        transport: None before it is there and after it is lost.
        waits: since when it waits for what.
        held_bytes: what the hub counts for it.
    """

    __slots__ = (
        "__weakref__",
        "_at",
        "_backlog",
        "_backlog_bytes",
        "_blocks",
        "_decoder",
        "_gate",
        "_has_ended",
        "_held",
        "_held_back_bytes",
        "_hub",
        "_input",
        "_is_lost",
        "_is_partial",
        "_lane",
        "_loop",
        "_lost_by",
        "_number",
        "_paused",
        "_problem",
        "_progress_bytes",
        "_recorder",
        "_shrunk",
        "_stalled",
        "_strain",
        "_upto",
        "_wrong",
        "admin",
        "bytes_in",
        "bytes_out",
        "held_bytes",
        "session",
        "transport",
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
        self.bytes_in = self.bytes_out = 0
        self._lane = None if hub.faults is None else LaneHost(self, hub, hub.faults, hub.number)
        self._decoder = hub.service.frame_decoder(join_appends=not admin)
        self._blocks = None if admin else AppendBlockDecoder(max_state_bytes=limits.connection_writer_bytes)
        # `_backlog` holds decoded requests that are not executed yet; the bytes of `_input` from `_at` to `_upto` come
        # after them and are not decoded yet. `_wrong` is the error in the bytes after both.
        self._input: Buffer = b""
        self._at = self._upto = 0
        self._wrong: WireError | None = None
        self._backlog: list[Command | Append] = []
        self._backlog_bytes = 0
        self._strain = 0  # rises with each slice that is used up
        self._has_ended = False  # the peer has sent EOF
        self._is_lost = False
        self._is_partial = False  # of what was decoded last a frame or a block is left in part
        self._lost_by: Exception | None = None
        self._paused = False
        self._shrunk = False
        self._progress_bytes = 0
        self.transport: asyncio.Transport | None = None
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
        self.transport = transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases
        peer = _address(transport.get_extra_info("peername"))
        self.session = Session(
            hub.service,
            peer,
            admin=self.admin,
            on_reply=bound(hub.reply_queued, self),
            blocks=self._blocks,
            whole_frames=self._lane is not None,
        )
        if self._recorder is not None:
            store = _address(transport.get_extra_info("sockname"))
            self._number = self._recorder.opened(peer=peer, store=store, **({"port": "admin"} if self.admin else {}))
        counters.connections += 1
        why = "" if self._gate is None else self._gate.failure
        why = why or ("the store shuts down" if hub.closing else hub.admit(self))
        if why:
            hub.refused(peer, why)
            self.session.end(why)
            transport.abort()
            return
        counters.connections_open += 1
        transport.set_write_buffer_limits(high=limits.connection_outstanding_bytes)
        hub.watch(self)

    def connection_lost(self, exc: Exception | None) -> None:
        hub, session = self._hub, self.session
        self.transport = None
        self._is_lost, self._lost_by = True, exc
        if self._lane is not None and self._lane.drop_waiting():
            self._drop_rest()
        self._paused = self._stalled = False
        self._held.clear()
        self._held_back_bytes = 0
        if self._gate is not None:
            self._gate.stalled.pop(self, None)
        if self in hub.connections:
            hub.service.counters.connections_open -= 1
        if session is not None:
            session.full = False
        if self._wind_up():
            hub.queue.add(self, heavy=True)

    def _wind_up(self) -> bool:
        """The connection is lost: executes what was received, and drops the session. Returns whether there is more to
        do in another slice."""
        hub, session = self._hub, self.session
        if session is not None:
            if self._can_go_on():
                self._serve()
                if self._can_go_on():
                    return True
            hub.enter(self)
            try:
                if not session.close_some():
                    return True
            finally:
                hub.leave()
            if self._recorder is not None:
                why = session.why or self._problem or (str(self._lost_by) if self._lost_by is not None else "")
                ours = bool(session.why or self._problem)
                self._recorder.closed(self._number, Direction(ours), **({"reason": why} if why else {}))
        if self._lane is not None:
            self._lane.drop_waiting()
        self._drop_rest()
        self._tell(0)
        hub.closed(self)
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        hub = self._hub
        return hub.crowded_view if hub.queue.is_crowded else hub.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        hub = self._hub
        session, counters = self.session, hub.service.counters
        counters.bytes_in += nbytes
        self.bytes_in += nbytes
        if self._recorder is not None:
            self._recorder.received(self._number, hub.receive_view[:nbytes])
        if session is None or session.ending is not _NOT_YET:
            return
        done = self._append_at_once(session, nbytes)
        if done == nbytes:
            session.nothing_in_flight()
            self.flush()
            if hub.service.store.waiters.woken:
                hub.enter(self)
                hub.leave()
            return
        if self._input or self._backlog or self._wrong is not None:  # it was read before reading was paused
            # Payloads may lie in the buffer that is given back.
            self._backlog = [owned(item)[0] for item in self._backlog]
            more = b"".join((memoryview(self._input)[self._at : self._upto], hub.receive_view[:nbytes]))
            self._drop_input()
            self._input, self._at, self._upto = more, 0, len(more)
            return
        self._input, self._at, self._upto = hub.receive_buffer, done, nbytes
        if not hub.queue.is_busy:
            self._serve()
        if self.is_behind() and session.ending is _NOT_YET:
            self._wait_in_queue()
        else:
            self._input = b""
        # What was written is looked up as it is written; nearly every read of a busy peer leaves nothing else.
        if (
            self._input
            or self._is_partial
            or self.held_bytes
            or session.reads
            or session.out_bytes
            or self._backlog_bytes
            or self._lane is not None
            or self._held_back_bytes > _SMALL_BYTES
        ):
            self.look_up()

    def eof_received(self) -> bool:
        """The peer has sent EOF: its earlier requests are executed first; waiting reads are not answered."""
        if self.is_behind():
            self._has_ended = True
            return True
        self.end("", Ending.FLUSHED)
        # Held replies are still sent before the connection closes; under TLS nothing can be sent any more.
        return bool(self._held) and self.transport is not None and self.transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        self._paused = True
        transport, session = self.transport, self.session
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
        if self._shrunk and self.transport is not None:
            self._shrunk = False
            self.transport.set_write_buffer_limits(high=self._hub.limits.connection_outstanding_bytes)
        if self.session is not None:
            self.session.full = False
        self.catch_up_soon()

    # --- durable stores ---------------------------------------------------------------------------------------------

    def release(self, committed: int) -> int:
        """Writes the held replies that may leave. Returns the mark that the next one waits for, 0 if there is none."""
        held = self._held
        if not held:
            return 0
        _, out, size = held.popleft()
        while held and held[0][0] <= committed:
            _, parts, part_bytes = held.popleft()
            out += parts
            size += part_bytes
        self._held_back_bytes -= size
        transport, session = self.transport, self.session
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
        """Drops the held replies and ends the connection."""
        self._held.clear()
        self._held_back_bytes = 0
        self.end(why)

    def go_on(self) -> None:
        """There is room for what the peer sends."""
        self._stalled = False
        self.restart_waits()
        self.catch_up_soon()

    def restart_waits(self) -> None:
        """Excludes the time for which the peer was not read from its deadline."""
        now, waits = self._loop.time(), self.waits
        if waits.frame_since is not None:
            waits.frame_since = now
        if waits.block_since is not None:
            waits.block_since = now

    def _is_overfull(self) -> bool:
        """Whether the disk should catch up before more is executed for this peer."""
        gate = self._gate
        return gate is not None and (gate.full or self._held_back_bytes > self._hub.limits.connection_outstanding_bytes)

    def _stall_if_overfull(self) -> None:
        gate, transport = self._gate, self.transport
        if gate is None or self._stalled or transport is None or transport.is_closing() or not self._is_overfull():
            return
        self._stalled = True
        gate.stalled[self] = None
        transport.pause_reading()

    # --- running ----------------------------------------------------------------------------------------------------

    def is_behind(self) -> bool:
        """Whether received bytes or requests are still to be executed."""
        return self._at < self._upto or bool(self._backlog) or self._wrong is not None

    def _can_go_on(self) -> bool:
        """Whether some of them can be executed now."""
        session = self.session
        return session is not None and not session.ended and self.is_behind() and not self.is_paused()

    def _serve(self) -> None:
        """Executes what was read until the slice is used up, or the peer or the disk falls behind."""
        session, hub, gate = self.session, self._hub, self._gate
        assert session is not None
        if gate is not None and (gate.full or self._held_back_bytes):
            self._stall_if_overfull()
        executed = 0
        hub.enter(self)
        try:
            while session.ending is _NOT_YET and not self.is_paused():
                items: Sequence[Command | Append] = self._backlog
                if items:
                    self._backlog, self._backlog_bytes = [], 0
                elif self._at < self._upto:
                    items = self._decode()
                else:
                    break
                done = self._execute(session, items)
                executed += done
                if done < len(items):
                    self._keep(items[done:])
                elif self._at == self._upto:
                    break
                if executed >= _SLICE_ITEMS or hub.queue.is_over():
                    break
        except Exception as error:  # noqa: BLE001 — whatever it is, this connection ends and the others go on
            hub.service.failed(session, error)
        finally:
            used_up = hub.leave() or executed >= _SLICE_ITEMS
            self._strain = min(self._strain + 2, 2 * _HEAVY) if used_up else max(self._strain - 1, 0)
        if self._lane is not None:
            self._settle(self._lane, session)
        self.flush()
        if self._wrong is not None and not self._backlog:
            self._refuse(self._wrong)

    def _settle(self, lane: LaneHost, session: Session) -> None:
        """Call after a slice: a connection whose lane holds requests is not read from."""
        transport = self.transport
        if not lane.is_paused:
            if not self.is_behind():
                lane.nothing_in_flight(session)
        elif transport is not None and not transport.is_closing():
            transport.pause_reading()

    def _decode(self) -> Sequence[Command | Append]:
        """Decodes and returns the requests of the next step."""
        hub, decoder, blocks = self._hub, self._decoder, self._blocks
        commands: Sequence[Any]
        try:
            commands = decoder.feed(self._input, self._upto, self._at, most=_STEP)
        except WireError as error:
            commands, self._wrong, self._at = error.decoded, error, self._upto
            hub.service.counters.malformed_frames += 1
        else:
            self._at = decoder.position
        items = commands
        if blocks is not None:
            try:
                items = blocks.feed_all(commands)
            except WireError as error:
                items, self._wrong, self._at = error.decoded, error, self._upto
                hub.service.counters.protocol_violations += 1
        partial = decoder.buffered_bytes > 0
        block_open = blocks is not None and blocks.block_open
        self._is_partial = partial or block_open
        if self._is_partial or self.waits.for_bytes:
            appends = block_open and any(type(item) is Append for item in items)
            self.waits.received(
                self._loop.time(), frames=bool(commands), partial=partial, block_open=block_open, appends=appends
            )
            hub.watch(self)
        return items

    def _execute(self, session: Session, items: Sequence[Command | Append]) -> int:
        """Executes requests until the slice is used up or the peer has too many pending replies; returns how many."""
        if self._lane is not None:
            return self._lane.execute(session, items)
        done, whole = 0, self._at == self._upto
        while True:
            done = session.receive_all(items, done, whole=whole)
            if done == len(items) or session.ending is not _NOT_YET or self._hub.queue.is_over():
                return done
            self.write()
            self.look_up()
            if self.is_paused():
                return done

    def _append_at_once(self, session: Session, nbytes: int) -> int:
        """The short way: executes the whole appends that a read begins with; returns the number of their bytes.

        Only while nothing is pending. It is the only place where what was read is not decoded into commands.
        """
        hub, gate = self._hub, self._gate
        if (
            self._lane is not None
            or self.is_behind()
            or self.is_paused()
            or self.held_bytes
            or self.waits.for_bytes
            or hub.queue.is_busy
            or hub.fence is not None
            or (gate is not None and (gate.full or self._held_back_bytes))
        ):
            return 0
        began_s = hub.queue.now_s() if nbytes > _COUNTED_BYTES else 0.0
        try:
            done = session.append_at_once(self._decoder, hub.receive_view[: min(nbytes, _AT_ONCE_BYTES)])
        except Exception as error:  # noqa: BLE001 — as in `_serve`
            hub.service.failed(session, error)
            done = nbytes
        if began_s:
            hub.queue.count(hub.queue.now_s() - began_s)
        return done

    def is_paused(self) -> bool:
        """Whether no request is to be executed now: the peer or the disk is behind, or the lane holds requests."""
        return self._paused or self._stalled or (self._lane is not None and self._lane.is_paused)

    def _keep(self, items: Sequence[Command | Append]) -> None:
        """Keeps requests for later, with payloads of their own: the receive buffer belongs to the next read."""
        if self._input is not self._hub.receive_buffer:
            self._backlog, self._backlog_bytes = list(items), len(items) * _KEPT_ITEM_BYTES
            return
        for item in items:
            kept, size = owned(item)
            self._backlog.append(kept)
            self._backlog_bytes += size + _KEPT_ITEM_BYTES

    def _wait_in_queue(self) -> None:
        """Holds what was read, and queues the connection, or waits until the peer or the disk has caught up."""
        if self._upto - self._at < _LARGE_BYTES or not self._hub.lend_buffer():
            self._input = bytes(self._hub.receive_view[self._at : self._upto])
            self._at, self._upto = 0, len(self._input)
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
        if not self.is_paused():
            self._hub.queue.add(self, heavy=self._strain >= _HEAVY)

    def _drop_rest(self) -> None:
        """Drops everything that is still to be executed."""
        self._drop_input()
        self._at = self._upto = 0
        self._wrong = None
        self._backlog, self._backlog_bytes = [], 0

    def _drop_input(self) -> None:
        """Releases the input: all of it was executed or dropped."""
        lent, self._input = self._input, b""
        if type(lent) is bytearray and lent is not self._hub.receive_buffer:
            self._hub.give_back(lent)

    def catch_up_soon(self) -> None:
        """Executes what is pending, if it may be, and resumes reading, in a later loop iteration."""
        # Deferred, because a transport may report room while it is being written to.
        self._hub.queue.add(self, heavy=self._strain >= _HEAVY)

    def advance(self) -> bool:
        """Answers woken reads and executes pending requests until the slice is used up or the peer falls behind; then
        resumes reading. Returns whether there is more to do now."""
        session, transport, hub = self.session, self.transport, self._hub
        if transport is None:
            return self._is_lost and self._wind_up()
        if session is None or transport.is_closing() or session.ended or self.is_paused():
            return False
        if session.woken:
            hub.enter(self)
            try:
                hub.service.answer_later(session)
            except Exception as error:  # noqa: BLE001 — as in `_serve`
                hub.service.failed(session, error)
            finally:
                hub.leave()
            self.flush()
        if self._can_go_on():
            self._serve()
            self.restart_waits()
        if transport.is_closing():
            return False
        left = self.is_behind()
        if not left:
            if self._lane is not None and not self._lane.is_paused:
                self._lane.nothing_in_flight(session)
            self._drop_input()
            if self._has_ended:
                self.end("", Ending.FLUSHED)
                return False
        self.look_up()
        if self.is_paused():
            return False
        if not left:
            transport.resume_reading()
        return left or bool(session.woken)

    # --- out --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes what is queued and ends the connection if its session has ended."""
        session, transport = self.session, self.transport
        if session is None or transport is None:
            return
        if transport.is_closing():
            session.take_out()
            return
        if session.ending is Ending.DROPPED:
            session.take_out()
        else:
            self.write()
        lane = self._lane
        if lane is not None and session.ending is Ending.FLUSHED and not (lane.is_drained or self._hub.closing):
            return  # each reply that may leave comes here again
        if session.ending is not _NOT_YET:
            if self._held:
                self._wait_to_close(session)
            else:
                self._close(session, transport)
            return
        if session.woken and not self._paused:
            self.catch_up_soon()
        if self.held_bytes or transport.get_write_buffer_size():
            self.look_up()

    def write(self) -> None:
        """Writes what is queued, or holds it until it is durable."""
        session, transport, lane = self.session, self.transport, self._lane
        if session is None or transport is None:
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
        self.bytes_out += size
        self._hub.service.counters.bytes_out += size
        gate = self._gate
        if gate is not None and (self._held or gate.mark > gate.committed):
            self._hold(out, size, gate)
            return
        self._transmit(transport, out, large=large)

    def _hold(self, out: list[Buffer], size: int, gate: Gate) -> None:
        """Holds replies until everything executed so far is durable."""
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
        """Executes nothing more; held replies are sent before the connection closes."""
        self._drop_rest()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self.waits.closing(self._loop.time())
        self._hub.watch(self)
        self.look_up()

    def _close(self, session: Session, transport: asyncio.Transport) -> None:
        """Closes: what was written before still goes out, if the peer takes it in time."""
        if session.why:
            level = logging.INFO if self._hub.closing else logging.WARNING
            log.log(level, "connection from %s closed: %s", session.peer, session.why, extra={"peer": session.peer})
        self._drop_rest()
        transport.close()
        self.waits.closing(self._loop.time())
        self._hub.watch(self)
        self.look_up()

    # --- what the hub asks ------------------------------------------------------------------------------------------

    @property
    def number(self) -> int | None:
        """Of the connection, over all stores that share fault rules; None without them."""
        return None if self._lane is None else self._lane.number

    @property
    def is_silent(self) -> bool:
        """Whether the peer has requested nothing so far: at most Hello and KeepAlive."""
        return self.session is not None and not self.session.has_asked

    def look_up(self) -> None:
        """Tells the hub what is held for this peer now."""
        transport, session, blocks = self.transport, self.session, self._blocks
        if transport is None or session is None:
            return
        held = transport.get_write_buffer_size() + self._decoder.buffered_bytes + session.waiting_bytes
        if blocks is not None and blocks.block_open:
            held += blocks.block_bytes
        held += session.out_bytes + self._backlog_bytes
        if self._lane is not None:
            held += self._lane.held_bytes
        if self._input and self._input is not self._hub.receive_buffer:
            held += self._upto - self._at
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
        transport = self.transport
        if transport is not None and not self._paused and transport.get_write_buffer_size() > share:
            self._shrunk = True
            transport.set_write_buffer_limits(high=share)

    def missed(self, missed: Missed, now_s: float) -> None:
        """A deadline has passed: the connection ends, unless the peer was only slow to read."""
        transport, session = self.transport, self.session
        if transport is None or session is None:
            return
        lane_waits = self._lane is not None and self._lane.is_paused
        if missed in _OF_BYTES and (self._stalled or lane_waits or self.is_behind()):
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
        transport, self.transport = self.transport, None
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


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
