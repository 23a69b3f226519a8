"""A transport without a socket, for a side of a link."""

import asyncio
from typing import Any


class FakeTransport(asyncio.Transport):
    """Remembers what was done to it, in order."""

    def __init__(self, port: int = 1, *, eof: bool = True) -> None:
        super().__init__({"sockname": ("127.0.0.1", port), "peername": ("127.0.0.1", port + 1)})
        self.done: list[Any] = []
        self._eof = eof
        self._closing = False

    def take(self) -> list[Any]:
        done, self.done = self.done, []
        return done

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.done.append(bytes(data))

    def can_write_eof(self) -> bool:
        return self._eof

    def write_eof(self) -> None:
        self.done.append("eof")

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self.done.append("close")
        self._closing = True

    def abort(self) -> None:
        self.done.append("abort")
        self._closing = True
