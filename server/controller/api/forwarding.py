"""Calls sent to another controller as raw messages, and the port with which followers forward calls to the leader.

All calls are sent with `UpstreamController`. In each process of a cluster, `ForwardingServer` serves the controller's
port. A call and its answer are forwarded unchanged, bytes and metadata, so that a client sees no difference. While
there is no leader, calls are answered with UNAVAILABLE, after which clients retry.

Invariants: a message has at most 64 MiB; a call is sent at most once, and cancelled there when it is cancelled here; a
process that does not lead answers a forwarded call with UNAVAILABLE. If the leader may have applied a call that it did
not answer, UNAVAILABLE carries `OUTCOME_UNKNOWN`. With TLS the processes trust each other by their shared certificate.
Without TLS, callers' credentials are left out unless the network is trusted, because the leader's address comes from a
node of ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import grpc

from segstore.server.controller.api.calls import Behaviour, Calls, as_texts, end_call, sent_metadata
from segstore.server.controller.api.in_flight import CallsInFlight
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
_NOT_SENT: Final = "failed to connect to all addresses"
"""gRPC's message for a call that was not sent, for lack of a connection."""
_Metadata = Sequence[tuple[str, str | bytes]]
_CHANNEL: Final = (
    MOST_MESSAGE,
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class CallOutcome(NamedTuple):
    """The outcome of a call at another controller: the answer, b"" unless `code` is OK, the status and the metadata."""

    message: bytes
    code: grpc.StatusCode
    details: str
    initial: tuple[Any, ...]
    trailing: tuple[Any, ...]


class UpstreamController:
    """A controller to which calls are sent.

    address: where it is. trust: trusted authorities (PEM), b"" for gRPC's own; None to connect without TLS.
    """

    def __init__(self, address: Endpoint, trust: bytes | None = None) -> None:
        self.address = address
        if trust is None:
            self._channel = grpc.aio.insecure_channel(str(address), options=_CHANNEL)
        else:
            credentials = grpc.ssl_channel_credentials(trust or None)
            self._channel = grpc.aio.secure_channel(str(address), credentials, options=_CHANNEL)

    async def call(
        self, method: str, message: bytes, metadata: _Metadata = (), timeout_s: float | None = None
    ) -> CallOutcome:
        """Makes a call of a method, "/service/name", and returns its outcome, also if it fails.

        The trailing metadata has `OUTCOME_UNKNOWN` if the call was lost with its connection.
        """
        unary: Any = self._channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        call, answer = unary(message, metadata=tuple(metadata), timeout=timeout_s), b""
        try:
            with suppress(grpc.aio.AioRpcError):
                answer = await call
            code, details = await call.code(), await call.details() or ""
            initial, trailing = tuple(await call.initial_metadata()), tuple(await call.trailing_metadata())
        finally:
            call.cancel()  # a no-op if the call has finished
        is_connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        if code is grpc.StatusCode.UNAVAILABLE and not is_connected and _NOT_SENT not in details:
            trailing = (*trailing, OUTCOME_UNKNOWN)
        return CallOutcome(answer, code, details, initial, trailing)

    async def ask(self, call: Call, metadata: _Metadata = (), timeout_s: float | None = None) -> Call:
        """Makes a call of a trace, and returns its answer with the number of the request.

        A call that fails has an answer, too, with gRPC's status and details (see `unreached`).
        """
        outcome = await self.call(f"/{SERVICE}/{call.rpc}", call.message, metadata, timeout_s)
        trailing = as_texts(outcome.trailing)
        return Call(call.number, call.rpc, outcome.message, trailing, "", outcome.code.name, outcome.details)

    async def aclose(self) -> None:
        """Closes the connection; calls in flight are cancelled. May be called twice."""
        await self._channel.close(None)


def unreached(answer: Call) -> str:
    """Why a call was not sent: why no connection could be made; "" if it was sent."""
    if answer.status != "UNAVAILABLE" or _NOT_SENT not in answer.details:
        return ""
    return answer.details.rpartition(": ")[2]


class NotForwarded(Exception):
    """A forwarded call has no answer of the leader. Attributes: code, why, and the trailing metadata for the caller."""

    def __init__(self, code: grpc.StatusCode, why: str, *trailing: Any) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.trailing = trailing


class ForwardingServer:
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
        self._in_flight = CallsInFlight(self._behaviour_of, *bounds(config), calls=calls)
        self._tls = tls
        self._sends_credentials = trust_network or tls is not None
        self._leaders: dict[Endpoint, UpstreamController] = {}
        self._forwarded: dict[asyncio.Future[CallOutcome], Endpoint] = {}
        self._offered: dict[str, Behaviour] = {}
        self._methods = {method.path for method in METHODS.values()}

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

    def _behaviour_of(self, method: str) -> Behaviour | None:
        """Returns what serves a method: the controller here, or what forwards calls to the leader."""
        if self.local is not None:
            return self._offered.get(method) or self.local.behaviours.get(method)
        return self._forward(method) if method in self._offered or method in self._methods else None

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
        self, method: str, request: bytes, metadata: _Metadata, timeout_s: float | None
    ) -> tuple[bytes, tuple[Any, ...]]:
        """Forwards a call; returns the leader's answer and its trailing metadata. Raises NotForwarded."""
        leader = self.leader()
        if leader is None or any(key == _FORWARDED for key, _ in metadata):
            raise NotForwarded(grpc.StatusCode.UNAVAILABLE, "no process of the cluster leads the controller now")
        sent = [item for item in metadata if self._sends_credentials or not item[0].startswith(_CREDENTIALS)]
        call = asyncio.ensure_future(
            self._upstream(leader).call(method, request, (*sent, (_FORWARDED, "1")), timeout_s)
        )
        self._forwarded[call] = leader
        try:
            outcome = await call
            if outcome.code is grpc.StatusCode.OK:
                return outcome.message, outcome.trailing
            if outcome.code is not grpc.StatusCode.CANCELLED:  # a gRPC server ends calls in flight like this
                raise NotForwarded(outcome.code, outcome.details, *outcome.trailing)
        except asyncio.CancelledError:
            if call in self._forwarded:
                raise
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

    def _upstream(self, leader: Endpoint) -> UpstreamController:
        if leader not in self._leaders:
            trust = None if self._tls is None else self._tls.own_certificate()
            self._leaders[leader] = UpstreamController(leader, trust)
        return self._leaders[leader]

    async def aclose(self, grace_s: float = 1.0) -> None:
        """Accepts no more calls, gives calls in flight `grace_s` seconds, then stops."""
        await self._in_flight.stop(grace_s)
        leaders, self._leaders = self._leaders, {}
        for leader in leaders.values():
            await leader.aclose()
