"""Reply gate for a store with a journal per container.

The operations executed in one loop iteration form a round, over all journals. A round is durable when all its batches
and all earlier rounds are. So replies are sent in order, as with one journal, and no peer sees changes that a crash
could undo.

Invariant: `mark` is the number of the last round, and no executed operation belongs to a later round. When a journal is
lost, replies that may depend on its undurable batches are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque

from segstore.server.durable.committer import Committer, Gate


class Committers(Gate):
    """Several committers as one gate, which counts rounds."""

    def __init__(self) -> None:
        super().__init__(0)
        self._committers: dict[Committer, None] = {}
        self._forming: dict[Committer, None] = {}
        self._rounds: deque[tuple[int, dict[Committer, int]]] = deque()

    @property
    def full(self) -> bool:
        return any(committer.full for committer in self._committers)

    def catch_up(self) -> None:
        for committer in tuple(self._committers):
            if committer.written:
                committer.catch_up()

    def add(self, committer: Committer) -> None:
        """Adds the committer of a new journal, to which nothing was written."""
        self._committers[committer] = None
        committer.watcher = self

    def remove(self, committer: Committer, why: str) -> None:
        """Removes a committer. If it has undurable batches, held replies are dropped, with `why` as the reason."""
        if committer not in self._committers:
            return
        del self._committers[committer]
        committer.watcher = None
        pending = self._forming.pop(committer, committer) is None
        for _, numbers in self._rounds:
            pending = numbers.pop(committer, 0) > committer.committed or pending
        if pending:
            self._drop(why)
        self.moved()

    def fail(self, why: str) -> None:
        """Stops all acknowledgements; `why` is one sentence. Only the first call has an effect."""
        if not self.failure:
            self.failure = why
            self._drop(why)

    # --- notifications of committers --------------------------------------------------------------------------------

    def forming(self, committer: Committer) -> None:
        """Called when a batch of a committer starts."""
        if not self._forming:
            self.mark += 1
            asyncio.get_running_loop().call_soon(self._end_round)
        self._forming[committer] = None

    def _end_round(self) -> None:
        forming, self._forming = self._forming, {}
        self._rounds.append((self.mark, {each: each.hand_over() for each in forming}))
        self.moved()

    def moved(self) -> None:
        """Called when more is durable, or there is room again."""
        if self.failure:
            return
        rounds, before = self._rounds, self.committed
        while rounds and all(each.committed >= number for each, number in rounds[0][1].items()):
            self.committed = rounds.popleft()[0]
        if self.committed > before:
            self._release()
        if self.stalled and not self.full:
            self._resume()
