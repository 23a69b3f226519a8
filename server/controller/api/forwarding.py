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
from typing import Any, Final, Self

import grpc

from segstore.server.controller.api.in_flight import Handler, InFlight, end_call, sent_metadata, trailing_of
from segstore.server.controller.api.server import bounds, listen, new_server
from segstore.server.controller.config import ControllerConfig
from segstore.server.net import TlsFiles
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN, SERVICE
from segstore.wire.endpoint import Endpoint

_FORWARDED: Final = "segstore-handed-on"
_CREDENTIALS: Final = "authorization"
_CHANNEL: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class ForwardingServer(Handler):
    """The controller's port in one process. Created by `start`.

    `local` has the controller's handlers while this process leads; `leader` returns the leader's address otherwise.
    """

    def __init__(
        self, server: grpc.aio.Server, leader: Callable[[], Endpoint | None], tls: TlsFiles | None, trust_network: bool
    ) -> None:
        self.local: grpc.GenericRpcHandler[Any, Any] | None = None
        self.leader = leader
        self.port = 0
        self._in_flight = InFlight(server, self)
        self._tls = tls
        self._sends_credentials = trust_network or tls is not None
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
            metadata = sent_metadata(context)
            leader = self.leader()
            if leader is None or any(key == _FORWARDED for key, _ in metadata):
                why = "no process of the cluster leads the controller now"
                await end_call(context, grpc.StatusCode.UNAVAILABLE, why)
            kept = [each for each in metadata if self._sends_credentials or not each[0].startswith(_CREDENTIALS)]
            channel = self._channel(leader)
            ask = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            call = ask(request, metadata=(*kept, (_FORWARDED, "1")), timeout=context.time_remaining())
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
                    await end_call(context, error.code(), error.details() or "", *trailing_of(error, channel))
            finally:
                self._calls.pop(call, None)
            why = "the controller's leader shut down before it answered the call"
            return await end_call(context, grpc.StatusCode.UNAVAILABLE, why, OUTCOME_UNKNOWN)

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
