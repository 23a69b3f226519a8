"""Applies fault rules to controller calls, and observes and records them.

A server of the controller's API passes each unary call through `Calls`. A rule applies to calls if its filter names
`rpc` or `status`, else to frames.

Invariants: a call's request is recorded when it arrives, and the caller's answer always, also for a cancelled call; the
log of requests has the same status as the recording; without rules, observer and recorder a call passes at once. A call
that a rule drops is not answered: it ends with the caller's deadline or connection, or with the server.

Calls with a message beyond the server's limit, and calls of other services, are neither recorded nor observed, because
gRPC refuses them first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from segstore.server.faults import Answer, Drop, FaultWaits, Seen, Status
from segstore.wire.trace import CONTROLLER, Call, Direction, redacted_call

if TYPE_CHECKING:
    from segstore.server.faults import Action, Faults, Plan, Wait
    from segstore.server.recording import Recorder

Behaviour = Callable[[bytes, Any], Awaitable[bytes]]
_recorded_number: ContextVar[int] = ContextVar("_recorded_number", default=0)
"""That of the request that is being served, from its recorder; 0 if it is not recorded."""
_OF_TRANSPORT: Final = ("grpc-", ":")


def sent_metadata(context: Any) -> list[tuple[str, str | bytes]]:
    """Returns the metadata of a call as sent by its client, without the transport's additions."""
    return [(key, value) for key, value in context.invocation_metadata() or () if not key.startswith(_OF_TRANSPORT)]


async def end_call(context: Any, code: grpc.StatusCode, why: str, *trailing: tuple[str, str | bytes]) -> NoReturn:
    """Ends a call with a status code and trailing metadata."""
    await context.abort(code, why, trailing)
    raise AssertionError("abort raises")


class Calls:
    """Observes the calls of one server. recorder, faults: return the current recorder and rules, or None."""

    def __init__(self, recorder: Callable[[], Recorder | None], faults: Callable[[], Faults | None]) -> None:
        self._recorder = recorder
        self._faults = faults
        self._number = 0

    def recorded(self, rpc: str, behaviour: Behaviour) -> Behaviour:
        """Returns `behaviour`, recorded as the caller sees it."""

        async def handle(request: bytes, context: Any) -> bytes:
            recorder = self._recorder()
            if recorder is None:
                return await behaviour(request, context)
            self._number += 1
            number, message = self._number, b""
            metadata = as_texts(sent_metadata(context))
            recorder.called(Direction.REQUEST, Call(number, rpc, request, metadata, context.peer()))
            _recorded_number.set(recorder.requests)
            status = "OK"
            try:
                message = await behaviour(request, context)
                return message
            except BaseException as error:
                status = _status_of(error, context)
                raise
            finally:
                details = context.details()
                trailing = as_texts(context.trailing_metadata() or ())
                text = details.decode() if isinstance(details, bytes) else details or ""
                recorder.called(Direction.REPLY, Call(number, rpc, message, trailing, "", status, text))

        return handle

    def ruled(
        self,
        rpc: str,
        behaviour: Behaviour,
        gone: asyncio.Future[None] | None = None,
        answered: Callable[[Behaviour], Behaviour] = lambda each: each,
    ) -> Behaviour:
        """Returns `behaviour` with the rules applied to it, and observed.

        gone: done once the caller has given up, after which no rule holds its call; None if the call is cancelled then.
        answered: wraps a behaviour so that its call is answered if the server interrupts it.
        """

        async def handle(request: bytes, context: Any) -> bytes:
            faults = self._faults()
            if faults is None:
                return await answered(behaviour)(request, context)
            return await _Ruled(faults, rpc, context, gone).serve(request, behaviour, answered)

        return handle


class _Ruled:
    """One call under rules."""

    def __init__(self, faults: Faults, rpc: str, context: Any, gone: asyncio.Future[None] | None) -> None:
        self._faults = faults
        self._rpc = rpc
        self._context = context
        self._gone = gone

    async def serve(self, request: bytes, behaviour: Behaviour, answered: Callable[[Behaviour], Behaviour]) -> bytes:
        faults, observer = self._faults, self._faults.observer
        number = _recorded_number.get()
        faults.requests = max(faults.requests, number)
        call = Call(number or faults.next_request(), self._rpc, request, peer=self._context.peer())
        seen = self._seen(call, len(request))
        if observer is not None:
            observer.add(seen)
        plan = faults.decide(seen)
        try:
            answer = await answered(partial(self._planned, behaviour, seen, plan))(request, self._context)
        except BaseException as error:
            if observer is not None:
                observer.executed(seen, faults.clock.now_s(), _status_of(error, self._context), failure=True)
                if not isinstance(error, asyncio.CancelledError):
                    observer.replied(seen, faults.clock.now_s())
            raise
        if observer is not None:
            reply = Call(seen.number, self._rpc, answer, status="OK")
            observer.executed(seen, faults.clock.now_s(), reply.outcome, failure=reply.failed)
            observer.replied(seen, faults.clock.now_s())
        return answer

    async def _planned(self, behaviour: Behaviour, seen: Seen, plan: Plan | None, request: bytes, _: Any) -> bytes:
        """Waits as planned; then executes the call, or answers in its place."""
        action, name = (None, "") if plan is None else (plan.action, plan.rule)
        await self._wait(None if plan is None else plan.before)
        if isinstance(action, Drop) and action.drop == "request":
            await self._until(asyncio.get_running_loop().create_future())
        if isinstance(action, Status | Answer) and action.at == "before":
            return await self._replaced(action, name, b"")
        return await self._replied(request, behaviour, seen, plan)

    async def _replied(self, request: bytes, behaviour: Behaviour, seen: Seen, plan: Plan | None) -> bytes:
        """Executes the call; then the actions of its rule, and of the rule that matches its outcome."""
        context = _Deferring(self._context)
        answer: bytes | None = None
        try:
            answer = await behaviour(request, context)
        except grpc.aio.AbortError:
            assert context.aborted, "behaviours end calls by their context"
        if plan is not None:
            await self._wait(plan.after)
            answer = await self._changed(plan.action, plan.rule, answer)
        if self._faults.looks_at_replies:
            status = "OK" if answer is not None else _name(context.aborted[0])
            message = answer or b""
            reply = self._seen(Call(seen.number, self._rpc, message, status=status), len(message), direction=1)
            reply.received_s, reply.replied_s = seen.received_s, reply.received_s
            reply_plan = self._faults.decide(reply)
            if reply_plan is not None:
                seen.faults = (*seen.faults, *reply.faults)
                await self._wait(reply_plan.after)
                answer = await self._changed(reply_plan.action, reply_plan.rule, answer)
        if answer is None:
            await self._context.abort(*context.aborted)
            raise AssertionError("abort raises")
        return answer

    async def _changed(self, action: Action | None, name: str, answer: bytes | None) -> bytes | None:
        """Applies an action to the outcome of the call. answer: None if the call ended with a status."""
        if isinstance(action, Drop):
            await self._until(asyncio.get_running_loop().create_future())
        return await self._replaced(action, name, answer or b"") if isinstance(action, Status | Answer) else answer

    async def _replaced(self, action: Status | Answer, name: str, answer: bytes) -> bytes:
        if isinstance(action, Status):
            await end_call(self._context, grpc.StatusCode[action.status], action.details or f"fault rule {name!r}")
        try:
            return action.message(self._rpc, answer)
        except ValueError as error:
            await end_call(self._context, grpc.StatusCode.INTERNAL, f"fault rule {name!r}: {error}")

    async def _wait(self, wait: Wait | None) -> None:
        if not wait:
            return
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = FaultWaits(self._faults)
        try:
            waits.add(wait, lambda: None if over.done() else over.set_result(None))
            await self._until(over)
        finally:
            waits.clear()

    async def _until(self, over: asyncio.Future[None]) -> None:
        """Waits; ends the call if its caller disconnects first."""
        if self._gone is None:
            await over
            return
        await asyncio.wait((over, self._gone), return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            await self._context.abort(grpc.StatusCode.CANCELLED, "the client has disconnected")

    def _seen(self, call: Call, size: int, direction: int = 0) -> Seen:
        faults = self._faults
        call = redacted_call(call)
        return Seen(
            call.number,
            0,
            CONTROLLER,
            call.rpc,
            None,
            (),
            None,
            None,
            size,
            faults.clock.now_s(),
            faults.started_s,
            direction=direction,
            failure=call.failed,
            call=call,
        )


class _Deferring:
    """The context of a call under rules, which decide before a status is sent.

    aborted: the arguments of `abort`, which ends only the behaviour; empty until then.
    """

    def __init__(self, context: Any) -> None:
        self.aborted: tuple[Any, ...] = ()
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: grpc.StatusCode, details: str = "", *trailing: Any) -> NoReturn:
        self.aborted = code, details, *trailing
        raise grpc.aio.AbortError(details)


def as_texts(metadata: Any) -> dict[str, str]:
    """Metadata as texts: binary values in hex, values of a repeated key joined."""
    texts: dict[str, str] = {}
    for key, value in metadata:
        text = value.hex() if isinstance(value, bytes) else str(value)
        texts[key] = f"{texts[key]}, {text}" if key in texts else text
    return texts


def _status_of(error: BaseException, context: Any) -> str:
    """The status of a call that an error has ended."""
    if not isinstance(error, grpc.aio.AbortError | asyncio.CancelledError):
        return "UNKNOWN"  # gRPC answers so
    code = context.code()  # of a call that is cancelled, the status that was being sent, if any
    return _name(code) if code else "CANCELLED"


def _name(code: Any) -> str:
    """The name of a status, which grpc.aio gives as a number or a value of its enum."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((status.name for status in grpc.StatusCode if status.value[0] == code), "UNKNOWN")
