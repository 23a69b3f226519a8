"""One direction of a connection with toxics, sans I/O: a stage for each toxic, and the pipe through them.

A stage maps one item and its time to any number of items: bytes, or a `ToxicMark`. Invariants: bytes leave in the order
of their arrival, never before their time; times never decrease; all bytes leave unless a stage drops them; no clock, no
I/O; random numbers come from the given generator. The next item is requested when the last item has left all stages or
was dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Final, assert_never

from segstore.server.toxics import models as m

if TYPE_CHECKING:
    import random

    from pydantic import BaseModel

    from segstore.server.toxics.models import Toxic

_PIECE_S: Final = 0.01
"""Bandwidth sends pieces of at most this duration."""
_SHAPE: Final = 3.0
"""Of the Pareto distribution: mean and variance are finite."""


class ToxicMark(Enum):
    """Events that travel among the bytes."""

    END = auto()
    """The sender has closed its direction, or the connection."""
    CLOSE = auto()
    """A toxic closes the connection."""
    RESET = auto()
    """A toxic resets the connection."""


Content = memoryview | ToxicMark
Item = tuple[float, Content]
Deadline = tuple[float, ToxicMark]


class ToxicStage:
    """A toxic on a connection that has it from `now_s` on. This base class forwards bytes unchanged.

    draws: the source of its random numbers. deadline: when it ends the connection, and how. at_removal: how the
    connection ends when the toxic is removed, because bytes are missing; None if it goes on.
    """

    deadline: Deadline | None = None
    at_removal: ToxicMark | None = None

    def __init__(self, toxic: Any, draws: random.Random, now_s: float) -> None:
        self._toxic = toxic
        self._draws = draws

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        """Maps an item and its time of arrival to the items that leave."""
        yield when_s, content

    def left(self, size: int) -> None:
        """Counts bytes that have left all stages; negative if they came back."""


class _Latency(ToxicStage):
    _toxic: m.Latency
    _last_s = 0.0

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        if not isinstance(content, ToxicMark):
            when_s += max(0.0, self._delay_ms()) / 1000
        self._last_s = when_s = max(when_s, self._last_s)
        yield when_s, content

    def _delay_ms(self) -> float:
        toxic, draws = self._toxic, self._draws
        match toxic.distribution:
            case "uniform":
                return toxic.latency + toxic.jitter * draws.uniform(-1, 1)
            case "normal":
                return draws.gauss(toxic.latency, toxic.jitter)
            case "pareto":
                return toxic.latency + toxic.jitter * (_SHAPE - 1) * (draws.paretovariate(_SHAPE) - 1)
            case _ as never:
                assert_never(never)


class _Bandwidth(ToxicStage):
    _toxic: m.Bandwidth
    _free_s = 0.0

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        bytes_per_s = self._toxic.rate * 1000
        most = max(1, int(bytes_per_s * _PIECE_S))
        self._free_s = max(self._free_s, when_s)
        if isinstance(content, ToxicMark):
            yield self._free_s, content
            return
        for start in range(0, len(content), most):
            piece = content[start : start + most]
            self._free_s += len(piece) / bytes_per_s
            yield self._free_s, piece


class _SlowClose(ToxicStage):
    _toxic: m.SlowClose

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        yield (when_s + self._toxic.delay / 1000 if content is ToxicMark.END else when_s), content


class _Timeout(ToxicStage):
    at_removal = ToxicMark.CLOSE

    def __init__(self, toxic: m.Timeout, draws: random.Random, now_s: float) -> None:
        if toxic.timeout:
            self.deadline = now_s + toxic.timeout / 1000, ToxicMark.CLOSE

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        if isinstance(content, ToxicMark):
            yield when_s, content


class _ResetPeer(ToxicStage):
    _toxic: m.ResetPeer

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        if self.at_removal is None:
            self.deadline = when_s + self._toxic.timeout / 1000, ToxicMark.RESET
            self.at_removal = ToxicMark.RESET
        yield from ()


class _Slicer(ToxicStage):
    _toxic: m.Slicer
    _next_s = 0.0

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        toxic = self._toxic
        if isinstance(content, ToxicMark):
            yield max(when_s, self._next_s), content
            return
        at = 0
        while at < len(content):
            size = toxic.average_size + self._draws.randint(-toxic.size_variation, toxic.size_variation)
            when_s = max(when_s, self._next_s)
            self._next_s = when_s + toxic.delay / 1e6
            yield when_s, content[at : at + size]
            at += size


class _LimitData(ToxicStage):
    def __init__(self, toxic: m.LimitData, draws: random.Random, now_s: float) -> None:
        self._rest = toxic.bytes

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        if isinstance(content, ToxicMark):
            yield when_s, content
            return
        if self._rest > 0:
            yield when_s, content[: self._rest]
        if self._rest <= 0:
            yield when_s, ToxicMark.CLOSE

    def left(self, size: int) -> None:
        self._rest -= size


class _Down(ToxicStage):
    def __init__(self, toxic: m.Down, draws: random.Random, now_s: float) -> None:
        self.deadline = now_s, ToxicMark.RESET


class _HalfOpen(ToxicStage):
    at_removal = ToxicMark.RESET

    def __call__(self, when_s: float, content: Content) -> Iterator[Item]:
        if content is ToxicMark.CLOSE or content is ToxicMark.RESET:
            yield when_s, content


_STAGES: Final[dict[type[BaseModel], type[ToxicStage]]] = {
    m.Latency: _Latency,
    m.Bandwidth: _Bandwidth,
    m.SlowClose: _SlowClose,
    m.Timeout: _Timeout,
    m.ResetPeer: _ResetPeer,
    m.Slicer: _Slicer,
    m.LimitData: _LimitData,
    m.Down: _Down,
    m.HalfOpen: _HalfOpen,
}


def stage_of(toxic: Toxic, draws: random.Random, now_s: float) -> ToxicStage:
    """Returns the stage of a toxic on a connection that has it from now on."""
    return _STAGES[type(toxic)](toxic, draws, now_s)


class Pipe:
    """One direction of a connection: bytes in, pieces out at their times.

    Bytes pass the stages in order. Only the first piece is computed ahead, so a pipe holds no more bytes than were put
    into it, and a change of the toxics applies to all bytes still in the pipe.

    Attributes:
        size: number of bytes that have neither left nor been dropped.
    """

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
        first = self._first() if is_open else None  # which may set a deadline
        times = [] if first is None else [first[0]]
        times += [stage.deadline[0] for stage in self._stages if stage.deadline is not None]
        return min(times, default=None)

    def take(self, now_s: float, *, is_open: bool) -> Content | None:
        """Removes and returns the next piece, or the mark of a deadline; None if nothing is due. is_open: as above."""
        first = self._first() if is_open else None
        for stage in self._stages:
            if stage.deadline is not None and stage.deadline[0] <= now_s:
                _, mark = stage.deadline
                stage.deadline = None
                return mark
        if first is None or first[0] > now_s:
            return None
        self._next = None
        content = first[1]
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
                self._current = iter((self._arrived,))
                for stage in self._stages:
                    self._current = chain.from_iterable(starmap(stage, self._current))
            self._next = next(self._current, None)
            if self._next is None:
                self.size -= self._left
                self._left = 0
                self._current = self._arrived = None
        return self._next
