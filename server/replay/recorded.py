"""A controller that answers from the controller calls of a trace, over gRPC.

Statuses, details and trailing metadata come from the trace. A call without an answer in the trace, because its client
gave up or the trace ends, gets no answer: it ends with its caller's deadline, or with the server.

A call that the trace lacks is refused with INVALID_ARGUMENT, after which clients do not retry, or, if the server closes
connections on missing requests, with UNAVAILABLE, as on a lost connection. If the server forwards requests and knows
another controller, the call is forwarded to it with metadata and deadline; in the answer, this replay's addresses
replace the addresses of stores and controllers. A failed server refuses all calls but two, so that clients end: it says
that every segment is at this replay's store, where it is gone, and that it has no successors. (Clients may ask for the
address again, without a pause, until they get an answer.)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from segstore.server.controller import ControllerConfig
from segstore.server.controller.api import (
    Behaviour,
    CallsInFlight,
    UpstreamController,
    bounds,
    end_call,
    sent_metadata,
    unreached,
)
from segstore.server.replay.calls import CallReplay, trailing_of_answer
from segstore.server.replay.problem import Problem
from segstore.wire.controller_api import SERVICE
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import CONTROLLER, Call, translated_call

if TYPE_CHECKING:
    from segstore.server.replay.server import TraceServer

_SUCCESSORS: Final = ("getSegmentsImmediatelyFollowing", "getSegmentsImmediatlyFollowing")
_LONGEST_DETAILS: Final = 1_000


class RecordedController:
    """Answers controller calls for a `TraceServer`."""

    def __init__(self, server: TraceServer, calls: CallReplay) -> None:
        self._server = server
        self._calls = calls
        self._in_flight = CallsInFlight(self._behaviour_of, *bounds(ControllerConfig()))
        self._number = 0
        self.endpoint = Endpoint("", 0)
        upstream = server.upstream_controller
        self._upstream = None if upstream is None else UpstreamController(upstream)

    async def start(self, host: str, port: int) -> Self:
        """Listens; port 0 picks a free port. Raises CannotListen."""
        await self._in_flight.start(host, port)
        self.endpoint = Endpoint(host, self._in_flight.port)
        return self

    async def aclose(self, grace_s: float = 0.0) -> None:
        """Accepts no more calls, and ends calls in flight after `grace_s` seconds."""
        await self._in_flight.stop(grace_s)
        if self._upstream is not None:
            await self._upstream.aclose()

    def _behaviour_of(self, method: str) -> Behaviour | None:
        """Returns what answers a method; None for another service, which gRPC answers with UNIMPLEMENTED."""
        service, _, rpc = method[1:].partition("/")

        async def handle(request: bytes, context: Any) -> bytes:
            self._number += 1
            server = self._server
            call = Call(self._number, rpc, request, peer=context.peer())
            step = server.call(call)
            if isinstance(step, str):
                if self._upstream is not None and not server.failure:
                    return await self._forwarded(call, self._upstream, context)
                return await self._refused(rpc, step, context)
            if not step.is_answered:
                return await self._refused(rpc, await server.wait_failed(), context)
            if server.pace is not None:
                await asyncio.sleep(step.delay_ns / 1e9 / server.pace)
            assert step.answer is not None
            return await self._answered(step.answer, self._calls.message(step, *self._addresses), context)

        return handle if service == SERVICE else None

    async def _forwarded(self, call: Call, upstream: UpstreamController, context: Any) -> bytes:
        answer = await upstream.ask(call, sent_metadata(context), context.time_remaining())
        lost, refusal = unreached(answer), self._calls.refusal(call, answer)
        if refusal:
            why = f"the controller at {upstream.address} answers {refusal}"
            why = f"no connection to the controller at {upstream.address}: {lost}" if lost else why
            self._server.add(Problem(CONTROLLER, call.rpc, None, (), call.message, None, refusal=why))
        message = translated_call(answer, {}, *self._addresses, keep_tokens=True)
        return await self._answered(answer, message, context)

    @property
    def _addresses(self) -> tuple[Endpoint, Endpoint]:
        return Endpoint(self._server.host, self._server.port), self.endpoint

    async def _answered(self, answer: Call, message: bytes, context: Any) -> bytes:
        trailing, details = trailing_of_answer(answer), answer.details.encode(errors="replace").decode()
        if answer.status != "OK":
            await end_call(context, grpc.StatusCode[answer.status], details, *trailing)
        context.set_trailing_metadata(trailing)
        context.set_details(details)
        return message

    async def _refused(self, rpc: str, why: str, context: Any) -> bytes:
        server = self._server
        if not server.failure or rpc not in (*_SUCCESSORS, "getURI"):
            is_lost = server.missing == "close" and not server.failure
            code = grpc.StatusCode.UNAVAILABLE if is_lost else grpc.StatusCode.INVALID_ARGUMENT
            await end_call(context, code, why[:_LONGEST_DETAILS])
        if rpc in _SUCCESSORS:
            return b""  # a SuccessorResponse without segments
        return m.NodeUri(endpoint=self._addresses[0].named_host, port=server.port).SerializeToString()
