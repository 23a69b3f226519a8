"""A port before a controller: calls of any kind go through with all that belongs to them; addresses are replaced."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from segstore.server.controller import ControllerServer
from segstore.server.tap.controller_front import ControllerFront
from segstore.wire.controller_api import METHODS, SERVICE
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint
from tests.looped import looped
from tests.ports import held_port
from tests.server.controller.calls import Client
from tests.server.controller.conftest import World

pytestmark = pytest.mark.usefixtures("grpc_runs")

ECHO = "/some.other.Service/Echo"
Behaviour = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]


class Upstream(grpc.GenericRpcHandler):
    """A controller that does as a test says, with any method."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.calls: list[tuple[str, dict[str, str | bytes]]] = []

    def service(self, handler_call_details: Any) -> Any:
        self.calls.append((handler_call_details.method, dict(handler_call_details.invocation_metadata)))
        return grpc.stream_stream_rpc_method_handler(self.behave)


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


async def elsewhere(store: Endpoint) -> Endpoint:
    return Endpoint("tap", store.port + 1)


async def nowhere(store: Endpoint) -> Endpoint:
    raise OSError(f"no port is free for {store.host}")


Through = Callable[[Endpoint], Awaitable[Endpoint]]


@asynccontextmanager
async def before(host: str, port: int, through: Through = elsewhere) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a front before what listens there."""
    front = await ControllerFront(Endpoint(host, port), through, "front").start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{front.port}") as channel:
            yield channel
    finally:
        await front.aclose()
        await front.aclose()


@asynccontextmanager
async def standing(behave: Behaviour) -> AsyncIterator[tuple[Upstream, int]]:
    """A controller that does as a test says, and its port."""
    upstream = Upstream(behave)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((upstream,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield upstream, port
    finally:
        await server.stop(None)


@asynccontextmanager
async def fronted(behave: Behaviour, through: Through = elsewhere) -> AsyncIterator[tuple[Upstream, grpc.aio.Channel]]:
    async with standing(behave) as (upstream, port), before("127.0.0.1", port, through) as channel:
        yield upstream, channel


def answers(*messages: bytes) -> Behaviour:
    async def behave(requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            for message in messages:
                await context.write(message)

    return behave


async def test_a_call_with_one_message_gives_one() -> None:
    async with fronted(echo) as (upstream, channel):
        assert await channel.unary_unary(ECHO)(b"\xff not a message of ours") == b"\xff not a message of ours"
        assert [method for method, _ in upstream.calls] == [ECHO]


async def test_metadata_goes_both_ways() -> None:
    async def behave(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata((("first", "1"), ("first-bin", b"\0\xff")))
        await echo(requests, context)
        context.set_trailing_metadata((("last", "2"),))

    async with fronted(behave) as (upstream, channel):
        given = (("authorization", "Basic abc"), ("other-bin", b"\xff\0"))
        call = channel.unary_unary(ECHO)(b"x", metadata=given)
        assert dict(await call.initial_metadata()) == {"first": "1", "first-bin": b"\0\xff"}
        assert await call == b"x"
        assert dict(await call.trailing_metadata()) == {"last": "2"}
        (_, heard), *_ = upstream.calls
        assert (heard["authorization"], heard["other-bin"]) == ("Basic abc", b"\xff\0")


async def test_an_error_comes_with_its_status_its_details_and_its_metadata() -> None:
    async def behave(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(grpc.StatusCode.ABORTED, "it is söme other time", (("why-bin", b"\x01"),))

    async with fronted(behave) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(ECHO)(b"")
        assert raised.value.code() is grpc.StatusCode.ABORTED
        assert raised.value.details() == "it is söme other time"
        assert dict(raised.value.trailing_metadata())["why-bin"] == b"\x01"


async def test_a_method_that_the_controller_lacks_is_refused_by_it(server: ControllerServer) -> None:
    async with before("127.0.0.1", server.port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(f"/{SERVICE}/notThere")(b"")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_client_that_gives_up_cancels_its_call_and_its_deadline_is_forwarded() -> None:
    begun, ended = asyncio.Event(), asyncio.Queue[float]()

    async def waits(requests: AsyncIterator[bytes], context: Any) -> None:
        left = context.time_remaining()
        begun.set()
        try:
            await asyncio.Event().wait()  # until it is cancelled
        finally:
            ended.put_nowait(left)

    async with fronted(waits) as (_, channel):
        call = channel.unary_unary(ECHO)(b"", timeout=50)
        await begun.wait()
        call.cancel()
        left = await asyncio.wait_for(ended.get(), 60)
        assert 0 < left < 51  # gRPC rounds it up
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(ECHO)(b"", timeout=0.05)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(ended.get(), 60)


async def test_a_controller_that_is_not_there_is_named_once_and_found_when_it_comes(
    caplog: pytest.LogCaptureFixture, world: World
) -> None:
    with held_port() as port:
        async with before("127.0.0.1", port) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await Client(channel)("listScopes", m.ScopesRequest())
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caplog.text.count(f"the controller at 127.0.0.1:{port}: ") == 1
            async with await ControllerServer(world.controller).start(port=port), asyncio.timeout(60):
                answered = None
                while answered is None:
                    await asyncio.sleep(0.02)
                    with suppress(grpc.aio.AioRpcError):
                        answered = await Client(channel)("listScopes", m.ScopesRequest())
            assert list(answered.scopes) == []


async def test_a_front_before_itself_is_refused() -> None:
    with held_port() as port:
        for host in ("127.0.0.1", "localhost", "front"):
            with pytest.raises(OSError, match="is this port itself"):
                await ControllerFront(Endpoint(host, port), elsewhere, "front").start("127.0.0.1", port)


async def test_a_store_is_found_through_the_front_and_nothing_else_is_changed(
    server: ControllerServer, world: World
) -> None:
    await world.stream(segments=2)
    segment = m.SegmentId(streamInfo=m.StreamInfo(scope="a", stream="s"), segmentId=0)
    async with (
        before("127.0.0.1", server.port) as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as direct,
    ):
        told = await Client(direct)("getURI", segment)
        assert await Client(channel)("getURI", segment) == m.NodeUri(endpoint="tap", port=told.port + 1)
        ranges = m.StreamInfo(scope="a", stream="s")
        assert await Client(channel)("getCurrentSegments", ranges) == await Client(direct)("getCurrentSegments", ranges)


async def test_all_controllers_are_found_through_the_front() -> None:
    found = m.ServerResponse(nodeURI=[m.NodeUri(endpoint="a", port=1), m.NodeUri(endpoint="b", port=2)])
    async with fronted(answers(found.SerializeToString())) as (_, channel):
        heard = await Client(channel)("getControllerServerList", m.ServerRequest())
        (only,) = heard.nodeURI
        assert only.endpoint == "front"
        assert only.port not in (0, 1, 2)


@looped("message", [b"", b"\xff\xff", m.NodeUri(port=7).SerializeToString()])
async def test_an_answer_that_holds_no_address_passes_as_it_is(message: bytes) -> None:
    async with fronted(answers(message)) as (_, channel):
        for method in ("getURI", "getControllerServerList"):
            assert await channel.unary_unary(METHODS[method].path)(b"") == message


@looped(("host", "port"), [("a", 70000), ("a\0b", 1)])
async def test_no_port_is_opened_for_an_address_that_cannot_be(
    host: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    message = m.NodeUri(endpoint=host, port=port).SerializeToString()
    async with fronted(answers(message)) as (_, channel):
        assert await channel.unary_unary(METHODS["getURI"].path)(b"") == message
    assert re.search(r"the answer to \S*getURI is forwarded unchanged: .* no (address|host)", caplog.text)


async def test_fields_that_are_not_known_here_are_kept() -> None:
    more = m.NodeUri(endpoint="a", port=1).SerializeToString() + b"\x7a\x03new"
    async with fronted(answers(more)) as (_, channel):
        heard = await channel.unary_unary(METHODS["getURI"].path)(b"")
        assert heard.endswith(b"\x7a\x03new")
        assert m.NodeUri.FromString(heard).endpoint == "tap"


async def test_a_store_for_which_there_is_no_port_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    message = m.NodeUri(endpoint="a", port=1).SerializeToString()
    async with fronted(answers(message), nowhere) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(METHODS["getURI"].path)(b"")
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert raised.value.details() == "segstore tap: no port is free for a"
    assert "no port is free for a" in caplog.text
    assert "the controller at" not in caplog.text  # it has answered


async def test_calls_in_flight_end_when_the_front_is_closed() -> None:
    begun = asyncio.Event()

    async def waits(requests: AsyncIterator[bytes], context: Any) -> None:
        begun.set()
        await asyncio.Event().wait()  # until it is cancelled

    async with standing(waits) as (_, port):
        front = await ControllerFront(Endpoint("127.0.0.1", port), elsewhere, "front").start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{front.port}") as channel:
            call = channel.unary_unary(ECHO)(b"")
            await begun.wait()
            await front.aclose(0.01)
            with pytest.raises(grpc.aio.AioRpcError):
                await call
