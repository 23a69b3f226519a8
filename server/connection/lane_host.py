"""A store's connection as the host of a `Lane`: executes requests with the session and queues what the lane lets leave.

Requests are executed one by one, because rules are asked about each; the session's replies go through the lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore.server.connection.session import WRITE_ABOVE_BYTES, Ending
from segstore.server.faults import End, Execute, Finish, Forget, Lane, Send, end_by_reset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segstore.server.connection.connection import Connection
    from segstore.server.connection.hub import ConnectionHub
    from segstore.server.connection.session import Session
    from segstore.server.faults import Effect, Faults, Seen
    from segstore.wire import Buffer, Command
    from segstore.wire.blocks import Append


class LaneHost:
    """The lane of one connection and the replies that have passed it.

    store: number of the store in its cluster.

    Attributes:
        out_bytes: size of the replies that have passed, and are still to be written.
    """

    __slots__ = ("_connection", "_hub", "_lane", "_most_bytes", "_out", "_seen", "out_bytes")

    def __init__(self, connection: Connection, hub: ConnectionHub, faults: Faults, store: int) -> None:
        self.out_bytes = 0
        self._connection = connection
        self._hub = hub
        self._most_bytes = hub.limits.connection_outstanding_bytes
        self._lane = Lane(faults, store=store, encode=hub.service.encode, on_effects=self._go_on)
        self._out: list[Buffer] = []
        self._seen: list[Seen] = []

    @property
    def number(self) -> int:
        """Of the connection, over all stores that share the rules."""
        return self._lane.number

    @property
    def held_bytes(self) -> int:
        """Size of all requests and replies that are held."""
        return self._lane.requests_bytes + self._lane.replies_bytes + self.out_bytes

    @property
    def is_paused(self) -> bool:
        """Whether no request is to be executed now."""
        lane = self._lane
        return lane.is_blocked or lane.requests_bytes + lane.replies_bytes > self._most_bytes

    @property
    def is_drained(self) -> bool:
        """Whether no reply is held."""
        return self._lane.is_drained

    def execute(self, session: Session, items: Sequence[Command | Append]) -> int:
        """Executes requests until the slice is used up or the lane holds one; returns how many were taken."""
        for done, item in enumerate(items, 1):
            self._apply(session, self._lane.request(item))
            if self.out_bytes > WRITE_ABOVE_BYTES:
                self._connection.write()
            if session.ended or self._connection.is_paused() or self._hub.queue.is_over():
                return done
        return len(items)

    def take_replies(self, session: Session) -> None:
        """Gives the lane the replies that no request of now has caused: those of reads that waited."""
        if session.out:
            for frame in session.take_out():
                self._apply(session, self._lane.reply([bytes(frame)]))

    def take_out(self) -> list[Buffer]:
        """The replies that have passed the lane, in order; the caller writes them."""
        self._lane.sent(self._seen)
        out, self._out, self._seen, self.out_bytes = self._out, [], [], 0
        return out

    def nothing_in_flight(self, session: Session) -> None:
        """Everything that was received is executed."""
        session.nothing_in_flight()
        self._lane.nothing_in_flight()

    def drop_waiting(self) -> bool:
        """The connection is lost. Returns whether a request was held, and so those behind it are to be dropped."""
        was_blocked = self._lane.is_blocked
        self._lane.drop_waiting()
        self._out, self._seen, self.out_bytes = [], [], 0
        return was_blocked

    def _go_on(self, effects: list[Effect]) -> None:
        """The wait of a request or a reply has ended."""
        connection, hub = self._connection, self._hub
        session = connection.session
        if session is None:
            return
        request_ended = not all(type(each) is Send for each in effects)
        hub.enter(connection)
        try:
            self._apply(session, effects)
            if not self.is_paused and not connection.is_behind():
                self.nothing_in_flight(session)
        except Exception as error:  # noqa: BLE001 — as in Connection
            hub.service.failed(session, error)
        finally:
            hub.leave()
        connection.flush()
        if request_ended:
            connection.restart_waits()
        connection.catch_up_soon()

    def _apply(self, session: Session, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(data, seen):
                    self._out.append(data)
                    self._seen += seen
                    self.out_bytes += len(data)
                    self._hub.reply_queued(self._connection)
                case Execute():
                    if not session.ended:
                        self._execute(session, effect)
                case Forget(segment, writer_id):
                    session.forget_writer(segment, writer_id)
                case Finish(why):
                    self._apply(session, self._lane.end(why))
                case End(why, reset):
                    self._end(session, why, reset=reset)

    def _execute(self, session: Session, request: Execute) -> None:
        waiting = len(session.reads)
        self.take_replies(session)
        session.receive(request.item)
        frames = [bytes(each) for each in session.take_out()]
        if not frames and len(session.reads) > waiting:
            self._lane.await_reply(request.item, request.asked)
        elif frames or not session.ended:
            self._apply(session, self._lane.reply(frames, request.asked))

    def _end(self, session: Session, why: str, *, reset: bool) -> None:
        connection = self._connection
        if not reset or connection.transport is None:
            session.end(why, Ending.FLUSHED)
            return
        connection.write()
        end_by_reset(connection.transport)
        connection.cut(why)
