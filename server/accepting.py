"""Listening sockets: accept peers, and close remaining sockets on shutdown.

asyncio accepts a connection in one tick of the loop and creates its transport in the next. If the server is closed in
between, asyncio drops the connection with an error in the log and leaks its socket. uvloop has no such gap, but is
closed in the same way.

An asyncio server also does not report a peer before its TLS handshake is complete, so a closed server would leave it
open. `Listening` therefore accepts connections itself and sees each socket before its handshake.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, Self

log = logging.getLogger(__name__)

_TURNS = 2
"""In the first tick a newly accepted connection gets its transport, in the second its protocol is notified."""
_PAUSE_S: Final = 0.1


class Listening:
    """The listening sockets of a host and port, whose peers get a protocol from `factory`.

    Invariant: after `close` and `wait_closed` each accepted socket has its protocol or is closed.

    Attributes:
        address: (host, port) of the first socket.
    """

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], *, tls: dict[str, Any]) -> None:
        """tls: arguments of `loop.connect_accepted_socket`, empty without TLS."""
        self.address = ("", 0)
        self._factory = factory
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, backlog: int) -> Self:
        """Listens on all addresses of the host; port 0 picks a free port. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                try:
                    listening = socket.create_server(address, family=family, backlog=backlog)
                except OSError as error:
                    if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                        continue  # names can have IPv6 addresses on a system without IPv6
                    raise
                listening.setblocking(False)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
                self._sockets.append(listening)
        except BaseException:
            self.close()
            raise
        self.address = self._sockets[0].getsockname()[:2]
        self._resume()
        return self

    def _resume(self) -> None:
        self._paused = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _pause(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # without a pause, the loop would try again at once
            log.warning("no connection is accepted for %g s: %s", _PAUSE_S, error)
            self._pause()
            self._paused = self._loop.call_later(_PAUSE_S, self._resume)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._connect(accepted), name="segstore accepts a connection")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted, **self._tls)
        except (OSError, TimeoutError) as error:
            log.debug("a TLS handshake failed: %s", error)

    def close(self) -> None:
        """Closes the listening sockets and connections in a TLS handshake; other connections stay open. Can be called
        twice.
        """
        if self._paused is not None:
            self._paused.cancel()
        self._pause()
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            listening.close()
        if self._tls:
            for task in self._connecting:
                self._loop.call_soon(task.cancel)  # after it has started, so that it closes its socket

    async def wait_closed(self) -> None:
        """Waits until each accepted connection has its protocol or is closed."""
        await asyncio.gather(*self._connecting, return_exceptions=True)


async def stop_accepting(*servers: asyncio.Server) -> None:
    """Closes the listening sockets of `servers`. Accepted connections stay open, and their protocols are notified.

    Servers that are already closed are allowed. Cancellation still closes them all.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening)
    try:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    finally:
        for server in servers:
            server.close()
