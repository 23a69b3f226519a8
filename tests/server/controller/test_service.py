"""The API over a real socket: what calls do, one after another, and who may make them."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import grpc
import pytest

from segstore.server.controller import Accounts, Authority, ControllerServer
from segstore.server.controller.api.caller import Caller
from segstore.server.controller.api.service import serve
from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint
from tests.looped import looped
from tests.server.controller.calls import LEASE_MS, NO_STREAM, Client, S, basic, group, stream_config
from tests.server.controller.conftest import World
from tests.server.support import PATIENCE_S

pytestmark = pytest.mark.usefixtures("grpc_runs")


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


# In which order a real controller numbered the new segments of these starts: that of a Java hash map.
TENTHS = [0.0, 0.1, 0.2, 0.3, 0.4]
NUMBERED = [
    ([0.25, 0.0], [0.25, 0.0]),
    (TENTHS, [0.0, 0.3, 0.1, 0.2, 0.4]),
    (TENTHS[::-1], [0.3, 0.0, 0.4, 0.2, 0.1]),
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
    assert [segment.minKey for segment in answer.segments] == numbered


async def test_the_cluster_is_this_server_and_the_stores_are_where_they_say(
    call: Client, server: ControllerServer
) -> None:
    assert list((await call("getControllerServerList")).nodeURI) == [m.NodeUri(endpoint="127.0.0.1", port=server.port)]
    assert await call("getURI", m.SegmentId(streamInfo=S)) == m.NodeUri(endpoint="store.example", port=12345)


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
        await ControllerServer(world.controller, authority=authority).start() as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Client(channel)


@looped(
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
        await ControllerServer(world.controller, authority=authority).start() as server,
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


async def test_tokens_come_with_the_answers_that_carry_them(guarded: Client) -> None:
    for name, request in (
        ("getCurrentSegments", S),
        ("getSegments", m.GetSegmentsRequest(streamInfo=S)),
        ("getEpochSegments", m.GetEpochSegmentsRequest(streamInfo=S)),
        ("createTransaction", m.CreateTxnRequest(streamInfo=S, lease=LEASE_MS)),
        ("getDelegationToken", S),
    ):
        assert (await guarded(name, request, basic("admin"))).delegationToken.count(".") == 2, name
