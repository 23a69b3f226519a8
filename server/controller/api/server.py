"""The controller's gRPC server on asyncio, with optional TLS and basic authentication.

Invariants: while it is open, one task runs the due timers; after `aclose`, which can be called twice, no task and no
socket is left. Port 0 picks a free port; a port in use is refused, not shared. Every method of the API is answered;
unsupported ones with UNIMPLEMENTED and a sentence. Messages are parsed and serialised here, not by gRPC, so that `Pace`
covers this work, too.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError, Message

from segstore.server.controller.api.answers import answer
from segstore.server.controller.api.auth import Authority
from segstore.server.controller.api.in_flight import InFlight, end_call, end_interrupted
from segstore.server.controller.api.service import Caller, Served, serve
from segstore.server.controller.config import ControllerConfig
from segstore.server.controller.controller import Controller
from segstore.server.controller.errors import Closed, ControllerError
from segstore.server.controller.pace import CALLER, units_of
from segstore.server.controller.shares import Shares
from segstore.server.descriptors import shares
from segstore.server.durable import JournalFailed
from segstore.server.net import AddressInUse, CannotListen, TlsFiles
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

_ENDING_S: Final = 1.0
"""How long interrupted calls may wait until their changes are durable."""

_CALL_UNITS: Final = 12
"""Cost for gRPC and asyncio to accept a call, in units of the controller's pace."""
_WORKS_MAX: Final = 128
"""Maximum number of calls executed at a time; others wait."""
_HELD_MAX_BYTES: Final = 128 << 20
"""Maximum total size of the requests in flight."""
_STREAMS_MAX: Final = 1_024
"""Maximum number of calls in flight per connection, including those whose request has not arrived: gRPC needs 20 KB for
each. It refuses others, and more than 1,000 at once."""
_REQUEST_MAX_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 64
"""Upper bound on the size of an entry of a stream cut."""

_GROWING: Final = {
    *("createScope", "createStream", "updateStream", "scale", "createKeyValueTable", "createTransaction"),
    *("createReaderGroup", "updateReaderGroup", "updateSubscriberStreamCut", "noteTimestampFromWriter"),
}
"""Methods that are refused when memory is full."""

_STATUS_FIELDS: Final = ("status", "result", "state")
"""Names of a response's enum field."""


def bounds(config: ControllerConfig) -> tuple[tuple[str, int], ...]:
    """Server options that bound the size of a request and the calls in flight of a connection."""
    return (
        ("grpc.max_receive_message_length", max(_REQUEST_MAX_BYTES, _ENTRY_BYTES * config.max_cut_entries)),
        ("grpc.max_concurrent_streams", _STREAMS_MAX),
    )


def new_server(*options: tuple[str, int]) -> grpc.aio.Server:
    """Create a server that does not listen yet. It closes connections beyond its limit at once."""
    most = "grpc.max_allowed_incoming_connections", shares().controller
    return grpc.aio.server(options=(*_OPTIONS, most, *options))


async def listen(server: grpc.aio.Server, host: str, port: int, tls: TlsFiles | None) -> int:
    """Binds a server that has not started; the port. Raises CannotListen, and the server is of no more use then."""
    if _taken(host, port):
        await server.stop(None)
        raise AddressInUse(host, port, "the controller", "--controller-port")
    address = str(Endpoint(host, port))
    try:
        if tls is None:
            return server.add_insecure_port(address)
        pair = tls.key.read_bytes(), tls.certificate.read_bytes()
        return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:  # gRPC does not say why
        await server.stop(None)
        raise CannotListen(f"the controller cannot listen on {address}", host, port) from error


def _taken(host: str, port: int) -> bool:
    """Whether the port is in use. gRPC would log that itself, and report only a failure."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # gRPC reports other errors
    return False


class ControllerServer:
    """A served controller. Created by `start`, or by `behind` without a socket of its own.

    `handlers` are the gRPC handlers of its methods.
    """

    def __init__(
        self, controller: Controller, authority: Authority, settled: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._controller = controller
        self._authority = authority
        self._in_flight: InFlight | None = None
        self._settled = settled
        self._keeper: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[bytes]] = set()
        self._works = Shares(_WORKS_MAX)
        self._held = Shares(_HELD_MAX_BYTES)
        self._closed = False
        self._endpoint = Endpoint("", 0)
        self.handlers: grpc.GenericRpcHandler[Any, Any] | None = None

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
        servers: Callable[[], Sequence[Endpoint]] | None = None,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> Self:
        """Start listening and serve a controller, which is not closed with the server; port 0 picks a free one.

        authority: checks permissions and issues tokens; None: everything is allowed, and there are no tokens.
        published_host: this server's host name for clients; with TLS a name in the certificate. None: `host`. servers:
        returns the addresses of all controllers of the cluster for clients; None: this one. settled: returns when all
        changes are durable; calls are answered only then, with UNAVAILABLE if it raises `JournalFailed`. None: no
        durability.

        Raises `CannotListen`; `OSError` for a file of `tls`.
        """
        server = new_server(*bounds(controller.config))
        self = cls(controller, authority or Authority(now_s=lambda: controller.now_ms() / 1000), settled)
        self.handlers = self._handlers(serve(controller, servers or (lambda: (self._endpoint,))))
        self._in_flight = InFlight(server, self.handlers)
        bound = await listen(server, host, port, tls)
        self._endpoint = Endpoint(published_host or host, bound)
        await server.start()
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
        """Serve calls passed to `handlers`, without a socket; arguments as for `start`."""
        self = cls(controller, authority, settled)
        self.handlers = self._handlers(serve(controller, servers))
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
        """Accept no more calls, give those in flight `grace_s` seconds, then cancel them and their work."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if self._in_flight is not None:
            await self._in_flight.stop(grace_s)
        self._closed = True
        if left := tuple(self._work):
            for each in left:
                each.cancel()
            _, pending = await asyncio.wait(left, timeout=_ENDING_S)
            for each in pending:  # they wait for their changes to become durable
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self._authority.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _keep(self) -> None:
        while True:
            due_ms = self._controller.next_due_ms()
            wait_s = None if due_ms is None else max(due_ms - self._controller.now_ms(), 0) / 1000
            try:
                async with asyncio.timeout(wait_s):
                    await self._controller.wait_for_timer()
            except TimeoutError:
                await self._controller.run_due()

    def _handlers(self, served: Mapping[str, Served]) -> grpc.GenericRpcHandler[Any, Any]:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(self._handler(name, method, served.get(name)))
                for name, method in METHODS.items()
            },
        )

    def _handler(self, name: str, method: Method, serve_one: Served | None) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def unimplemented(asked: bytes, context: Any) -> bytes:
            await end_call(
                context,
                grpc.StatusCode.UNIMPLEMENTED,
                f"{name} is not supported: no client that segstore is made for calls it",
            )

        if serve_one is None:
            return unimplemented

        settled = self._settled

        pace = self._controller.pace

        async def perform(request: Message, caller: Caller) -> bytes:
            try:
                response: Message | None = await serve_one(request, caller)
            finally:  # a refusal reveals state, too
                if settled is not None:
                    await settled()
            response = _with_status(method.response, "SUCCESS") if response is None else response
            data = response.SerializeToString()
            pace.charge(units_of(len(data)))
            return data

        async def begin(asked: bytes, authorization: str | None) -> asyncio.Task[bytes]:
            """Starts the work of a call once its peer's share allows it. A cancelled wait leaves nothing behind."""
            caller, peer = Caller(self._authority, await self._authority.principal(authorization)), CALLER.get()
            await self._works.take(peer)
            try:
                await pace.take(units_of(len(asked)))
                if self._closed:
                    raise Closed
                if name in _GROWING:
                    self._controller.check_memory(len(asked))
                work = asyncio.create_task(
                    perform(method.request.FromString(asked), caller), name=f"{name} of a controller"
                )
            except BaseException:
                self._works.give_back(peer)
                raise
            self._work.add(work)
            work.add_done_callback(self._work.discard)
            work.add_done_callback(lambda _: self._works.give_back(peer))
            return work

        async def handle(asked: bytes, context: Any) -> bytes:
            peer, size, work = context.peer(), len(asked), None
            CALLER.set(peer)
            pace.charge(_CALL_UNITS)
            if not self._held.try_take(peer, size):
                await end_call(
                    context,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "the requests in flight on this connection are too large together",
                )
            try:
                work = await begin(asked, _authorization(context))
                del asked  # it may be large, and is not needed any more
                # As in Pravega, started work is completed even if the caller disconnects.
                return await asyncio.shield(work)
            except DecodeError:
                await end_call(
                    context, grpc.StatusCode.INTERNAL, f"the request is not a {method.request.DESCRIPTOR.name}"
                )
            except asyncio.CancelledError:
                if work is None:
                    raise
                if not work.cancelled():
                    work.add_done_callback(_abandoned)
                    raise
                await end_interrupted(context)
            except JournalFailed as error:
                await end_call(context, grpc.StatusCode.UNAVAILABLE, str(error), OUTCOME_UNKNOWN)
            except ControllerError as error:
                _log.debug("%s: %s", name, error)
                value, code = answer(name, error)
                if value is not None:
                    return _with_status(method.response, value).SerializeToString()
                await end_call(context, code, error.message)
            finally:
                self._held.give_back(peer, size)
                del work  # which has the error, whose traceback has this frame

        return handle


def _abandoned(work: asyncio.Task[bytes]) -> None:
    """Retrieves the error of a work whose caller has gone, and logs it if it is an unexpected one."""
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, ControllerError | JournalFailed):
        _log.error("unexpected error in %s, whose caller has gone: %.200r", work.get_name(), error)


def _authorization(context: Any) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return str(value)
    return None


def _with_status(response: type[Message], value: str) -> Message:
    """Return a response that contains only the status."""
    for field in _STATUS_FIELDS:
        described = response.DESCRIPTOR.fields_by_name.get(field)
        if described is not None and described.enum_type is not None:
            return response(**{field: described.enum_type.values_by_name[value].number})
    raise AssertionError(f"{response.DESCRIPTOR.name} has no enum for {value}")
