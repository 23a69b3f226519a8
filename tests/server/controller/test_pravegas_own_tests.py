"""Expectations from Pravega's own tests, for a controller configured as theirs; each has its Java class and method."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from segstore.server.controller import Accounts, Authority, ControllerServer
from segstore.server.controller.api import convert
from segstore.wire.controller_api import messages as m
from tests.server.controller.calls import LEASE_MS, Client, S, basic, group, stream_config
from tests.server.controller.conftest import World

pytestmark = pytest.mark.usefixtures("grpc_runs")

AS_PRAVEGA = {"watermark_streams": True, "system_scope": True}


@asynccontextmanager
async def served(world: World, *users: str, **settings: Any) -> AsyncIterator[Client]:
    """A controller with these settings and users, lines of a password file."""
    authority = Authority(Accounts(users), "key" * 20, now_s=lambda: 0.0) if users else None
    world.make(world.controller.state, **settings)
    async with (
        await ControllerServer(world.controller, authority=authority).start() as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Client(channel)


async def pages(call: Client, credentials: str | None = None, tag: str = "") -> list[list[str]]:
    """The names on each page of the streams of scope a, up to the empty one."""
    name, request = "listStreamsInScope", m.StreamsInScopeRequest(scope=m.ScopeInfo(scope="a"))
    if tag:
        name, request = "listStreamsInScopeForTag", m.StreamsInScopeWithTagRequest(scope=request.scope, tag=tag)
    found: list[list[str]] = []
    while not found or found[-1]:
        answer = await call(name, request, credentials)
        assert answer.HasField("continuationToken")
        assert bool(answer.continuationToken.token) >= bool(answer.streams)
        request.continuationToken.CopyFrom(answer.continuationToken)
        found.append([stream.stream for stream in answer.streams])
    return found[:-1]


async def made(call: Client, *streams: str, credentials: str | None = None, **config: Any) -> None:
    await call("createScope", m.ScopeInfo(scope="a"), credentials)
    for stream in streams:
        assert await call.status("createStream", stream_config(stream, **config), credentials) == "SUCCESS"


async def test_streams_of_watermarks_are_listed_beside_their_streams(world: World) -> None:
    """ControllerGrpcListStreamsTest.testListStreamsReturnsAllStreamsWhenAuthIsDisabled, ScopeTest.testListStreams."""
    async with served(world, **AS_PRAVEGA) as call:
        await made(call, "stream1", "stream2")
        assert await pages(call) == [["_MARKstream1", "_MARKstream2", "stream1", "stream2"]]
        assert await call.status("createReaderGroup", group("g")) == "SUCCESS"
        assert (await pages(call))[0][:2] == ["_MARK_RGg", "_MARKstream1"]


async def test_a_caller_sees_the_streams_that_it_may_read(world: World) -> None:
    """ControllerGrpcListStreamsTest, the two tests with authentication."""
    user = "user:pw:prn::/scope:a,READ;prn::/scope:a/stream:stream1,READ"
    async with served(world, "admin:pw:prn::*,READ_UPDATE", user, **AS_PRAVEGA) as call:
        await made(call, "stream1", "stream2", credentials=basic("admin"))
        assert [len(page) for page in await pages(call, basic("admin"))] == [4]
        assert await pages(call, basic("user")) == [["stream1"]]


async def test_a_page_is_filled_with_names_that_the_caller_may_read(world: World) -> None:
    """ControllerGrpcAuthFocusedTest, listScopes and the tests whose user may read a subset."""
    seen = ("", "scope:a", "scope:c", "scope:a/stream:s[13]", "scope:a/key-value-table:s[13]")
    user = "user:pw:" + ";".join(f"prn::/{resource},READ" for resource in seen)
    scope = m.ScopeInfo(scope="a")
    listings: list[tuple[str, Any, str, tuple[str, ...]]] = [
        ("listScopes", m.ScopesRequest(), "scopes", ("a", "c")),
        ("listStreamsInScope", m.StreamsInScopeRequest(scope=scope), "streams", ("s1", "s3")),
        ("listStreamsInScopeForTag", m.StreamsInScopeWithTagRequest(scope=scope, tag="t"), "streams", ("s3", "s1")),
        ("listKeyValueTablesInScope", m.KVTablesInScopeRequest(scope=scope), "kvtables", ("s1", "s3")),
    ]
    async with served(world, "admin:pw:prn::*,READ_UPDATE", user, page_size=2) as call:
        await made(call, "s1", "s2", "s3", "s4", credentials=basic("admin"), tags=m.Tags(tag=["t"]))
        for each in ("b", "c", "d"):
            await call("createScope", m.ScopeInfo(scope=each), basic("admin"))
        for each in ("s1", "s2", "s3", "s4"):
            table = m.KeyValueTableConfig(scope="a", kvtName=each, partitionCount=1, primaryKeyLength=1)
            assert await call.status("createKeyValueTable", table, basic("admin")) == "SUCCESS"
        for name, request, field, names in listings:
            answer = await call(name, request, basic("user"))
            listed = [getattr(each, "stream", getattr(each, "kvtName", each)) for each in getattr(answer, field)]
            assert (tuple(listed), answer.continuationToken.token) == (names, names[-1]), name
            request.continuationToken.CopyFrom(answer.continuationToken)
            last = await call(name, request, basic("user"))
            assert (list(getattr(last, field)), last.HasField("continuationToken")) == ([], True), name


async def test_a_listing_has_as_many_pages_as_there(world: World) -> None:
    """ControllerServiceImplTest.streamsInScopeTest."""
    async with served(world, page_size=2, **AS_PRAVEGA) as call:
        await made(call, "stream1", "stream2", "stream3")
        assert list(map(len, await pages(call))) == [2, 2, 2]


async def test_a_stream_goes_with_its_stream_of_watermarks(world: World) -> None:
    async with served(world, **AS_PRAVEGA) as call:
        await made(call, "s")
        assert await call.status("createStream", stream_config("_MARKs")) == "STREAM_EXISTS"
        await call("sealStream", S)
        await call("deleteStream", S)
        assert await pages(call) == []
        assert await call.status("deleteScope", m.ScopeInfo(scope="a")) == "SUCCESS"
    assert world.store.lengths == {}


async def test_the_system_scope_is_listed_before_others(world: World) -> None:
    """ScopeCommandsTest.testListScope."""
    async with served(world, **AS_PRAVEGA) as call:
        for each in ("b", "z", "c", "a", "aaa"):
            await call("createScope", m.ScopeInfo(scope=each))
        assert list((await call("listScopes")).scopes) == ["_system", "a", "aaa", "b", "c", "z"]
        assert await call.status("createScope", m.ScopeInfo(scope="_system")) == "SCOPE_EXISTS"
    world.make(world.replayed(), **AS_PRAVEGA)
    assert len(world.controller.state.scopes) == 6


async def test_the_streams_of_a_tag_come_in_the_order_of_pravegas_index(world: World) -> None:
    """controller.server.ControllerServiceTest.streamTagTest."""
    async with served(world) as call:
        await made(call, "st", "st2", tags=m.Tags(tag=["t1", "t2"]))
        assert await pages(call, tag="t2") == [["st2", "st"]]
        await call("updateStream", stream_config("st2", tags=m.Tags(tag=["t1"])))
        assert await pages(call, tag="t2") == [["st"]]


async def test_transactions_that_ended_are_listed_as_there(world: World) -> None:
    """ControllerStreamMetadataTest.testListCompletedTxns."""
    async with served(world) as call:
        await made(call, "s")

        async def both() -> list[m.TxnId]:
            """Opens two transactions, commits the first and aborts the second."""
            ids = [
                (await call("createTransaction", m.CreateTxnRequest(streamInfo=S, lease=LEASE_MS))).txnId for _ in "12"
            ]
            await call("commitTransaction", m.TxnRequest(streamInfo=S, txnId=ids[0]))
            await call("abortTransaction", m.TxnRequest(streamInfo=S, txnId=ids[1]))
            return ids

        async def listed() -> list[m.TxnId]:
            answer = await call("listCompletedTransactions", m.ListCompletedTxnRequest(streamInfo=S))
            return [each.txnId for each in answer.response]

        ids = await both()
        assert await listed() == ids
        assert [each.highBits for each in ids] == [0, 0]
        assert ids[1].lowBits == ids[0].lowBits + 1
        transactions = world.controller.transactions
        for _ in range(600):
            world.clock.now_ms += 1
            last, _segments = await transactions.open("a", "s", LEASE_MS)
            await transactions.commit("a", "s", last)
        assert len(await listed()) == 500
        assert (await listed())[-1] == convert.from_transaction_id(last)


@pytest.mark.parametrize(
    ("scope", "of_group", "enabled", "created", "token"),
    [
        ("READ", "READ", True, "SUCCESS", "OK"),
        ("READ", "READ_UPDATE", False, "PERMISSION_DENIED", "OK"),
        ("READ_UPDATE", "READ", False, "SUCCESS", "PERMISSION_DENIED"),
        ("READ_UPDATE", "READ_UPDATE", False, "SUCCESS", "OK"),
    ],
)
async def test_readers_may_write_to_their_group_if_they_may_read_or_must_be_able_to_update(
    world: World, scope: str, of_group: str, enabled: bool, created: str, token: str
) -> None:
    """ReadWithReadPermissionsTest."""
    await world.stream()
    reader = f"reader:pw:prn::/scope:a,{scope};prn::/scope:a/stream:s,READ;prn::/scope:a/reader-group:g,{of_group}"
    async with served(world, reader, group_writes_with_read_permission=enabled) as call:
        credentials = basic("reader")
        answer = await call("getReaderGroupConfig", m.ReaderGroupInfo(scope="a", readerGroup="g"), credentials)
        assert answer.status == m.ReaderGroupConfigResponse.RG_NOT_FOUND
        assert await call.status("createReaderGroup", group("g"), credentials) == created
        write = m.StreamInfo(scope="a", stream="_RGg", accessOperation=m.StreamInfo.READ_WRITE)
        assert await call.status("getDelegationToken", write, credentials) == token
        read = m.StreamInfo(scope="a", stream="_RGg", accessOperation=m.StreamInfo.READ)
        assert await call.status("getDelegationToken", read, credentials) == "OK"
        update = await call.status("updateReaderGroup", group("g", generation=3), credentials)
        assert update == ("INVALID_CONFIG" if created == "SUCCESS" else "PERMISSION_DENIED")
        delete = m.ReaderGroupInfo(scope="a", readerGroup="g", readerGroupId="00000000-0000-0000-0000-000000000001")
        refused = await call.status("deleteReaderGroup", delete, credentials)
        assert refused == ("RG_NOT_FOUND" if created == "SUCCESS" else "PERMISSION_DENIED")
