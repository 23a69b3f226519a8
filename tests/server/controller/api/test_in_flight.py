"""Answers to calls in flight when a server shuts down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from segstore.server.controller.api import Behaviour, CallsInFlight
from segstore.wire.controller_api import OUTCOME_UNKNOWN

pytestmark = pytest.mark.usefixtures("grpc_runs")


class Slow:
    """Answers when a test allows it."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.ended: list[str] = []

    async def answer(self, request: bytes, context: Any) -> bytes:
        try:
            self.asked.release()
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("answered")
        return request

    def behaviour_of(self, _: str) -> Behaviour:
        return self.answer


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


@asynccontextmanager
async def calling() -> AsyncIterator[tuple[Slow, CallsInFlight, asyncio.Future[Any]]]:
    """A call that was received and is not answered yet."""
    slow = Slow()
    in_flight = CallsInFlight(slow.behaviour_of)
    await in_flight.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{in_flight.port}") as channel:
        answer = asyncio.ensure_future(channel.unary_unary("/one")(b"x"))
        await slow.asked.acquire()
        yield slow, in_flight, answer
    await in_flight.stop(0)


async def test_a_call_in_flight_at_the_end_is_answered_unavailable_and_its_outcome_unknown() -> None:
    async with calling() as (slow, in_flight, answer):
        await in_flight.stop(0)
        error = await error_of(answer)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "this controller was stopped or reset before it finished the call"
    assert OUTCOME_UNKNOWN in tuple(error.trailing_metadata())
    assert slow.ended == ["cancelled"]


async def test_a_call_that_finishes_in_time_is_answered_and_the_server_stops_at_once() -> None:
    async with calling() as (slow, in_flight, answer):
        stopping = asyncio.create_task(in_flight.stop(600))
        await asyncio.sleep(0)
        assert not stopping.done()
        slow.go.set()
        assert await answer == b"x"
        await stopping
    assert slow.ended == ["answered"]


async def test_an_end_that_is_cancelled_leaves_no_task_and_interrupts_what_is_in_flight() -> None:
    async with calling() as (slow, in_flight, answer):
        before = asyncio.all_tasks()
        stopping = asyncio.create_task(in_flight.stop(600))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert asyncio.all_tasks() <= before
        assert (await error_of(answer)).code() is grpc.StatusCode.UNAVAILABLE
    assert slow.ended == ["cancelled"]


async def test_a_call_that_the_client_gives_up_is_left_alone() -> None:
    async with calling() as (slow, _, answer):
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        async with asyncio.timeout(60):
            while not slow.ended:  # noqa: ASYNC110  what is looked at has no event
                await asyncio.sleep(0.002)
    assert slow.ended == ["cancelled"]
