"""The controller's gRPC server on asyncio, with optional TLS and basic authentication.

Invariants: while it is open, one task runs the due timers; after `aclose`, which can be called twice, no task and no
socket is left. Port 0 picks a free port; a port in use is refused, not shared.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError, Message

from segstore.server.controller.api.answers import answer, with_status
from segstore.server.controller.api.auth import Authority
from segstore.server.controller.api.caller import Caller
from segstore.server.controller.api.calls import Calls
from segstore.server.controller.api.executing import Executor
from segstore.server.controller.api.in_flight import CallsInFlight, end_call, end_interrupted
from segstore.server.controller.api.service import serve
from segstore.server.controller.config import ControllerConfig
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import ControllerError, Interrupted
from segstore.server.durable import JournalFailed
from segstore.server.net import AddressInUse, CannotListen, TlsFiles, most_connections
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN, SERVICE, Method
from segstore.wire.endpoint import Endpoint

_log = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # otherwise two servers could share a port unnoticed
    # Clients may send keep-alive pings at any rate, also between calls.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A connection without calls for this long is closed; a client opens another for its next call.
    ("grpc.max_connection_idle_ms", 300_000),
)

_STREAMS_MAX: Final = 1_024
"""Maximum number of calls in flight per connection, including calls whose request has not arrived: gRPC needs 20 KB per
call. It refuses further calls, and more than 1,000 at once."""
_GRPC_CONNECTIONS: Final = (1 << 31) - 2
"""gRPC aborts the process above this."""
_REQUEST_MAX_BYTES: Final = 1 << 20
_SEGMENT_BYTES: Final = 128
"""Room in a request for each segment of a stream. A cut that spans several epochs names more than that."""


def bounds(config: ControllerConfig) -> tuple[tuple[str, int], ...]:
    """Server options that bound the size of a request and the calls in flight of a connection."""
    return (
        ("grpc.max_receive_message_length", max(_REQUEST_MAX_BYTES, _SEGMENT_BYTES * config.max_segments)),
        ("grpc.max_concurrent_streams", _STREAMS_MAX),
    )


def new_server(*options: tuple[str, int]) -> grpc.aio.Server:
    """Creates a server that does not listen yet. It closes connections beyond its limit at once."""
    most = "grpc.max_allowed_incoming_connections", min(most_connections() // 2, _GRPC_CONNECTIONS)
    return grpc.aio.server(options=(*_OPTIONS, most, *options))


async def listen(server: grpc.aio.Server, host: str, port: int, tls: TlsFiles | None) -> int:
    """Binds a server that has not started; returns the port. Raises CannotListen, or OSError for a file of `tls`, and
    stops the server then.
    """
    if _taken(host, port):
        await server.stop(None)
        raise AddressInUse(host, port, "the controller", "--controller-port")
    address = str(Endpoint(host, port))
    try:
        if tls is None:
            return server.add_insecure_port(address)
        pair = tls.key.read_bytes(), tls.certificate.read_bytes()
        return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:  # gRPC gives no reason
        await server.stop(None)
        raise CannotListen(f"the controller cannot listen on {address}", host, port) from error
    except OSError:
        await server.stop(None)
        raise


def _taken(host: str, port: int) -> bool:
    """Whether the port is in use. gRPC would log that itself, and report only a failure."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # gRPC reports other errors
    return False


class ControllerServer:
    """A served controller. Created by `start`, or by `behind` without a socket of its own.

    `executor` executes its calls; `handlers` are the gRPC handlers of its methods.
    """

    def __init__(
        self,
        controller: Controller,
        authority: Authority,
        servers: Callable[[], Sequence[Endpoint]] | None,
        settled: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.executor = Executor(
            controller, authority, serve(controller, servers or (lambda: (self._endpoint,))), settled
        )
        self.handlers = grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(self._handler(name, method))
                for name, method in METHODS.items()
            },
        )
        self._in_flight: CallsInFlight | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._endpoint = Endpoint("", 0)

    @classmethod
    async def start(
        cls,
        controller: Controller,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        authority: Authority | None = None,
        tls: TlsFiles | None = None,
        published_host: str | None = None,
        settled: Callable[[], Awaitable[None]] | None = None,
        calls: Calls | None = None,
    ) -> Self:
        """Starts to serve a controller, which is not closed with the server; port 0 picks a free port.

        authority: checks permissions and issues tokens; None: everything is allowed, and there are no tokens.
        published_host: this server's host name for clients; with TLS a name in the certificate. None: `host`. settled:
        returns when all changes are durable; calls are answered only then, with UNAVAILABLE if it raises
        `JournalFailed`. None: no durability. calls: observes all calls.

        Raises `CannotListen`; `OSError` for a file of `tls`.
        """
        server = new_server(*bounds(controller.config))
        self = cls(controller, authority or Authority(), None, settled)
        self._in_flight = CallsInFlight(server, self.handlers, calls)
        bound = await listen(server, host, port, tls)
        self._endpoint = Endpoint(published_host or host, bound)
        await self._in_flight.begin()
        self._keeper = asyncio.create_task(self._keep(), name=f"controller on port {bound}")
        return self

    @classmethod
    def behind(
        cls,
        controller: Controller,
        authority: Authority,
        servers: Callable[[], Sequence[Endpoint]],
        settled: Callable[[], Awaitable[None]],
    ) -> Self:
        """Serves calls passed to `handlers`, without a socket. servers: returns the addresses of all controllers of the
        cluster for clients. Other arguments as for `start`.
        """
        self = cls(controller, authority, servers, settled)
        self._keeper = asyncio.create_task(self._keep(), name="controller")
        return self

    @property
    def endpoint(self) -> Endpoint:
        """The server's address for clients."""
        return self._endpoint

    @property
    def port(self) -> int:
        return self._endpoint.port

    async def aclose(self, grace_s: float = 1.0) -> None:
        """Accepts no more calls, gives calls in flight `grace_s` seconds, then cancels them and their work."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if self._in_flight is not None:
            await self._in_flight.stop(grace_s)
        await self.executor.aclose()

    async def interrupt(self) -> None:
        """Cancels the work of calls in flight and of timers; callers get UNAVAILABLE, as when the server stops."""
        keeper = self._keeper
        if keeper is None:
            return
        if self._in_flight is not None:
            self._in_flight.interrupt()
        keeper.cancel()
        try:
            await asyncio.gather(keeper, return_exceptions=True)
            await self.executor.interrupt()
        finally:
            if self._keeper is keeper:  # not closed meanwhile
                self._keeper = asyncio.create_task(self._keep(), name=keeper.get_name())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _keep(self) -> None:
        controller = self.executor.controller
        while True:
            due_ms = controller.next_due_ms()
            wait_s = None if due_ms is None else max(due_ms - controller.now_ms(), 0) / 1000
            try:
                async with asyncio.timeout(wait_s):
                    await controller.wait_for_timer()
            except TimeoutError:
                await controller.run_due()

    def _handler(self, name: str, method: Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
        serve_one = self.executor.served[name]

        async def perform(request: Message, caller: Caller) -> bytes:
            response: Message | None = await serve_one(request, caller)
            response = with_status(method.response, "SUCCESS") if response is None else response
            return response.SerializeToString()

        def prepare(asked: bytes, caller: Caller) -> Callable[[], Awaitable[bytes]]:
            return partial(perform, method.request.FromString(asked), caller)

        async def handle(asked: bytes, context: Any) -> bytes:
            metadata = context.invocation_metadata() or ()
            authorization = next((str(value) for key, value in metadata if key == "authorization"), None)
            execution = self.executor.execute(name, asked, authorization, prepare)
            del asked  # it may be large, and is not needed any more
            try:
                return await execution
            except DecodeError:
                await end_call(
                    context, grpc.StatusCode.INTERNAL, f"the request is not a {method.request.DESCRIPTOR.name}"
                )
            except Interrupted:
                await end_interrupted(context)
            except JournalFailed as error:
                await end_call(context, grpc.StatusCode.UNAVAILABLE, str(error), OUTCOME_UNKNOWN)
            except ControllerError as error:
                _log.debug("%s: %s", name, error)
                value, code = answer(name, error)
                if value is not None:
                    return with_status(method.response, value).SerializeToString()
                await end_call(context, code, error.message)

        return handle
