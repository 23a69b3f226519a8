"""Requests of a connection that were executed and have no reply yet, with the rules' plans for them.

Which reply answers which request is decided by `segstore.wire.protocol.Requests`. At most `_MOST_PENDING` requests are
remembered; a further request drops them all, and no rule is asked about their replies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from segstore.server.faults.decisions import NO_PLAN, Plan
from segstore.server.faults.observe import Seen
from segstore.wire import ReadSegment
from segstore.wire.blocks import Append
from segstore.wire.protocol import Requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segstore.wire import Command

_MANY: Final = 4096
_MOST_PENDING: Final = 4 * _MANY


class PlannedReply(msgspec.Struct):
    """An executed request and the plan for its reply."""

    seen: Seen
    plan: Plan


class PendingRequests:
    """The pending requests of one connection.

    Attributes:
        planned: for how many of them the rules have a plan.
        has_runs: whether appends were added together since the last `separate`.
        mark: the number of requests added so far, for `all_answered`.
    """

    def __init__(self) -> None:
        self.planned = 0
        self.has_runs = False
        self._requests: Requests[tuple[int, PlannedReply]] = Requests(_MOST_PENDING)
        self._prompt: dict[int, int] = {}
        self._prompt_count = 0
        self.mark = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, item: Command | Append, asked: PlannedReply) -> bool:
        """Remembers a request; returns False if all earlier requests were dropped."""
        self.mark += 1
        room = self._requests.add(item, (self.mark, asked))
        if not room:
            self._prompt.clear()
            self._prompt_count = self.planned = 0
        if not isinstance(item, Append) and not item.is_request:
            return room
        if asked.plan is not NO_PLAN:
            self.planned += 1
        if not isinstance(item, ReadSegment):
            self._is_prompt(1)  # a read may wait at the tail for long
        return room

    def add_appends(self, writer: bytes, appends: list[tuple[int, int]], first: Seen) -> None:
        """Remembers appends of one writer without a plan, by event number and request id.

        first: the first append; later appends differ in their numbers and the request id.
        """
        self.mark += 1
        self.has_runs = True
        self._is_prompt(len(appends))
        self._requests.add_appends(writer, appends, (self.mark, PlannedReply(first, NO_PLAN)))

    def separate(self) -> None:
        """Splits appends that were added together, so that each append is matched with its reply."""
        self.has_runs = False

        def each_of(
            kept: tuple[int, PlannedReply], appends: list[tuple[int, int]]
        ) -> Iterator[tuple[int, PlannedReply]]:
            mark, asked = kept
            done = self._prompt[mark] - len(appends)
            for at, (event_number, request_id) in enumerate(appends, 1):
                behind = done + at - 1
                seen = msgspec.structs.replace(
                    asked.seen, number=asked.seen.number + behind, event_number=event_number, request_id=request_id
                )
                yield mark if at == len(appends) else 0, PlannedReply(seen, NO_PLAN)

        self._requests.separate(each_of)

    def _is_prompt(self, appends: int) -> None:
        self._prompt[self.mark] = appends
        self._prompt_count += appends

    @property
    def is_full(self) -> bool:
        """Whether the limit of pending requests, without reads, is reached: no more should be executed for now."""
        return self._prompt_count >= _MANY

    def answered_by(self, reply: Command) -> list[PlannedReply]:
        """Removes and returns the requests that a reply answers, oldest first; of a run, the first."""
        return self._answered(self._requests.answered(reply))

    def acknowledged(self, writer: bytes, number: int) -> None:
        """Removes a writer's appends up to an event number."""
        self._answered(self._requests.acknowledged(writer, number))

    def _answered(self, found: list[tuple[int, PlannedReply]]) -> list[PlannedReply]:
        for mark, asked in found:
            self._prompt_count -= self._prompt.pop(mark, 0)
            if asked.plan is not NO_PLAN:
                self.planned -= 1
        return [asked for _, asked in found]

    def all_answered(self, mark: int) -> bool:
        """Whether all requests added before `mark` are answered, reads apart."""
        return next(iter(self._prompt), mark + 1) > mark
