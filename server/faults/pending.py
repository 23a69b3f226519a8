"""Requests of a connection that were executed and have no reply yet, with what the rules planned for them.

Which reply answers which request is decided by `segstore.wire.trace.Exchanges`. At most `_MOST_PENDING` requests are
remembered; one more drops them all, and no rule is asked about their replies.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from segstore.wire import AppendBlockEnd, ReadSegment
from segstore.wire.blocks import Append
from segstore.wire.trace import Direction, Exchanges, Record, RecordKind

if TYPE_CHECKING:
    from segstore.server.faults.decisions import Plan
    from segstore.server.faults.observe import Seen
    from segstore.wire import Command
    from segstore.wire.trace import Exchange

_MANY: Final = 4096
_MOST_PENDING: Final = 4 * _MANY


class Asked(NamedTuple):
    """An executed request and the plan for its reply."""

    seen: Seen
    plan: Plan


class PendingRequests:
    """The pending requests of one connection."""

    __slots__ = ("_count", "_exchanges", "_pending", "_prompt")

    def __init__(self) -> None:
        self._exchanges = Exchanges()
        self._pending: dict[Exchange, tuple[int, Asked]] = {}
        self._prompt: dict[int, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, item: Command | Append, asked: Asked) -> bool:
        """Remembers a request without its payload; returns False if the others were dropped for it."""
        room = len(self._pending) < _MOST_PENDING
        if not room:
            self._exchanges, self._pending, self._prompt = Exchanges(), {}, {}
        command = _without_payload(item)
        head = struct.pack(">ii", command.code, 0)
        seen = self._exchanges.see(Record(0, 1, Direction.REQUEST, RecordKind.FRAME, head), command)
        self._count += 1
        self._pending[seen] = self._count, asked
        if not isinstance(item, ReadSegment):  # a read may wait at the tail for long
            self._prompt[self._count] = None
        return room

    @property
    def is_full(self) -> bool:
        """Whether so many are pending, reads apart, that no more should be executed before some are answered."""
        return len(self._prompt) >= _MANY

    def answered_by(self, reply: Command) -> list[Asked]:
        """Removes and returns the requests that a reply answers, oldest first."""
        head = struct.pack(">ii", reply.code, 0)
        seen = self._exchanges.see(Record(0, 1, Direction.REPLY, RecordKind.FRAME, head), reply)
        found = [self._pending.pop(each) for each in seen.answers if each in self._pending]
        for number, _ in found:
            self._prompt.pop(number, None)
        return [asked for _, asked in found]

    def mark(self) -> int:
        """The number of requests added so far, for `all_answered`."""
        return self._count

    def all_answered(self, mark: int) -> bool:
        """Whether all requests added before `mark` are answered, reads apart."""
        return next(iter(self._prompt), mark + 1) > mark


def _without_payload(item: Command | Append) -> Any:
    """A command that is answered as this one is, without its payload."""
    if isinstance(item, Append):
        return AppendBlockEnd(item.writer_id, 0, b"", item.event_count, item.event_number, item.request_id)
    heavy = {
        name: type(value)()
        for name in item.__struct_fields__
        if isinstance(value := getattr(item, name), bytes | tuple)
    }
    views = {name: b"" for name in item.__struct_fields__ if isinstance(getattr(item, name), memoryview)}
    return msgspec.structs.replace(item, **heavy, **views) if heavy or views else item
