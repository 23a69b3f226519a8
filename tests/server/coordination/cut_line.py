"""A TCP line that can be cut and healed: between a session and the service, in the loop of a test."""

import asyncio
from typing import Self

__all__ = ["CutLine"]


class CutLine:
    """Passes bytes on to `target` ("host:port") and back. `address` is where to connect instead."""

    def __init__(self, target: str) -> None:
        self._target = target.rpartition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._cut = self._ignores = False
        self.ignored = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.sleep(0)  # in which what was aborted is lost

    def cut(self) -> None:
        """Ends all connections and takes no new ones."""
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        """Takes connections again."""
        self._cut = False

    def ignore_next(self) -> None:
        """Ends all connections, and never answers the next one."""
        self.cut()
        self.heal()
        self._ignores = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving.add(task)
        self._writers.add(writer)
        try:
            if self._cut:
                return
            if self._ignores:
                self._ignores = False
                self.ignored += 1
                await reader.read()
                return
            there, back = await asyncio.open_connection(self._target[0], int(self._target[2]))
            self._writers.add(back)
            await asyncio.gather(self._forward(reader, back), self._forward(there, writer))
            self._writers.discard(back)
        except OSError:
            return  # the target is gone: the client sees the end of its connection
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._serving.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self._cut and (some := await reader.read(65_536)):
                writer.write(some)
        except ConnectionError:
            return
        finally:
            writer.transport.abort()
