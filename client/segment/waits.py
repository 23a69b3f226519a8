"""Futures awaiting a segment writer: flush, back-pressure and start-up.

Invariant: each wait ends when what it is for has come, or with the writer. Nothing is made before somebody waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from segstore.client.errors import ClientError


class AppendWaits:
    """The waits of one writer.

    Attributes:
        some: whether there may be any.
    """

    __slots__ = ("_flushes", "_room", "_start", "some")

    def __init__(self) -> None:
        self._flushes: deque[tuple[int, asyncio.Future[None]]] | None = None
        self._room: asyncio.Future[None] | None = None
        self._start: asyncio.Future[None] | None = None
        self.some = False

    async def for_start(self) -> None:
        """Returns when `started` was called."""
        if self._start is None:
            self._start = asyncio.get_running_loop().create_future()
        self.some = True
        await asyncio.shield(self._start)

    def started(self) -> None:
        """The writer was set up, or will not be."""
        start, self._start = self._start, None
        if start is not None:
            start.set_result(None)

    async def for_room(self) -> None:
        """Returns when there may be room."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        self.some = True
        await asyncio.shield(self._room)

    async def until_settled(self, count: int) -> None:
        """Returns when so many items went out. Raises the writer's error."""
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._flushes is None:
            self._flushes = deque()
        self._flushes.append((count, flushed))
        self.some = True
        await flushed

    def settled(self, count: int, *, has_room: bool) -> None:
        """So many items went out since the writer was made."""
        flushes = self._flushes
        while flushes and flushes[0][0] <= count:
            _, flushed = flushes.popleft()
            if not flushed.done():
                flushed.set_result(None)
        if has_room and self._room is not None:
            room, self._room = self._room, None
            room.set_result(None)
        if not flushes:
            self._flushes = None
            self.some = self._room is not None or self._start is not None

    def fail(self, error: Callable[[], ClientError]) -> None:
        """The writer has ended; each wait for a flush gets an error of its own."""
        flushes, self._flushes = self._flushes, None
        for _, flushed in flushes or ():
            if not flushed.done():
                flushed.set_exception(error())
                flushed.exception()  # it may be that nobody waits any more
