"""A gRPC server on asyncio that answers its calls in flight when it shuts down.

gRPC ends such calls with CANCELLED, which means that the client gave up. Here they are answered with UNAVAILABLE, and
`OUTCOME_UNKNOWN` in the trailing metadata, so that a client repeats the call at another node if that is safe.

Invariants: calls that the client cancels, or that finish in time, are not changed. Port 0 picks a free port; a port in
use is refused, not shared.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, NoReturn

import grpc

from segstore.server.controller.api.calls import Behaviour, Calls, end_call
from segstore.server.controller.errors import Interrupted
from segstore.server.net import AddressInUse, CannotListen, TlsFiles, most_connections
from segstore.wire.controller_api import OUTCOME_UNKNOWN, SERVICE
from segstore.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

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

_GRPC_CONNECTIONS: Final = (1 << 31) - 2
"""gRPC aborts the process above this."""
_ANSWER_S: Final = 1.0
"""Time to send the answers to interrupted calls."""


async def end_interrupted(context: Any) -> NoReturn:
    """Ends a call that was interrupted by the shutdown of its server."""
    await end_call(context, grpc.StatusCode.UNAVAILABLE, str(Interrupted()), OUTCOME_UNKNOWN)


async def _no_such_method(_: bytes, context: Any) -> NoReturn:
    """Answers as gRPC does, which would not record the call."""
    await end_call(context, grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


class CallsInFlight(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """A server for unary calls. It closes connections beyond its limit.

    behaviour_of: returns what serves a method, "/service/name", in raw messages; None if nothing does. options: further
    options of gRPC. calls: sees the calls of the controller's API, also of methods that nothing serves.
    """

    def __init__(
        self, behaviour_of: Callable[[str], Behaviour | None], *options: tuple[str, int], calls: Calls | None = None
    ) -> None:
        most = "grpc.max_allowed_incoming_connections", min(most_connections() // 2, _GRPC_CONNECTIONS)
        self.server = grpc.aio.server(options=(*_OPTIONS, most, *options))
        self.port = 0
        self._behaviour_of = behaviour_of
        self._calls = calls
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interrupted: set[asyncio.Task[Any]] = set()
        self._ending = False
        self.server.add_generic_rpc_handlers((self,))

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> None:
        """Listens, sets `port`, and starts. Raises CannotListen, or OSError for a file of `tls`."""
        starting: asyncio.Future[None] | None = None
        try:
            self.port = self._bind(host, port, tls)
            starting = asyncio.ensure_future(self.server.start())  # gRPC's does not bear to be cancelled
            await asyncio.shield(starting)
        except BaseException:  # the server would outlive the event loop
            if starting is not None:
                await asyncio.wait({starting})
            await self.server.stop(None)
            raise

    def _bind(self, host: str, port: int, tls: TlsFiles | None) -> int:
        if _taken(host, port):
            raise AddressInUse(host, port, "the controller", "--controller-port")
        address = str(Endpoint(host, port))
        try:
            if tls is None:
                return self.server.add_insecure_port(address)
            pair = tls.key.read_bytes(), tls.certificate.read_bytes()
            return self.server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:  # gRPC gives no reason
            raise CannotListen(f"the controller cannot listen on {address}", host, port) from error

    def service(self, handler_call_details: Any) -> Any:
        method, calls = handler_call_details.method, self._calls
        service, _, rpc = method[1:].partition("/")
        log.debug("the controller is called: %s", rpc)
        behaviour = self._behaviour_of(method)
        if behaviour is None:
            if service != SERVICE:
                return None
            behaviour = _no_such_method
        if calls is None or service != SERVICE:
            behaviour = self._answered(behaviour)
        else:
            behaviour = calls.recorded(rpc, calls.ruled(rpc, behaviour, answered=self._answered))
        return grpc.unary_unary_rpc_method_handler(behaviour)

    def _answered(self, behaviour: Behaviour) -> Behaviour:
        async def handle(request: bytes, context: Any) -> bytes:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                return await behaviour(request, context)
            except asyncio.CancelledError:
                error_is_being_sent = context.code()
                if error_is_being_sent or (not self._ending and task not in self._interrupted):
                    raise
                task.uncancel()
                await end_interrupted(context)
            finally:
                self._tasks.discard(task)
                self._interrupted.discard(task)

        return handle

    def interrupt(self) -> None:
        """Cancels the calls in flight, which are answered as when the server stops."""
        for task in self._tasks:
            self._interrupted.add(task)
            task.cancel()

    async def stop(self, grace_s: float) -> None:
        """Stops the server: accepts no more calls, and interrupts those not finished within `grace_s` seconds.

        May be called twice. If it is cancelled, it interrupts them at once.
        """
        stopping = asyncio.ensure_future(self.server.stop(grace_s + _ANSWER_S))
        try:
            await asyncio.wait({stopping}, timeout=grace_s)
        finally:
            self._ending = True
            for task in self._tasks:
                task.cancel()
            await stopping


def _taken(host: str, port: int) -> bool:
    """Whether the port is in use. gRPC would log that itself, and report only a failure."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # gRPC reports other errors
    return False
