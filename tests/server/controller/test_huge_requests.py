"""Oversized calls are refused before they change anything; the largest allowed ones do not block others."""

from __future__ import annotations

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
ENTRIES = ControllerConfig(max_segments=MOST).max_cut_entries
TOO_MANY_SEGMENTS = [MOST + 1, 2**31 - 1]
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


def between(start: int, end: int) -> m.StreamCutRange:
    return m.StreamCutRange(**{"streamInfo": S, "from": cut(start).cut, "to": cut(end).cut})


def noted(position: m.StreamCut, writer: str = "w") -> m.TimestampFromWriter:
    return m.TimestampFromWriter(writer=writer, timestamp=1, position=position)


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("count", TOO_MANY_SEGMENTS)
@pytest.mark.parametrize(
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
        ("truncateStream", cut(ENTRIES + 1), "FAILURE"),
        ("isStreamCutValid", cut(ENTRIES + 1), "INVALID_ARGUMENT"),
        ("getSegmentsBetween", between(ENTRIES + 1, 2), "INVALID_ARGUMENT"),
        ("noteTimestampFromWriter", noted(cut(ENTRIES + 1)), "INVALID_ARGUMENT"),
        ("noteTimestampFromWriter", noted(cut(1), "w" * 100_000), "INVALID_ARGUMENT"),
        ("createReaderGroup", group("g", startingStreamCuts=[cut(ENTRIES)]), "FAILURE"),
        ("createReaderGroup", group("g", startingStreamCuts=[m.StreamCut()] * 100_000), "FAILURE"),
        ("updateReaderGroup", group("g", startingStreamCuts=[cut(ENTRIES)]), "INVALID_ARGUMENT"),
        ("getURI", m.SegmentId(streamInfo=m.StreamInfo(scope="a", stream="x" * 900_000)), "INVALID_ARGUMENT"),
        ("createScope", m.ScopeInfo(scope="x" * 900_000), "INVALID_SCOPE_NAME"),
    ],
)
async def test_requests_that_name_too_many_segments_are_refused(
    world: World, call: Client, name: str, asked: Any, answer: str
) -> None:
    before, journal = list(world.store.calls), list(world.journal)
    assert await call.status(name, asked) == answer
    assert (world.store.calls, world.journal) == (before, journal)


@pytest.mark.usefixtures("stream")
async def test_as_many_as_are_allowed_can_be_named(call: Client) -> None:
    assert await call.status("noteTimestampFromWriter", noted(cut(ENTRIES))) == "SUCCESS"
    assert await call.status("createReaderGroup", group("g", startingStreamCuts=[cut(ENTRIES - 1)])) == "SUCCESS"


async def test_a_request_that_is_longer_than_any_need_be_is_not_read(call: Client) -> None:
    asked = m.StreamCut(streamInfo=m.StreamInfo(scope="a" * dict(bounds(ControllerConfig()))[LENGTH]))
    assert await call.status("isStreamCutValid", asked) == "RESOURCE_EXHAUSTED"


def test_a_request_may_be_long_enough_for_all_that_it_may_name() -> None:
    config = ControllerConfig(max_segments=65_536)
    longest = m.StreamCut(cut=dict.fromkeys(range(2**63 - 1_000, 2**63), 2**63 - 1)).ByteSize() / 1_000
    assert dict(bounds(config))[LENGTH] > config.max_cut_entries * longest


@pytest.mark.usefixtures("stream")
async def test_a_request_that_is_no_message_is_refused(server: ControllerServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        ask = channel.unary_unary("/io.pravega.controller.stream.api.grpc.v1.ControllerService/createStream")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(b"\xff\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert refused.value.details() == "the request is not a StreamConfig"


# Long work that is allowed -------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.controller.steps._STEP", 1)


@pytest.fixture
async def other(server: ControllerServer) -> Any:
    """Calls over a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        yield Client(channel)


async def test_while_a_long_call_is_in_flight_others_are_answered(world: World, call: Client, other: Client) -> None:
    async def long(name: str, asked: Any, answer: str = "SUCCESS") -> None:
        done_before = len(world.store.calls)
        pending = asyncio.create_task(call.status(name, asked))
        await until(lambda: len(world.store.calls) > done_before)
        assert await other.status("checkScopeExists", m.ScopeInfo(scope="a")) == "OK"
        assert not pending.done(), f"{name} was done before another call was answered"
        assert await pending == answer

    await call("createScope", m.ScopeInfo(scope="a"))
    await long("createKeyValueTable", table(MOST))
    await long("createStream", stream_config("s", MOST))
    ids = [each.segmentId.segmentId for each in (await call("getCurrentSegments", S)).segmentRanges]
    await long("truncateStream", m.StreamCut(streamInfo=S, cut=dict.fromkeys(ids, 1)))
    await long("createTransaction", m.CreateTxnRequest(streamInfo=S, lease=20_000), "OK")
    await long("scale", scale(ids, MOST), "STARTED")
    await long("updateStream", stream_config("s", MOST - 1))
    await long("sealStream", S)
    await long("deleteStream", S)
    for name in ("x", "y"):
        assert await call.status("createStream", stream_config(name, MOST)) == "SUCCESS"
    await long("deleteScopeRecursive", m.ScopeInfo(scope="a"))
    assert (world.store.lengths, world.store.tables) == ({}, {})


async def test_a_store_answers_while_a_controller_beside_it_makes_many_segments() -> None:
    async with MockCluster() as mock, grpc.aio.insecure_channel(mock.controller_uri) as channel:
        call = Client(channel)
        await call("createScope", m.ScopeInfo(scope="a"))
        (store,) = mock.stores
        pending = asyncio.create_task(call.status("createStream", stream_config("s", 3_000)))
        await until(lambda: any(each.segments for each in store.store.containers.values()))
        reader, writer = await asyncio.open_connection(*mock.address)
        writer.write(encode(Hello(WIRE_VERSION, OLDEST_COMPATIBLE_VERSION)))
        assert await reader.read(100)
        assert not pending.done()
        assert await pending == "SUCCESS"
        writer.close()


async def test_a_call_runs_to_its_end_after_its_caller_has_disconnected(world: World, call: Client) -> None:
    await call("createScope", m.ScopeInfo(scope="a"))
    pending = asyncio.create_task(call("createStream", stream_config("s", MOST)))
    await until(lambda: world.store.lengths)
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)
    assert len(world.store.lengths) < MOST
    await until(lambda: world.controller.streams.exists("a", "s"))
    assert len(world.store.lengths) == MOST
    assert await call.status("createStream", stream_config("s", MOST)) == "STREAM_EXISTS"
    assert await call.status("sealStream", S) == "SUCCESS"
    assert await call.status("deleteStream", S) == "SUCCESS"
    assert world.store.lengths == {}


async def test_a_server_that_closes_ends_what_is_in_flight(world: World) -> None:
    server = await ControllerServer.start(world.controller)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = Client(channel)
        await call("createScope", m.ScopeInfo(scope="a"))
        pending = asyncio.create_task(call.status("createStream", stream_config("s", MOST)))
        await until(lambda: world.store.lengths)
        await server.aclose(grace_s=0)
        assert await pending in ("UNAVAILABLE", "CANCELLED")
    assert not world.controller.streams.exists("a", "s")
    await world.stream(MOST)  # the name is free


# Many calls at once --------------------------------------------------------------------------------------------------


class Gate:
    """Holds up what makes segments in a world's store; it may fail then."""

    def __init__(self, world: World) -> None:
        self.open = asyncio.Event()
        self.asked = 0
        self.error: Exception | None = None
        self._create = world.store.create_segment
        world.store.create_segment = self._held_up  # type: ignore[method-assign]

    async def _held_up(self, *asked: Any) -> None:
        self.asked += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        await self._create(*asked)


async def given_up(pending: list[asyncio.Task[Any]]) -> None:
    for each in pending:
        each.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


async def test_hundreds_of_calls_at_once_on_one_connection_are_all_answered(call: Client) -> None:
    asked = [call.status("createScope", m.ScopeInfo(scope=f"a{number}")) for number in range(300)]
    assert set(await asyncio.gather(*asked)) == {"SUCCESS"}


async def test_requests_in_flight_that_are_too_large_together_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [group(f"g{at}", startingStreamCuts=[cut(ENTRIES - 1, 2**60)]) for at in range(10)]
    monkeypatch.setattr("segstore.server.controller.api.executing._HELD_MAX_BYTES", 5 * large[-1].ByteSize())
    async with (
        await ControllerServer.start(world.controller) as server,
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
    monkeypatch.setattr("segstore.server.controller.api.executing._ENDING_S", 0.01)
    world.controller.scopes.create("a")
    gate, waits = Gate(world), asyncio.Event()

    async def settled() -> None:
        waits.set()
        await asyncio.Event().wait()

    server = await ControllerServer.start(world.controller, settled=settled)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        pending = asyncio.create_task(Client(channel).status("createStream", stream_config("s")))
        await until(lambda: gate.asked)
        await server.aclose(grace_s=0)
        assert waits.is_set()
        assert server.executor._work == set()
        assert await pending in ("UNAVAILABLE", "CANCELLED")
