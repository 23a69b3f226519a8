"""Calls to a controller node that answers UNAVAILABLE or shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from segstore.client.config import ClientSettings
from segstore.client.connection import Endpoint
from segstore.client.controller import ControllerChannels
from segstore.client.controller.channels import NodeResponse
from segstore.client.errors import (
    Closed,
    NoNodeAvailable,
    OutcomeUnknown,
    PeerRefused,
    ProtocolViolation,
    RequestRejected,
    RequestTimedOut,
)
from segstore.client.retry import Backoff
from segstore.server.controller.api import CallsInFlight
from segstore.wire.controller_api import METHODS, OUTCOME_UNKNOWN
from segstore.wire.controller_api import messages as m
from tests.looped import looped
from tests.ports import held_port

pytestmark = pytest.mark.usefixtures("grpc_runs")


class Node:
    """A controller that says so many times that nothing is available; who asks for "late" hears nothing till `go`."""

    def __init__(self, unavailable: int) -> None:
        self.unavailable = unavailable
        self.asked = 0
        self.go = asyncio.Event()

    async def answer(self, request: bytes, context: Any) -> bytes:
        stream = m.SegmentId.FromString(request).streamInfo.stream
        if stream == "garbage":
            return b"\xff\xff\xff"
        if stream == "late":
            await self.go.wait()
        else:
            self.asked += 1
            if self.asked <= self.unavailable:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "between two owners")
        return m.NodeUri(endpoint="here", port=7).SerializeToString()

    def service(self, _: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_unary_rpc_method_handler(self.answer)  # type: ignore[arg-type]


@asynccontextmanager
async def served(node: Node) -> AsyncIterator[ControllerChannels]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((node,))  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = ControllerChannels([Endpoint("127.0.0.1", port)], ClientSettings())
    try:
        yield channels
    finally:
        await channels.aclose()
        await server.stop(None)


def uri_of(stream: str) -> Any:
    return m.SegmentId(streamInfo=m.StreamInfo(scope="a", stream=stream))


async def test_bytes_that_are_no_answer_are_a_violation_that_names_node_and_method() -> None:
    node = Node(unavailable=0)
    async with served(node) as channels:
        with pytest.raises(
            ProtocolViolation, match=r"^127\.0\.0\.1:\d+ answers getURI with 3 bytes that are no NodeUri"
        ):
            await channels.ask("getURI", uri_of("garbage"))
        assert (await channels.ask("getURI", uri_of("s"))).message.port == 7


async def test_what_is_not_available_is_asked_again_and_other_calls_go_on() -> None:
    node = Node(unavailable=3)
    async with served(node) as channels:
        late = asyncio.create_task(channels.ask("getURI", uri_of("late")))
        found = (await channels.ask("getURI", uri_of("s"))).message
        assert (found.port, node.asked) == (7, 4)
        node.go.set()
        assert (await late).message.port == 7


async def test_what_stays_unavailable_fails_at_the_deadline() -> None:
    node = Node(unavailable=1_000_000)
    async with served(node) as channels:
        with pytest.raises(PeerRefused, match="failed getURI: between two owners"):
            await channels.ask("getURI", uri_of("s"), timeout_ms=1_200)  # no pause ends just before it
    assert node.asked > 1


async def test_a_node_that_is_not_there_is_logged_once_while_a_call_waits(caplog: pytest.LogCaptureFixture) -> None:
    with held_port() as port:
        backoff = Backoff(initial_ms=1, multiplier=1, max_ms=1, jitter=0)
        settings = ClientSettings(request_timeout_ms=500, reconnect_backoff=backoff)
        channels = ControllerChannels([Endpoint("127.0.0.1", port)], settings)
        try:
            with pytest.raises(NoNodeAvailable):
                await channels.ask("getURI", uri_of("s"))
        finally:
            await channels.aclose()
    (told,) = [record.getMessage() for record in caplog.records if record.name == "segstore.client.controller.channels"]
    assert told.startswith(f"controller 127.0.0.1:{port} could not be connected to")


class Ending:
    """One of several controllers. It answers every call; while it is `busy`, only after `go` is set."""

    def __init__(self) -> None:
        self.busy = False
        self.go = asyncio.Event()
        self.asked: list[str] = []
        self.refusal: grpc.StatusCode | None = None
        self.trailing: tuple[tuple[str, str], ...] = ()
        self.in_flight = CallsInFlight(self.behaviour_of)
        self.server = self.in_flight.server
        self.endpoint = Endpoint("127.0.0.1", self.server.add_insecure_port("127.0.0.1:0"))

    def behaviour_of(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        name = method.rpartition("/")[2]

        async def answer(request: bytes, context: Any) -> bytes:
            self.asked.append(name)
            if self.busy:
                await self.go.wait()
            if self.refusal is not None:
                await context.abort(self.refusal, "not now", self.trailing)
            return METHODS[name].response().SerializeToString()

        return answer

    async def has(self, calls: int) -> None:
        """Returns after this many calls."""
        async with asyncio.timeout(60):
            while len(self.asked) < calls:  # noqa: ASYNC110  what is looked at has no event
                await asyncio.sleep(0.002)

    async def end(self, how: str) -> None:
        match how:
            case "in order":
                await self.in_flight.stop(0)
            case "CANCELLED":  # as a gRPC server does by default
                self.refusal = grpc.StatusCode.CANCELLED
                self.go.set()
                await self.server.stop(None)
            case "connection":
                await self.server.stop(None)


async def calls_ended(before: set[asyncio.Task[Any]]) -> None:
    """Returns when no task has been left since then: gRPC's of an interrupted call end when its own thread says so."""
    if left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=60)


@asynccontextmanager
async def cluster(count: int = 2) -> AsyncIterator[tuple[list[Ending], ControllerChannels]]:
    """Several controllers and their client, which is connected to the first one; that is busy."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(calls_ended, asyncio.all_tasks())
        nodes = [Ending() for _ in range(count)]
        for each in nodes:
            await each.server.start()
            stack.push_async_callback(each.server.stop, None)
        channels = ControllerChannels([each.endpoint for each in nodes], ClientSettings())
        stack.push_async_callback(channels.aclose)
        node = (await channels.ask("getURI", uri_of("s"))).node
        nodes.sort(key=lambda each: each.endpoint != node)
        nodes[0].asked.clear()
        nodes[0].busy = True
        yield nodes, channels


CREATE = m.StreamConfig(streamInfo=m.StreamInfo(scope="a", stream="s"))
ENDS = ["in order", "CANCELLED", "connection"]


@looped("how", ENDS)
async def test_calls_in_flight_at_a_node_that_ends_are_asked_of_another(how: str) -> None:
    async with cluster() as ((ending, other), channels):
        calls = [asyncio.create_task(channels.ask("getURI", uri_of("s"))) for _ in range(5)]
        calls.append(asyncio.create_task(channels.ask("commitTransaction", m.TxnRequest())))
        await ending.has(len(calls))
        await ending.end(how)
        assert {answer.node for answer in await asyncio.gather(*calls)} == {other.endpoint}
        assert sorted(other.asked) == ["commitTransaction", *["getURI"] * 5]


@looped("how", ENDS)
@looped("method", sorted(name for name, method in METHODS.items() if not method.repeatable))
async def test_a_call_in_flight_that_is_not_repeatable_has_an_unknown_outcome(method: str, how: str) -> None:
    async with cluster() as ((ending, other), channels):
        call = asyncio.create_task(channels.ask(method, METHODS[method].request()))
        await ending.has(1)
        await ending.end(how)
        with pytest.raises(OutcomeUnknown, match=f"{method}; the call may or may not have been applied") as caught:
            await call
        assert caught.value.facts() == {"endpoint": str(ending.endpoint), "method": method}
        assert other.asked == []


@looped("unknown", [False, True])
async def test_a_refusal_is_repeated_unless_it_says_that_the_call_may_have_been_applied(unknown: bool) -> None:
    async with cluster(1) as ((node,), channels):
        node.busy, node.refusal, node.trailing = False, grpc.StatusCode.UNAVAILABLE, (OUTCOME_UNKNOWN,) * unknown
        call = asyncio.create_task(channels.ask("createStream", CREATE))
        await node.has(1)
        node.refusal = None
        if unknown:
            with pytest.raises(OutcomeUnknown, match="of a/s; the call may or may not"):
                await call
            assert node.asked == ["createStream"]
        else:
            await call
            assert node.asked == ["createStream"] * 2


FAILED_ONCE = "ABORTED DATA_LOSS DEADLINE_EXCEEDED FAILED_PRECONDITION INTERNAL RESOURCE_EXHAUSTED UNKNOWN"


@looped("status", FAILED_ONCE.split())
async def test_a_repeatable_call_that_fails_is_repeated_as_the_reference_does(status: str) -> None:
    async with cluster(1) as ((node,), channels):
        node.busy, node.refusal = False, grpc.StatusCode[status]
        call = asyncio.create_task(channels.ask("getURI", uri_of("s")))
        await node.has(2)
        node.refusal = None
        await call
        node.refusal = grpc.StatusCode[status]
        with pytest.raises(RequestTimedOut if status == "DEADLINE_EXCEEDED" else RequestRejected):
            await channels.ask("createStream", CREATE)
        node.asked.clear()
        with pytest.raises(RequestTimedOut if status == "DEADLINE_EXCEEDED" else RequestRejected):
            await channels.ask("getURI", uri_of("s"), timeout_ms=100)
        assert len(node.asked) > 1, "until the deadline"


@asynccontextmanager
async def draining(node: Ending, channels: ControllerChannels) -> AsyncIterator[asyncio.Task[NodeResponse]]:
    """A call in flight at a node that shuts down, after the client has switched to another node."""
    call = asyncio.create_task(channels.ask("createStream", CREATE))
    await node.has(1)
    stopping = asyncio.create_task(node.in_flight.stop(600))
    async with asyncio.timeout(60):
        while channels._channels[node.endpoint].get_state() is grpc.ChannelConnectivity.READY:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert (await channels.ask("getURI", uri_of("s"))).node != node.endpoint
    assert not call.done()
    yield call
    await stopping


async def test_a_node_that_shuts_down_may_answer_calls_in_flight_while_other_calls_continue() -> None:
    async with cluster() as ((ending, _), channels), draining(ending, channels) as call:
        ending.go.set()
        assert (await call).node == ending.endpoint


async def test_closing_ends_a_call_that_a_node_that_ends_may_still_answer() -> None:
    async with cluster() as ((ending, _), channels), draining(ending, channels) as call:
        await channels.aclose()
        with pytest.raises(Closed):
            await call
