"""The control API on its socket: listens, says where, stops.

The web server runs on the store's own loop, without signal handlers, threads, ticks or logging of its own. What it
answers is computed between two steps of the store, so it never sees a half-done state, and is kept short for the same
reason.

Invariants: nothing is left after `stop`, which can be called twice; no more than `_MOST_CONNECTIONS` peers are
connected, and one that has asked nothing whole within `_FIRST_REQUEST_S` is not one of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Iterable
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from segstore.server.accepting import stop_accepting
from segstore.server.control_api.app import make_app
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.guard import Guard, is_loopback
from segstore.server.runner import AddressInUse, CannotListen

__all__ = ["ControlApi"]

log = logging.getLogger(__name__)

_MOST_CONNECTIONS: Final = 256
_FIRST_REQUEST_S: Final = 10.0
_IDLE_S: Final = 60
_HEAD_BYTES: Final = 32 * 1024
_DRAIN_S: Final = 1.0
_LOOK_S: Final = 0.01


class _Connection(H11Protocol):
    """One peer; closed if it asks nothing in time, or is one too many."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
            return
        self._late = self.loop.call_later(_FIRST_REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None:  # it is, before the first request, whatever its annotation says
            self.transport.abort()  # type: ignore[unreachable]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """Started and stopped by its owner, and quick to stop."""

    async def begin(self, listening: socket.socket) -> None:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[listening])

    async def end(self) -> None:
        state, loop = self.server_state, asyncio.get_running_loop()
        await stop_accepting(*self.servers)
        for connection in list(state.connections):
            connection.shutdown()
        until = loop.time() + _DRAIN_S
        while (state.connections or state.tasks) and loop.time() < until:  # noqa: ASYNC110 — uvicorn tells nobody
            await asyncio.sleep(_LOOK_S)
        for connection in list(state.connections):
            connection.transport.abort()
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while state.connections:  # noqa: ASYNC110 — as above
            await asyncio.sleep(0)
        for server in self.servers:
            await server.wait_closed()


class ControlApi:
    """Serves what is `controlled` at a host and port; port 0 picks a free one.

    names: other names of this machine under which it is asked.

    Attributes:
        address: (host, port) once started, None before.
    """

    def __init__(self, controlled: Controlled, host: str, port: int, *, names: Iterable[str] = ()) -> None:
        self.controlled = controlled
        self.address: tuple[str, int] | None = None
        self._host = host
        self._port = port
        self._names = tuple(names)
        self._server: _Server | None = None

    async def start(self) -> None:
        """Listens. Raises AddressInUse, CannotListen."""
        listening = await self._bind()
        try:
            self.address = listening.getsockname()[:2]
            if not is_loopback(self.address[0]):
                log.warning("the control API listens on %s: whoever reaches it can change this server", self.address[0])
            self.controlled.count_writers()
            app = Guard(make_app(self.controlled), bound=self._host, names=self._names)
            config = uvicorn.Config(
                app,
                http=_Connection,
                ws="none",
                loop="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_IDLE_S,
                h11_max_incomplete_event_size=_HEAD_BYTES,
            )
            self._server = _Server(config)
            await self._server.begin(listening)
        except BaseException:
            listening.close()
            raise

    async def _bind(self) -> socket.socket:
        host, port = self._host, self._port
        listening: socket.socket | None = None
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, protocol, _, address = found[0]
            listening = socket.socket(family, kind, protocol)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError as error:
            if listening is not None:
                listening.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(host, port, "HTTP", "--http-port") from error
            reason = error.strerror or error
            raise CannotListen(f"cannot listen on {host} port {port}: {reason}", host, port, error.errno) from error
        return listening

    async def stop(self) -> None:
        """Answers what was asked, for a moment, then closes all connections. May be called twice."""
        server, self._server = self._server, None
        self.controlled.watch.close()
        if server is not None:
            try:
                async with asyncio.timeout(2 * _DRAIN_S):
                    await server.end()
            except TimeoutError:
                log.warning("connections of the control API did not end in time")
