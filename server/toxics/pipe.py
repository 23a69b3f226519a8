"""One direction of a connection with toxics, sans I/O: bytes in, pieces out at their times.

Bytes pass the toxics' stages in order. Only the first piece is computed ahead, so a pipe holds no more bytes than were
put into it, and a change of the toxics applies to all bytes still in the pipe.

Invariants: bytes leave in the order of their arrival, never before their time; all bytes leave unless a stage drops
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from segstore.server.toxics.stages import ToxicMark

if TYPE_CHECKING:
    from segstore.server.toxics.stages import Content, Item, ToxicStage


class Pipe:
    """size: number of bytes that have neither left nor been dropped."""

    def __init__(self) -> None:
        self.size = 0
        self._stages: Sequence[ToxicStage] = ()
        self._waiting: deque[Item] = deque()
        self._current: Iterator[Item] | None = None
        self._arrived: Item | None = None
        self._left = 0  # bytes of the current item that have neither left nor been dropped
        self._next: Item | None = None

    def use(self, stages: Sequence[ToxicStage]) -> None:
        """Replaces the stages. All bytes still in the pipe go through the new stages, with their times of arrival."""
        if self._current is not None and self._arrived is not None:
            when_s, content = self._arrived
            if isinstance(content, ToxicMark):
                if self._next is not None:
                    self._waiting.appendleft(self._arrived)
            elif self._left:
                self._waiting.appendleft((when_s, content[len(content) - self._left :]))
            self._current = self._arrived = self._next = None
            self._left = 0
        self._stages = stages

    def put(self, now_s: float, content: Content) -> None:
        """Adds bytes, which become the property of the pipe, or a mark."""
        self._waiting.append((now_s, content))
        if not isinstance(content, ToxicMark):
            self.size += len(content)

    def put_back(self, rest: memoryview) -> None:
        """Returns the end of the piece taken last, to be taken next."""
        assert self._next is None
        self._next = 0.0, rest
        self._count_left(-len(rest))

    def clear(self) -> None:
        """Drops everything."""
        self._waiting.clear()
        self._current = self._arrived = self._next = None
        self.size = self._left = 0

    def next_s(self, *, is_open: bool) -> float | None:
        """The time of the next piece, or of an earlier deadline; None if there is neither.

        is_open: False if pieces cannot leave, so that only deadlines count.
        """
        found = self._first() if is_open else None  # which may set a deadline
        times = [] if found is None else [found[0]]
        times += [stage.deadline[0] for stage in self._stages if stage.deadline is not None]
        return min(times, default=None)

    def take(self, now_s: float, *, is_open: bool) -> Content | None:
        """Removes and returns the next piece, or the mark of a deadline; None if nothing is due. is_open: as above."""
        found = self._first() if is_open else None
        for stage in self._stages:
            if stage.deadline is not None and stage.deadline[0] <= now_s:
                _, mark = stage.deadline
                stage.deadline = None
                return mark
        if found is None or found[0] > now_s:
            return None
        self._next = None
        content = found[1]
        if not isinstance(content, ToxicMark):
            self._count_left(len(content))
        return content

    def _count_left(self, size: int) -> None:
        """Bytes have left; size is negative if they came back."""
        self.size -= size
        self._left -= size
        for stage in self._stages:
            stage.left(size)

    def _first(self) -> Item | None:
        """Computes the first piece."""
        while self._next is None:
            if self._current is None:
                if not self._waiting:
                    break
                self._arrived = self._waiting.popleft()
                self._left = 0 if isinstance(self._arrived[1], ToxicMark) else len(self._arrived[1])
                self._current = _through(self._stages, self._arrived)
            self._next = next(self._current, None)
            if self._next is None:
                self.size -= self._left
                self._left = 0
                self._current = self._arrived = None
        return self._next


def _through(stages: Sequence[ToxicStage], item: Item) -> Iterator[Item]:
    items: Iterator[Item] = iter((item,))
    for stage in stages:
        items = _each(stage, items)
    return items


def _each(stage: ToxicStage, items: Iterator[Item]) -> Iterator[Item]:
    for when_s, content in items:
        yield from stage(when_s, content)
