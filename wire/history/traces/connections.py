"""Follows one connection: checks the protocol, and makes facts of its requests and replies.

Appends become facts when they are sent, and when they are acknowledged or refused; other requests when they are
answered. A request that is never answered may have been applied: that, too, becomes a fact, at the end.

Invariants: whatever the records are, nothing is raised. Appends of a writer whose set-up was not recorded are counted.
Memory holds the requests that wait, at most `MOST_WAITING`, and the connection's writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from segstore.wire import commands as c
from segstore.wire.blocks import frame_header
from segstore.wire.codec import HEADER_BYTES, decode
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
from segstore.wire.history.traces.group_facts import assignments
from segstore.wire.history.traces.protocol import (
    APPENDS,
    PARTIAL,
    ConnectionWriter,
    ProtocolCheck,
    every_key,
    is_beginning,
)
from segstore.wire.history.traces.register_facts import OF_REGISTERS
from segstore.wire.history.traces.segment_facts import OF_SEGMENTS, deleting
from segstore.wire.schema import Command
from segstore.wire.trace import Direction, Record, RecordKind, unpack_data

_ANSWERED: Final = {**OF_SEGMENTS, **OF_REGISTERS}
_ANY: Final = (1 << 63) - 1
"""In place of the last number of appends that are not known."""
UNRECORDED: Final = "the recording began after the set-up of the writer"
_new: Final = tuple.__new__
_FRAME: Final = RecordKind.FRAME
_REQUEST: Final = Direction.REQUEST


class ConnectionFold(ProtocolCheck):
    """Follows the records of one connection, in order. key: ("connection", FILE:NUMBER).

    findings: gets facts and broken rules.
    """

    def __init__(self, key: Key, findings: list[Finding], is_judged: Callable[[Key], bool] = every_key) -> None:
        super().__init__(key, findings, is_judged)
        self._store = ""
        self._unrecorded = 0
        self._is_framed = True
        """Whether all requests so far form frames."""

    def see(self, place: Place, record: Record) -> None:
        """Takes the next record."""
        _, _, direction, kind, data = record
        if kind is _FRAME:
            try:
                command = decode(data, unknown="keep")
            except WireError as error:
                self._undecodable(place, record, error)
            else:
                if direction is _REQUEST:
                    self._request(place, command)
                else:
                    self._replied(place, command)
        elif kind is RecordKind.OPEN:  # the number is used for a new connection
            self.end()
            self._start(is_whole=True)
            self._store = str((unpack_data(record.data) or {}).get("store", ""))
        elif kind is RecordKind.BYTES:
            self._loose_bytes(place, record.data)
            self._may_append(place, record)
        else:
            self._is_closed = True

    def end(self) -> None:
        """Finds what the records leave open."""
        self._drop()
        if self._unrecorded:
            self._findings.append(Open("lost-write", self.key, UNRECORDED, self._unrecorded))
        self._unrecorded, self._is_framed = 0, True

    def _may_append(self, place: Place, record: Record) -> None:
        """Makes the appends of all writers unknown, unless bytes are the beginning of a frame, which no store
        executes."""
        if record.direction is not _REQUEST:
            return
        is_first, self._is_framed = self._is_framed, False
        if not (is_first and is_beginning(record.data)):
            for writer in self._writers.values():
                if writer.key is not None:
                    self._findings.append(Fact(writer.key, place, Sent(writer.segment, writer.name, _ANY, 0, None)))

    def _unanswered(self, request: Waiting) -> None:
        make = _ANSWERED.get(type(request.command))
        if make is not None:
            self._findings += make(request.place, request, None)

    def _wait(self, place: Place, command: Any) -> None:
        super()._wait(place, command)
        if type(command) is c.DeleteSegment:
            self._findings += deleting(Waiting(command, place))

    def _sent(
        self, place: Place, writer: ConnectionWriter, command: Any, number: int, block: c.AppendBlock | None
    ) -> None:
        if writer.key is None:
            self._unrecorded += 1
        if not writer.is_judged:
            return
        count, expected = 1, None
        if type(command) is c.AppendBlockEnd:
            count, data = command.num_events, _data_of(command, block)
        elif type(command) is c.ConditionalAppend:
            data = frame_header(len(command.event.data)) + command.event.data
            expected = command.expected_offset
        else:
            data, expected = bytes(command.data), command.expected_offset
        sent = _new(Sent, (writer.segment, writer.name, number, count, data, expected))
        self._findings.append(_new(Fact, (writer.key, place, sent)))

    def _replied(self, place: Place, command: Any) -> None:
        answered = self._reply(place, command)
        if type(command) is not c.DataAppended:
            if answered:
                self._findings += self._facts(place, answered[-1], command)
            return
        writer = self._writers[command.writer_id.int]
        if writer.key is None:
            return
        if writer.is_judged:
            asked = answered[-1].place if answered else None
            length = command.current_segment_write_offset
            acked = _new(Acked, (writer.segment, writer.name, command.event_number, length, self._store, asked))
            self._findings.append(_new(Fact, (writer.key, place, acked)))
        if writer.has_group:
            self._findings += (step for append in answered for step in assignments(place, writer.segment, append))

    def _facts(self, place: Place, request: Waiting, reply: Command) -> Iterable[Finding]:
        if isinstance(reply, c.AppendSetup):
            writer = self._writer(reply.writer_id)
            writer.name_segment(reply.segment, self._is_judged)
            set_up = SetUp(reply.segment, writer.name, reply.last_event_number, request.place)
            return [Fact(segment_key(reply.segment), place, set_up)]
        append = request.command
        if type(append) in APPENDS:
            failed = self._writer(append.writer_id)
            number = append.last_event_number if isinstance(append, c.AppendBlockEnd) else append.event_number
            refused = Refused(failed.segment, failed.name, number)
            return () if failed.key is None else [Fact(failed.key, place, refused)]
        make = _ANSWERED.get(type(append))
        return () if make is None else make(place, request, reply)


def _data_of(end: c.AppendBlockEnd, block: c.AppendBlock | None) -> bytes | None:
    """Returns the bytes of an append block: whole events, and the event that crosses its end; None without a block."""
    if block is None:
        return bytes(end.data) if len(end.data) == end.size_of_whole_events else None
    if end.size_of_whole_events == len(block.data):  # nearly always
        return bytes(block.data)
    whole = bytes(block.data[: end.size_of_whole_events])
    rest = block.data[end.size_of_whole_events :]
    if rest[:4] != PARTIAL:
        return whole
    size = int.from_bytes(rest[4:HEADER_BYTES], "big")
    return b"".join((whole, rest[HEADER_BYTES : HEADER_BYTES + size], end.data))
