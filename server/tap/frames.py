"""Frames on their way through a tap that has rules: what can be looked at, and what passes as it is.

`Frames` takes the bytes of one direction and gives them back in pieces, none lost and none changed: a frame of a known
type with its command, everything else without. `Asked` remembers the requests that were passed, until their replies
come.

Invariants: whatever the bytes are, nothing is raised; held back is no more than one frame of a known type, or less than
a header: what nobody can decide about passes as it comes. Where frame boundaries are lost, all that follows passes.
"""

from __future__ import annotations

import struct
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from segstore.wire import COMMANDS, HEADER_BYTES, MAX_FRAME_BYTES, AppendBlockEnd, ReadSegment, WireError, decode
from segstore.wire.blocks import Append
from segstore.wire.trace import Direction, Exchanges, Record, RecordKind

if TYPE_CHECKING:
    from segstore.server.faults import Plan, Seen
    from segstore.wire import Command
    from segstore.wire.trace import Exchange

_header = struct.Struct(">ii").unpack_from
_MANY: Final = 4096
_MOST_ASKED: Final = 4 * _MANY
"""Requests of a connection that are remembered, reads that wait at the tail among them."""


class Piece(NamedTuple):
    """Bytes as they came; the command that they are, None if they just pass."""

    data: bytes
    command: Command | None


class Frames:
    """The pieces of one direction of a connection.

    Attributes:
        problem: what was wrong with the bytes, once; "" if nothing was.
        held: number of bytes of an incomplete frame.
        has_more: whether the last feed stopped at its limit, so that the next one may return pieces without new bytes.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.has_more = False
        self._pending = bytearray()
        self._passing = 0
        self._lost = False

    @property
    def held(self) -> int:
        return len(self._pending)

    def feed(self, data: bytes, most: float = inf) -> list[Piece]:
        """Takes the next bytes, and returns the pieces that they complete, up to a limit."""
        self.has_more = False
        if self._lost:
            return [Piece(data, None)]
        pieces: list[Piece] = []
        pending = self._pending
        pending += data
        at, end = 0, len(pending)
        while at < end:
            if len(pieces) >= most:
                self.has_more = True
                break
            if not self._passing:
                if end - at < HEADER_BYTES:
                    break
                code, length = _header(pending, at)
                if not 0 <= length <= MAX_FRAME_BYTES - HEADER_BYTES:
                    self._note(f"a frame that announces {length % (1 << 32)} bytes")
                    self._lost = True
                    self._passing = end - at
                elif code in COMMANDS:
                    stop = at + HEADER_BYTES + length
                    if stop > end:
                        break
                    pieces.append(self._piece(bytes(pending[at:stop])))
                    at = stop
                    continue
                else:
                    self._note(f"no command has the type code {code}")
                    self._passing = HEADER_BYTES + length
            stop = min(end, at + self._passing)
            pieces.append(Piece(bytes(pending[at:stop]), None))
            self._passing -= stop - at
            at = stop
        del pending[:at]
        return pieces

    def rest(self) -> bytes:
        """What is held of a frame that is not whole; it is held no more."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _piece(self, frame: bytes) -> Piece:
        try:
            return Piece(frame, decode(frame))
        except WireError as error:
            self._note(str(error))
            return Piece(frame, None)

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem


class Passed(NamedTuple):
    """A request that was passed, and what is to become of its reply."""

    seen: Seen
    plan: Plan


class Asked:
    """Requests that wait for their replies; which reply answers which, `segstore.wire.trace.exchanges` says.

    Where more than `_MOST_ASKED` wait, those that wait are forgotten: no rule is asked about their replies.
    """

    def __init__(self) -> None:
        self._exchanges = Exchanges()
        self._waiting: dict[Exchange, tuple[int, Passed]] = {}
        self._prompt: dict[int, None] = {}
        self._count = 0

    def add(self, item: Command | Append, passed: Passed) -> bool:
        """A request was passed; False if others had to be forgotten for it."""
        room = len(self._waiting) < _MOST_ASKED
        if not room:
            self._exchanges, self._waiting, self._prompt = Exchanges(), {}, {}
        command = _without_payload(item)
        head = struct.pack(">ii", command.code, 0)
        seen = self._exchanges.see(Record(0, 1, Direction.REQUEST, RecordKind.FRAME, head), command)
        self._count += 1
        self._waiting[seen] = self._count, passed
        if not isinstance(item, ReadSegment):  # which may wait at the tail for long
            self._prompt[self._count] = None
        return room

    @property
    def full(self) -> bool:
        """Whether so many wait, reads apart, that the store should answer some before it is asked more."""
        return len(self._prompt) >= _MANY

    def answered(self, reply: Command) -> list[Passed]:
        """The requests that a reply answers, oldest first."""
        head = struct.pack(">ii", reply.code, 0)
        seen = self._exchanges.see(Record(0, 1, Direction.REPLY, RecordKind.FRAME, head), reply)
        found = [self._waiting.pop(each) for each in seen.answers if each in self._waiting]
        for number, _ in found:
            self._prompt.pop(number, None)
        return [passed for _, passed in found]

    def mark(self) -> int:
        """For `is_over`: what was passed so far."""
        return self._count

    def is_over(self, mark: int) -> bool:
        """Whether all that was passed up to a mark is answered, but for reads."""
        return next(iter(self._prompt), mark + 1) > mark


def _without_payload(item: Command | Append) -> Any:
    """A command that is answered as this one is, and does not hold what it carries."""
    if isinstance(item, Append):
        return AppendBlockEnd(item.writer_id, 0, b"", item.event_count, item.event_number, item.request_id)
    heavy = {
        name: type(value)()
        for name in item.__struct_fields__
        if isinstance(value := getattr(item, name), bytes | tuple)
    }
    views = {name: b"" for name in item.__struct_fields__ if isinstance(getattr(item, name), memoryview)}
    return msgspec.structs.replace(item, **heavy, **views) if heavy or views else item
