"""Time as the server takes it: clocks and timers, which tests replace.

Invariant: durations are measured with monotonic time, so setting the system's clock neither ends nor prolongs a lease,
a delay or a wait. Times that are stored, such as when a segment was changed, are of the same clock: after the system's
clock was set, or the machine was suspended, they differ from it until the process is restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A timer that has not fired."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time and timers."""

    def now_s(self) -> float:
        """Seconds since 1970, for durations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, of the same clock."""

    def wall_s(self) -> float:
        """Seconds since 1970 as other processes have them, for times that they made, such as the expiry of a token."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle: ...


class SteadyTime:
    """The system's time at construction, advanced by monotonic time."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_s(self) -> float:
        """Seconds since 1970."""
        return (self._offset_ns + time.monotonic_ns()) / 1_000_000_000

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return (self._offset_ns + time.monotonic_ns()) // 1_000_000


class LoopClock(SteadyTime):
    """Steady time, and the timers of the running loop."""

    wall_s = staticmethod(time.time)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)
