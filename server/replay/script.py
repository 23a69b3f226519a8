"""A trace as a script: the requests of its clients with their replies.

Appends are reassembled as in a store, so it does not matter how a client splits them into frames. A reply belongs to
the last request that it answers; a reply that answers no request, or does not decode, belongs to the request before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from segstore.wire import Command, WireError
from segstore.wire.blocks import Append, AppendBlockDecoder, owned
from segstore.wire.protocol import Requests
from segstore.wire.trace import Direction, Exchange, Record, RecordKind, unpack_data

if TYPE_CHECKING:
    from segstore.server.replay.calls import CallStep


class ScriptedReply(NamedTuple):
    """A reply of the trace: a frame, or bytes that are not a frame. delay_ns: time since its request."""

    frame: bytes
    delay_ns: int


class ConnectionCut:
    """The end of a connection that the store closed while requests had no reply. lost: these requests, in order.

    done: whether a client's connection was closed in its place.
    """

    def __init__(self, lost: list[Step]) -> None:
        self.lost = lost
        self.done = False


class Step:
    """A request of the trace and its replies.

    number: from 1, in the whole trace. connection: from 1, in the order of their first requests. closes: whether the
        store closed the connection after it. used: how often it was matched. cut: the cut that it was lost in, or that
        came after it.
    """

    def __init__(self, number: int, connection: int, item: Command | Append, ts_ns: int) -> None:
        self.number = number
        self.connection = connection
        self.item = item
        self.key = key_of(item, {})
        self.ts_ns = ts_ns
        self.replies: list[ScriptedReply] = []
        self.closes = False
        self.used = 0
        self.cut: ConnectionCut | None = None

    @property
    def type_name(self) -> str:
        return type_of(self.item)

    @property
    def is_lost(self) -> bool:
        """Whether it has no reply because its connection was cut."""
        return self.cut is not None and self in self.cut.lost

    @property
    def is_cut_next(self) -> bool:
        """Whether it was lost in a cut that is still to come."""
        return self.cut is not None and not self.cut.done and self in self.cut.lost


AnyStep = TypeVar("AnyStep", Step, "CallStep")


def first_unused(steps: Iterable[AnyStep]) -> AnyStep | None:
    """Returns the first unmatched step, else the last step; None without steps."""
    last = None
    for last in steps:
        if not last.used:
            break
    return last


def type_of(item: Command | Append) -> str:
    """Returns the type name of a request; an append is APPEND_BLOCK_END, regardless of its frames."""
    return "APPEND_BLOCK_END" if isinstance(item, Append) else item.type_name


def compared_fields(item: Command | Append) -> Iterator[tuple[str, Any]]:
    """Yields the names and values of the fields that do not differ from run to run."""
    left_out = {"request_id", "writer_id", *(item.secrets if isinstance(item, Command) else ())}
    for name in item.__struct_fields__:
        if name not in left_out:
            yield name, getattr(item, name)


def key_of(item: Command | Append, names: dict[str, str]) -> tuple[Any, ...]:
    """The key that matching requests share, without writers. names: of transient segments, translated."""
    fields = []
    for _, value in compared_fields(item):
        if isinstance(value, str):
            value = names.get(value, value)
        elif isinstance(value, (memoryview, bytes, bytearray)):
            value = bytes(value)
        elif isinstance(value, Iterable):
            value = tuple(names.get(element, element) if isinstance(element, str) else element for element in value)
        fields.append(value)
    return (type(item), *fields)


class OfClients:
    """Predicate over the records of a trace, in order: whether a record comes from a client.

    A connection is a controller's, not a client's, if its opening record says so.
    """

    def __init__(self) -> None:
        self._controllers: set[int] = set()

    def __call__(self, record: Record) -> bool:
        if record.kind is RecordKind.OPEN:
            facts = unpack_data(record.data)
            if facts is not None and facts.get("role") == "controller":
                self._controllers.add(record.connection)
            else:
                self._controllers.discard(record.connection)
        return record.connection not in self._controllers


def of_clients(records: Iterable[Record]) -> Iterator[Record]:
    """Yields the records of clients, as `OfClients` decides."""
    return filter(OfClients(), records)


def read_script(records: Iterable[Record], left_out: list[str] | None = None) -> list[Step]:
    """Returns the requests of a trace, in order, with their replies.

    left_out: receives connection and reason for each client record without a request: partial frames, frames that do
    not decode, and appends that break the rules of blocks, such as appends of a writer that was not set up.
    """
    steps: list[Step] = []
    open_connections: dict[int, _Reading] = {}
    serials = count(1)
    for record in records:
        # There are four cases: 1. a call, which is read elsewhere; 2. a connection opens or closes; 3. a reply;
        # 4. a request, or bytes that are none.
        if record.kind is RecordKind.CALL:
            continue
        if record.kind in (RecordKind.OPEN, RecordKind.CLOSE):
            ended = open_connections.pop(record.connection, None)  # a reused number is another connection
            if ended is not None and record.kind is RecordKind.CLOSE and record.direction is Direction.REPLY:
                ended.closed_by_store()
            continue
        reading = open_connections.setdefault(record.connection, _Reading())
        exchange = Exchange(record, 0)
        command = exchange.command
        if record.direction is Direction.REPLY:
            answered = [] if command is None else reading.requests.answered(command)
            step = answered[-1] if answered else reading.last
            if step is not None:
                step.replies.append(ScriptedReply(record.data, record.ts_ns - step.ts_ns))
            continue
        try:
            if command is None:
                raise exchange.error or WireError(f"{len(record.data)} bytes that are not a frame")
            item = reading.blocks.feed(command)
        except WireError as error:  # no store answers that
            if left_out is not None:
                left_out.append(f"on connection {record.connection}: {error}")
            continue
        if item is not None:
            reading.serial = reading.serial or next(serials)
            reading.last = Step(len(steps) + 1, reading.serial, owned(item)[0], record.ts_ns)
            steps.append(reading.last)
            reading.requests.add(item, reading.last)
    return steps


class _Reading:
    """The state of one connection while reading. serial: from 1; 0 before the first request."""

    def __init__(self) -> None:
        self.serial = 0
        self.blocks = AppendBlockDecoder()
        self.requests: Requests[Step] = Requests()
        self.last: Step | None = None

    def closed_by_store(self) -> None:
        """The store has closed the connection: requests without a reply are lost."""
        if self.last is None:
            return
        self.last.closes = True
        if lost := list(self.requests):
            cut = self.last.cut = ConnectionCut(lost)
            for step in lost:
                step.cut = cut
