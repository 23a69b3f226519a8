"""HTTP listeners: the control API's listener, and the base of other listeners.

uvicorn's protocol runs on the store's own loop, without its signal handlers, threads, ticks and log. Responses are
computed between two steps of the store, so they never show a half-done change; for the same reason each step is short.

Invariants: a port has at most `_MOST_CONNECTIONS`; after `stop`, which can be called twice, no connection and no task
is left.

The control API requires a token unless the address is loopback, because any caller can change the server.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from segstore.server.auth import read_secret
from segstore.server.control_api.app import serving
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.guard import Guard, is_loopback
from segstore.server.control_api.routes import bodies
from segstore.server.net import CannotListen, TlsFiles, listening_on, stop_accepting
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

_uvicorn_log = log.getChild("uvicorn")
_uvicorn_log.setLevel(logging.ERROR)  # below, it reports what clients do, such as Java's `Upgrade: h2c`

_MOST_CONNECTIONS: Final = 256
_KEEP_ALIVE_S: Final = 60
_HEAD_BYTES: Final = 32 * 1024
_TOKEN: Final = re.compile(r"[!-~]{16,4096}")
_DRAIN_S: Final = 1.0
_LOOK_S: Final = 0.01


class _Connection(H11Protocol):
    """uvicorn's, with a log of this module, a limit on the port's connections, and a deadline for the first request."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState) -> None:
        super().__init__(config, server_state, {})
        self.logger = _uvicorn_log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        super().connection_made(transport)
        self._silence = self.loop.call_later(_KEEP_ALIVE_S, transport.abort)
        if len(self.connections) > _MOST_CONNECTIONS:
            log.warning("a connection is closed: %d are open, as many as an HTTP port may have", _MOST_CONNECTIONS)
            transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None:  # after the first request, uvicorn's own timer ends idle connections
            self._silence.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answers malformed bytes, unless they are in the body of a request that was answered. Then it closes."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # the application's response would be a second one
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._silence.cancel()
        super().connection_lost(exc)


class HttpListener:
    """Serves an application at a host and port; port 0 picks a free port. `address` is None before the start.

    use, option: the port's purpose, and the option that sets it. tls: the files for HTTPS; None for HTTP.
    """

    def __init__(self, host: str, port: int, use: str, option: str, tls: TlsFiles | None = None) -> None:
        self.address: Endpoint | None = None
        self._host = host
        self._port = port
        self._use = use
        self._option = option
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._state = ServerState()
        self._is_ending = False

    async def listen(self, app: ASGIApp) -> None:
        """Starts listening. Raises AddressInUse, CannotListen."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                if not self._is_ending:  # otherwise `stop` has cancelled it; uvicorn would log an error
                    raise

        config = uvicorn.Config(
            serve,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            h11_max_incomplete_event_size=_HEAD_BYTES,
        )
        config.load()
        tls = None if self._tls is None else self._tls.server_context(self._host, self._port)
        connection = partial(_Connection, config, self._state)
        with listening_on(self._host, self._port, self._use, self._option):
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(connection, self._host, self._port, ssl=tls, backlog=config.backlog)
        self.address = Endpoint(*self._server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        """Answers pending requests for `_DRAIN_S`, then closes all connections. Can be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        await stop_accepting(server)
        state = self._state
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while state.connections or state.tasks:  # noqa: ASYNC110 — uvicorn has no event for it
                    await asyncio.sleep(_LOOK_S)
        self._is_ending = True
        for connection in list(state.connections):
            connection.transport.abort()
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while state.connections:  # noqa: ASYNC110 — as above
            await asyncio.sleep(0)


class ControlApi(HttpListener):
    """Serves the control API at a host and port; port 0 picks a free port.

    names: other allowed host names in requests. token_file: file that contains only the token that requests must carry;
    None for no token, which is allowed on loopback only. `address` is None before the start.
    """

    def __init__(
        self, controlled: Controlled, host: str, port: int, *, names: Iterable[str] = (), token_file: Path | None = None
    ) -> None:
        super().__init__(host, port, "HTTP", "--http-port")
        self.controlled = controlled
        self._names = tuple(names)
        self._token_file = token_file

    async def start(self) -> None:
        """Starts listening. Raises AddressInUse, CannotListen."""
        token = None if self._token_file is None else self._token(self._token_file)
        if token is None:
            await self._check_loopback()
        app = serving(self.controlled, guarded=token is not None)
        await self.listen(Guard(app, bound=self._host, names=self._names, token=token, yaml_paths=bodies.YAML_PATHS))
        self.controlled.begin()

    async def _check_loopback(self) -> None:
        with listening_on(self._host, self._port, self._use, self._option):
            infos = await asyncio.get_running_loop().getaddrinfo(self._host, None)
        for *_, address in infos:
            if not is_loopback(str(address[0])):
                raise self._cannot(f"{address[0]} is not loopback, so a token is required: --http-token-file")

    def _token(self, path: Path) -> bytes:
        try:
            token = read_secret(path).strip()
        except OSError as error:
            raise self._cannot(f"{path}: {error.strerror}", error.errno) from error
        except ValueError:
            token = ""
        if not _TOKEN.fullmatch(token):
            raise self._cannot(f"{path}: a token is one line of 16 to 4096 printable ASCII characters, without spaces")
        return token.encode()

    def _cannot(self, why: object, number: int | None = None) -> CannotListen:
        host, port = self._host, self._port
        return CannotListen(f"cannot listen on {host} port {port} for HTTP: {why}", host, port, number)
