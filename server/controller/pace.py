"""The share of the event loop that calls of the controller have: long work goes in pieces, between those of others.

Work is counted in units of about 50 µs: what one segment of a stream costs, or 128 bytes of a message. Invariant: a
loop iteration brings `PER_TICK` units, for all calls together; a piece that takes more than there are left is paid for
by the iterations after it, in which no other one begins. What waits has its turn caller by caller. So however many
calls a caller makes, and however much each of them asks for, another caller waits for one such piece. A piece is small,
as gRPC accepts one call in about four iterations: what they take is what each of many calls at once waits for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

__all__ = ["CALLER", "PER_TICK", "Pace", "Paced", "units_of"]

CALLER: Final[ContextVar[str]] = ContextVar("the peer for which a controller works", default="")

PER_TICK: Final = 4
_UNIT_BYTES: Final = 128

T = TypeVar("T")


def units_of(size: int) -> int:
    """What reading or writing a message of that many bytes counts for."""
    return 1 + size // _UNIT_BYTES


class Pace:
    """Hands out the units of each loop iteration. Used in one event loop."""

    def __init__(self) -> None:
        self._left = PER_TICK
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._renewing = False

    async def take(self, units: int) -> None:
        """Wait for a loop iteration that has units left, and take so many of them."""
        if self._left > 0 and not self._waiting:
            self.charge(units)
            return
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(CALLER.get(), deque()).append((units, taken))
        await taken

    def charge(self, units: int) -> None:
        """Count work that was done without asking."""
        self._left -= units
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def over(self, items: Sequence[T]) -> Paced[T]:
        """The items, for `async for`: each counts for one unit, and they come in pieces."""
        return Paced(self, items)

    def _renew(self) -> None:
        self._left = min(self._left + PER_TICK, PER_TICK)
        while self._waiting and self._left > 0:
            caller = next(iter(self._waiting))
            waiting = self._waiting.pop(caller)
            units, taken = waiting.popleft()
            if waiting:
                self._waiting[caller] = waiting  # behind all others
            if not taken.done():  # a caller that went away takes nothing
                self._left -= units
                taken.set_result(None)
        self._renewing = self._left < PER_TICK
        if self._renewing:
            asyncio.get_running_loop().call_soon(self._renew)


class Paced(Generic[T]):
    """Items one by one; before each `PER_TICK` of them their units are taken."""

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
