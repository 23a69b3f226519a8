"""Calls of the controller that meet a node that is there and says that what it was asked for is not available now."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from segstore.client.config import ClientSettings
from segstore.client.controller_channels import ControllerChannels
from segstore.client.errors import NoNodeAvailable, PeerRefused
from segstore.client.pool import Endpoint
from segstore.client.retry import Backoff
from segstore.wire.controller_api import messages as m

pytestmark = pytest.mark.usefixtures("grpc_runs")


class Node:
    """A controller that says so many times that nothing is available; who asks for "late" hears nothing till `go`."""

    def __init__(self, unavailable: int) -> None:
        self.unavailable = unavailable
        self.asked = 0
        self.go = asyncio.Event()

    async def answer(self, request: bytes, context: Any) -> bytes:
        if m.SegmentId.FromString(request).streamInfo.stream == "late":
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


async def test_what_is_not_available_is_asked_again_and_other_calls_go_on() -> None:
    node = Node(unavailable=3)
    async with served(node) as channels:
        late = asyncio.create_task(channels.call("getURI", uri_of("late")))
        found = await channels.call("getURI", uri_of("s"))
        assert (found.port, node.asked) == (7, 4)
        node.go.set()
        assert (await late).port == 7


async def test_what_stays_unavailable_fails_at_the_deadline() -> None:
    node = Node(unavailable=1_000_000)
    async with served(node) as channels:
        with pytest.raises(PeerRefused, match="cannot do getURI and says: between two owners"):
            await channels.call("getURI", uri_of("s"), timeout_ms=1_500)
    assert node.asked > 1


async def test_a_node_that_is_not_there_is_logged_once_while_a_call_waits(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    backoff = Backoff(initial_ms=1, multiplier=1, max_ms=1, jitter=0)
    settings = ClientSettings(request_timeout_ms=500, reconnect_backoff=backoff)
    channels = ControllerChannels([Endpoint("127.0.0.1", port)], settings)
    try:
        with pytest.raises(NoNodeAvailable):
            await channels.call("getURI", uri_of("s"))
    finally:
        await channels.aclose()
    (told,) = [each.getMessage() for each in caplog.records if each.name == "segstore.client.controller_channels"]
    assert told.startswith(f"controller 127.0.0.1:{port} could not be connected to")
