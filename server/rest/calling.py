"""Methods of the gRPC API that operations of the REST API call, seen by `Calls` as the calls of clients are.

So recordings contain them, and fault rules apply to them: a rule's status or answer becomes the HTTP status of the same
result of the method. They have no metadata. Under a rule that drops or holds them, the request is not answered until
the rule releases them, or the server is reset or stops. If the client disconnects meanwhile, it is not executed any
more.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc

from segstore.server.controller import ControllerError
from segstore.server.controller.api import Caller, Calls, ControllerServer, answer, end_refused
from segstore.server.rest.asking import Refused, status_of
from segstore.wire.controller_api import METHODS
from segstore.wire.trace import Call

_OK: Final = "OK"


class Calling:
    """Calls methods for one request. caller: the caller's identity. peer: its address. calls: observes the calls, or
    None.
    """

    def __init__(self, server: ControllerServer, caller: Caller, peer: str, calls: Calls | None) -> None:
        self.caller = caller
        self.controller = server.controller
        self._server = server
        self._peer = peer
        self._calls = calls

    async def unseen(self, method: str, request: Any) -> Any:
        """Calls a method as part of another call; `Calls` does not see it. Raises ControllerError."""
        return await self._server.perform(method, request, self.caller)

    async def call(self, method: str, request: Any) -> Any:
        """Calls a method and returns its response. Raises ControllerError; Refused, if a fault rule refused it."""
        if self._calls is None:
            return await self.unseen(method, request)
        context, kinds = _Context(self._peer), METHODS[method]

        async def behave(data: bytes, grpc_context: Any) -> bytes:
            try:
                message: bytes = (await self.unseen(method, kinds.request.FromString(data))).SerializeToString()
            except ControllerError as error:
                context.error = error
                return await end_refused(method, error, grpc_context)
            return message

        handle = self._calls.recorded(method, self._calls.ruled(method, behave, self.caller.gone))
        try:
            data = await handle(request.SerializeToString(), context)
        except grpc.aio.AbortError:
            code, details, error = context.refused, context.details(), context.error
            if error is not None and (answer(method, error), error.message) == ((None, code), details):
                raise error from None  # no rule has replaced its status
            raise Refused(status_of(None, code), f"{code.name}: {details}") from None
        outcome = Call(0, method, data, status=_OK).outcome
        if outcome == _OK:
            return kinds.response.FromString(data)
        if context.error is not None and answer(method, context.error).value == outcome:
            raise context.error
        raise Refused(status_of(outcome, grpc.StatusCode.OK), f"a fault rule answered {outcome}")


class _Context:
    """A gRPC context for a call that has no connection.

    refused: the status that ended the call; at first UNAVAILABLE, because only a stop or reset of the server cancels a
    call.
    """

    def __init__(self, peer: str) -> None:
        self.error: ControllerError | None = None
        self.refused = grpc.StatusCode.UNAVAILABLE
        self._peer = peer
        self._details = ""

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def code(self) -> grpc.StatusCode:
        return self.refused

    def details(self) -> str:
        return self._details

    async def abort(self, code: grpc.StatusCode, details: str, *_: Any) -> NoReturn:
        """Ends the call, as gRPC does."""
        self.refused, self._details = code, details
        raise grpc.aio.AbortError(details)
