"""The control API's HTTP listener.

The web server runs on the store's own loop, without signal handlers, threads, ticks or logging of its own. Responses
are computed between two steps of the store, so they never show a half-done change; for the same reason each step is
short.

Invariants: after `stop`, which can be called twice, no connection and no task is left. The number of connections is
limited by its share of descriptors (`descriptors`); another connection replaces the one whose current step started
first. A step is receiving the head of a request or answering it. Each step has a deadline, which incoming bytes do not
extend.

A token is required unless the address is loopback, because any caller can change the server.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from segstore.server.accepting import stop_accepting
from segstore.server.control_api.app import make_app
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.guard import Guard, is_loopback
from segstore.server.descriptors import shares
from segstore.server.net import CannotListen, listening_on
from segstore.server.secret_file import read_secret
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

_FIRST_HEAD_S: Final = 10.0
_STEP_S: Final = 60
_HEAD_BYTES: Final = 32 * 1024
_TOKEN: Final = re.compile(r"[!-~]{16,4096}")
_DRAIN_S: Final = 1.0
_LOOK_S: Final = 0.01


class _Connection(H11Protocol):
    """One connection, with the deadline of its current step. since_s: when the step started."""

    _asking = False
    since_s = 0.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        super().connection_made(transport)
        self._begin_step(_FIRST_HEAD_S)
        if len(self.connections) > shares().http:
            slowest = min((each for each in self.connections if isinstance(each, _Connection)), key=_since_s)
            self.connections.discard(slowest)
            slowest.transport.abort()

    def _begin_step(self, limit_s: float) -> None:
        self._stop_waiting()
        self.since_s = self.loop.time()
        self._deadline = self.loop.call_later(limit_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        self._look_for_step()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_for_step()

    def _look_for_step(self) -> None:
        asking = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # it is, first
        if asking is not self._asking:
            self._asking = asking
            self._begin_step(_STEP_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)


def _since_s(connection: _Connection) -> float:
    return connection.since_s


class _Server(uvicorn.Server):
    """A uvicorn server that its owner starts and stops quickly."""

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
        while (state.connections or state.tasks) and loop.time() < until:  # noqa: ASYNC110 — uvicorn has no event for it
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
    """Serves the control API at a host and port; port 0 picks a free one.

    names: other allowed host names in requests. token_file: file that contains only the token that requests must carry;
    None for no token, which is allowed on loopback only. `address` is None before the start.
    """

    def __init__(
        self, controlled: Controlled, host: str, port: int, *, names: Iterable[str] = (), token_file: Path | None = None
    ) -> None:
        self.controlled = controlled
        self.address: Endpoint | None = None
        self._host = host
        self._port = port
        self._names = tuple(names)
        self._token_file = token_file
        self._server: _Server | None = None

    async def start(self) -> None:
        """Starts listening. Raises AddressInUse, CannotListen."""
        token = None if self._token_file is None else self._token(self._token_file)
        listening = await self._bind()
        try:
            self.address = Endpoint(*listening.getsockname()[:2])
            if token is None and not is_loopback(self.address.host):
                raise self._cannot(f"{self.address.host} is not loopback, so a token is required: --http-token-file")
            self.controlled.count_writers()
            app = Guard(make_app(self.controlled), bound=self._host, names=self._names, token=token)
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
                timeout_keep_alive=_STEP_S,
                h11_max_incomplete_event_size=_HEAD_BYTES,
            )
            self._server = _Server(config)
            await self._server.begin(listening)
        except BaseException:
            listening.close()
            raise

    async def _bind(self) -> socket.socket:
        host, port, loop = self._host, self._port, asyncio.get_running_loop()
        with listening_on(host, port, "HTTP", "--http-port"):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
            except OSError:
                listening.close()
                raise
        return listening

    def _token(self, path: Path) -> bytes:
        try:
            found = read_secret(path).strip()
        except OSError as error:
            raise self._cannot(f"{path}: {error.strerror}", error.errno) from error
        except ValueError:
            found = ""
        if not _TOKEN.fullmatch(found):
            raise self._cannot(f"{path}: a token is one line of 16 to 4096 printable ASCII characters, without spaces")
        return found.encode()

    def _cannot(self, why: object, number: int | None = None) -> CannotListen:
        host, port = self._host, self._port
        return CannotListen(f"cannot listen on {host} port {port} for HTTP: {why}", host, port, number)

    async def stop(self) -> None:
        """Answers pending requests for `_DRAIN_S`, then closes all connections. Can be called twice."""
        server, self._server = self._server, None
        self.controlled.watch.close()
        if server is not None:
            try:
                async with asyncio.timeout(2 * _DRAIN_S):
                    await server.end()
            except TimeoutError:
                log.warning("connections of the control API did not end in time")
