"""A flow: one user of a shared connection, and the callbacks through which it is notified.

Invariant: a flow's owner hears `on_lost` at most once, and nothing after it or after `close`. What is sent on a closed
flow is refused. Follows `Flow` and `FlowClientConnection` (Pravega's client).
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
"""Takes the fields of a DataAppended, in the order of the wire: the writer's id as bytes, the event number, that of the
acknowledgement before, the request id, the segment's length."""

Turn = Callable[[], None]
"""What a connection calls when it is this user's turn to append."""


class FlowHandler(Protocol):
    """The user of a flow. Its methods run inside the event loop's read: they must not block.

    One that has `on_ack` too, an `Acknowledged`, hears of appends that were acknowledged together by that.
    """

    def on_reply(self, reply: Command) -> None:
        """A reply came; payloads in it are valid until this returns."""

    def on_lost(self, error: ClientError) -> None:
        """The connection is gone, or the flow failed: nothing more comes on it."""


class FlowIds:
    """The flow numbers of one pool: 1 to 2^31 - 1, handed out in turn, none twice at a time."""

    __slots__ = ("_in_use", "_last")

    def __init__(self, last: int = 0) -> None:
        self._last = last
        self._in_use: set[int] = set()

    @property
    def in_use(self) -> int:
        return len(self._in_use)

    def take(self) -> int:
        """A number that nobody has; ValueError if all are taken."""
        self._last = next_flow(self._last, self._in_use)
        self._in_use.add(self._last)
        return self._last

    def give_back(self, flow_id: int) -> None:
        self._in_use.discard(flow_id)


class Flow:
    """One user's side of a connection. Made by the pool.

    Attributes:
        flow_id: its number; 0 where flows are disabled and it has the connection for itself.
        connection: what carries it.
        handler: who hears its replies.
        closed: whether it was closed or lost.
        reading_at: the offset of its read that waits for an answer, None without one. A refusal may carry this in place
            of a request id (seed 36.30).
        bytes_in_flight: appended bytes that were not acknowledged.
        on_reply: the handler's.
        on_ack: the handler's; for one that has none, what makes a DataAppended and gives it to `on_reply`.
        turn: what is called when it is its turn to append; set by who asks for turns.
        asked: whether it has asked for one.
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
        """The peer's Hello, which came before the flow was made."""
        return self.connection.hello

    @property
    def owns_connection(self) -> bool:
        """Whether flows are disabled, so that every reply of the connection is its own."""
        return self.flow_id == FLOWS_DISABLED

    def next_request_id(self) -> int:
        """The flow's number and its next sequence, from 0 on."""
        self._sequence = 0 if self._sequence is None else next_sequence(self._sequence)
        return pack(self.flow_id, self._sequence)

    def send(self, command: Command) -> None:
        """Sends any command but an append. Raises Closed, and WireError for what cannot be encoded."""
        self._check()
        self.connection.outbox.send(command)

    def ask_turn(self) -> None:
        """`turn` is called once, in this turn of the loop or when the peer reads again. Raises Closed."""
        if self.closed:
            self._check()
        if not self.asked:
            self.asked = True
            outbox = self.connection.outbox
            outbox.turns.append(self)
            if not outbox.turn_due:
                outbox.schedule()

    def turn_now(self) -> None:
        """As `ask_turn`, but at once if nothing else is on its way on the connection. Raises Closed."""
        if self.closed or self.asked:
            self.ask_turn()
        else:
            self.asked = True
            self.connection.outbox.turn_now(self)

    def close(self) -> None:
        """Frees the number; replies to it are dropped from now on. Without flows it closes the connection."""
        if not self.closed:
            self.end()
            self.connection.forget(self)

    def end(self) -> None:
        """For the connection: marks the flow as closed and tells the pool."""
        if not self.closed:
            self.closed = True
            self.connection.outbox.bytes_in_flight -= self.bytes_in_flight
            self.bytes_in_flight = 0
            self._on_close(self)

    def _check(self) -> None:
        if self.closed:
            raise Closed(f"flow {self.flow_id} to {self.endpoint} is closed", endpoint=self.endpoint)


def _as_reply(on_reply: Callable[[Command], None]) -> Acknowledged:
    """Not a method of the flow, which would refer to itself then and outlive its last user."""

    def on_ack(writer: bytes, number: int, previous: int, request_id: int, length: int) -> None:
        on_reply(DataAppended(request_id, UUID(bytes=writer), number, previous, length))

    return on_ack
