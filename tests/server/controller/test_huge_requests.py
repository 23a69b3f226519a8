"""Oversized calls are refused before they change anything; the largest allowed ones do not block others."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import grpc
import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig, ControllerServer
from segstore.server.controller.api.server import bounds
from segstore.wire import OLDEST_COMPATIBLE_VERSION, WIRE_VERSION, Hello, encode
from segstore.wire.controller_api import messages as m
from tests.looped import looped
from tests.server.controller.calls import Client, S, group, stream_config
from tests.server.controller.conftest import World
from tests.server.support import until

pytestmark = pytest.mark.usefixtures("grpc_runs")

MOST = 3_000
LENGTH = "grpc.max_receive_message_length"


@pytest.fixture
def world(world: World) -> World:
    world.make(max_segments=MOST)
    return world


def table(partitions: int) -> m.KeyValueTableConfig:
    return m.KeyValueTableConfig(scope="a", kvtName="t", partitionCount=partitions, primaryKeyLength=4)


def scale(sealed: Iterable[int], ranges: int, stream: m.StreamInfo = S) -> m.ScaleRequest:
    return m.ScaleRequest(
        streamInfo=stream,
        sealedSegments=sealed,
        newKeyRanges=[m.ScaleRequest.KeyRangeEntry(start=at / ranges, end=(at + 1) / ranges) for at in range(ranges)],
    )


def cut(entries: int, offset: int = 0) -> m.StreamCut:
    return m.StreamCut(streamInfo=S, cut=dict.fromkeys(range(entries), offset))


@pytest.mark.usefixtures("stream")
@looped("count", [MOST + 1, 2**31 - 1])
@looped(
    ("name", "request_of"),
    [
        ("createStream", lambda count: stream_config("x", count)),
        ("updateStream", lambda count: stream_config("s", count)),
        ("createKeyValueTable", table),
    ],
)
async def test_too_many_segments_are_refused_before_one_is_made(
    world: World, call: Client, name: str, request_of: Callable[[int], Any], count: int
) -> None:
    before = list(world.store.calls)
    assert await call.status(name, request_of(count)) == "FAILURE"
    assert world.store.calls == before
    assert not world.controller.streams.exists("a", "x")
    assert len((await call("getCurrentSegments", S)).segmentRanges) == 2


@pytest.mark.usefixtures("stream")
@looped(
    ("name", "asked", "answer"),
    [
        ("scale", scale([0], MOST + 1), "FAILURE"),
        ("scale", scale(range(MOST + 1), 1), "FAILURE"),
        ("noteTimestampFromWriter", m.TimestampFromWriter(writer="w" * 100_000, position=cut(1)), "INVALID_ARGUMENT"),
        ("createScope", m.ScopeInfo(scope="x" * 900_000), "INVALID_SCOPE_NAME"),
    ],
)
async def test_requests_that_name_too_much_are_refused(
    world: World, call: Client, name: str, asked: Any, answer: str
) -> None:
    before, journal = list(world.store.calls), list(world.journal)
    assert await call.status(name, asked) == answer
    assert (world.store.calls, world.journal) == (before, journal)


async def test_a_request_that_is_longer_than_any_need_be_is_not_read(call: Client) -> None:
    asked = m.StreamCut(streamInfo=m.StreamInfo(scope="a" * dict(bounds(ControllerConfig()))[LENGTH]))
    assert await call.status("isStreamCutValid", asked) == "RESOURCE_EXHAUSTED"


@pytest.mark.usefixtures("stream")
async def test_a_request_that_is_no_message_is_refused(server: ControllerServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        ask = channel.unary_unary("/io.pravega.controller.stream.api.grpc.v1.ControllerService/createStream")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(b"\xff\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert refused.value.details() == "the request is not a StreamConfig"


async def test_a_store_answers_while_a_controller_beside_it_makes_many_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segstore.server.segments.local._AT_ONCE", 1)
    async with MockCluster() as mock, grpc.aio.insecure_channel(mock.controller_uri) as channel:
        call = Client(channel)
        await call("createScope", m.ScopeInfo(scope="a"))
        (store,) = mock.stores
        pending = asyncio.create_task(call.status("createStream", stream_config("s", 3_000)))
        await until(lambda: any(container.segments for container in store.store.containers.values()))
        reader, writer = await asyncio.open_connection(*mock.address)
        writer.write(encode(Hello(WIRE_VERSION, OLDEST_COMPATIBLE_VERSION)))
        assert await reader.read(100)
        assert not pending.done()
        assert await pending == "SUCCESS"
        writer.close()


class Gate:
    """Holds up the creation of segments in a world's store."""

    def __init__(self, world: World) -> None:
        self.open = asyncio.Event()
        self.asked = 0
        self._create = world.store.create_segment
        world.store.create_segment = self._held_up  # type: ignore[method-assign]

    async def _held_up(self, *asked: Any) -> None:
        self.asked += 1
        await self.open.wait()
        await self._create(*asked)


async def test_a_call_runs_to_its_end_after_its_caller_has_disconnected(world: World, call: Client) -> None:
    await call("createScope", m.ScopeInfo(scope="a"))
    gate = Gate(world)
    pending = asyncio.create_task(call("createStream", stream_config("s", MOST)))
    await until(lambda: gate.asked)
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    assert world.store.lengths == {}
    gate.open.set()
    await until(lambda: world.controller.streams.exists("a", "s"))
    assert len(world.store.lengths) == MOST


async def test_hundreds_of_calls_at_once_on_one_connection_are_all_answered(call: Client) -> None:
    asked = [call.status("createScope", m.ScopeInfo(scope=f"a{number}")) for number in range(300)]
    assert set(await asyncio.gather(*asked)) == {"SUCCESS"}


async def test_requests_in_flight_that_are_too_large_together_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [group(f"g{at}", startingStreamCuts=[cut(2 * MOST, 2**60)]) for at in range(10)]
    monkeypatch.setattr("segstore.server.controller.api.server._HELD_MAX_BYTES", 5 * large[-1].ByteSize())
    async with (
        await ControllerServer(world.controller).start() as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        call = Client(channel)
        await call("createScope", m.ScopeInfo(scope="a"))
        gate = Gate(world)
        pending = [asyncio.create_task(call.status("createReaderGroup", each)) for each in large]
        await until(lambda: gate.asked and sum(each.done() for each in pending) >= 5)
        gate.open.set()
        answers = await asyncio.gather(*pending)
        assert sorted(set(answers)) == ["RESOURCE_EXHAUSTED", "SUCCESS"]
        assert answers.count("SUCCESS") == 5
        assert await call.status("createReaderGroup", large[0]) == "SUCCESS"


async def test_a_server_that_closes_ends_work_that_waits_for_what_never_becomes_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segstore.server.controller.api.server._ENDING_S", 0.01)
    world.controller.scopes.create("a")
    gate, waits = Gate(world), asyncio.Event()

    async def settled() -> None:
        waits.set()
        await asyncio.Event().wait()

    server = await ControllerServer(world.controller, settled=settled).start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        pending = asyncio.create_task(Client(channel).status("createStream", stream_config("s")))
        await until(lambda: gate.asked)
        await server.aclose(grace_s=0)
        assert waits.is_set()
        assert server._work == set()
        assert not world.controller.streams.exists("a", "s")
        assert await pending in ("UNAVAILABLE", "CANCELLED")
