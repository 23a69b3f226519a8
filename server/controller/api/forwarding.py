"""The controller's port in each process of a cluster: followers forward calls to the leader.

A call and its answer are forwarded unchanged, bytes and metadata, so that a client sees no difference. While there is
no leader, calls are answered with UNAVAILABLE, after which clients retry.

Invariants: a call is forwarded at most once; a process that does not lead answers a forwarded call with UNAVAILABLE.
If the leader may have applied a call that it did not answer, UNAVAILABLE carries `OUTCOME_UNKNOWN`. With TLS the
processes trust each other by their shared certificate. Without TLS, callers' credentials are left out unless the
network is trusted, because the leader's address comes from a node of ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from segstore.server.controller.api.in_flight import InFlight, trailing_of
from segstore.server.controller.api.server import bounds, listen, new_server
from segstore.server.controller.config import ControllerConfig
from segstore.server.net import Endpoint, TlsFiles
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN, SERVICE

_HANDED_ON: Final = "segstore-handed-on"
_OF_THE_TRANSPORT: Final = ("grpc-", ":")
_CREDENTIALS: Final = "authorization"
_CHANNEL: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[Any, Any]
else:
    _Handler = grpc.GenericRpcHandler  # not generic at run time


class ForwardingServer(_Handler):
    """The controller's port in one process. Created by `start`.

    Attributes:
        local: the controller's handlers while this process leads.
        leader: returns the leader's address if another process leads.
    """

    def __init__(
        self, server: grpc.aio.Server, leader: Callable[[], Endpoint | None], tls: TlsFiles | None, trust_network: bool
    ) -> None:
        self.local: grpc.GenericRpcHandler[Any, Any] | None = None
        self.leader = leader
        self.port = 0
        self._in_flight = InFlight(server, self)
        self._tls = tls
        self._left_out = _OF_THE_TRANSPORT if trust_network or tls else (*_OF_THE_TRANSPORT, _CREDENTIALS)
        self._channels: dict[Endpoint, grpc.aio.Channel] = {}
        self._calls: dict[Any, Endpoint] = {}
        self._methods = {f"/{SERVICE}/{name}" for name in METHODS}

    @classmethod
    async def start(
        cls,
        host: str,
        port: int,
        *,
        leader: Callable[[], Endpoint | None],
        config: ControllerConfig,
        tls: TlsFiles | None = None,
        trust_network: bool = False,
    ) -> Self:
        """Start listening. Raises OSError if it cannot listen there."""
        server = new_server(*bounds(config))
        self = cls(server, leader, tls, trust_network)
        self.port = await listen(server, host, port, tls)
        await server.start()
        return self

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call: the controller's own, or one that forwards it."""
        if self.local is not None:
            return self.local.service(handler_call_details)
        method = handler_call_details.method
        if method not in self._methods:
            return None
        return grpc.unary_unary_rpc_method_handler(self._forward(method))

    def _forward(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def handle(request: bytes, context: Any) -> bytes:
            metadata = list(context.invocation_metadata() or ())
            leader = self.leader()
            if leader is None or any(key == _HANDED_ON for key, _ in metadata):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "no process of the cluster leads the controller now")
            assert leader is not None
            kept = [(key, value) for key, value in metadata if not key.startswith(self._left_out)]
            channel = self._channel(leader)
            ask = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            call = ask(request, metadata=(*kept, (_HANDED_ON, "1")), timeout=context.time_remaining())
            self._calls[call] = leader
            try:
                answer: bytes = await call
                context.set_trailing_metadata(tuple(await call.trailing_metadata()))
                return answer
            except asyncio.CancelledError:
                if call in self._calls:
                    raise
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:  # a gRPC server ends calls in flight like this
                    await context.abort(error.code(), error.details() or "", trailing_of(error, channel))
            finally:
                self._calls.pop(call, None)
            said = "the controller's leader shut down before it answered the call"
            await context.abort(grpc.StatusCode.UNAVAILABLE, said, (OUTCOME_UNKNOWN,))
            raise AssertionError("abort raises")

        return handle

    def leader_changed(self) -> None:
        """Answer calls that an earlier leader has not answered with UNAVAILABLE."""
        now = self.leader()
        for call, leader in tuple(self._calls.items()):
            if leader != now:
                del self._calls[call]
                call.cancel()

    def _channel(self, leader: Endpoint) -> grpc.aio.Channel:
        channel = self._channels.get(leader)
        if channel is None:
            if self._tls is None:
                channel = grpc.aio.insecure_channel(str(leader), options=_CHANNEL)
            else:
                trusted = grpc.ssl_channel_credentials(self._tls.own_certificate())
                channel = grpc.aio.secure_channel(str(leader), trusted, options=_CHANNEL)
            self._channels[leader] = channel
        return channel

    async def aclose(self, grace_s: float = 1.0) -> None:
        """Accept no more calls, give those in flight `grace_s` seconds, then stop."""
        await self._in_flight.stop(grace_s)
        channels, self._channels = self._channels, {}
        for each in channels.values():
            await each.close(None)
