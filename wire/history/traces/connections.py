"""Follows one connection: checks the protocol, and makes facts of its requests and replies.

Appends become facts when they are sent, and when they are acknowledged or refused; other requests when they are
answered. A request that is never answered may have been applied: that, too, becomes a fact, at the end.

Invariants: whatever the records are, nothing is raised. Appends of a writer whose set-up was not recorded are counted.
Memory holds the requests that wait, at most `MOST_WAITING`, and the connection's writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from segstore.wire.blocks import frame_header
from segstore.wire.codec import decode
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    DeleteSegment,
    SetupAppend,
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
from segstore.wire.history.traces.protocol import MOST_WAITING, TOO_MANY, ProtocolCheck
from segstore.wire.history.traces.register_facts import OF_REGISTERS
from segstore.wire.history.traces.segment_facts import OF_SEGMENTS, deleting
from segstore.wire.protocol import Requests
from segstore.wire.schema import Command
from segstore.wire.trace import Direction, Record, RecordKind, unpack_data

_APPENDS: Final = frozenset({AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd})
_ANSWERED: Final = {**OF_SEGMENTS, **OF_REGISTERS}
_PARTIAL: Final = (-2).to_bytes(4, "big", signed=True)
_HEADER_BYTES: Final = 8
_ANY: Final = (1 << 63) - 1
"""In place of the last number of appends that are not known."""
UNRECORDED: Final = "the recording began after the set-up of the writer"
_FRAME: Final = RecordKind.FRAME
_REQUEST: Final = Direction.REQUEST


class _Writer:
    """A writer whose set-up was requested on this connection.

    id, name: its id as bytes and as text. key: of its segment's facts. has_group: whether the segment may hold the
    state of a reader group.
    """

    __slots__ = ("has_group", "id", "key", "name", "segment")

    def __init__(self, segment: str, writer_id: UUID) -> None:
        self.segment = segment
        self.id, self.name = writer_id.bytes, str(writer_id)
        self.key = segment_key(segment)
        self.has_group = OF_GROUPS in segment


class ConnectionFold:
    """Follows the records of one connection, in order. key: ("connection", FILE:NUMBER)."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._start(is_whole=False, store="")

    def _start(self, *, is_whole: bool, store: str) -> None:
        self._check = ProtocolCheck(self.key, is_whole=is_whole)
        self._requests: Requests[Waiting] = Requests()
        self._writers: dict[int, _Writer] = {}
        self._block: AppendBlock | None = None
        self._store = store
        self._unrecorded = 0
        self._is_framed = True
        """Whether all requests so far form frames."""

    def see(self, place: Place, record: Record) -> Iterable[Finding]:
        """Takes the next record; returns facts and broken rules."""
        _, _, direction, kind, data = record
        if kind is _FRAME:
            try:
                command = decode(data, unknown="keep")
            except WireError as error:
                return self._check.undecodable(place, record, error)
            return self._request(place, command) if direction is _REQUEST else self._reply(place, command)
        if kind is RecordKind.OPEN:
            before = list(self.end())  # the number is used for a new connection
            self._start(is_whole=True, store=str((unpack_data(record.data) or {}).get("store", "")))
            return before
        if kind is RecordKind.BYTES:
            return (*self._check.loose_bytes(place, record), *self._loose_bytes(place, record))
        return self._check.closed(record)

    def end(self) -> Iterator[Finding]:
        """Yields what the records leave open."""
        yield from self._check.end()
        yield from self._unanswered()
        if self._unrecorded:
            yield Open("lost-write", self.key, UNRECORDED, self._unrecorded)
            self._unrecorded = 0

    def _unanswered(self) -> Iterator[Finding]:
        """Yields facts of the requests that wait, and drops these."""
        for waiting in self._requests:
            make = _ANSWERED.get(type(waiting.command))
            if make is not None:
                yield from make(waiting.place, waiting, None)
        self._requests = Requests()

    def _loose_bytes(self, place: Place, record: Record) -> Iterator[Fact]:
        """Makes the appends of all writers unknown, unless the bytes are the beginning of a frame, which no store
        executes."""
        if record.direction is not _REQUEST:
            return
        data, is_first = record.data, self._is_framed
        self._is_framed = False
        is_cut = len(data) < _HEADER_BYTES or int.from_bytes(data[4:_HEADER_BYTES], "big") > len(data) - _HEADER_BYTES
        if not (is_first and is_cut):
            for writer in self._writers.values():
                yield Fact(writer.key, place, Sent(writer.segment, writer.name, _ANY, 0, None))

    def _request(self, place: Place, command: Any) -> Sequence[Finding]:
        findings = self._check.request(place, command)
        kind = type(command)
        if kind is AppendBlock:
            self._block = command
            return findings
        waiting = Waiting(command, place)
        if len(self._requests) >= MOST_WAITING:
            findings = (*findings, *self._unanswered(), Open("lost-write", self.key, TOO_MANY))
        if kind not in _APPENDS:
            if kind is SetupAppend and command.writer_id.int not in self._writers:
                self._add_writer(command.writer_id, command.segment)  # appends may follow before the reply
            self._requests.add(command, waiting)
            return (*findings, *deleting(waiting)) if kind is DeleteSegment else findings
        block, self._block = self._block, None
        writer = self._writers.get(command.writer_id.int)
        if writer is None:
            self._requests.add(command, waiting)
            self._unrecorded += 1
            return findings
        sent = _sent(writer, command, block)
        self._requests.add_appends(writer.id, [(sent[2], command.request_id)], waiting)
        fact = Fact(writer.key, place, sent)
        return (*findings, fact) if findings else (fact,)

    def _reply(self, place: Place, command: Command) -> Sequence[Finding]:
        if type(command) is DataAppended:
            writer = self._writers.get(command.writer_id.int)
            writer_id = command.writer_id.bytes if writer is None else writer.id
            answered = self._requests.acknowledged(writer_id, command.event_number)
            findings = self._check.reply(place, command, answered)
            if writer is not None:
                asked = answered[-1].place if answered else None
                length = command.current_segment_write_offset
                acked = Acked(writer.segment, writer.name, command.event_number, length, self._store, asked)
                fact = Fact(writer.key, place, acked)
                if not writer.has_group:
                    return (*findings, fact) if findings else (fact,)
                steps = (step for append in answered for step in assignments(place, writer.segment, append))
                return (*findings, fact, *steps)
            return findings
        answered = self._requests.answered(command)
        findings = self._check.reply(place, command, answered)
        return (*findings, *self._answered(place, answered[-1], command)) if answered else findings

    def _answered(self, place: Place, request: Waiting, reply: Command) -> Iterable[Finding]:
        if isinstance(reply, AppendSetup):
            writer = self._add_writer(reply.writer_id, reply.segment)
            return [Fact(writer.key, place, SetUp(reply.segment, writer.name, reply.last_event_number, request.place))]
        append = request.command
        if type(append) in _APPENDS:
            failed = self._writers.get(append.writer_id.int)
            if failed is None:
                return ()
            number = append.last_event_number if isinstance(append, AppendBlockEnd) else append.event_number
            return [Fact(failed.key, place, Refused(failed.segment, failed.name, number))]
        make = _ANSWERED.get(type(append))
        return () if make is None else make(place, request, reply)

    def _add_writer(self, writer_id: UUID, segment: str) -> _Writer:
        writer = self._writers[writer_id.int] = _Writer(segment, writer_id)
        return writer


def _sent(writer: _Writer, command: Any, block: AppendBlock | None) -> Sent:
    segment, name = writer.segment, writer.name
    if type(command) is AppendBlockEnd:
        data = _data_of(command, block if block is not None and block.writer_id.int == command.writer_id.int else None)
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
    if end.size_of_whole_events == len(block.data):  # nearly always
        return bytes(block.data)
    whole = bytes(block.data[: end.size_of_whole_events])
    rest = block.data[end.size_of_whole_events :]
    if rest[:4] != _PARTIAL:
        return whole
    size = int.from_bytes(rest[4:_HEADER_BYTES], "big")
    return b"".join((whole, rest[_HEADER_BYTES : _HEADER_BYTES + size], end.data))
