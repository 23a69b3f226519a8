"""Calls sent to another controller, and what the client of a forwarded call gets if the leader did not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import pytest

from segstore.server.controller import ControllerConfig
from segstore.server.controller.api import CallsInFlight, ForwardingServer, UpstreamController, unreached
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN, SERVICE
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call
from tests.looped import looped
from tests.ports import held_port
from tests.server.controller.test_front import echo, standing

pytestmark = pytest.mark.usefixtures("grpc_runs")

CREATE = METHODS["createStream"].path


class Leader:
    """Another process. It answers once `go` is set, or refuses."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.refusal: tuple[Any, ...] = ()
        self.in_flight = CallsInFlight(lambda _: self.answer)
        self.server = self.in_flight.server
        self.endpoint = Endpoint("127.0.0.1", self.server.add_insecure_port("127.0.0.1:0"))

    async def answer(self, request: bytes, context: Any) -> bytes:
        self.asked.release()
        await self.go.wait()
        if self.refusal:
            await context.abort(*self.refusal)
        return request


class Follower(NamedTuple):
    """A process that forwards, and a client of it."""

    front: ForwardingServer
    channel: grpc.aio.Channel

    def create(self) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(self.channel.unary_unary(CREATE)(b"x", timeout=60))


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[Leader, Follower]]:
    """A leader that has answered a call, and a follower."""
    leader = Leader()
    await leader.server.start()
    front = await ForwardingServer(lambda: leader.endpoint, ControllerConfig()).start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{front.port}") as channel:
            follower = Follower(front, channel)
            leader.go.set()
            assert await follower.create() == b"x"
            leader.go.clear()
            await leader.asked.acquire()
            yield leader, follower
    finally:
        await front.aclose(0)
        await leader.server.stop(None)


async def refused(call: asyncio.Future[bytes]) -> bool:
    """Whether a call that is answered UNAVAILABLE may have been applied."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return OUTCOME_UNKNOWN in tuple(caught.value.trailing_metadata())


@looped("how", ["ends in order", "is stopped by gRPC", "dies", "leads no more", "follower ends"])
async def test_the_outcome_of_a_call_that_the_leader_had_when_one_of_them_went_is_unknown(how: str) -> None:
    async with forwarding() as (leader, follower):
        call = follower.create()
        await leader.asked.acquire()
        match how:
            case "ends in order":
                await leader.in_flight.stop(0)
            case "is stopped by gRPC":
                leader.refusal = (grpc.StatusCode.CANCELLED, "")
                leader.go.set()
            case "dies":
                await leader.server.stop(None)
            case "leads no more":
                follower.front.leader = lambda: None
                follower.front.leader_changed()
            case "follower ends":
                await follower.front.aclose(0)
        assert await refused(call)


async def test_a_refusal_of_the_leader_passes_as_it_is() -> None:
    async with forwarding() as (leader, follower):
        leader.go.set()
        leader.refusal = (grpc.StatusCode.UNAVAILABLE, "between two owners")
        assert not await refused(follower.create())
        leader.refusal = (*leader.refusal, (OUTCOME_UNKNOWN,))
        assert await refused(follower.create())


async def test_a_call_that_could_not_be_forwarded_was_not_applied() -> None:
    async with forwarding() as (_, follower):
        with held_port() as port:
            follower.front.leader = lambda: Endpoint("127.0.0.1", port)
            for _ in range(3):
                assert not await refused(follower.create())
        follower.front.leader = lambda: None
        assert not await refused(follower.create())


async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing", (("hint", "look"), ("id-bin", b"\x01")))


async def test_a_call_of_any_method_has_its_bytes_and_metadata_and_its_answer_too() -> None:
    async with standing(echo) as (upstream, port):
        controller = UpstreamController(Endpoint("127.0.0.1", port))
        answer = await controller.ask(Call(7, "makeTea", b"\xff\x00"), [("authorization", "Basic x")], 60)
        await controller.aclose()
        await controller.aclose()
    assert answer == Call(7, "makeTea", b"\xff\x00", status="OK")
    ((method, metadata),) = upstream.calls
    assert (method, metadata["authorization"]) == (f"/{SERVICE}/makeTea", "Basic x")


async def test_a_refusal_is_an_answer_with_status_details_and_metadata() -> None:
    async with standing(refuse) as (_, port):
        controller = UpstreamController(Endpoint("127.0.0.1", port))
        answer = await controller.ask(Call(1, "createScope"))
        await controller.aclose()
    assert (answer.status, answer.details, unreached(answer)) == ("NOT_FOUND", "no such thing", "")
    assert answer.metadata == {"hint": "look", "id-bin": "01"}


async def test_a_call_that_was_not_sent_names_the_cause() -> None:
    controller = UpstreamController(Endpoint("127.0.0.1", 1))
    answer = await controller.ask(Call(1, "createScope"))
    await controller.aclose()
    assert answer.status == "UNAVAILABLE"
    assert "refused" in unreached(answer)
