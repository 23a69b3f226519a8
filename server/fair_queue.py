"""Round-robin queue for jobs that may take longer than one loop iteration.

A job is served at once if possible: a connection when it is read, a timer when it fires. If its slice is used up, the
rest is queued. In each loop iteration queued jobs get slices, round robin, for `TICK_S` in total; then the loop polls
its sockets again. Once reads have taken `TICK_S`, further ones are queued, too. Jobs that did not use up their last
slice (light jobs) are served before those that did (heavy jobs), so a peer with few requests does not wait for the
whole queue; at least one heavy job is served in each iteration.

Invariants: a job is queued at most once; at most one slice is open; every queued job is served eventually. No I/O here;
the clock and the call that schedules the next loop iteration are arguments.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Protocol

SLICE_S: Final = 0.0005
"""How long a job is served at a time. The job checks the clock itself, after each step."""

TICK_S: Final = 0.008
"""How long queued jobs are served in one loop iteration; also the limit for reads."""

_NOTICED_S: Final = TICK_S / 2
"""A shorter time may be the sum of several loop iterations in which nothing was queued."""

_CROWD: Final = 8


class Job(Protocol):
    """Work that is done in slices."""

    def advance(self) -> bool:
        """Executes one slice; returns whether there is more to do now."""
        ...


def _next_iteration(callback: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_soon(callback)


class FairQueue:
    """The jobs that share the time of one event loop.

    Attributes:
        is_busy: whether reads have used up this loop iteration; further ones should be queued.
        is_crowded: whether many jobs are queued; reads should be small.
        now_s: the clock.
    """

    def __init__(
        self, now_s: Callable[[], float] | None = None, soon: Callable[[Callable[[], Any]], object] | None = None
    ) -> None:
        """now_s: the clock; None for `perf_counter`. soon: schedules a callback for the next loop iteration; None for
        `call_soon` of the running loop.
        """
        self.now_s = now_s or perf_counter
        self._soon = soon or _next_iteration
        self._light: OrderedDict[Job, None] = OrderedDict()
        self._heavy: OrderedDict[Job, None] = OrderedDict()
        self.is_busy = self.is_crowded = False
        self._scheduled = False
        self._is_open = False
        self._began_s = self._spent_s = 0.0

    def __len__(self) -> int:
        return len(self._light) + len(self._heavy)

    def begin(self) -> None:
        """Opens a slice of `SLICE_S`, or of the rest of this iteration while no other job is queued."""
        self._began_s, self._is_open = self.now_s(), True

    def is_over(self) -> bool:
        """Whether the open slice is used up; False if none is open."""
        left_s = TICK_S - self._spent_s
        most_s = SLICE_S if self._light or self._heavy or left_s < SLICE_S else left_s
        return self._is_open and self.now_s() - self._began_s >= most_s

    def end(self) -> bool:
        """Closes the open slice; returns whether it took `SLICE_S` or more."""
        spent_s = self.now_s() - self._began_s
        self._is_open = False
        self._spent_s = total_s = self._spent_s + spent_s
        if total_s > _NOTICED_S:
            self.is_busy = total_s >= TICK_S
            self._schedule()
        return spent_s >= SLICE_S

    def add(self, job: Job, *, heavy: bool = False) -> None:
        """Queues a job, unless it is queued already. heavy: whether it used up its last slice."""
        if job not in self._light and job not in self._heavy:
            (self._heavy if heavy else self._light)[job] = None
            self.is_crowded = len(self) > _CROWD
            self._schedule()

    def discard(self, job: Job) -> None:
        """Removes a job, if it is queued."""
        self._light.pop(job, None)
        self._heavy.pop(job, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._iterate)

    def _iterate(self) -> None:
        """Runs once per loop iteration while jobs are queued."""
        self._scheduled = False
        try:
            self._serve()
        finally:
            self._spent_s, self._is_open = 0.0, False
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
