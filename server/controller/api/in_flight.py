"""Answers the calls in flight of a gRPC server that shuts down.

gRPC ends such calls with CANCELLED, which means that the client gave up. Here they are answered with UNAVAILABLE, and
`OUTCOME_UNKNOWN` in the trailing metadata, so that a client repeats the call at another node if that is safe. A
forwarded call that was lost with its connection is answered in the same way.

Invariant: calls that the client cancels, or that finish in time, are not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from segstore.wire.controller_api import OUTCOME_UNKNOWN

_ANSWER_S: Final = 1.0
"""Time to send the answers to interrupted calls."""
_OF_TRANSPORT: Final = ("grpc-", ":")
_NOT_SENT: Final = "failed to connect to all addresses"
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
    why = "this controller shut down before it finished the call"
    await end_call(context, grpc.StatusCode.UNAVAILABLE, why, OUTCOME_UNKNOWN)


def sent_metadata(context: Any) -> list[tuple[str, str | bytes]]:
    """The metadata of a call that its client has sent, without what the transport adds."""
    return [(key, value) for key, value in context.invocation_metadata() or () if not key.startswith(_OF_TRANSPORT)]


class InFlight(Handler):
    """Serves the calls of `handler`, unary-unary and stream-stream, on a server that has not started."""

    def __init__(self, server: grpc.aio.Server, handler: grpc.GenericRpcHandler[Any, Any]) -> None:
        self._server = server
        self._handler = handler
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = False
        server.add_generic_rpc_handlers((self,))

    def service(self, handler_call_details: Any) -> Any:
        found: Any = self._handler.service(handler_call_details)
        if found is None:
            return None
        kind = "stream_stream" if found.unary_unary is None else "unary_unary"
        return found._replace(**{kind: self._answered(getattr(found, kind))})

    def _answered(self, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(request: Any, context: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                return await behaviour(request, context)
            except asyncio.CancelledError:
                if not self._ending:
                    raise
                task.uncancel()
                await end_interrupted(context)
            finally:
                self._tasks.discard(task)

        return handle

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
    if error.code() is not grpc.StatusCode.UNAVAILABLE or answered or _NOT_SENT in (error.details() or ""):
        return own
    return (*own, OUTCOME_UNKNOWN)
