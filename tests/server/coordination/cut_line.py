"""A TCP line that can be cut and healed: between a session and the service, in the loop of a test."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self, cast

from segstore.server.accepting import stop_accepting

__all__ = ["CutLine"]


class CutLine:
    """Passes bytes on to `target` ("host:port") and back. `address` is where to connect instead."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._ends: set[_End] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._cut = False
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self), "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await stop_accepting(self._server)
        self.cut()
        await asyncio.gather(*self._opening, return_exceptions=True)
        while self._ends:  # noqa: ASYNC110  what was aborted is told so in a turn or two
            await asyncio.sleep(0)

    def cut(self) -> None:
        """Ends all connections and takes no new ones."""
        self._cut = True
        for task in self._opening:
            task.cancel()
        for end in self._ends:
            end.transport.abort()

    def heal(self) -> None:
        """Takes connections again."""
        self._cut = False

    def joined(self, end: _End) -> None:
        """An end is connected: if it is a client's, the other one is opened."""
        self._ends.add(end)
        if self._cut:
            end.transport.abort()
        elif end.other is None:
            task = asyncio.create_task(self._open(end))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def left(self, end: _End) -> None:
        self._ends.discard(end)
        if end.other is not None:
            end.other.transport.abort()

    async def _open(self, end: _End) -> None:
        end.transport.pause_reading()
        try:
            _, end.other = await asyncio.get_running_loop().create_connection(lambda: _End(self, end), *self._target)
        except OSError:
            end.transport.abort()
        else:
            if end.transport.is_closing():
                end.other.transport.abort()
            else:
                end.transport.resume_reading()


class _End(asyncio.Protocol):
    """One side of a line."""

    def __init__(self, line: CutLine, other: _End | None = None) -> None:
        self._line = line
        self.other = other
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._line.joined(self)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.left(self)
