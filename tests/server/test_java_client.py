"""What Pravega's Java client asks of a whole store, over real gRPC and real sockets, where nothing else asks it.

Each test does by hand what that client does for one of its calls, as was seen with the client itself.
"""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import grpc
import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from segstore.wire import AppendBlockEnd, AppendSetup, DataAppended, SegmentIsSealed, SetupAppend
from segstore.wire.controller_api import messages as m
from tests.server.controller.calls import Client
from tests.server.support import Peer

pytestmark = pytest.mark.usefixtures("grpc_runs")

WRITER = UUID(int=7)
STREAM = m.StreamInfo(scope="s", stream="x")


class Place:
    """A store with its controller, a stream `s/x` of two segments, and a peer of each."""

    def __init__(self, ask: Client, peer: Peer) -> None:
        self.ask = ask
        self.peer = peer


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    cluster = MockCluster(controller=ControllerConfig(watermark_every_ms=20))
    await cluster.start()
    try:
        host, port = cluster.controller_address
        async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
            ask = Client(channel)
            async with Peer(*await asyncio.open_connection(*cluster.stores[0].address)) as peer:
                await ask("createScope", m.ScopeInfo(scope="s"))
                scaling = m.ScalingPolicy(minNumSegments=2)
                await ask("createStream", m.StreamConfig(streamInfo=STREAM, scalingPolicy=scaling))
                yield Place(ask, peer)
    finally:
        await cluster.stop()


async def test_a_writer_with_much_in_flight_hears_of_the_end_of_its_segment_and_keeps_its_connection(
    place: Place,
) -> None:
    """`writeEvent` many times over while the stream is scaled: its connection carries other writers, too."""
    segments = ["s/x/0.#epoch.0", "s/x/1.#epoch.0"]
    (reply,) = await place.peer.ask(SetupAppend(2, WRITER, segments[0], ""))
    assert isinstance(reply, AppendSetup)
    ranges = [m.ScaleRequest.KeyRangeEntry(start=0.0, end=0.25), m.ScaleRequest.KeyRangeEntry(start=0.25, end=0.5)]
    request = m.ScaleRequest(streamInfo=STREAM, sealedSegments=[0], newKeyRanges=ranges)
    assert await place.ask.status("scale", request) == "STARTED"
    in_flight = [AppendBlockEnd(WRITER, 1, b"x", 1, number, 3) for number in range(1, 50)]
    replies = await place.peer.ask(*in_flight)
    assert replies[0] == SegmentIsSealed(3, segments[0], "", 1)
    assert {type(each) for each in replies} == {SegmentIsSealed}
    (again,) = await place.peer.ask(SetupAppend(4, UUID(int=8), segments[1], ""))
    assert isinstance(again, AppendSetup)
    (stored,) = await place.peer.ask(AppendBlockEnd(UUID(int=8), 1, b"x", 1, 1, 5))
    assert isinstance(stored, DataAppended)
