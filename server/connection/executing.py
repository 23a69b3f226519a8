"""Executes the requests of one peer, sans I/O: with its session, and through its lane if there are rules or observers.

Through a lane, requests are executed one by one, because rules may apply to any request, and the lane sends the
replies. While no rule can match an unconditional append, appends are still executed together (`Lane.passes_appends`).

Invariants: requests are executed in the order in which they were received, all of them unless the session ends; the
session is notified when no request is in flight behind a failed append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from segstore.server.connection.receiving import Received
from segstore.server.connection.session import WRITE_ABOVE_BYTES, Session
from segstore.server.connection.states import SessionEnding
from segstore.server.faults import End, Execute, Finish, Forget, Send
from segstore.wire.blocks import WHOLE_APPENDS, Append, AppendBlockDecoder, one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.server.connection.deadlines import Waits
    from segstore.server.connection.hub import ConnectionHub
    from segstore.server.connection.service import StoreService
    from segstore.server.connection.writers import Item
    from segstore.server.faults import Effect, Lane, Seen
    from segstore.wire import Buffer
    from segstore.wire.blocks import Run

_NOT_YET: Final = SessionEnding.NOT_YET
_STEP: Final = 4096
"""Requests that a connection executes before other connections have their turn, if their replies are small."""


class LaneHost:
    """The lane of one connection and the replies that have passed it.

    Attributes:
        lane: decides about requests and replies.
        out_bytes: size of the replies that have passed, and are still to be written.
    """

    def __init__(
        self, lane: Lane, service: StoreService, *, on_reply: Callable[[], None], reset: Callable[[str], None]
    ) -> None:
        """on_reply, reset: as in `Execution`."""
        self.out_bytes = 0
        self.lane = lane
        self._most_bytes = service.settings.limits.connection_outstanding_bytes
        self._on_reply = on_reply
        self._reset = reset
        self._out: list[Buffer] = []
        self._seen: list[Seen] = []

    @property
    def held_bytes(self) -> int:
        """Size of all requests and replies that are held."""
        return self.lane.requests_bytes + self.lane.replies_bytes + self.out_bytes

    @property
    def is_paused(self) -> bool:
        """Whether no request is to be executed now."""
        lane = self.lane
        return lane.is_blocked or lane.requests_bytes + lane.replies_bytes > self._most_bytes

    def execute(self, session: Session, items: list[Item]) -> int:
        """Executes requests in order until enough output is pending or the lane holds one; returns how many are done.
        Appends of runs take the place of the runs in `items` if rules are asked about each.
        """
        lane, done = self.lane, 0
        while done < len(items):
            item, is_held = items[done], False
            if isinstance(item, list):
                if not lane.passes_appends:
                    items[done : done + 1] = one_by_one((item,))
                    continue
                self._pass_appends(session, item, sum([len(rows) for _, rows in item]))
            elif isinstance(item, Append) and item.expected_offset is None and lane.passes_appends:
                self._pass_appends(session, item, 1)
            else:
                self.apply(session, lane.request(item))
                is_held = self.is_paused
            done += 1
            if is_held or session.ending is not _NOT_YET or self.out_bytes > WRITE_ABOVE_BYTES:
                break
        return done

    def _pass_appends(self, session: Session, appends: Append | list[Run], count: int) -> None:
        """Executes appends that no rule is asked about; their replies leave at once."""
        self.take_replies(session)
        self.lane.appends_passed(count)
        session.receive_all((appends,), whole=False)
        if session.out:
            if not self._out:
                self._on_reply()
            self.out_bytes += session.out_bytes
            self._out += session.take_out()

    def take_replies(self, session: Session) -> None:
        """Passes replies of reads that waited through the lane."""
        if session.out:
            for frame in session.take_out():
                self.apply(session, self.lane.reply([bytes(frame)]))

    def take_out(self) -> list[Buffer]:
        """The replies that have passed the lane, in order; the caller writes them."""
        self.lane.sent(self._seen)
        out, self._out, self._seen, self.out_bytes = self._out, [], [], 0
        return out

    def drop_waiting(self) -> bool:
        """Drops waiting requests after the loss of the connection. Returns whether a request was held, so that the
        requests behind it must be dropped.
        """
        was_blocked = self.lane.is_blocked
        self.lane.drop_waiting()
        self.drop_out()
        return was_blocked

    def drop_out(self) -> None:
        """Drops the replies that have passed: their peer is gone."""
        self._out, self._seen, self.out_bytes = [], [], 0

    def apply(self, session: Session, effects: list[Effect]) -> None:
        """Applies the lane's effects."""
        for effect in effects:
            match effect:
                case Execute():
                    if not session.ended:
                        self._execute(session, effect)
                case Send():
                    if not self._out:
                        self._on_reply()
                    self._out.append(effect.data)
                    self._seen += effect.seen
                    self.out_bytes += len(effect.data)
                case Forget(segment, writer_id):
                    session.forget_writer((segment, writer_id.bytes))
                case Finish(why):
                    self.apply(session, self.lane.end(why))
                case End(why, reset=True):
                    self._reset(why)
                case End(why):
                    session.end(why, SessionEnding.FLUSHED)

    def _execute(self, session: Session, request: Execute) -> None:
        waiting = len(session.reads)
        self.take_replies(session)
        session.receive_all((request.item,), whole=False)
        frames = list(map(bytes, session.take_out()))
        if not frames and len(session.reads) > waiting:
            self.lane.await_reply(request)
        elif frames or not session.ended:
            self.apply(session, self.lane.reply(frames, request))


class Execution:
    """The requests of one connection, and their replies until they are taken.

    Attributes:
        received: requests that are not executed yet.
        session: executes them.
        lane: decides about them before; None without rules and observers.
    """

    def __init__(
        self,
        hub: ConnectionHub,
        lane: Lane | None,
        peer: str,
        waits: Waits,
        now_s: Callable[[], float],
        *,
        admin: bool,
        on_reply: Callable[[], None],
        reset: Callable[[str], None],
    ) -> None:
        """peer: "host:port" of the other side. waits: since when parts of requests are incomplete, by the clock
        `now_s`. on_reply: called when a reply is to be written. reset: resets the connection, for the reason given.
        """
        service, limits = hub.service, hub.limits
        blocks = None if admin else AppendBlockDecoder(max_state_bytes=limits.connection_writer_bytes)
        decoder = service.frame_decoder(None if admin else WHOLE_APPENDS)
        self.received = Received(hub.buffers, decoder, blocks, waits, now_s, service.counters)
        whole = lane is not None
        self.session = Session(service, peer, admin=admin, on_reply=on_reply, blocks=blocks, whole_frames=whole)
        self.lane = None if lane is None else LaneHost(lane, service, on_reply=on_reply, reset=reset)

    @property
    def held_bytes(self) -> int:
        """Size of all that it holds for the peer."""
        session, lane = self.session, self.lane
        held = self.received.held_bytes + session.waiting_bytes + session.out_bytes
        return held if lane is None else held + lane.held_bytes

    def run(self) -> None:
        """Executes one step: `_STEP` requests, or fewer if their replies exceed `WRITE_ABOVE_BYTES` or the lane holds
        one.
        """
        session, received, lane, left = self.session, self.received, self.lane, _STEP
        while left > 0 and session.ending is _NOT_YET and (lane is None or not lane.is_paused):
            if received.backlog:
                items = received.take_backlog()
            elif received.at < received.end:
                items = received.decode(left)
            else:
                return
            whole = received.at == received.end
            done = session.receive_all(items, whole=whole) if lane is None else lane.execute(session, items)
            left -= received.step
            if done < len(items):
                received.put_back(items[done:])
                return

    def settle(self) -> None:
        """Ends the refusals that hold for one read, if all that was received is executed."""
        lane = self.lane
        if lane is not None and not lane.is_paused and not self.received.is_pending():
            self.session.nothing_in_flight()
            lane.lane.nothing_in_flight()

    def apply(self, effects: list[Effect]) -> None:
        """Applies the lane's effects at the end of a request's or a reply's wait."""
        assert self.lane is not None
        self.lane.apply(self.session, effects)
        self.settle()
