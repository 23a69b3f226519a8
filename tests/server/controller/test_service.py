"""The API over a real socket: what calls do, one after another, and who may make them."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import grpc
import pytest

from segstore.server.controller import Accounts, Authority, Controller, ControllerServer, Endpoint
from segstore.server.controller.api.service import Caller, serve
from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from tests.server.controller.calls import LEASE_MS, NO_ID, NO_STREAM, Client, S, group, stream_config
from tests.server.controller.conftest import World
from tests.server.support import PATIENCE_S

pytestmark = pytest.mark.usefixtures("grpc_runs")


def transaction(message: m.CreateTxnResponse) -> m.TxnRequest:
    return m.TxnRequest(streamInfo=S, txnId=message.txnId)


def test_all_methods_are_served(world: World) -> None:
    assert serve(world.controller, list).keys() == METHODS.keys()


async def test_the_buckets_of_streams_are_dealt_out_to_the_controllers(world: World) -> None:
    served = serve(world.controller, lambda: [Endpoint("one", 1), Endpoint("two", 2)])
    caller = Caller(Authority(now_s=lambda: 0), None, asyncio.get_running_loop().create_future())
    request = m.ControllerToBucketMappingRequest(serviceType=m.ControllerToBucketMappingRequest.WatermarkingService)
    mapping = (await served["getControllerToBucketMapping"](request, caller)).mapping
    assert {name: list(buckets.id) for name, buckets in mapping.items()} == {
        "one:1": list(range(0, 100, 2)),
        "two:2": list(range(1, 100, 2)),
    }


@pytest.mark.usefixtures("stream")
async def test_a_missing_group_is_answered_with_an_empty_configuration(call: Client) -> None:
    answer = await call("getReaderGroupConfig", m.ReaderGroupInfo(scope="a", readerGroup="no"))
    assert (answer.HasField("config"), answer.config) == (True, m.ReaderGroupConfiguration())


@pytest.mark.usefixtures("stream")
async def test_what_wedges_a_real_controller_ends_here(call: Client) -> None:
    """Deviations `calls-that-end` and `no-system-scope`."""
    assert await call.status("scale", m.ScaleRequest(streamInfo=S)) == "STARTED"
    assert await call.status("checkScale", m.ScaleStatusRequest(streamInfo=S)) == "SUCCESS"
    halves = [m.ScaleRequest.KeyRangeEntry(start=start, end=start + 0.5) for start in (0.0, 0.5)]
    both = m.ScaleRequest(streamInfo=S, sealedSegments=[0, 1], newKeyRanges=halves)
    assert await call.status("scale", both) == "STARTED"
    to_come = m.StreamCut(streamInfo=S, cut={2 << 32 | 2: 0, 2 << 32 | 3: 0, 0: -1})
    assert await call.status("truncateStream", to_come) == "FAILURE"
    assert await call.status("deleteScope", m.ScopeInfo(scope="a")) == "SCOPE_NOT_EMPTY"
    assert (
        await call.status("createReaderGroup", group("g", retentionType=m.ReaderGroupConfiguration.MANUAL)) == "SUCCESS"
    )
    elsewhere = [m.StreamCut(streamInfo=NO_STREAM)]
    lost = group("h", retentionType=m.ReaderGroupConfiguration.MANUAL, startingStreamCuts=elsewhere)
    assert await call.status("createReaderGroup", lost) == "FAILURE"
    assert await call.status("deleteScopeRecursive", m.ScopeInfo(scope="a")) == "SUCCESS"
    assert not (await call("checkScopeExists", m.ScopeInfo(scope="a"))).exists
    assert not (await call("checkScopeExists", m.ScopeInfo(scope="_system"))).exists
    assert await call.status("createScope", m.ScopeInfo(scope="_system")) == "SUCCESS"


@pytest.mark.usefixtures("stream")
async def test_current_segments_cover_all_keys_and_are_empty_when_sealed(call: Client) -> None:
    ranges = (await call("getCurrentSegments", S)).segmentRanges
    assert [(each.segmentId.segmentId, each.minKey, each.maxKey) for each in ranges] == [(0, 0.0, 0.5), (1, 0.5, 1.0)]
    assert ranges[0].segmentId.streamInfo == S
    assert await call.status("sealStream", S) == "SUCCESS"
    assert await call.status("sealStream", S) == "SUCCESS"
    assert not (await call("getCurrentSegments", S)).segmentRanges
    assert await call.status("updateStream", stream_config("s")) == "STREAM_SEALED"
    assert await call.status("truncateStream", m.StreamCut(streamInfo=S, cut={0: 0, 1: 0})) == "STREAM_SEALED"
    assert await call.status("createTransaction", m.CreateTxnRequest(streamInfo=S, lease=LEASE_MS)) == "INTERNAL"
    assert await call.status("deleteStream", S) == "SUCCESS"


@pytest.mark.usefixtures("stream")
async def test_a_configuration_is_returned_with_what_clients_unwrap(call: Client) -> None:
    config = await call("getStreamConfiguration", S)
    assert [config.HasField(each) for each in ("streamInfo", "scalingPolicy", "tags")] == [True] * 3
    assert not config.HasField("retentionPolicy")
    sent = stream_config(
        "s",
        2,
        tags=m.Tags(tag=["x", "y"]),
        retentionPolicy=m.RetentionPolicy(retentionType=m.RetentionPolicy.SIZE, retentionParam=5, retentionMax=9),
        rolloverSizeBytes=7,
    )
    await call("updateStream", sent)
    assert await call("getStreamConfiguration", S) == sent


# In which order a real controller numbered the new segments of these starts: that of a Java hash map.
TENTHS = [0.0, 0.1, 0.2, 0.3, 0.4]
NUMBERED = [
    ([0.25, 0.0], [0.25, 0.0]),
    ([0.0, 0.7, 0.9, 0.95], [0.0, 0.7, 0.9, 0.95]),
    (TENTHS, [0.0, 0.3, 0.1, 0.2, 0.4]),
    (TENTHS[::-1], [0.3, 0.0, 0.4, 0.2, 0.1]),
    ([0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 0.6, 0.2, 0.4, 0.8]),
    (
        [at / 20 for at in range(20)],
        [at / 20 for at in (0, 6, 10, 14, 18, 2, 8, 15, 19, 13, 3, 5, 7, 12, 9, 1, 4, 16, 17, 11)],
    ),
]


@pytest.mark.parametrize(("starts", "numbered"), NUMBERED)
async def test_new_segments_are_numbered_as_a_java_controller_happens_to(
    call: Client, starts: list[float], numbered: list[float]
) -> None:
    await call("createScope", m.ScopeInfo(scope="a"))
    await call("createStream", stream_config("s", 1))
    ends = dict(pairwise([*sorted(starts), 1.0]))
    ranges = [m.ScaleRequest.KeyRangeEntry(start=start, end=ends[start]) for start in starts]
    answer = await call("scale", m.ScaleRequest(streamInfo=S, sealedSegments=[0], newKeyRanges=ranges))
    assert [each.segmentId.segmentId & 0xFFFFFFFF for each in answer.segments] == list(range(1, len(starts) + 1))
    assert [each.minKey for each in answer.segments] == numbered


@pytest.mark.usefixtures("stream")
async def test_a_scale_is_seen_in_successors_epochs_and_heads(call: Client) -> None:
    halves = [m.ScaleRequest.KeyRangeEntry(start=0.0, end=0.25), m.ScaleRequest.KeyRangeEntry(start=0.25, end=0.5)]
    answer = await call("scale", m.ScaleRequest(streamInfo=S, sealedSegments=[0], newKeyRanges=halves))
    assert (answer.status, answer.epoch, len(answer.segments)) == (m.ScaleResponse.STARTED, 0, 2)
    assert await call.status("checkScale", m.ScaleStatusRequest(streamInfo=S, epoch=0)) == "SUCCESS"
    for name in ("getSegmentsImmediatelyFollowing", "getSegmentsImmediatlyFollowing"):
        entries = (await call(name, m.SegmentId(streamInfo=S, segmentId=0))).segments
        assert {entry.segment.segmentId.segmentId: list(entry.value) for entry in entries} == {
            1 << 32 | 2: [0],
            1 << 32 | 3: [0],
        }
    heads = (await call("getSegments", m.GetSegmentsRequest(streamInfo=S))).segments
    assert {each.segmentId.segmentId: each.offset for each in heads} == {0: 0, 1: 0}
    epoch = await call("getEpochSegments", m.GetEpochSegmentsRequest(streamInfo=S, epoch=1))
    assert len(epoch.segmentRanges) == 3
    between = await call("getSegmentsBetween", m.StreamCutRange(streamInfo=S, **{"from": {0: 0, 1: 0}}))
    assert len(between.segments) == 4
    assert not (await call("isSegmentValid", m.SegmentId(streamInfo=S, segmentId=0))).response
    assert (await call("isSegmentValid", m.SegmentId(streamInfo=S, segmentId=1))).response
    assert (await call("isStreamCutValid", m.StreamCut(streamInfo=S, cut={0: 0, 1: 5}))).response


@pytest.mark.usefixtures("stream")
async def test_a_transaction_lives_from_create_to_the_list_of_ended_ones(call: Client) -> None:
    opened = await call("createTransaction", m.CreateTxnRequest(streamInfo=S, lease=LEASE_MS))
    assert opened.txnId.lowBits >= 0
    assert opened.txnId.highBits >> 32 == 0
    assert [each.segmentId.segmentId for each in opened.activeSegments] == [0, 1]
    ping = m.PingTxnRequest(streamInfo=S, txnId=opened.txnId, lease=LEASE_MS)
    assert await call.status("pingTransaction", ping) == "OK"
    large = m.PingTxnRequest(streamInfo=S, txnId=opened.txnId, lease=600_001)
    assert await call.status("pingTransaction", large) == "LEASE_TOO_LARGE"
    assert await call.status("checkTransactionState", transaction(opened)) == "OPEN"
    assert await call.status("commitTransaction", transaction(opened)) == "SUCCESS"
    assert await call.status("commitTransaction", transaction(opened)) == "SUCCESS"
    assert await call.status("abortTransaction", transaction(opened)) == "FAILURE"
    assert await call.status("checkTransactionState", transaction(opened)) == "COMMITTED"
    assert await call.status("pingTransaction", ping) == "COMMITTED"
    ended = (await call("listCompletedTransactions", m.ListCompletedTxnRequest(streamInfo=S))).response
    assert [(each.txnId, each.status) for each in ended] == [(opened.txnId, m.TxnResponse.COMMITTED)]


@pytest.mark.usefixtures("stream")
async def test_a_reader_group_goes_round_by_id_and_generation(call: Client) -> None:
    asked = m.ReaderGroupConfiguration(
        scope="a",
        readerGroupName="g",
        groupRefreshTimeMillis=3_000,
        maxOutstandingCheckpointRequest=3,
        rolloverSizeBytes=5,
        retentionType=m.ReaderGroupConfiguration.AUTOMATIC,
        readerGroupId="00000000-0000-0000-0000-000000000000",
        startingStreamCuts=[m.StreamCut(streamInfo=S, cut={0: 1, 1: 2})],
    )
    config = (await call("createReaderGroup", asked)).config
    assert config.readerGroupId != asked.readerGroupId
    assert config.startingStreamCuts == asked.startingStreamCuts
    assert config.rolloverSizeBytes == 0
    info = m.ReaderGroupInfo(scope="a", readerGroup="g")
    assert (await call("getReaderGroupConfig", info)).config == config
    assert list((await call("listSubscribers", S)).subscribers) == ["a/g"]
    moved = m.SubscriberStreamCut(
        subscriber="a/g", readerGroupId=config.readerGroupId, streamCut=m.StreamCut(streamInfo=S, cut={0: 5, 1: 5})
    )
    assert await call.status("updateSubscriberStreamCut", moved) == "SUCCESS"
    back = m.SubscriberStreamCut(
        subscriber="a/g", readerGroupId=config.readerGroupId, streamCut=m.StreamCut(streamInfo=S, cut={0: 1, 1: 5})
    )
    assert await call.status("updateSubscriberStreamCut", back) == "STREAM_CUT_NOT_VALID"
    for cut, told in (
        ({}, "UNKNOWN"),
        ({9: 5}, "FAILURE"),
        ({1 << 32: 5}, "FAILURE"),
        ({0: 9}, "STREAM_CUT_NOT_VALID"),
    ):
        other = m.SubscriberStreamCut(
            subscriber="a/g", readerGroupId=config.readerGroupId, streamCut=m.StreamCut(streamInfo=S, cut=cut)
        )
        assert await call.status("updateSubscriberStreamCut", other) == told
    for group_id, told in ((NO_ID, "SUBSCRIBER_NOT_FOUND"), ("x", "UNKNOWN"), ("", "UNKNOWN")):
        other = m.SubscriberStreamCut(subscriber="a/g", readerGroupId=group_id, streamCut=moved.streamCut)
        assert await call.status("updateSubscriberStreamCut", other) == told
    assert await call.status("updateReaderGroup", group("g")) == "INVALID_CONFIG"
    for group_id, told in ((NO_ID, "RG_NOT_FOUND"), ("x", "UNKNOWN"), ("", "UNKNOWN")):
        wrong = m.ReaderGroupInfo(scope="a", readerGroup="g", readerGroupId=group_id)
        assert await call.status("deleteReaderGroup", wrong) == told
    updated = await call("updateReaderGroup", config)
    assert (updated.status, updated.generation) == (m.UpdateReaderGroupResponse.SUCCESS, 1)
    stale = await call("updateReaderGroup", config)
    assert (stale.status, stale.generation) == (m.UpdateReaderGroupResponse.INVALID_CONFIG, 0)
    assert await call.status("updateSubscriberStreamCut", moved) == "GENERATION_MISMATCH"
    info.readerGroupId = config.readerGroupId
    assert await call.status("deleteReaderGroup", info) == "SUCCESS"
    assert await call.status("getReaderGroupConfig", info) == "RG_NOT_FOUND"


@pytest.mark.usefixtures("stream")
async def test_listings_carry_a_token_on_every_page_and_end_with_an_empty_one(call: Client) -> None:
    for name, request, field in (
        ("listScopes", m.ScopesRequest(), "scopes"),
        ("listStreamsInScope", m.StreamsInScopeRequest(scope=m.ScopeInfo(scope="a")), "streams"),
    ):
        first = await call(name, request)
        assert len(getattr(first, field)) == 1
        assert first.continuationToken.token
        request.continuationToken.CopyFrom(first.continuationToken)
        last = await call(name, request)
        assert not getattr(last, field)
        assert last.HasField("continuationToken")


async def test_a_table_is_answered_with_its_partitions(call: Client) -> None:
    await call("createScope", m.ScopeInfo(scope="a"))
    config = m.KeyValueTableConfig(scope="a", kvtName="k", partitionCount=2, primaryKeyLength=3, secondaryKeyLength=1)
    assert await call.status("createKeyValueTable", config) == "SUCCESS"
    assert await call.status("createKeyValueTable", config) == "TABLE_EXISTS"
    info = m.KeyValueTableInfo(scope="a", kvtName="k")
    assert (await call("getKeyValueTableConfiguration", info)).config == config
    assert len((await call("getCurrentSegmentsKeyValueTable", info)).segmentRanges) == 2
    listed = await call("listKeyValueTablesInScope", m.KVTablesInScopeRequest(scope=m.ScopeInfo(scope="a")))
    assert list(listed.kvtables) == [info]
    assert await call.status("deleteKeyValueTable", info) == "SUCCESS"


async def test_the_cluster_is_this_server_and_the_stores_are_where_they_say(
    call: Client, server: ControllerServer
) -> None:
    assert list((await call("getControllerServerList")).nodeURI) == [m.NodeUri(endpoint="127.0.0.1", port=server.port)]
    assert await call("getURI", m.SegmentId(streamInfo=S)) == m.NodeUri(endpoint="store.example", port=12345)


async def test_without_a_key_tokens_are_empty(call: Client) -> None:
    assert (await call("getDelegationToken", S)).delegationToken == ""


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:pw".encode()).decode()


@pytest.fixture
async def guarded(world: World) -> AsyncIterator[Client]:
    """A server that knows an administrator, and one who may only read stream `s`."""
    accounts = Accounts(
        ["admin:pw:prn::*,READ_UPDATE", "reader:pw:prn::/scope:a/stream:s,READ;prn::/scope:a,READ;prn::/,READ"]
    )
    authority = Authority(accounts, "key" * 20, now_s=lambda: 0.0)
    await world.stream()
    await world.stream(name="t")
    async with (
        await ControllerServer.start(world.controller, authority=authority) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Client(channel)


@pytest.mark.parametrize(
    ("name", "request_", "credentials", "expected"),
    [
        ("createScope", m.ScopeInfo(scope="x"), None, "UNAUTHENTICATED"),
        ("createScope", m.ScopeInfo(scope="x"), "Basic nonsense", "UNAUTHENTICATED"),
        ("createScope", m.ScopeInfo(scope="x"), basic("otto"), "UNAUTHENTICATED"),
        ("createScope", m.ScopeInfo(scope="x"), basic("reader"), "PERMISSION_DENIED"),
        ("createScope", m.ScopeInfo(scope="x"), basic("admin"), "SUCCESS"),
        ("checkStreamExists", S, basic("reader"), "OK"),
        ("checkStreamExists", m.StreamInfo(scope="a", stream="t"), basic("reader"), "PERMISSION_DENIED"),
        ("sealStream", S, basic("reader"), "PERMISSION_DENIED"),
        ("getCurrentSegments", S, basic("reader"), "PERMISSION_DENIED"),
        ("getCurrentSegments", m.StreamInfo(scope="a", stream="s", accessOperation=1), basic("reader"), "OK"),
        ("getDelegationToken", S, basic("reader"), "PERMISSION_DENIED"),
        ("getDelegationToken", m.StreamInfo(scope="a", stream="s", accessOperation=3), basic("reader"), "OK"),
        ("getDelegationToken", m.StreamInfo(scope="a", stream="s", accessOperation=4), basic("reader"),
         "PERMISSION_DENIED"),
    ],
)  # fmt: skip
async def test_callers_may_do_what_their_entries_say(
    guarded: Client, name: str, request_: Any, credentials: str | None, expected: str
) -> None:
    assert await guarded.status(name, request_, credentials) == expected


async def test_calls_are_answered_while_a_password_is_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = threading.Event()

    def has_password(account: Any, password: str, iterations: int) -> bool:
        assert password == "pw" or checked.wait(PATIENCE_S)
        return password == "pw"

    monkeypatch.setattr("segstore.server.controller.api.auth._Account.has_password", has_password)
    authority = Authority(Accounts(["admin:pw"]), now_s=lambda: 0.0)
    async with (
        await ControllerServer.start(world.controller, authority=authority) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        call, scope = Client(channel), m.ScopeInfo(scope="x")
        assert await call.status("createScope", scope, basic("admin")) == "SUCCESS"
        wrong = [
            asyncio.ensure_future(call.status("createScope", scope, "Basic " + base64.b64encode(each).decode()))
            for each in (b"admin:wrong", b"otto:wrong")
        ]
        assert await call.status("createScope", scope, basic("admin")) == "SCOPE_EXISTS"
        assert not any(each.done() for each in wrong)
        checked.set()
        assert await asyncio.gather(*wrong) == ["UNAUTHENTICATED"] * 2


async def test_an_entry_that_cannot_be_matched_is_answered_internal(world: World) -> None:
    authority = Authority(Accounts(["admin:pw:prn::/scope:(,READ;prn::*,READ_UPDATE"]), now_s=lambda: 0.0)
    async with (
        await ControllerServer.start(world.controller, authority=authority) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        assert await Client(channel).status("createScope", m.ScopeInfo(scope="x"), basic("admin")) == "INTERNAL"


async def test_listings_show_a_caller_what_he_may_read(guarded: Client) -> None:
    request = m.StreamsInScopeRequest(scope=m.ScopeInfo(scope="a"))
    for user, seen in (("admin", ["s", "t"]), ("reader", ["s"])):
        answer = await guarded("listStreamsInScope", request, basic(user))
        assert [each.stream for each in answer.streams] == seen


async def test_tokens_come_with_the_answers_that_carry_them(guarded: Client) -> None:
    calls: list[tuple[str, Any, Callable[[Any], str]]] = [
        ("getCurrentSegments", S, lambda answer: answer.delegationToken),
        ("getSegments", m.GetSegmentsRequest(streamInfo=S), lambda answer: answer.delegationToken),
        ("getEpochSegments", m.GetEpochSegmentsRequest(streamInfo=S), lambda answer: answer.delegationToken),
        ("createTransaction", m.CreateTxnRequest(streamInfo=S, lease=LEASE_MS), lambda answer: answer.delegationToken),
        ("getDelegationToken", S, lambda answer: answer.delegationToken),
    ]
    for name, request, token in calls:
        assert token(await guarded(name, request, basic("admin"))).count(".") == 2, name


async def test_an_error_of_the_store_is_answered_and_the_server_continues(world: World, call: Client) -> None:
    await call("createScope", m.ScopeInfo(scope="a"))
    world.store.broken = {"create"}
    assert await call.status("createStream", stream_config("s")) == "FAILURE"
    world.store.broken = set()
    assert await call.status("createStream", stream_config("s")) == "SUCCESS"


def test_a_controller_needs_no_running_loop_to_be_made(world: World) -> None:
    assert isinstance(world.controller, Controller)
