"""HTTP listeners: the control API's listener, and the base of other listeners.

The web server runs on the store's own loop, without signal handlers, threads, ticks or logging of its own. Responses
are computed between two steps of the store, so they never show a half-done change; for the same reason each step is
short.

Invariants: after `stop`, which can be called twice, no connection and no task is left. The number of connections is
limited by its share of descriptors (`descriptors`); another connection replaces the one whose current step started
first, if possible one without a request. A step is receiving the head of a request or answering it. Each step has a
deadline, which incoming bytes do not extend; a step in which the peer has read a part of a response gets another one,
so a download takes as long as its reader needs. A peer that sends no more has `_ENDED_S`, because it may have
disconnected. With TLS, half of the share is for connections whose handshake is not complete.

The control API requires a token unless the address is loopback, because any caller can change the server.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from segstore.server.accepting import Listening
from segstore.server.control_api.app import make_app
from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.guard import ONE_HOST, Guard, is_loopback
from segstore.server.control_api.latest import latest_seen
from segstore.server.control_api.problems import PROBLEM_TYPE, body
from segstore.server.control_api.routes import bodies
from segstore.server.descriptors import Limit, shares
from segstore.server.net import CannotListen, TlsFiles, listening_on
from segstore.server.secret_file import read_secret
from segstore.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from segstore.wire import Buffer

log = logging.getLogger(__name__)

_uvicorn_log = log.getChild("uvicorn")
_uvicorn_log.setLevel(logging.ERROR)  # below, it reports what clients do, such as Java's `Upgrade: h2c`

_BACKLOG: Final = 1024
_FIRST_HEAD_S: Final = 10.0
_STEP_S: Final = 60
_ENDED_S: Final = 2.0
_HEAD_BYTES: Final = 32 * 1024
_UNSENT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_UNSENT_BYTES: Final = 64 * 1024
"""What the system takes ahead of a slow reader, where this can be set; elsewhere megabytes, which hide its progress."""
_TOKEN: Final = re.compile(r"[!-~]{16,4096}")
_NO_HEAD: Final = ("this is not an HTTP request, or its head is too long", "header")
_BAD_HOST: Final = (ONE_HOST, "header.host")
_BAD_LENGTH: Final = ("a Content-Length header is a number of bytes", "header.content-length")
_BAD_HEADS: Final = {
    "Missing mandatory Host: header": _BAD_HOST,
    "Found multiple Host: headers": _BAD_HOST,
    "bad Content-Length": _BAD_LENGTH,
    "conflicting Content-Length headers": _BAD_LENGTH,
}
"""Errors of h11 for an invalid head → what is wrong, and where. Others, which may quote the head, mean `_NO_HEAD`."""
_DRAIN_S: Final = 1.0
_LOOK_S: Final = 0.01


class _Outgoing:
    """A transport that counts what is written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Buffer) -> None:
        self._written += len(data)
        self._transport.write(data)

    @property
    def sent(self) -> int:
        """Number of bytes that were written and are not queued any more."""
        return self._written - self._transport.get_write_buffer_size()


class _Connection(H11Protocol):
    """One connection, with the deadline of its current step.

    since_s: when the step started or, if its deadline was extended, when that was. limit: of its port.
    """

    _asking = _has_ended = False
    since_s = 0.0
    limit: Limit
    _sent = 0
    _deadline: asyncio.TimerHandle | None = None
    _outgoing: _Outgoing

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = _uvicorn_log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        self._outgoing = _Outgoing(transport)
        if _UNSENT is not None:
            with suppress(OSError):  # the peer may have gone already
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _UNSENT, _UNSENT_BYTES)
        super().connection_made(cast("asyncio.Transport", self._outgoing))
        self._begin_step(_FIRST_HEAD_S)
        if len(self.connections) > self.limit.most:
            self.limit.reached()
            slowest = min((each for each in self.connections if isinstance(each, _Connection)), key=_gives_way)
            self.connections.discard(slowest)
            slowest.transport.abort()

    def _begin_step(self, limit_s: float) -> None:
        self._stop_waiting()
        self.since_s = self.loop.time()
        self._sent = self._outgoing.sent
        self._deadline = self.loop.call_later(limit_s, self._step_is_late)

    def _step_is_late(self) -> None:
        if self._outgoing.sent > self._sent:
            self._begin_step(_STEP_S)
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        self._look_for_step()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_for_step()
        if self._has_ended and not self._is_answering():
            self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # it is, first

    def _look_for_step(self) -> None:
        asking = self._is_answering()
        if asking is not self._asking:
            self._asking = asking
            self._begin_step(_ENDED_S if self._has_ended else _STEP_S)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # as asyncio has it
        """Keeps the connection for an answer that is due: the peer sends no more, but may still read.

        The answer must begin within `_ENDED_S`, because the peer may also have disconnected. With TLS the connection
        is closed at once, because TLS connections end in both directions together.
        """
        self._has_ended = self._is_answering() and not self.cycle.more_body and self.scheme != "https"
        if self._has_ended:
            self._begin_step(_ENDED_S)
        return self._has_ended

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP, or has a head above the limit, in the form of all errors."""
        if self._is_answering():
            self.cycle.disconnected = True  # this is the answer: an application that does not read the body has another
            problem = body(400, "the body does not have the form of its transfer-encoding, which is chunked", "body")
        else:
            problem = body(400, *_BAD_HEADS.get(str(sys.exception()), _NO_HEAD))
        headers = [(b"content-type", PROBLEM_TYPE.encode()), (b"connection", b"close")]
        parts = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=problem),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(each) or b"" for each in parts))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)


def _gives_way(connection: _Connection) -> tuple[bool, float]:
    """The order in which connections give way to others: first those without a request."""
    return connection._is_answering(), connection.since_s


class _Server:
    """An application and its connections. server_state: the connections and tasks, as uvicorn has them.

    limit: on the connections. handshakes: on the TLS handshakes in progress.
    """

    def __init__(self, app: ASGIApp, limit: Limit, handshakes: Limit) -> None:
        self.server_state = ServerState()
        self._app = app
        self._limit = limit
        self._handshakes = handshakes
        self._is_ending = False
        self._config = uvicorn.Config(
            self._answer,
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
        self._listening: Listening | None = None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_ending:  # otherwise `end` has closed the connection; uvicorn would log an error
                raise

    def _connection(self) -> _Connection:
        connection = _Connection(self._config, self.server_state, {})
        connection.limit = self._limit
        return connection

    async def begin(self, host: str, port: int, tls: ssl.SSLContext | None) -> Endpoint:
        """Listens; returns the address. Raises OSError."""
        self._config.load()
        timeouts = {"ssl_handshake_timeout": _FIRST_HEAD_S, "ssl_shutdown_timeout": _DRAIN_S}
        listening = Listening(
            self._connection,
            self._limit,
            handshakes=self._handshakes,
            tls={} if tls is None else {"ssl": tls, **timeouts},
        )
        self._listening = await listening.start(host, port, _BACKLOG)
        return Endpoint(*listening.address)

    async def end(self) -> None:
        state, loop = self.server_state, asyncio.get_running_loop()
        if self._listening is not None:
            self._listening.close()
            await self._listening.wait_closed()
        for connection in list(state.connections):
            connection.shutdown()
        until = loop.time() + _DRAIN_S
        while (state.connections or state.tasks) and loop.time() < until:  # noqa: ASYNC110 — uvicorn has no event for it
            await asyncio.sleep(_LOOK_S)
        for connection in list(state.connections):
            connection.transport.abort()
        while state.connections:  # noqa: ASYNC110 — as above
            await asyncio.sleep(0)
        self._is_ending = True
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HttpListener:
    """Serves an application at a host and port; port 0 picks a free one. `address` is None before the start.

    use, option: what the port is for, and the option that sets it. tls: the files for HTTPS; None for HTTP.
    """

    def __init__(self, host: str, port: int, use: str, option: str, tls: TlsFiles | None = None) -> None:
        self.address: Endpoint | None = None
        self._host = host
        self._port = port
        self._use = use
        self._option = option
        self._tls = tls
        self._server: _Server | None = None

    async def listen(self, app: ASGIApp) -> Endpoint:
        """Starts listening; returns the address. Raises AddressInUse, CannotListen."""
        tls = None if self._tls is None else self._tls.server_context(self._host, self._port)
        most = shares().http if tls is None else max(1, shares().http // 2)
        connections = Limit(f"connections to the {self._use} port", most)
        server = _Server(app, connections, Limit(f"TLS handshakes with the {self._use} port", most))
        with listening_on(self._host, self._port, self._use, self._option):
            self.address = await server.begin(self._host, self._port, tls)
        self._server = server
        return self.address

    async def stop(self) -> None:
        """Answers pending requests for `_DRAIN_S`, then closes all connections. Can be called twice."""
        server, self._server = self._server, None
        if server is not None:
            try:
                async with asyncio.timeout(2 * _DRAIN_S):
                    await server.end()
            except TimeoutError:
                log.warning("connections to the port for %s did not end in time", self._use)


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
        app = make_app(self.controlled, guarded=token is not None)
        guarded = Guard(app, bound=self._host, names=self._names, token=token, yaml_paths=bodies.YAML_PATHS)
        address = await self.listen(guarded)
        if token is None and not is_loopback(address.host):
            await self.stop()  # before the loop runs again, so no connection was accepted
            raise self._cannot(f"{address.host} is not loopback, so a token is required: --http-token-file")
        self.controlled.count_writers()
        faults, traffic = self.controlled.faults, self.controlled.traffic
        if faults is not None and traffic is not None:
            faults.latest = partial(latest_seen, traffic)

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
