"""Lists are read page by page; scales can be waited for; what a controller cannot do or does not have is told."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast
from uuid import UUID

import pytest

from segstore.client import connect
from segstore.client.connection import Endpoint
from segstore.client.controller import Controller, ControllerChannels, TableConfig
from segstore.client.controller.channels import NodeResponse
from segstore.client.errors import NoSuchStream, NoSuchTable, ProtocolViolation, RequestRejected, RequestTimedOut
from segstore.server.cluster import MockCluster
from segstore.wire.controller_api import messages as m
from tests.client.support import settings
from tests.looped import looped


class Paged:
    """Answers with one page after another, and keeps what it was asked."""

    def __init__(self, *pages: Any) -> None:
        self._pages = list(pages)
        self.asked: list[tuple[str, str, str]] = []

    async def ask(self, method: str, request: Any) -> NodeResponse:
        scope = "" if isinstance(request, m.ScopesRequest) else request.scope.scope
        self.asked.append((method, scope, request.continuationToken.token))
        return NodeResponse(self._pages.pop(0), Endpoint("127.0.0.1", 9090))


def token(text: str) -> Any:
    return m.ContinuationToken(token=text)


def scopes(names: list[str], after: str) -> Any:
    return m.ScopesResponse(scopes=names, continuationToken=token(after))


def streams(names: list[str], after: str) -> Any:
    named = [m.StreamInfo(scope="a", stream=name) for name in names]
    return m.StreamsInScopeResponse(streams=named, continuationToken=token(after))


def tables(names: list[str], after: str) -> Any:
    named = [m.KeyValueTableInfo(scope="a", kvtName=name) for name in names]
    return m.KVTablesInScopeResponse(kvtables=named, continuationToken=token(after))


@looped(
    ("page", "ask", "method", "scope"),
    [
        (scopes, lambda controller: controller.list_scopes(), "listScopes", ""),
        (streams, lambda controller: controller.list_streams("a"), "listStreamsInScope", "a"),
        (tables, lambda controller: controller.list_tables("a"), "listKeyValueTablesInScope", "a"),
    ],
)
async def test_each_page_is_asked_for_with_the_token_of_the_one_before(
    page: Callable[[list[str], str], Any], ask: Callable[[Controller], AsyncIterator[str]], method: str, scope: str
) -> None:
    paged = Paged(page(["x", "y"], "1"), page(["z"], "2"), page([], "3"))
    assert [name async for name in ask(Controller(cast("ControllerChannels", paged)))] == ["x", "y", "z"]
    assert paged.asked == [(method, scope, ""), (method, scope, "1"), (method, scope, "2")]


async def test_a_list_of_a_scope_that_is_not_there_raises() -> None:
    missing = m.StreamsInScopeResponse(status=m.StreamsInScopeResponse.SCOPE_NOT_FOUND)
    controller = Controller(cast("ControllerChannels", Paged(missing)))
    with pytest.raises(NoSuchStream, match="scope a: the controller reports SCOPE_NOT_FOUND") as found:
        await anext(controller.list_streams("a"))
    assert found.value.endpoint == "127.0.0.1:9090"


class Scripted:
    """Answers each method with one of its answers after another, the last for ever."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, Any]] = []

    async def ask(self, method: str, request: Any) -> NodeResponse:
        self.asked.append((method, request))
        left = self._answers[method]
        return NodeResponse(left.pop(0) if len(left) > 1 else left[0], Endpoint("127.0.0.1", 9090))


def started(epoch: int) -> Any:
    return m.ScaleResponse(status=m.ScaleResponse.STARTED, epoch=epoch)


def how_far(*names: str) -> list[Any]:
    return [m.ScaleStatusResponse(status=m.ScaleStatusResponse.ScaleStatus.Value(name)) for name in names]


def scaling(*names: str) -> tuple[Scripted, Controller]:
    scripted = Scripted(scale=[started(3)], checkScale=how_far(*names))
    return scripted, Controller(cast("ControllerChannels", scripted))


async def test_a_scale_is_waited_for_by_the_epoch_that_it_leaves() -> None:
    scripted, controller = scaling("IN_PROGRESS", "IN_PROGRESS", "SUCCESS")
    assert await controller.scale("a", "s", [1], [(0.0, 1.0)], wait_ms=60_000) == []
    assert [method for method, _ in scripted.asked] == ["scale", *["checkScale"] * 3]
    about = scripted.asked[-1][1]
    assert (about.streamInfo.scope, about.streamInfo.stream, about.epoch) == ("a", "s", 3)


async def test_a_scale_that_takes_longer_or_fails_says_so() -> None:
    _, controller = scaling("IN_PROGRESS")
    with pytest.raises(RequestTimedOut, match=r"a/s from epoch 3 was started but did not finish within 30 ms") as late:
        await controller.scale("a", "s", [1], [(0.0, 1.0)], wait_ms=30)
    assert (late.value.stream, late.value.limit) == ("a/s", 30)
    _, controller = scaling("IN_PROGRESS", "INTERNAL_ERROR")
    with pytest.raises(RequestRejected, match="then the controller reported INTERNAL_ERROR") as failed:
        await controller.scale("a", "s", [1], [(0.0, 1.0)], wait_ms=60_000)
    assert (failed.value.endpoint, failed.value.stream) == ("127.0.0.1:9090", "a/s")


def located(number: int = 0, low: float = 0.0, high: float = 1.0) -> Any:
    return m.SegmentRange(segmentId=m.SegmentId(segmentId=number), minKey=low, maxKey=high)


NO_SEGMENTS = [located(-1), located(low=-0.5), located(high=float("nan")), located(low=0.5, high=0.5), located(high=2)]
OF_SEGMENTS: list[tuple[str, Callable[[Any], Any], Callable[[Controller], Awaitable[Any]]]] = [
    ("getCurrentSegments", lambda it: m.SegmentRanges(segmentRanges=[it]), lambda c: c.current_segments("a", "s")),
    ("getEpochSegments", lambda it: m.SegmentRanges(segmentRanges=[it]), lambda c: c.epoch_segments("a", "s", 0)),
    (
        "getCurrentSegmentsKeyValueTable",
        lambda it: m.SegmentRanges(segmentRanges=[it]),
        lambda c: c.table_segments("a", "t"),
    ),
    (
        "getSegmentsImmediatelyFollowing",
        lambda it: m.SuccessorResponse(segments=[m.SuccessorResponse.SegmentEntry(segment=it)]),
        lambda c: c.successors("a", "s", 0),
    ),
    (
        "createTransaction",
        lambda it: m.CreateTxnResponse(activeSegments=[it]),
        lambda c: c.create_transaction("a", "s", 1000),
    ),
    (
        "scale",
        lambda it: m.ScaleResponse(status=m.ScaleResponse.STARTED, segments=[it]),
        lambda c: c.scale("a", "s", [0], [(0.0, 1.0)]),
    ),
]


@looped("segment", NO_SEGMENTS)
@looped(("method", "answer", "call"), OF_SEGMENTS)
async def test_a_segment_that_cannot_be_is_a_violation(
    method: str, answer: Callable[[Any], Any], call: Callable[[Controller], Awaitable[Any]], segment: Any
) -> None:
    controller = Controller(cast("ControllerChannels", Scripted(**{method: [answer(segment)]})))
    with pytest.raises(
        ProtocolViolation, match=rf"^127\.0\.0\.1:9090 returned an invalid answer to {method}: "
    ) as caught:
        await call(controller)
    assert caught.value.endpoint == "127.0.0.1:9090"


LOCATION = m.SegmentsAtTime.SegmentLocation


@looped(
    ("method", "answer", "call"),
    [
        *(
            ("getURI", m.NodeUri(endpoint=host, port=port), lambda c: c.endpoint_of("a", "s", 0))
            for host, port in [("", 1), ("a", -1), ("a", 65536), ("a\0b", 1), ("a..b", 1), ("x" * 64, 1), ("a b", 1)]
        ),
        (
            "getSegments",
            m.SegmentsAtTime(segments=[LOCATION(segmentId=m.SegmentId(segmentId=1), offset=-1)]),
            lambda c: c.head("a", "s"),
        ),
        (
            "getSegmentsBetween",
            m.StreamCutRangeResponse(segments=[m.SegmentId(segmentId=-1)]),
            lambda c: c.segments_between("a", "s", {}, {}),
        ),
        (
            "getSegmentsImmediatelyFollowing",
            m.SuccessorResponse(segments=[m.SuccessorResponse.SegmentEntry(segment=located(1 << 32), value=[-1])]),
            lambda c: c.successors("a", "s", 0),
        ),
        ("checkTransactionState", m.TxnState(state=99), lambda c: c.transaction_status("a", "s", UUID(int=1))),  # type: ignore[arg-type]
        (
            "listCompletedTransactions",
            m.ListCompletedTxnResponse(response=[m.TxnResponse(status=99)]),  # type: ignore[arg-type]
            lambda c: c.completed_transactions("a", "s"),
        ),
        (
            "getKeyValueTableConfiguration",
            m.KeyValueTableConfigResponse(config=m.KeyValueTableConfig(partitionCount=-1)),
            lambda c: c.table_config("a", "t"),
        ),
    ],
)
async def test_a_value_that_cannot_be_is_a_violation(
    method: str, answer: Any, call: Callable[[Controller], Awaitable[Any]]
) -> None:
    controller = Controller(cast("ControllerChannels", Scripted(**{method: [answer]})))
    with pytest.raises(ProtocolViolation, match=r"^127\.0\.0\.1:9090 returned an invalid "):
        await call(controller)


@looped(("primary", "secondary"), [(257, 0), (200, 57), (8192, 8192)])
def test_keys_that_no_store_has_are_refused_before_a_controller_tries_in_vain(primary: int, secondary: int) -> None:
    with pytest.raises(ValueError, match=f"at most 256 bytes in both parts together, not {primary + secondary}"):
        TableConfig(primary_key_bytes=primary, secondary_key_bytes=secondary)
    assert TableConfig(primary_key_bytes=200, secondary_key_bytes=56).partitions == 1


@pytest.mark.usefixtures("grpc_runs")
async def test_what_is_not_there_is_named_by_the_error_whatever_the_controller_says_of_it() -> None:
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
        await pravega.controller.create_scope("a")
        with pytest.raises(NoSuchStream, match=r"^getCurrentSegments of a/none at ") as stream:
            await pravega.controller.current_segments("a", "none")
        assert (stream.value.stream, stream.value.endpoint) == ("a/none", mock.controller_uri)
        with pytest.raises(NoSuchTable, match="there is no table a/none") as table:
            await pravega.controller.table_segments("a", "none")
        assert (table.value.stream, table.value.endpoint) == ("a/none", mock.controller_uri)
