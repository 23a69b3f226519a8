"""Time as the server takes it: the wall clock and timers, which tests replace."""

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
        """Seconds since 1970."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle: ...


class LoopClock:
    """The wall clock, and the timers of the running loop."""

    now_s = staticmethod(time.time)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)
