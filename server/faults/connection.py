"""A server connection that applies fault decisions and records its requests.

It replaces `Connection` in a store with `Faults`; a store without them runs none of this module. Requests are executed
one by one, their replies taken out of the session, and put into a queue, which
lets them leave in order, each when its waits are over.

Invariants: what waits keeps back what is behind it on its connection, unless it may be overtaken; while a request is
kept back, the peer is not read, so at most one read's worth of requests is kept; above `connection_outstanding_bytes`
of replies, and of requests that may be overtaken, that wait, no more is carried out for the peer, and the hub counts
them as held for it; when the connection is gone, nothing waits for it any more.

Where a rule refuses an append, those of its writer that came with it are refused the same way, as the store itself does
(`Session`): the reference answers each append in flight for itself, drops the writer, and ends the connection for what
comes later without a new set-up. A condition that does not hold is no failure of the writer, and a wrong event number
ends the connection. Source: `AppendProcessor.handleAppendResult`, `WriterState`.
"""

from __future__ import annotations

import struct
from collections import deque
from functools import partial as bound
from typing import TYPE_CHECKING, Final

from segstore.server.connection import WRITE_ABOVE_BYTES, Connection, Ending, Missed, own
from segstore.server.faults.decisions import Plan, Wait
from segstore.server.faults.frames import end_by_reset, refusal, spoilt
from segstore.server.faults.observe import Seen, reply_seen, request_seen
from segstore.server.faults.rules import Close, Drop, Duplicate, Error
from segstore.server.faults.waits import FaultWaits
from segstore.wire import (
    COMMANDS,
    HEADER_BYTES,
    ConditionalCheckFailed,
    InvalidEventNumber,
    ReadSegment,
    SetupAppend,
    WireError,
    decode,
)
from segstore.wire.blocks import Append

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.server.connection import ConnectionHub, Session
    from segstore.server.faults.faults import Faults
    from segstore.wire import Buffer, Command

_HEADER: Final = struct.Struct(">ii")
_NO_PLAN: Final = Plan()
_WAITING_BYTES: Final = 1024
"""What something that waits takes beside its bytes, roughly: its timer, and what is to be done with it then."""
_QUEUED_BYTES: Final = 256
"""The same of a reply that is ready, and stands behind one that waits."""


class _Reply:
    """A frame, or what is left of it, in the queue of those that are to leave."""

    __slots__ = ("cost", "data", "ready", "seen")

    def __init__(self, data: bytes, seen: Seen | None, *, ready: bool) -> None:
        self.data = data
        self.cost = len(data) + (_QUEUED_BYTES if ready else _WAITING_BYTES)
        self.seen = seen
        self.ready = ready


class FaultyConnection(Connection):
    """One peer of a store with faults. faults: of the store. store: its number in the cluster.

    Attributes:
        number: of the connection, over all stores, as rules and requests have it.
        bytes_in, bytes_out: what was read from the peer, and what left for it.
    """

    __slots__ = (
        "_blocked",
        "_failed",
        "_faults",
        "_kept_waiting",
        "_late",
        "_numbers_are_wrong",
        "_overtaken",
        "_queue",
        "_store",
        "bytes_in",
        "bytes_out",
        "number",
    )

    def __init__(self, hub: ConnectionHub, faults: Faults, store: int = 0, *, admin: bool = False) -> None:
        super().__init__(hub, admin=admin)
        self._faults = faults
        self._store = store
        self.number = faults.next_connection()
        self.bytes_in = 0
        self.bytes_out = 0
        self._blocked = False
        self._failed: dict[tuple[str, bytes], Error] = {}
        """Writers of which a rule refused an append, and how, while what came with it is carried out."""
        self._numbers_are_wrong = False
        """A writer was told so, and hears no more."""
        self._queue: deque[_Reply] = deque()
        self._overtaken = 0
        self._late: dict[int, deque[tuple[Seen, Plan]]] = {}
        self._kept_waiting = FaultWaits(faults)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_waiting()
        super().connection_lost(exc)

    def _wind_up(self) -> bool:
        left = super()._wind_up()
        if not left:
            self._drop_waiting()
        return left

    def _drop_waiting(self) -> None:
        """Cancels all waits, and drops the requests queued after a waiting one."""
        if self._blocked:
            self._drop_rest()
        self._blocked = False
        self._kept_waiting.clear()
        self._queue.clear()
        self._delayed_bytes = 0

    # --- requests ---------------------------------------------------------------------------------------------------

    def _is_paused(self) -> bool:
        return super()._is_paused() or self._blocked or self._is_full()

    def _is_full(self) -> bool:
        return self._delayed_bytes > self._hub.limits.connection_outstanding_bytes

    def _serve(self) -> None:
        super()._serve()
        if self.session is not None:
            self._look_what_is_in_flight(self.session)
        self._stop_reading_if_full()
        self.look_up()

    def _execute(self, session: Session, items: Sequence[Command | Append]) -> int:
        for done, item in enumerate(items, 1):
            self._take(session, item)
            if session.out_bytes > WRITE_ABOVE_BYTES:
                self._write()
            if session.ended or self._is_paused() or self._hub.queue.is_over():
                return done
        return len(items)

    def _look_what_is_in_flight(self, session: Session) -> None:
        """Nothing is, once all that came has been carried out: what comes now did not come with a failed append."""
        if not self._blocked and not self._is_behind():
            session.nothing_in_flight()
            self._failed.clear()

    def buffer_updated(self, nbytes: int) -> None:
        if self.session is not None and not self.session.ended:
            self.bytes_in += nbytes
        super().buffer_updated(nbytes)

    def _append_at_once(self, session: Session, nbytes: int) -> int:
        return 0  # each request is decided about

    def _take(self, session: Session, item: Command | Append) -> None:
        """A request has come: decides about it, and carries it out or lets it wait."""
        faults = self._faults
        seen = request_seen(
            item,
            faults.next_request(),
            store=self._store,
            connection=self.number,
            now_s=faults.clock.now_s(),
            started_s=faults.started_s,
        )
        if faults.observer is not None:
            faults.observer.add(seen)
        plan = faults.decide(seen)
        if plan is None:
            self._carry_out(session, item, seen, _NO_PLAN)
        elif not plan.before:
            self._carry_out(session, item, seen, plan)
        else:
            kept, size = own(item)
            cost = size + _WAITING_BYTES
            self._delayed_bytes += cost
            if not plan.before.overtake:
                self._blocked = True
                self._stop_reading()
            self._kept_waiting.add(plan.before, lambda: self._go_on(kept, seen, plan, cost))

    def _go_on(self, item: Command | Append, seen: Seen, plan: Plan, cost: int) -> None:
        """A request has waited long enough."""
        session, hub = self.session, self._hub
        was_full = self._is_full()
        self._delayed_bytes -= cost
        if not plan.before.overtake:
            self._blocked = False
        if session is None or session.ended:
            return
        hub.enter(self)
        try:
            self._carry_out(session, item, seen, plan)
            self._look_what_is_in_flight(session)
        except Exception as error:  # noqa: BLE001 — as in Connection
            hub.service.failed(session, error)
        finally:
            hub.leave()
        self.flush()
        if not plan.before.overtake:
            if self.waits.frame_since is not None:
                self.waits.frame_since = self._loop.time()
            self._catch_up_soon()
        elif was_full and not self._is_full():
            self._catch_up_soon()

    def _stop_reading(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()

    def _stop_reading_if_full(self) -> None:
        if self._is_full():
            self._stop_reading()

    def missed(self, missed: Missed, now_s: float) -> None:
        if missed in (Missed.FRAME, Missed.BLOCK) and (self._blocked or self._is_full()):
            return  # the rest of it may be there, but this side does not read
        super().missed(missed, now_s)

    def _carry_out(self, session: Session, item: Command | Append, seen: Seen, plan: Plan) -> None:
        self._collect(session)
        self._act(session, item, seen, plan)
        if self._numbers_are_wrong:
            session.end("a fault told a writer that its number is wrong", Ending.FLUSHED)

    def _act(self, session: Session, item: Command | Append, seen: Seen, plan: Plan) -> None:
        action = plan.action
        match action:
            case Error(at="before"):
                frames = self._error(session, item, seen, action)
                self._note(seen, frames)
                self._send(session, frames, seen, plan.after)
                return
            case Drop(drop="request"):
                return
            case Close(close="before"):
                self._end(session, plan, action)
                return
            case Duplicate(duplicate="request"):
                second = own(item)[0]
                self._perform(session, item, seen, plan)
                if not session.ended:
                    self._perform(session, second, seen, plan)
            case _:
                self._perform(session, item, seen, plan)

    def _perform(self, session: Session, item: Command | Append, seen: Seen, plan: Plan) -> None:
        """Lets the store carry a request out, and deals with its reply."""
        waiting = len(session.reads)
        failed = self._failed.get((item.segment, item.writer_id.bytes)) if isinstance(item, Append) else None
        if failed is not None:
            frames = self._error(session, item, seen, failed)
        else:
            if isinstance(item, SetupAppend):
                self._failed.pop((item.segment, item.writer_id.bytes), None)
            session.receive(item)
            frames = _frames(session.take_out())
        if not frames and isinstance(item, ReadSegment) and len(session.reads) > waiting:
            self._late.setdefault(item.request_id, deque()).append((seen, plan))
            return
        if not frames and session.ended:
            return
        self._note(seen, frames)
        self._reply(session, frames, seen, plan, item)

    def _error(self, session: Session, item: Command | Append | None, seen: Seen, action: Error) -> list[bytes]:
        """The frame of an error that is sent in place of the store or of its reply."""
        reply = refusal(action, seen)
        session.reply(reply)
        if isinstance(item, Append | SetupAppend) and not isinstance(reply, ConditionalCheckFailed):
            session.forget_writer(item.segment, item.writer_id)
            if isinstance(item, Append):
                self._failed.setdefault((item.segment, item.writer_id.bytes), action)
                self._numbers_are_wrong = isinstance(reply, InvalidEventNumber)
        return _frames(session.take_out())

    def _note(self, seen: Seen, frames: list[bytes]) -> None:
        """Tells the observer how a request came out."""
        observer = self._faults.observer
        if observer is None:
            return
        cls = COMMANDS.get(_HEADER.unpack_from(frames[0])[0]) if frames else None
        now_s = self._faults.clock.now_s()
        failure = cls is not None and cls.is_failure
        observer.carried_out(seen, now_s, None if cls is None else cls.type_name, failure=failure)

    # --- replies ----------------------------------------------------------------------------------------------------

    def _collect(self, session: Session) -> None:
        """Takes what the session has to send that is not the reply to what is being carried out: reads that waited."""
        if not session.out:
            return
        for frame in _frames(session.take_out()):
            seen, plan = self._asked_for(frame)
            if seen is not None:
                self._note(seen, [frame])
            self._reply(session, [frame], seen, plan, None)

    def _asked_for(self, frame: bytes) -> tuple[Seen | None, Plan]:
        """The read that a late reply answers, and what is planned for it."""
        request_id = getattr(decode(frame), "request_id", None) if self._late else None
        those = self._late.get(request_id) if request_id is not None else None
        if not those or request_id is None:
            return None, _NO_PLAN
        found = those.popleft()
        if not those:
            del self._late[request_id]
        return found

    def _reply(
        self, session: Session, frames: list[bytes], seen: Seen | None, plan: Plan, item: Command | Append | None
    ) -> None:
        """Sends the reply to a request as is planned for it."""
        action = plan.action
        if isinstance(action, Error) and seen is not None and frames:
            frames = self._error(session, item, seen, action)
        elif action is not None:
            frames = self._changed(session, frames, plan, plan.after)
        if not self._faults.looks_at_replies:
            self._send(session, frames, seen, plan.after)
            return
        for frame in frames:
            self._send_watched(session, frame, seen, plan.after)

    def _send_watched(self, session: Session, frame: bytes, request: Seen | None, after: Wait) -> None:
        """Asks the rules on replies about a frame, and sends what they leave of it."""
        if session.ended:
            return
        try:
            reply = decode(frame)
        except WireError:
            self._send(session, [frame], request, after)  # a rule on the request has spoilt it
            return
        now_s = self._faults.clock.now_s()
        about = reply_seen(reply, len(frame), request, store=self._store, connection=self.number, now_s=now_s)
        plan = self._faults.decide(about)
        if plan is None:
            self._send(session, [frame], request, after)
            return
        if request is not None:
            request.faults = (*request.faults, *about.faults)
        wait = Wait(
            after.seconds + plan.after.seconds,
            after.holds + plan.after.holds,
            after.overtake or plan.after.overtake,
        )
        action = plan.action
        if isinstance(action, Error):
            frames = self._error(session, None, about, action)
        else:
            frames = self._changed(session, [frame], plan, wait, late=True)
        self._send(session, frames, request, wait)

    def _changed(
        self, session: Session, frames: list[bytes], plan: Plan, wait: Wait, *, late: bool = False
    ) -> list[bytes]:
        """What an action leaves of the reply. late: the rule is one on replies, so every action is on this frame."""
        action = plan.action
        if isinstance(action, Close):
            if action.reply_bytes:
                self._send(session, [b"".join(frames)[: action.reply_bytes]], None, wait)
            self._end(session, plan, action)
            return []
        return spoilt(frames, action, late=late)

    def _send(self, session: Session, frames: list[bytes], seen: Seen | None, wait: Wait) -> None:
        """Queues frames to leave when a wait is over; the time of a round trip runs meanwhile."""
        seconds = wait.seconds + self._faults.round_trip_s(self._store)
        if seconds or wait.holds:
            wait = Wait(seconds, wait.holds, wait.overtake)
        for frame in frames:
            reply = _Reply(frame, seen, ready=not wait)
            if wait.overtake:
                self._overtaken += 1
            else:
                self._queue.append(reply)
            self._delayed_bytes += reply.cost
            if wait:
                self._kept_waiting.add(wait, bound(self._is_ready, reply, last=wait.overtake))
        if frames and not wait:
            self._hub.reply_queued(self)

    def _is_ready(self, reply: _Reply, *, last: bool) -> None:
        """A reply may leave; one that others could overtake, behind all that are there."""
        reply.ready = True
        if last:
            self._overtaken -= 1
            self._queue.append(reply)
        self._hub.reply_queued(self)

    def _end(self, session: Session, plan: Plan, action: Close) -> None:
        """Ends the connection as a rule says, once what was sent before is written."""
        why = f"fault {plan.rule!r}: {action.word}"
        transport = self._transport
        if not action.reset or transport is None:
            session.end(why, Ending.FLUSHED)
            return
        self._write()
        end_by_reset(transport)
        self.cut(why)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        session = self.session
        if session is None:
            return
        self._collect(session)
        was_full = self._is_full()
        queue, now_s, observer = self._queue, None, self._faults.observer
        written: list[Buffer] = []
        size = cost = 0
        while queue and queue[0].ready:
            reply = queue.popleft()
            written.append(reply.data)
            size += len(reply.data)
            cost += reply.cost
            if observer is not None and reply.seen is not None:
                if now_s is None:
                    now_s = self._faults.clock.now_s()
                observer.replied(reply.seen, now_s)
        if not written:
            return
        self._delayed_bytes -= cost
        self.bytes_out += size
        session.out, session.out_bytes = written, size
        super()._write()
        if was_full and not self._is_full():
            self._catch_up_soon()

    def flush(self) -> None:
        session = self.session
        if session is not None and session.ending is Ending.FLUSHED and not self._hub.closing:
            self._write()
            if self._queue or self._overtaken:
                return  # what still waits leaves first; each that is ready comes here again
        super().flush()


def _frames(parts: Sequence[Buffer]) -> list[bytes]:
    """Whole frames out of the parts that a session has queued."""
    if not parts:
        return []
    if len(parts) == 1 and len(parts[0]) >= HEADER_BYTES:
        data = bytes(parts[0])
        if _HEADER.unpack_from(data)[1] + HEADER_BYTES == len(data):
            return [data]
    else:
        data = b"".join(parts)
    frames, at = [], 0
    while at < len(data):
        end = at + HEADER_BYTES + _HEADER.unpack_from(data, at)[1]
        frames.append(data[at:end])
        at = end
    return frames
