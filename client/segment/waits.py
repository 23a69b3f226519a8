"""Futures awaiting a segment writer: flush, back-pressure and start-up.

Invariant: each wait ends when its condition holds or the writer ends. Futures are created only on demand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from segstore.client.errors import ClientError


class AppendWaits:
    """The waits of one writer."""

    __slots__ = ("_flushes", "_room", "_start")

    def __init__(self) -> None:
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._room: asyncio.Future[None] | None = None
        self._start: asyncio.Future[None] | None = None

    @property
    def some(self) -> bool:
        """Whether there may be any waiters."""
        return bool(self._flushes) or self._room is not None or self._start is not None

    async def for_start(self) -> None:
        """Waits until `started` is called."""
        if self._start is None:
            self._start = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._start)

    def started(self) -> None:
        """Wakes `for_start`: the writer was set up, or never will be."""
        start, self._start = self._start, None
        if start is not None:
            start.set_result(None)

    async def for_room(self) -> None:
        """Waits until there may be room."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._room)

    async def until_settled(self, count: int) -> None:
        """Waits until `count` items in total are settled. Raises the writer's error."""
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((count, flushed))
        await flushed

    def settled(self, count: int, *, has_room: bool) -> None:
        """Wakes waiters; count: items settled since the writer was created."""
        flushes = self._flushes
        while flushes and flushes[0][0] <= count:
            _, flushed = flushes.popleft()
            if not flushed.done():
                flushed.set_result(None)
        if has_room and self._room is not None:
            room, self._room = self._room, None
            room.set_result(None)

    def fail(self, error: Callable[[], ClientError]) -> None:
        """Ends all waits after the writer has ended; each flush gets its own error instance."""
        flushes, self._flushes = self._flushes, deque()
        for _, flushed in flushes:
            if not flushed.done():
                flushed.set_exception(error())
                flushed.exception()  # marked as retrieved: the waiter may be gone
