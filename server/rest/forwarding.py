"""Requests of the REST API in a cluster of processes: the leader of the controller answers, the others forward.

A request is forwarded as a call of the controller's port, with the same rules as other calls: at most once, with
credentials only where these are sent. It is answered with 503 while there is no leader, or if its outcome is unknown,
as after the deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import grpc
import msgspec

from segstore.server.controller.api import ForwardingServer, NotForwarded, end_call, sent_metadata
from segstore.server.rest.asking import RestRequest, RestResponse
from segstore.server.rest.operations import OPERATIONS, answered

_METHOD: Final = "/segstore.rest.Operations/ask"
_CREDENTIALS: Final = "authorization"

_encode = msgspec.msgpack.Encoder().encode
_ASKED: Final = msgspec.msgpack.Decoder(RestRequest)
_ANSWER: Final = msgspec.msgpack.Decoder(RestResponse)


def answered_by_leader(
    front: ForwardingServer, timeout_s: float
) -> Callable[[RestRequest, str | None, str], Awaitable[RestResponse]]:
    """Returns a function that answers this process's requests, and serves forwarded requests on `front`.

    timeout_s: deadline for the leader.
    """

    async def serve(request: bytes, context: Any) -> bytes:
        leading = front.local
        if leading is None:
            why = "this process does not lead the controller any more"
            await end_call(context, grpc.StatusCode.UNAVAILABLE, why)
        try:
            asked = _ASKED.decode(request)
        except msgspec.DecodeError:
            asked = None
        if asked is None or not _is_complete(asked):
            await end_call(context, grpc.StatusCode.INVALID_ARGUMENT, "this is not a request of the REST API")
        authorization = next((str(value) for key, value in sent_metadata(context) if key == _CREDENTIALS), None)
        return _encode(await answered(leading, asked, authorization, context.peer(), calls=front.calls))

    async def ask(asked: RestRequest, authorization: str | None, peer: str) -> RestResponse:
        leading = front.local
        if leading is not None:
            return await answered(leading, asked, authorization, peer, calls=front.calls)
        try:
            data, _ = await front.ask(
                _METHOD, _encode(asked), [] if authorization is None else [(_CREDENTIALS, authorization)], timeout_s
            )
        except NotForwarded as error:
            late = error.code is grpc.StatusCode.DEADLINE_EXCEEDED
            unavailable = late or error.code is grpc.StatusCode.UNAVAILABLE
            status = HTTPStatus.SERVICE_UNAVAILABLE if unavailable else HTTPStatus.INTERNAL_SERVER_ERROR
            why = f"the leader of the controller did not answer within {timeout_s:g} s" if late else error.why
            return RestResponse(status, why=why)
        return _ANSWER.decode(data)

    front.offer(_METHOD, serve)
    return ask


def _is_complete(asked: RestRequest) -> bool:
    operation = OPERATIONS.get(asked.operation)
    return operation is not None and asked.parameters.keys() >= operation.names
