"""Work that may take longer than one loop iteration, done slice by slice, in turn with that of others.

A job is served at once where that is possible: a connection when it was read, a timer when it fires. What is left when
its slice is used up is queued. In each loop iteration queued jobs get one slice after another, round robin, for
`TICK_S` together; then the loop polls its sockets again. Once reads have filled `TICK_S`, further ones are queued too.
A job that did not use up its last slice is served before those that did, so a peer that asks for little does not wait
for the whole queue; one of the others is served in each iteration all the same.

Invariants: a job is queued at most once; at most one slice is open; every queued job is served in the end. No I/O here;
the clock and the way into the next loop iteration are arguments.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any, Final, Protocol

__all__ = ["SLICE_S", "TICK_S", "FairQueue", "Job"]

SLICE_S: Final = 0.0005
"""How long a job is served at a time; it looks at the clock itself, after each step."""

TICK_S: Final = 0.008
"""How long queued jobs are served in one loop iteration, and how long reads are."""

_CROWD: Final = 8


class Job(Protocol):
    """Something that is done in slices."""

    def advance(self) -> bool:
        """Do a slice of it; whether more is left that can be done."""
        ...


def _next_iteration(callback: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class FairQueue:
    """The jobs of one loop that share their time.

    Attributes:
        is_busy: whether reads have used up this loop iteration, so that further ones are to be queued.
        is_crowded: whether so many jobs are queued that nobody should bring much at a time.
        now_s: the clock.
        until_s: when the open slice ends by it; infinite where none is open.
    """

    def __init__(
        self,
        now_s: Callable[[], float] | None = None,
        soon: Callable[[Callable[[], Any]], object] | None = None,
    ) -> None:
        """now_s: None is `perf_counter`. soon: None is `call_soon` of the running loop."""
        self.now_s = now_s or perf_counter
        self._soon = soon or _next_iteration
        self._light: OrderedDict[Job, None] = OrderedDict()
        self._heavy: OrderedDict[Job, None] = OrderedDict()
        self.is_busy = self.is_crowded = False
        self._scheduled = False
        self._began_s = 0.0
        self.until_s = inf
        self._spent_s = 0.0

    def __len__(self) -> int:
        return len(self._light) + len(self._heavy)

    def begin(self) -> None:
        """Open a slice: `SLICE_S`, or what is left of this iteration where nobody else waits."""
        self._began_s = now_s = self.now_s()
        self.until_s = now_s + (SLICE_S if self._light or self._heavy else max(SLICE_S, TICK_S - self._spent_s))

    def is_over(self) -> bool:
        """Whether the open slice is used up; False where none is open."""
        return self.now_s() >= self.until_s

    def end(self) -> bool:
        """Close the open slice; whether it took `SLICE_S` or more."""
        spent_s = self.now_s() - self._began_s
        self.until_s = inf
        self.count(spent_s)
        return spent_s >= SLICE_S

    def count(self, spent_s: float) -> None:
        """Time of this iteration was spent outside of a slice."""
        self._spent_s += spent_s
        if self._spent_s > TICK_S / 2:  # below that, it may have been in several iterations
            self.is_busy = self._spent_s >= TICK_S
            self._schedule()

    def add(self, job: Job, *, heavy: bool = False) -> None:
        """Queue a job, unless it is queued. heavy: whether it has used up its last slice."""
        if job not in self._light and job not in self._heavy:
            (self._heavy if heavy else self._light)[job] = None
            self.is_crowded = len(self) > _CROWD
            self._schedule()

    def discard(self, job: Job) -> None:
        """Forget a job, if it is queued."""
        self._light.pop(job, None)
        self._heavy.pop(job, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._iterate)

    def _iterate(self) -> None:
        """One loop iteration begins."""
        self._scheduled = False
        try:
            self._serve()
        finally:
            self._spent_s, self.until_s = 0.0, inf
            self.is_busy, self.is_crowded = False, len(self) > _CROWD
            if self._light or self._heavy:
                self._schedule()

    def _serve(self) -> None:
        until_s, heavy_served = self.now_s() + TICK_S, False
        while True:
            in_time = self.now_s() < until_s
            if self._light and in_time:
                job, _ = self._light.popitem(last=False)
            elif self._heavy and (in_time or not heavy_served):
                job, _ = self._heavy.popitem(last=False)
                heavy_served = True
            else:
                return
            self.begin()
            if job.advance() and job not in self._light:
                self._heavy[job] = None
