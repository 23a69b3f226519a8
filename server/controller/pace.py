"""Limits the share of the event loop that calls of the controller take: long calls run in steps and alternate.

Work is counted in units of about 50 µs: the cost of one segment of a stream, or of 128 bytes of a message. Invariant:
each loop iteration provides `PER_TICK` units for all calls together. A step that takes more than are left uses up those
of the following iterations, in which no other step starts. Pending steps are served round robin by caller. So another
caller waits for one step at most, however many calls a caller makes and however long they are. A step is short, because
gRPC accepts about one call in four iterations, so each of many simultaneous calls waits for the steps of others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

CALLER: Final[ContextVar[str]] = ContextVar("the peer for which a controller works", default="")

PER_TICK: Final = 4
_UNIT_BYTES: Final = 128

T = TypeVar("T")


def units_of(size: int) -> int:
    """The units for reading or writing a message of `size` bytes."""
    return 1 + size // _UNIT_BYTES


class Pace:
    """Hands out the units of each loop iteration. Used in one event loop."""

    def __init__(self) -> None:
        self._left = PER_TICK
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._renewing = False

    async def take(self, units: int) -> None:
        """Wait for a loop iteration that has units left, and take `units` of them."""
        if self._left > 0 and not self._waiting:
            self.charge(units)
            return
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(CALLER.get(), deque()).append((units, taken))
        await taken

    def charge(self, units: int) -> None:
        """Count work that was done without `take`."""
        self._left -= units
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def over(self, items: Sequence[T]) -> Paced[T]:
        """Returns the items, for `async for`; each counts as one unit."""
        return Paced(self, items)

    def _renew(self) -> None:
        self._left = min(self._left + PER_TICK, PER_TICK)
        while self._waiting and self._left > 0:
            caller = next(iter(self._waiting))
            waiting = self._waiting.pop(caller)
            units, taken = waiting.popleft()
            if waiting:
                self._waiting[caller] = waiting  # after all other callers
            if not taken.done():  # a cancelled call takes nothing
                self._left -= units
                taken.set_result(None)
        self._renewing = self._left < PER_TICK
        if self._renewing:
            asyncio.get_running_loop().call_soon(self._renew)


class Paced(Generic[T]):
    """Items one by one; units are taken for `PER_TICK` items at a time."""

    def __init__(self, pace: Pace, items: Sequence[T]) -> None:
        self._pace = pace
        self._items = items
        self._at = 0

    def __aiter__(self) -> Paced[T]:
        return self

    async def __anext__(self) -> T:
        at, left = self._at, len(self._items) - self._at
        if left == 0:
            raise StopAsyncIteration
        if at % PER_TICK == 0:
            await self._pace.take(min(left, PER_TICK))
        self._at += 1
        return self._items[at]
