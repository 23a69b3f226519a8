"""Another controller, to which a tap, a replay or this controller sends calls as raw messages.

Invariants: a message has at most 64 MiB; each call is made once; cancelling it cancels the upstream call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from segstore.server.controller.api.calls import as_texts
from segstore.server.controller.api.in_flight import NOT_SENT, trailing_of
from segstore.wire.controller_api import SERVICE
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call

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
        made = unary(call.message, metadata=tuple(metadata), timeout=timeout_s)
        try:
            message = await made
            trailing, details = await made.trailing_metadata(), await made.details()
            return Call(call.number, call.rpc, message, as_texts(trailing), "", "OK", details or "")
        except grpc.aio.AioRpcError as error:
            trailing, status = trailing_of(error, self._channel), error.code().name
            return Call(call.number, call.rpc, b"", as_texts(trailing), "", status, error.details() or "")
        finally:
            made.cancel()  # a no-op if the call has finished

    async def aclose(self) -> None:
        """Closes the connection; calls in flight are cancelled. May be called twice."""
        await self._channel.close(None)


def unreached(answer: Call) -> str:
    """Why a call was not sent: why no connection could be made; "" if it was sent."""
    if answer.status != "UNAVAILABLE" or NOT_SENT not in answer.details:
        return ""
    return answer.details.rpartition(": ")[2]
