"""Calls sent to another controller as raw messages, and the port with which followers forward calls to the leader.

Taps and replays send calls with `UpstreamController`. In each process of a cluster, `ForwardingServer` serves the
controller's port. A call and its answer are forwarded unchanged, bytes and metadata, so that a client sees no
difference. While there is no leader, calls are answered with UNAVAILABLE, after which clients retry.

Invariants: a message has at most 64 MiB; a call is sent at most once, and cancelled there when it is cancelled here; a
process that does not lead answers a forwarded call with UNAVAILABLE. If the leader may have applied a call that it did
not answer, UNAVAILABLE carries `OUTCOME_UNKNOWN`. With TLS the processes trust each other by their shared certificate.
Without TLS, callers' credentials are left out unless the network is trusted, because the leader's address comes from a
node of ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import grpc

from segstore.server.controller.api.calls import Behaviour, Calls, as_texts, end_call, sent_metadata
from segstore.server.controller.api.in_flight import NOT_SENT, CallsInFlight, Handler, trailing_of
from segstore.server.controller.api.server import ControllerServer, bounds
from segstore.server.controller.config import ControllerConfig
from segstore.server.net import TlsFiles
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN, SERVICE
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call

_FORWARDED: Final = "segstore-handed-on"
_CREDENTIALS: Final = "authorization"
MOST_MESSAGE: Final = ("grpc.max_receive_message_length", 64 * 1024 * 1024)
"""The limit of segstore's client; gRPC's default is 4 MiB."""
RAW: Final[dict[str, Any]] = {"request_serializer": bytes, "response_deserializer": bytes}
_CHANNEL: Final = (
    MOST_MESSAGE,
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def channel_to(controller: Endpoint, trust: bytes | None = None) -> grpc.aio.Channel:
    """Returns a channel, which connects when it is used.

    trust: trusted authorities (PEM), b"" for gRPC's own; None to connect without TLS.
    """
    if trust is None:
        return grpc.aio.insecure_channel(str(controller), options=_CHANNEL)
    return grpc.aio.secure_channel(str(controller), grpc.ssl_channel_credentials(trust or None), options=_CHANNEL)


class UpstreamController:
    """A controller to which calls of traces and replays are made. address: where it is. trust: as for `channel_to`."""

    def __init__(self, address: Endpoint, trust: bytes | None = None) -> None:
        self.address = address
        self._channel = channel_to(address, trust)

    async def ask(
        self, call: Call, metadata: Sequence[tuple[str, str | bytes]] = (), timeout_s: float | None = None
    ) -> Call:
        """Makes a call, and returns its answer with the number of the request.

        A call that fails has an answer, too, with gRPC's status and details (see `unreached`).
        """
        unary: Any = self._channel.unary_unary(f"/{SERVICE}/{call.rpc}", **RAW)
        upstream = unary(call.message, metadata=tuple(metadata), timeout=timeout_s)
        try:
            message = await upstream
            trailing, details = await upstream.trailing_metadata(), await upstream.details()
            return Call(call.number, call.rpc, message, as_texts(trailing), "", "OK", details or "")
        except grpc.aio.AioRpcError as error:
            trailing, status = trailing_of(error, self._channel), error.code().name
            return Call(call.number, call.rpc, b"", as_texts(trailing), "", status, error.details() or "")
        finally:
            upstream.cancel()  # a no-op if the call has finished

    async def aclose(self) -> None:
        """Closes the connection; calls in flight are cancelled. May be called twice."""
        await self._channel.close(None)


def unreached(answer: Call) -> str:
    """Why a call was not sent: why no connection could be made; "" if it was sent."""
    if answer.status != "UNAVAILABLE" or NOT_SENT not in answer.details:
        return ""
    return answer.details.rpartition(": ")[2]


class NotForwarded(Exception):
    """A forwarded call has no answer of the leader. Attributes: code, why, and the trailing metadata for the caller."""

    def __init__(self, code: grpc.StatusCode, why: str, *trailing: Any) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.trailing = trailing


class ForwardingServer(Handler):
    """The controller's port in one process.

    `local` is the controller while this process leads; `leader` returns the leader's address otherwise.
    `calls` sees all calls that arrive here.
    """

    def __init__(
        self,
        leader: Callable[[], Endpoint | None],
        config: ControllerConfig,
        *,
        tls: TlsFiles | None = None,
        trust_network: bool = False,
        calls: Calls | None = None,
    ) -> None:
        self.local: ControllerServer | None = None
        self.leader = leader
        self.calls = calls
        self._in_flight = CallsInFlight(self, *bounds(config), calls=calls)
        self._tls = tls
        self._sends_credentials = trust_network or tls is not None
        self._channels: dict[Endpoint, grpc.aio.Channel] = {}
        self._forwarded: dict[Any, Endpoint] = {}
        self._offered: dict[str, Behaviour] = {}
        self._methods = {f"/{SERVICE}/{name}" for name in METHODS}

    async def start(self, host: str, port: int) -> Self:
        """Starts listening. Raises OSError if it cannot listen there."""
        await self._in_flight.start(host, port, self._tls)
        return self

    @property
    def port(self) -> int:
        return self._in_flight.port

    def offer(self, method: str, behaviour: Behaviour) -> None:
        """Serves a method, "/service/name", beside the controller's: while this process leads, otherwise forwarded."""
        self._offered[method] = behaviour

    def service(self, handler_call_details: Any) -> Any:
        """Returns the handler of a call: the controller's own handler, or a forwarding handler."""
        method = handler_call_details.method
        offered = self._offered.get(method)
        if self.local is not None:
            if offered is None:
                return self.local.handlers.service(handler_call_details)
            return grpc.unary_unary_rpc_method_handler(offered)
        if offered is None and method not in self._methods:
            return None
        return grpc.unary_unary_rpc_method_handler(self._forward(method))

    def _forward(self, method: str) -> Behaviour:
        async def handle(request: bytes, context: Any) -> bytes:
            try:
                answer, trailing = await self.ask(method, request, sent_metadata(context), context.time_remaining())
            except NotForwarded as error:
                await end_call(context, error.code, error.why, *error.trailing)
            context.set_trailing_metadata(trailing)
            return answer

        return handle

    async def ask(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str | bytes]], timeout_s: float | None
    ) -> tuple[bytes, tuple[Any, ...]]:
        """Forwards a call; returns the leader's answer and its trailing metadata. Raises NotForwarded."""
        leader = self.leader()
        if leader is None or any(key == _FORWARDED for key, _ in metadata):
            raise NotForwarded(grpc.StatusCode.UNAVAILABLE, "no process of the cluster leads the controller now")
        sent = [item for item in metadata if self._sends_credentials or not item[0].startswith(_CREDENTIALS)]
        channel = self._channel(leader)
        call: Any = channel.unary_unary(method, **RAW)(request, metadata=(*sent, (_FORWARDED, "1")), timeout=timeout_s)
        self._forwarded[call] = leader
        try:
            answer: bytes = await call
            return answer, tuple(await call.trailing_metadata())
        except asyncio.CancelledError:
            if call in self._forwarded:
                raise
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:  # a gRPC server ends calls in flight like this
                raise NotForwarded(error.code(), error.details() or "", *trailing_of(error, channel)) from error
        finally:
            self._forwarded.pop(call, None)
        why = "the controller's leader shut down before it answered the call"
        raise NotForwarded(grpc.StatusCode.UNAVAILABLE, why, OUTCOME_UNKNOWN)

    def leader_changed(self) -> None:
        """Answers calls that an earlier leader has not answered with UNAVAILABLE."""
        now = self.leader()
        for call, leader in tuple(self._forwarded.items()):
            if leader != now:
                del self._forwarded[call]
                call.cancel()

    def _channel(self, leader: Endpoint) -> grpc.aio.Channel:
        if leader not in self._channels:
            self._channels[leader] = channel_to(leader, None if self._tls is None else self._tls.own_certificate())
        return self._channels[leader]

    async def aclose(self, grace_s: float = 1.0) -> None:
        """Accepts no more calls, gives calls in flight `grace_s` seconds, then stops."""
        await self._in_flight.stop(grace_s)
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)
