"""A flow: one user of a shared connection, and the callbacks through which it is notified.

Invariant: `on_lost` is called at most once, and no callback follows it or `close`. Sends on a closed flow are refused.
Follows `Flow` and `FlowClientConnection` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from segstore.client.errors import ClientError, Closed
from segstore.wire import Command, DataAppended, Hello
from segstore.wire.request_id import FLOWS_DISABLED, next_flow, next_sequence, pack

if TYPE_CHECKING:
    from segstore.client.connection.transport import Connection

Acknowledged = Callable[[bytes, int, int, int, int], None]
"""Receives the fields of a DataAppended in wire order: the writer's id as bytes, the event number, the previously
acknowledged event number, the request id, the segment's length."""

Turn = Callable[[], None]
"""Called by a connection when its user may send appends."""


class FlowHandler(Protocol):
    """Callbacks of a flow's user. They run inside the event loop's read and must not block.

    A handler that also has `on_ack`, an `Acknowledged`, receives acknowledgements of appends through it.
    """

    def on_reply(self, reply: Command) -> None:
        """Receives a reply; payloads in it are valid until this returns."""

    def on_lost(self, error: ClientError) -> None:
        """Called when the connection was lost or the flow failed; no callback follows."""


class FlowIds:
    """Allocates the flow numbers of one pool: 1 to 2^31 - 1, round-robin, each in use at most once."""

    __slots__ = ("_in_use", "_last")

    def __init__(self, last: int = 0) -> None:
        self._last = last
        self._in_use: set[int] = set()

    @property
    def in_use(self) -> int:
        return len(self._in_use)

    def take(self) -> int:
        """Allocates a free number. Raises ValueError if all are in use."""
        self._last = next_flow(self._last, self._in_use)
        self._in_use.add(self._last)
        return self._last

    def give_back(self, flow_id: int) -> None:
        self._in_use.discard(flow_id)


class Flow:
    """One user's side of a connection. Made by the pool.

    Attributes:
        flow_id: the flow number; 0 if flows are disabled and the connection is not shared.
        connection: the underlying connection.
        handler: receives the replies.
        closed: whether it was closed or lost.
        reading_at: offset of its pending read, None if there is none. A refusal may carry this in place of a request
            id (seed 36.30).
        bytes_in_flight: appended bytes not yet acknowledged.
        on_reply: the handler's `on_reply`.
        on_ack: the handler's `on_ack`; without one, a function that passes a DataAppended to `on_reply`.
        turn: called when the flow may send appends; set by the user that requests turns.
        asked: whether a turn has been requested.
    """

    __slots__ = (
        "_on_close",
        "_sequence",
        "asked",
        "bytes_in_flight",
        "closed",
        "connection",
        "flow_id",
        "handler",
        "on_ack",
        "on_reply",
        "reading_at",
        "turn",
    )

    def __init__(
        self, flow_id: int, connection: Connection, handler: FlowHandler, on_close: Callable[[Flow], None]
    ) -> None:
        self.flow_id: Final = flow_id
        self.connection: Final = connection
        self.handler: Final = handler
        self.on_reply: Final = handler.on_reply
        self.on_ack: Final[Acknowledged] = getattr(handler, "on_ack", None) or _as_reply(handler.on_reply)
        self.turn: Turn | None = None
        self.asked = False
        self.closed = False
        self.reading_at: int | None = None
        self.bytes_in_flight = 0
        self._sequence: int | None = None
        self._on_close = on_close

    @property
    def endpoint(self) -> str:
        """ "host:port" of the peer."""
        return self.connection.name

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
        self.connection.outbox.send(command)

    def ask_turn(self) -> None:
        """Schedules one call of `turn`, in this loop iteration or once the peer reads again. Raises Closed."""
        if self.closed:
            self._check()
        if not self.asked:
            self.asked = True
            outbox = self.connection.outbox
            outbox.turns.append(self)
            if not outbox.turn_due:
                outbox.schedule()

    def turn_now(self) -> None:
        """Like `ask_turn`, but calls `turn` immediately if the connection is idle. Raises Closed."""
        if self.closed or self.asked:
            self.ask_turn()
        else:
            self.asked = True
            self.connection.outbox.turn_now(self)

    def close(self) -> None:
        """Releases the flow number; later replies to it are dropped. Without flows, closes the connection."""
        if not self.closed:
            self.end()
            self.connection.forget(self)

    def end(self) -> None:
        """Marks the flow as closed and notifies the pool. Called by the connection."""
        if not self.closed:
            self.closed = True
            self.connection.outbox.bytes_in_flight -= self.bytes_in_flight
            self.bytes_in_flight = 0
            self._on_close(self)

    def _check(self) -> None:
        if self.closed:
            raise Closed(f"flow {self.flow_id} to {self.endpoint} is closed", endpoint=self.endpoint)


def _as_reply(on_reply: Callable[[Command], None]) -> Acknowledged:
    """Adapts `on_reply` to `on_ack`. Not a bound method of the flow, which would make a reference cycle."""

    def on_ack(writer: bytes, number: int, previous: int, request_id: int, length: int) -> None:
        on_reply(DataAppended(request_id, UUID(bytes=writer), number, previous, length))

    return on_ack
