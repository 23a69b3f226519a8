"""Requests of a connection that were executed and have no reply yet, with what the rules planned for them.

Which reply answers which request is decided by `segstore.wire.protocol.Requests`. At most `_MOST_PENDING` requests are
remembered; one more drops them all, and no rule is asked about their replies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from segstore.server.faults.decisions import Plan
from segstore.server.faults.observe import Seen
from segstore.wire import ReadSegment
from segstore.wire.blocks import Append
from segstore.wire.protocol import Requests

if TYPE_CHECKING:
    from segstore.wire import Command

_MANY: Final = 4096
_MOST_PENDING: Final = 4 * _MANY


class Asked(msgspec.Struct):
    """An executed request and the plan for its reply."""

    seen: Seen
    plan: Plan


class PendingRequests:
    def __init__(self) -> None:
        self._requests: Requests[tuple[int, Asked]] = Requests(_MOST_PENDING)
        self._prompt: dict[int, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, item: Command | Append, asked: Asked) -> bool:
        """Remembers a request; returns False if the others were dropped for it."""
        self._count += 1
        room = self._requests.add(item, (self._count, asked))
        if not room:
            self._prompt.clear()
        if isinstance(item, Append) or (item.is_request and not isinstance(item, ReadSegment)):
            self._prompt[self._count] = None  # a read may wait at the tail for long
        return room

    @property
    def is_full(self) -> bool:
        """Whether so many are pending, reads apart, that no more should be executed before some are answered."""
        return len(self._prompt) >= _MANY

    def answered_by(self, reply: Command) -> list[Asked]:
        """Removes and returns the requests that a reply answers, oldest first."""
        found = self._requests.answered(reply)
        for number, _ in found:
            self._prompt.pop(number, None)
        return [asked for _, asked in found]

    def mark(self) -> int:
        """The number of requests added so far, for `all_answered`."""
        return self._count

    def all_answered(self, mark: int) -> bool:
        """Whether all requests added before `mark` are answered, reads apart."""
        return next(iter(self._prompt), mark + 1) > mark
