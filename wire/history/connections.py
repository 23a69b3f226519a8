"""Follows one connection: checks the protocol, and makes facts of its requests and replies.

Appends become facts when they are sent, and when they are acknowledged or refused; other requests when they are
answered. A request that is never answered may have been carried out: that, too, becomes a fact, at the end.

Invariants: whatever the records are, nothing is raised. Appends of a writer whose set-up was not recorded are counted.
Memory holds the requests that wait, and the connection's writers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

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
from segstore.wire.history.protocol import ProtocolCheck
from segstore.wire.history.register_facts import OF_REGISTERS, UNANSWERED_REGISTERS
from segstore.wire.history.segment_facts import OF_SEGMENTS, UNANSWERED_SEGMENTS
from segstore.wire.protocol import Requests
from segstore.wire.schema import Command
from segstore.wire.trace import Direction, Record, RecordKind, unpack_data

_APPENDS: Final = (AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd)
_ANSWERED: Final = {**OF_SEGMENTS, **OF_REGISTERS}
_UNANSWERED: Final = {**UNANSWERED_SEGMENTS, **UNANSWERED_REGISTERS}
_PARTIAL: Final = (-2).to_bytes(4, "big", signed=True)
_HEADER_BYTES: Final = 8
UNRECORDED: Final = "the recording began after the set-up of the writer"


class ConnectionFold:
    """Follows the records of one connection, in order. key: ("connection", FILE:NUMBER)."""

    kind: Final = "connection"

    def __init__(self, key: Key) -> None:
        self.key = key
        self._start(is_whole=False, store="")

    def _start(self, *, is_whole: bool, store: str) -> None:
        self._check = ProtocolCheck(self.key, is_whole=is_whole)
        self._requests: Requests[Waiting] = Requests()
        self._segments: dict[Any, str] = {}
        """The segment of each writer that was set up."""
        self._block: AppendBlock | None = None
        self._store = store
        self._unrecorded = 0

    def see(self, place: Place, record: Record) -> Iterator[Finding]:
        """Takes the next record; yields facts and broken rules."""
        if record.kind is RecordKind.FRAME:
            try:
                command = decode(record.data, unknown="keep")
            except WireError as error:
                yield from self._check.undecodable(place, record, error)
                return
            if record.direction is Direction.REQUEST:
                yield from self._request(place, command)
            else:
                yield from self._reply(place, command)
        elif record.kind is RecordKind.OPEN:
            yield from self.end()  # the number is used for a new connection
            self._start(is_whole=True, store=str((unpack_data(record.data) or {}).get("store", "")))
        elif record.kind is RecordKind.CLOSE:
            self._check.closed()
        elif record.kind is RecordKind.BYTES:
            yield from self._check.loose_bytes(place, record)

    def end(self) -> Iterator[Finding]:
        """Yields what the records leave open."""
        for waiting in self._requests:
            make = _UNANSWERED.get(type(waiting.command))
            if make is not None:
                yield from make(waiting)
        self._requests = Requests()
        if self._unrecorded:
            yield Open("lost-write", self.key, UNRECORDED, self._unrecorded)
            self._unrecorded = 0

    def _request(self, place: Place, command: Command) -> Iterator[Finding]:
        yield from self._check.request(place, command)
        if type(command) is AppendBlock:
            self._block = command
            return
        if isinstance(command, _APPENDS):
            block, self._block = self._block, None
            segment = self._segments.get(command.writer_id)
            if segment is None:
                self._unrecorded += 1
            else:
                yield Fact(segment_key(segment), place, _sent(segment, command, block))
        self._requests.add(command, Waiting(command, place))

    def _reply(self, place: Place, command: Command) -> Iterator[Finding]:
        answered = self._requests.answered(command)
        yield from self._check.reply(place, command, answered)
        if isinstance(command, DataAppended):
            segment = self._segments.get(command.writer_id)
            if segment is not None:
                asked = answered[-1].place if answered else None
                length, writer = command.current_segment_write_offset, str(command.writer_id)
                acked = Acked(segment, writer, command.event_number, length, self._store, asked)
                yield Fact(segment_key(segment), place, acked)
        elif answered:
            request = answered[-1]
            if isinstance(command, AppendSetup):
                self._segments[command.writer_id] = command.segment
                set_up = SetUp(command.segment, str(command.writer_id), command.last_event_number, request.place)
                yield Fact(segment_key(command.segment), place, set_up)
            elif isinstance(request.command, _APPENDS):
                yield from self._refused(place, request.command, command)
            elif (make := _ANSWERED.get(type(request.command))) is not None:
                yield from make(place, request, command)

    def _refused(self, place: Place, append: Any, reply: Command) -> Iterator[Fact]:
        segment = self._segments.get(append.writer_id)
        if segment is not None:
            number = append.last_event_number if isinstance(append, AppendBlockEnd) else append.event_number
            refused = Refused(segment, str(append.writer_id), number, reply.type_name)
            yield Fact(segment_key(segment), place, refused)


def _sent(segment: str, command: Any, block: AppendBlock | None) -> Sent:
    writer = str(command.writer_id)
    if isinstance(command, AppendBlockEnd):
        data = _data_of(command, block if block is not None and block.writer_id == command.writer_id else None)
        return Sent(segment, writer, command.last_event_number, command.num_events, data)
    if isinstance(command, ConditionalAppend):
        data = frame_header(len(command.event.data)) + command.event.data
    else:
        data = bytes(command.data)
    return Sent(segment, writer, command.event_number, 1, data, command.expected_offset)


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
