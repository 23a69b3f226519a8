"""Matches requests and replies in a stream of records, for filters, statistics and reports.

`Exchanges.see` takes the records of a trace in order, and returns an `Exchange` for each record: the command, decoded
on demand, the segments that it concerns, and for a reply the requests that it answers and how long they waited. A
request learns the latency and failure of its reply when that is seen; `Exchanges.settled` waits for it.

`segstore.wire.protocol` maps replies to requests. A command that names only a writer has the segment of the writer's
set-up; a reply without a segment has its request's.

Invariants: whatever the records are, nothing is raised; memory holds only requests that wait for a reply, with the
blocks of appends. A request does not refer to its reply, so that neither needs a garbage collection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.wire.codec import decode
from segstore.wire.commands import AppendBlock, AppendBlockEnd, Hello, KeepAlive, ReadSegment, SetupAppend
from segstore.wire.errors import WireError
from segstore.wire.inspect import Payload
from segstore.wire.protocol import Requests
from segstore.wire.schema import COMMANDS, Unknown
from segstore.wire.trace.blocks import Direction, Record, RecordKind
from segstore.wire.trace.calls import Call

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Mapping

    from segstore.wire.blocks import Append
    from segstore.wire.schema import Command

_SEGMENTS: Final = ("segment", "segment_name", "parent_segment", "target", "source", "target_segment_id")
_SEVERAL: Final = ("source_segment_ids", "sources")
OF_REPLIES: Final = frozenset({"latency", "failure", "status"})
"""The names of the filter language that a request takes from its reply."""
_CONTEXT: Final = frozenset({"segment", "stream", "scope", "data"}) | OF_REPLIES


class Ending(NamedTuple):
    """The facts that a request takes from its first reply. status: of a controller call."""

    ts_ns: int
    failure: bool
    status: str | None


@dataclass(eq=False, repr=False)
class Exchange:
    """One record and the facts derived from it; the subject of a filter.

    Attributes:
        record: as it came. time_ns: since the first record.
        answers: of a reply, the requests that it answers, oldest first; empty where replies are not followed.
        pending: of the close of a connection, the requests that had no reply.
        ending: of an answered request. awaits_reply: whether it is an unanswered request.
        block: of the end of an append, the frame with its events, or None.
        broken: the rules whose verdicts name the record.
        unasked: whether it is a reply that answers no request.
    """

    record: Record
    time_ns: int
    answers: tuple[Exchange, ...] = ()
    pending: tuple[Exchange, ...] = ()
    ending: Ending | None = None
    awaits_reply: bool = False
    unasked: bool = False
    block: Exchange | None = None
    error: WireError | None = None
    broken: tuple[str, ...] = ()
    _from_context: tuple[str, ...] = ()

    @cached_property
    def command(self) -> Command | None:
        """The command of the frame, `Unknown` for an unknown type code; None if it is no frame or malformed."""
        if self.record.kind is not RecordKind.FRAME:
            return None
        try:
            return decode(self.record.data, unknown="keep")
        except WireError as error:
            self.error = error
            return None

    @cached_property
    def call(self) -> Call | None:
        """The controller call of a CALL record; None for other records, or if it cannot be read."""
        return Call.unpack(self.record.data) if self.record.kind is RecordKind.CALL else None

    @property
    def kind(self) -> str:
        return self.record.kind.name.lower()

    @property
    def code(self) -> int | None:
        return self.record.code

    @property
    def type_name(self) -> str | None:
        code = self.code
        if code is None:
            return None
        return COMMANDS[code].type_name if code in COMMANDS else Unknown.type_name

    @property
    def given_up(self) -> tuple[Exchange, ...]:
        """Of the client's close of a connection, the reads that waited for data; they need no reply."""
        by_store = self.record.direction is Direction.REPLY
        return () if by_store else tuple(read for read in self.pending if isinstance(read.command, ReadSegment))

    @property
    def name(self) -> str:
        """Its name: the type name of a frame, the method of a call, else the kind in capitals."""
        return self.call.rpc if self.call is not None else self.type_name or self.record.kind.name

    @property
    def outcome(self) -> str:
        """The outcome of a reply: of a call its status, else the reply's name."""
        return self.name if self.call is None else self.call.outcome

    @property
    def status(self) -> str | None:
        if self.ending is not None:
            return self.ending.status
        return None if self.call is None else self.call.outcome or None

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The segments that the command names, or else the segments of its writer or its request."""
        command = self.command
        if command is None:
            return ()
        return segments_of(command) or self._from_context or (self.answers[0].segments if self.answers else ())

    @property
    def payload(self) -> Payload:
        block = None if self.block is None else self.block.command
        return Payload(self.command, block if isinstance(block, AppendBlock) else None)

    @cached_property
    def payloads(self) -> tuple[bytes, ...]:
        """The events of an append or a read, the keys and values of tables; of the end of an append, all its events."""
        return self.payload.parts()

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams (scope/stream) and scopes that a call names; for an answer without names, its request's."""
        if self.call is None:
            return ()
        return self.call.named or (self.answers[0].streams if self.answers else ())

    @property
    def request_id(self) -> int | None:
        command = self.command
        return getattr(command, "request_id", None) if not isinstance(command, Hello | KeepAlive) else None

    @property
    def writer_id(self) -> uuid.UUID | None:
        return getattr(self.command, "writer_id", None)

    @property
    def connection(self) -> int:
        return self.record.connection

    @property
    def direction(self) -> Direction:
        return self.record.direction

    @property
    def failure(self) -> bool:
        if self.ending is not None:
            return self.ending.failure
        if self.call is not None:
            return self.call.failed
        code = self.code
        return code in COMMANDS and COMMANDS[code].is_failure

    @property
    def malformed(self) -> bool:
        kind = self.record.kind
        if kind is RecordKind.CALL:
            return self.call is None
        return kind is RecordKind.BYTES or (kind is RecordKind.FRAME and self.command is None)

    @property
    def size(self) -> int:
        return len(self.record.data)

    @property
    def latency_ns(self) -> int | None:
        """The time from a request to its reply; of a reply, since the oldest request that it answers."""
        if self.ending is not None:
            return self.ending.ts_ns - self.record.ts_ns
        return self.record.ts_ns - self.answers[0].record.ts_ns if self.answers else None


def segments_of(command: Command | Append) -> tuple[str, ...]:
    """The segments that a command names itself."""
    names = [name for segment in _SEGMENTS if (name := getattr(command, segment, None)) is not None]
    for several in _SEVERAL:
        names.extend(getattr(command, several, ()))
    return tuple(names)


@dataclass(slots=True)
class _Connection:
    """The segments of a connection's writers, by the bytes of the writers' ids, its pending requests and open block."""

    segments: dict[bytes, str] = field(default_factory=dict)
    requests: Requests[Exchange] = field(default_factory=Requests)
    block: Exchange | None = None


class Exchanges:
    """Follows the connections of a trace.

    follow: whether to pair requests with replies and to remember writers' segments, for which every frame is decoded.
    `Exchanges.needed(names)` returns whether a filter with these names needs it. writers: the segments of writers that
    were set up before the first record, by the bytes of their ids. broken: the rules whose verdicts name a record, by
    its number, from 0.
    """

    def __init__(
        self,
        *,
        follow: bool = True,
        writers: Mapping[bytes, str] = MappingProxyType({}),
        broken: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.follow = follow
        self._writers = writers
        self._broken = broken
        self._records = 0
        self._start_ns: int | None = None
        self._connections: dict[int, _Connection] = {}
        self._calls: dict[int, Exchange] = {}

    @staticmethod
    def needed(names: frozenset[str]) -> bool:
        return not names.isdisjoint(_CONTEXT)

    def see(self, record: Record) -> Exchange:
        """Takes the next record."""
        if self._start_ns is None:
            self._start_ns = record.ts_ns
        seen = Exchange(record, record.ts_ns - self._start_ns)
        if self._broken:
            seen.broken = self._broken.get(self._records, ())
            self._records += 1
        if self.follow:
            if record.kind is RecordKind.CLOSE:
                connection = self._connections.pop(record.connection, None)
                seen.pending = () if connection is None else tuple(connection.requests)
            elif seen.command is not None:
                self._frame(seen, seen.command)
            elif seen.call is not None:
                self._call(seen, seen.call)
        return seen

    def settled(self, records: Iterable[Record]) -> Iterator[tuple[int, Exchange]]:
        """Takes all records, and yields each with its place, from 0, once all facts about it are known.

        A request comes before its reply, before the end of its connection, or, if it has neither, last.
        """
        waiting: dict[int, tuple[int, Exchange]] = {}
        for place, record in enumerate(records):
            seen = self.see(record)
            if seen.awaits_reply:
                waiting[id(seen)] = place, seen
                continue
            for request in (*seen.answers, *seen.pending):
                if (pending := waiting.pop(id(request), None)) is not None:
                    yield pending
            yield place, seen
        yield from waiting.values()

    def _call(self, seen: Exchange, call: Call) -> None:
        if seen.record.direction is Direction.REQUEST:
            seen.awaits_reply = True
            self._calls[call.number] = seen
        else:
            request = self._calls.pop(call.number, None)
            self._answer(seen, () if request is None else (request,))

    def _frame(self, seen: Exchange, command: Command) -> None:
        connection = self._connections.get(seen.record.connection)
        if connection is None:
            connection = self._connections[seen.record.connection] = _Connection()
        writer = getattr(command, "writer_id", None)
        if writer is not None:
            segment = connection.segments.get(writer.bytes) or self._writers.get(writer.bytes)
            seen._from_context = () if segment is None else (segment,)
        if seen.record.direction is Direction.REQUEST:
            if isinstance(command, SetupAppend):
                connection.segments[command.writer_id.bytes] = command.segment
                seen._from_context = (command.segment,)
            if isinstance(command, AppendBlock):
                connection.block = seen
            elif isinstance(command, AppendBlockEnd):
                block, connection.block = connection.block, None
                seen.block = block if block is not None and block.writer_id == command.writer_id else None
            pending = len(connection.requests)
            connection.requests.add(command, seen)
            seen.awaits_reply = len(connection.requests) > pending
        elif (answered := connection.requests.answered(command)) or command.is_reply or isinstance(command, Unknown):
            self._answer(seen, tuple(answered))

    def _answer(self, seen: Exchange, requests: tuple[Exchange, ...]) -> None:
        seen.answers, seen.unasked = requests, not requests
        for request in requests:
            request.ending = Ending(seen.record.ts_ns, seen.failure, seen.status)
            request.awaits_reply = False
