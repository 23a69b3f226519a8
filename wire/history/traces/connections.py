"""Follows one connection: checks the protocol, and makes facts of its requests and replies.

Appends become facts when they are sent, and when they are acknowledged or refused; other requests when they are
answered. A request that is never answered may have been carried out: that, too, becomes a fact, at the end.

Invariants: whatever the records are, nothing is raised. Appends of a writer whose set-up was not recorded are counted.
Memory holds the requests that wait, and the connection's writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from segstore.wire.blocks import frame_header
from segstore.wire.codec import decode
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
)
from segstore.wire.errors import WireError
from segstore.wire.history.facts import (
    Acked,
    Fact,
    Finding,
    Key,
    Open,
    Place,
    Refused,
    Sent,
    SetUp,
    Waiting,
    segment_key,
)
from segstore.wire.history.traces.group_facts import OF_GROUPS, assignments
from segstore.wire.history.traces.protocol import ProtocolCheck
from segstore.wire.history.traces.register_facts import OF_REGISTERS, UNANSWERED_REGISTERS
from segstore.wire.history.traces.segment_facts import OF_SEGMENTS, UNANSWERED_SEGMENTS
from segstore.wire.protocol import Requests
from segstore.wire.schema import Command
from segstore.wire.trace import Direction, Record, RecordKind, unpack_data

_APPENDS: Final = frozenset({AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd})
_ANSWERED: Final = {**OF_SEGMENTS, **OF_REGISTERS}
_UNANSWERED: Final = {**UNANSWERED_SEGMENTS, **UNANSWERED_REGISTERS}
_PARTIAL: Final = (-2).to_bytes(4, "big", signed=True)
_HEADER_BYTES: Final = 8
UNRECORDED: Final = "the recording began after the set-up of the writer"


class _Writer(NamedTuple):
    """A writer that was set up on this connection. name: its id as text. key: of its segment's facts."""

    segment: str
    name: str
    key: Key


class ConnectionFold:
    """Follows the records of one connection, in order. key: ("connection", FILE:NUMBER)."""

    kind: Final = "connection"

    def __init__(self, key: Key) -> None:
        self.key = key
        self._start(is_whole=False, store="")

    def _start(self, *, is_whole: bool, store: str) -> None:
        self._check = ProtocolCheck(self.key, is_whole=is_whole)
        self._requests: Requests[Waiting] = Requests()
        self._writers: dict[Any, _Writer] = {}
        self._block: AppendBlock | None = None
        self._store = store
        self._unrecorded = 0

    def see(self, place: Place, record: Record) -> Iterable[Finding]:
        """Takes the next record; returns facts and broken rules."""
        if record.kind is RecordKind.FRAME:
            try:
                command = decode(record.data, unknown="keep")
            except WireError as error:
                return self._check.undecodable(place, record, error)
            return (self._request if record.direction is Direction.REQUEST else self._reply)(place, command)
        if record.kind is RecordKind.OPEN:
            before = list(self.end())  # the number is used for a new connection
            self._start(is_whole=True, store=str((unpack_data(record.data) or {}).get("store", "")))
            return before
        if record.kind is RecordKind.BYTES:
            return self._check.loose_bytes(place, record)
        return self._check.closed(record)

    def end(self) -> Iterator[Finding]:
        """Yields what the records leave open."""
        yield from self._check.end()
        for waiting in self._requests:
            make = _UNANSWERED.get(type(waiting.command))
            if make is not None:
                yield from make(waiting)
        self._requests = Requests()
        if self._unrecorded:
            yield Open("lost-write", self.key, UNRECORDED, self._unrecorded)
            self._unrecorded = 0

    def _request(self, place: Place, command: Command) -> Sequence[Finding]:
        findings: list[Finding] = self._check.request(place, command)
        if type(command) is AppendBlock:
            self._block = command
            return findings
        if type(command) in _APPENDS:
            block, self._block = self._block, None
            writer = self._writers.get(command.writer_id)  # type: ignore[attr-defined]  # appends have one
            if writer is None:
                self._unrecorded += 1
            else:
                findings.append(Fact(writer.key, place, _sent(writer, command, block)))
        self._requests.add(command, Waiting(command, place))
        return findings

    def _reply(self, place: Place, command: Command) -> Sequence[Finding]:
        answered = self._requests.answered(command)
        findings: list[Finding] = self._check.reply(place, command, answered)
        if type(command) is DataAppended:
            writer = self._writers.get(command.writer_id)
            if writer is not None:
                asked = answered[-1].place if answered else None
                length = command.current_segment_write_offset
                acked = Acked(writer.segment, writer.name, command.event_number, length, self._store, asked)
                findings.append(Fact(writer.key, place, acked))
                if OF_GROUPS in writer.segment:
                    for append in answered:
                        findings += assignments(place, writer.segment, append)
        elif answered:
            findings += self._answered(place, answered[-1], command)
        return findings

    def _answered(self, place: Place, request: Waiting, reply: Command) -> Iterable[Finding]:
        if isinstance(reply, AppendSetup):
            name, key = str(reply.writer_id), segment_key(reply.segment)
            self._writers[reply.writer_id] = _Writer(reply.segment, name, key)
            return [Fact(key, place, SetUp(reply.segment, name, reply.last_event_number, request.place))]
        append = request.command
        if type(append) in _APPENDS:
            writer = self._writers.get(append.writer_id)
            if writer is None:
                return ()
            number = append.last_event_number if isinstance(append, AppendBlockEnd) else append.event_number
            return [Fact(writer.key, place, Refused(writer.segment, writer.name, number, reply.type_name))]
        make = _ANSWERED.get(type(append))
        return () if make is None else make(place, request, reply)


def _sent(writer: _Writer, command: Any, block: AppendBlock | None) -> Sent:
    segment, name = writer.segment, writer.name
    if isinstance(command, AppendBlockEnd):
        data = _data_of(command, block if block is not None and block.writer_id == command.writer_id else None)
        return Sent(segment, name, command.last_event_number, command.num_events, data)
    if isinstance(command, ConditionalAppend):
        data = frame_header(len(command.event.data)) + command.event.data
    else:
        data = bytes(command.data)
    return Sent(segment, name, command.event_number, 1, data, command.expected_offset)


def _data_of(end: AppendBlockEnd, block: AppendBlock | None) -> bytes | None:
    """Returns the bytes of an append block: whole events, and the event that crosses its end; None without a block."""
    if block is None:
        return bytes(end.data) if len(end.data) == end.size_of_whole_events else None
    whole = bytes(block.data[: end.size_of_whole_events])
    rest = block.data[end.size_of_whole_events :]
    if rest[:4] != _PARTIAL:
        return whole
    size = int.from_bytes(rest[4:_HEADER_BYTES], "big")
    return b"".join((whole, rest[_HEADER_BYTES : _HEADER_BYTES + size], end.data))
