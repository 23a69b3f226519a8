"""Answers the calls in flight of a gRPC server that shuts down.

gRPC ends such calls with CANCELLED, which means that the client gave up. Here they are answered with UNAVAILABLE, and
`OUTCOME_UNKNOWN` in the trailing metadata, so that a client repeats the call at another node if that is safe. A
forwarded call that was lost with its connection is answered in the same way.

Invariant: calls that the client cancels, or that finish in time, are not changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from segstore.server.controller.api.calls import Calls
from segstore.server.controller.errors import Interrupted
from segstore.wire.controller_api import OUTCOME_UNKNOWN, SERVICE

log = logging.getLogger(__name__)

_ANSWER_S: Final = 1.0
"""Time to send the answers to interrupted calls."""
NOT_SENT: Final = "failed to connect to all addresses"
"""gRPC's message for a call that was not sent, for lack of a connection."""

if TYPE_CHECKING:
    Handler = grpc.GenericRpcHandler[Any, Any]
else:
    Handler = grpc.GenericRpcHandler  # not generic at run time


async def end_call(context: Any, code: grpc.StatusCode, why: str, *trailing: tuple[str, str]) -> NoReturn:
    """Ends a call with a status code and trailing metadata."""
    await context.abort(code, why, trailing)
    raise AssertionError("abort raises")


async def end_interrupted(context: Any) -> NoReturn:
    """Ends a call that was interrupted by the shutdown of its server."""
    await end_call(context, grpc.StatusCode.UNAVAILABLE, str(Interrupted()), OUTCOME_UNKNOWN)


async def _no_such_method(_: bytes, context: Any) -> NoReturn:
    """Answers as gRPC does, which would not record the call."""
    await end_call(context, grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


class CallsInFlight(Handler):
    """Serves the unary calls of `handler` on a server that has not started.

    calls: sees the calls of the controller's API, also of methods that `handler` lacks.
    """

    def __init__(
        self, server: grpc.aio.Server, handler: grpc.GenericRpcHandler[Any, Any], calls: Calls | None = None
    ) -> None:
        self._server = server
        self._handler = handler
        self._calls = calls
        self._tasks: set[asyncio.Task[Any]] = set()
        self._interrupted: set[asyncio.Task[Any]] = set()
        self._ending = False
        server.add_generic_rpc_handlers((self,))

    async def begin(self) -> None:
        """Starts the server. If cancelled, it stops it; it would outlive the event loop."""
        starting = asyncio.ensure_future(self._server.start())  # gRPC's does not bear to be cancelled
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting
            await self._server.stop(None)
            raise

    def service(self, handler_call_details: Any) -> Any:
        handler: Any = self._handler.service(handler_call_details)
        service, _, rpc = handler_call_details.method[1:].partition("/")
        log.debug("the controller is called: %s", rpc)
        if handler is None:
            if service != SERVICE:
                return None
            handler = grpc.unary_unary_rpc_method_handler(_no_such_method)
        behaviour, calls = handler.unary_unary, self._calls
        if calls is None or service != SERVICE:
            return handler._replace(unary_unary=self._answered(behaviour))
        return handler._replace(unary_unary=calls.recorded(rpc, calls.ruled(rpc, behaviour, answered=self._answered)))

    def _answered(self, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(request: Any, context: Any) -> Any:
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
        stopping = asyncio.ensure_future(self._server.stop(grace_s + _ANSWER_S))
        try:
            await asyncio.wait({stopping}, timeout=grace_s)
        finally:
            self._ending = True
            for task in self._tasks:
                task.cancel()
            await stopping


def trailing_of(error: grpc.aio.AioRpcError, channel: grpc.aio.Channel) -> tuple[Any, ...]:
    """The trailing metadata for the client of a failed forwarded call; with `OUTCOME_UNKNOWN` if it was lost."""
    own = tuple(error.trailing_metadata() or ())
    answered = channel.get_state() is grpc.ChannelConnectivity.READY
    if error.code() is not grpc.StatusCode.UNAVAILABLE or answered or NOT_SENT in (error.details() or ""):
        return own
    return (*own, OUTCOME_UNKNOWN)
