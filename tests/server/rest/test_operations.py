"""Each path of the REST API and each of its statuses, asked over a real socket."""

import base64
import struct
import time
from collections.abc import AsyncIterator
from itertools import product
from typing import Any
from uuid import UUID

import httpx
import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from segstore.server.controller.api import Accounts, Authority
from segstore.server.durable import JournalFailed
from segstore.wire.controller_api import messages as m
from segstore.wire.names import segment_name
from tests.looped import looped
from tests.server.controller.calls import NO_ID
from tests.server.rest.support import FIXED, asking, client_of, refused, stream
from tests.wire.reader_groups.java import java_events

pytestmark = pytest.mark.usefixtures("grpc_runs")

MARKS = ControllerConfig(watermark_streams=True)
LATER = 1 << 60


@pytest.fixture
async def mock() -> AsyncIterator[MockCluster]:
    async with MockCluster(rest_port=0, controller=MARKS) as mock:
        yield mock


@pytest.fixture
async def http(mock: MockCluster) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(mock) as http:
        yield http


@pytest.fixture
async def scope(http: httpx.AsyncClient) -> str:
    """The path of a scope."""
    assert (await http.post("/v1/scopes", json={"scopeName": "a"})).status_code == 201
    return "/v1/scopes/a"


async def group(mock: MockCluster, name: str, *streams: str) -> None:
    """Creates a reader group of streams in scope `a`, as a client does over gRPC."""
    asked = m.ReaderGroupConfiguration(
        scope="a",
        readerGroupName=name,
        readerGroupId=NO_ID,
        maxOutstandingCheckpointRequest=1,
        startingStreamCuts=[m.StreamCut(streamInfo=m.StreamInfo(scope="a", stream=stream)) for stream in streams],
    )
    caller: Any = type("Caller", (), {"needs": lambda *_: None})()
    await mock._calls.perform("createReaderGroup", asked, caller)


async def test_a_scope_is_created_listed_shown_and_deleted(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/scopes")).json() == {}
    created = await http.post("/v1/scopes", json={"scopeName": "a", "more": 1})
    assert (created.status_code, created.json()) == (201, {"scopeName": "a"})
    assert created.headers["content-type"] == "application/json"
    assert (await http.post("/v1/scopes/", json={"scopeName": "b"})).status_code == 201
    assert (await http.get("/v1/scopes")).json() == {"scopes": [{"scopeName": "a"}, {"scopeName": "b"}]}
    shown = await http.get("/v1/scopes/a")
    assert (shown.status_code, shown.json()) == (200, {"scopeName": "a"})
    deleted = await http.delete("/v1/scopes/a")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await http.get("/v1/scopes")).json() == {"scopes": [{"scopeName": "b"}]}


async def test_what_is_refused_about_scopes(http: httpx.AsyncClient, scope: str) -> None:
    assert refused(await http.post("/v1/scopes", json={"scopeName": "a"})) == (409, "scope a exists already")
    assert refused(await http.post("/v1/scopes", content=b"")) == (500, "the request has no body")
    for name in ("_system", "a/b", "", "x" * 256, None):
        status, why = refused(await http.post("/v1/scopes", json={"scopeName": name}))
        assert (status, "cannot be the name of a scope" in why) == (400, True)
    for path in ("/v1/scopes/no", "/v1/scopes/no/streams", "/v1/scopes/no/readergroups"):
        assert refused(await http.get(path)) == (404, "scope no does not exist")
    assert refused(await http.delete("/v1/scopes/no")) == (404, "scope no does not exist")
    await http.post(f"{scope}/streams", json=stream())
    assert refused(await http.delete(scope))[0] == 412


async def test_the_life_of_a_stream_as_pravegas_own_test_of_its_rest_api_has_it(
    http: httpx.AsyncClient, scope: str
) -> None:
    config = {
        "scalingPolicy": {**FIXED, "targetRate": 2, "scaleFactor": 2},
        "retentionPolicy": {"type": "LIMITED_DAYS", "value": 123},
        "timestampAggregationTimeout": 1000,
        "rolloverSizeBytes": 1024,
    }
    answer = {
        "scopeName": "a",
        "streamName": "s",
        "scalingPolicy": FIXED,
        "retentionPolicy": {
            "type": "LIMITED_DAYS",
            "value": 123,
            "timeBasedRetention": {"days": 123, "hours": 0, "minutes": 0},
        },
        "tags": ["testTag"],
        "timestampAggregationTimeout": 1000,
        "rolloverSizeBytes": 1024,
    }
    streams, one = f"{scope}/streams", f"{scope}/streams/s"
    created = await http.post(streams, json={"streamName": "s", "streamTags": ["testTag"], **config})
    assert (created.status_code, created.json()) == (201, answer)
    assert (await http.get(streams)).json() == {"streams": [answer]}
    for tag, found in (("testTag", [answer]), ("randomTag", [])):
        by_tag = await http.get(streams, params={"filter_type": "tag", "filter_value": tag})
        assert (by_tag.status_code, by_tag.json()) == (200, {"streams": found})
    internal = (await http.get(streams, params={"filter_type": "showInternalStreams"})).json()["streams"]
    assert [each["streamName"] for each in internal] == ["_MARKs"]
    assert (await http.get(streams, params={"filter_type": "tag"})).json() == {"streams": [answer]}

    config |= {"scalingPolicy": {**FIXED, "minSegments": 4}, "timestampAggregationTimeout": 2000}
    updated = await http.put(one, json=config)
    assert (updated.status_code, updated.json()["scalingPolicy"]["minSegments"]) == (200, 4)
    now_ms = time.time_ns() // 1_000_000 + 1
    events = (await http.get(f"{one}/scaling-events", params={"from": 0, "to": now_ms})).json()
    assert [len(event["segments"]) for event in events] == [2, 4]
    assert [(each["splits"], each["merges"]) for each in events] == [(0, 0), (2, 0)]
    shown = (await http.get(one)).json()
    assert (shown["tags"], shown["timestampAggregationTimeout"]) == ([], 2000)

    sealed = await http.put(f"{one}/state", json={"streamState": "SEALED"})
    assert (sealed.status_code, sealed.json()) == (200, {"streamState": "SEALED"})
    deleted = await http.delete(one)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await http.delete(scope)).status_code == 204


async def test_what_is_refused_about_streams(http: httpx.AsyncClient, scope: str) -> None:
    streams, one, none = f"{scope}/streams", f"{scope}/streams/s", f"{scope}/streams/no"
    assert refused(await http.post("/v1/scopes/no/streams", json=stream())) == (404, "scope no does not exist")
    for name in ("_RGx", "", "a/b", "x" * 251, None):
        assert refused(await http.post(streams, json={**stream(), "streamName": name}))[0] == 400
    assert (await http.post(streams, json=stream())).status_code == 201
    assert refused(await http.post(streams, json=stream())) == (409, "stream a/s exists already")
    for verb, path, body in (
        ("GET", none, None),
        ("PUT", none, stream()),
        ("DELETE", none, None),
        ("PUT", f"{none}/state", {"streamState": "SEALED"}),
        ("GET", f"{none}/scaling-events?from=0&to=1", None),
    ):
        assert refused(await http.request(verb, path, json=body)) == (404, "stream a/no does not exist"), path
    assert refused(await http.delete(one)) == (412, "stream a/s must be sealed before it is deleted")
    assert refused(await http.put(f"{one}/state", json={})) == (400, "a stream can only become SEALED")
    assert refused(await http.put(f"{one}/state", json={"streamState": "ACTIVE"}))[0] == 400
    await http.put(f"{one}/state", json={"streamState": "SEALED"})
    assert refused(await http.put(one, json=stream())) == (500, "stream a/s is sealed")
    assert refused(await http.get(streams, params={"filter_type": "tag", "filter_value": ""}))[0] == 500


@looped(
    ("body", "status", "said"),
    [
        (b"{", 400, "the body is not what it should be: Input data was truncated"),
        (b"\xff", 400, "the body is not what it should be"),
        (b'{"x":' + b"[" * 100_000, 400, "the body is not what it should be"),
        (b'{"streamName":7}', 400, "`$.streamName`"),
        (b'{"streamName":"x"}', 500, "a stream needs scalingPolicy.type"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_and_says_why(
    http: httpx.AsyncClient, scope: str, body: bytes, status: int, said: str
) -> None:
    answer = await http.post(f"{scope}/streams", content=body, headers={"content-type": "application/json"})
    found, why = refused(answer)
    assert found == status
    assert said in why


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (JournalFailed("the disk is full"), 503, "the disk is full"),
        (ZeroDivisionError(), 500, "unexpected error; the server's log says more"),
    ],
)
async def test_what_is_not_durable_or_not_expected_is_answered(
    mock: MockCluster,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    said: str,
) -> None:
    async def settled() -> None:
        raise error

    monkeypatch.setattr(mock._calls, "_settled", settled)
    assert refused(await http.get("/v1/scopes")) == (status, said)


async def test_scaling_events_are_those_in_a_time_after_the_epoch_at_its_start(
    mock: MockCluster, http: httpx.AsyncClient, scope: str
) -> None:
    await http.post(f"{scope}/streams", json=stream())
    for count in (4, 1, 2):
        await http.put(f"{scope}/streams/s", json=stream(scalingPolicy={**FIXED, "minSegments": count}))
    begun = [epoch.created_ms for epoch in mock.controller.streams.get("a", "s").epochs]

    async def events(start: int, end: int) -> list[Any]:
        answer = await http.get(f"{scope}/streams/s/scaling-events", params={"from": start, "to": end})
        assert answer.status_code == 200
        return [(begun.index(each["timestamp"]), each["splits"], each["merges"]) for each in answer.json()]

    assert await events(0, LATER) == [(0, 0, 0), (1, 2, 0), (2, 0, 1), (3, 1, 0)]
    assert await events(max(begun[1], begun[2] - 1), begun[2]) == [(1, 0, 0), (2, 0, 1)]
    assert await events(begun[3], begun[3]) == [(3, 0, 0)]
    assert await events(LATER, LATER) == [(3, 0, 0)]
    assert await events(0, begun[0] - 1) == []
    (last,) = (await http.get(f"{scope}/streams/s/scaling-events?from={LATER}&to={LATER}")).json()
    assert [(each["number"], each["epoch"], each["keyStart"], each["keyEnd"]) for each in last["segments"]] == [
        (7, 3, 0.0, 0.5),
        (8, 3, 0.5, 1.0),
    ]
    assert {each["start"] for each in last["segments"]} == {begun[3]}


@looped(
    ("query", "status"),
    [
        ("from=0", 400),
        ("from=2&to=1", 400),
        ("from=-1&to=1", 400),
        ("from=0&to=x", 404),
        (f"from=0&to={1 << 63}", 404),
        ("from=1_0&to=99", 404),
        ("from=0&from=x&to=1", 200),
    ],
)
async def test_a_time_of_scaling_events_is_two_numbers(
    http: httpx.AsyncClient, scope: str, query: str, status: int
) -> None:
    await http.post(f"{scope}/streams", json=stream())
    assert (await http.get(f"{scope}/streams/s/scaling-events?{query}")).status_code == status


async def test_reader_groups_are_listed_shown_and_deleted(
    mock: MockCluster, http: httpx.AsyncClient, scope: str
) -> None:
    groups = f"{scope}/readergroups"
    assert (await http.get(groups)).json() == {}
    for name in ("s", "t"):
        await http.post(f"{scope}/streams", json=stream(name))
    await group(mock, "g1", "s", "t")
    await group(mock, "g2", "t")
    assert (await http.get(groups)).json() == {"readerGroups": [{"readerGroupName": "g1"}, {"readerGroupName": "g2"}]}
    shown = await http.get(f"{groups}/g1")
    facts = {"scopeName": "a", "readerGroupName": "g1", "streamList": ["a/s", "a/t"], "onlineReaderIds": []}
    assert (shown.status_code, shown.json()) == (200, facts)
    created, added, acquired, removed = ([struct.pack(">ii", 0, len(event)) + event] for event in java_events())
    segment, writer = segment_name("a", "_RGg1", 0, 0), UUID(int=7)
    for events in (created, added, acquired):
        await mock.controller.segments.append_events(segment, writer, events)
    assert (await http.get(f"{groups}/g1")).json()["onlineReaderIds"] == ["reader"]
    await mock.controller.segments.append_events(segment, writer, removed)
    assert (await http.get(f"{groups}/g1")).json()["onlineReaderIds"] == []
    deleted = await http.delete(f"{groups}/g1")
    assert (deleted.status_code, deleted.content) == (204, b"")
    for answer in (await http.get(f"{groups}/g1"), await http.delete(f"{groups}/g1")):
        assert refused(answer) == (404, "reader group a/g1 does not exist")
    assert refused(await http.delete("/v1/scopes/no/readergroups/g1")) == (404, "scope no does not exist")
    assert refused(await http.get("/v1/scopes/no/readergroups/g1")) == (404, "scope no does not exist")


async def test_a_group_that_an_older_client_made_is_listed_and_deleted_with_its_stream(
    mock: MockCluster, http: httpx.AsyncClient, scope: str
) -> None:
    controller = mock.controller
    await http.post(f"{scope}/streams", json=stream())
    await controller.create_stream("a", "_RGold", controller.streams.get("a", "s").config)
    assert (await http.get(f"{scope}/readergroups")).json() == {"readerGroups": [{"readerGroupName": "old"}]}
    assert (await http.delete(f"{scope}/readergroups/old")).status_code == 204
    assert (await http.get(f"{scope}/readergroups")).json() == {}


async def test_listings_longer_than_a_page_are_whole() -> None:
    async with asking(controller=ControllerConfig(page_size=2)) as (_, http):
        for name in "abcde":
            await http.post("/v1/scopes", json={"scopeName": name})
            await http.post("/v1/scopes/a/streams", json=stream(name, streamTags=["t"]))
        assert [each["scopeName"] for each in (await http.get("/v1/scopes")).json()["scopes"]] == list("abcde")
        for query in ("", "?filter_type=tag&filter_value=t"):
            found = (await http.get(f"/v1/scopes/a/streams{query}")).json()["streams"]
            assert sorted(each["streamName"] for each in found) == list("abcde")


USERS = [
    "admin:p:prn::*,READ_UPDATE",
    "lister:p:prn::/,READ;prn::/scope:b,READ",
    "reader:p:prn::/scope:a,READ;prn::/scope:a/stream:s,READ;prn::/scope:a/reader-group:g,READ",
    "maker:p:prn::/scope:a,READ_UPDATE",
    "guest:p:;",
]
STREAM = "/v1/scopes/a/streams/s"
STATE = f"{STREAM}/state"
EVENTS = f"{STREAM}/scaling-events?from=0&to=1"
GROUP = "/v1/scopes/a/readergroups/g"
SEALED = {"streamState": "SEALED"}


@pytest.fixture
async def guarded() -> AsyncIterator[MockCluster]:
    authority = Authority(Accounts(USERS))
    async with asking("admin", authority=authority) as (mock, http):
        for name in "ab":
            assert (await http.post("/v1/scopes", json={"scopeName": name})).status_code == 201
        for name in "st":
            assert (await http.post("/v1/scopes/a/streams", json=stream(name))).status_code == 201
        await group(mock, "g", "s")
        yield mock


PERMISSIONS: list[tuple[str, str, Any, str]] = [
    ("GET", "/v1/scopes", None, "lister"),
    ("GET", "/v1/scopes/a", None, "reader maker"),
    ("POST", "/v1/scopes", {"scopeName": "a"}, ""),
    ("DELETE", "/v1/scopes/a", None, ""),
    ("GET", "/v1/scopes/a/streams", None, "reader maker"),
    ("GET", "/v1/scopes/a/readergroups", None, "reader maker"),
    ("POST", "/v1/scopes/a/streams", stream(), "maker"),
    ("POST", "/v1/scopes/a/streams", {"streamName": "lacking"}, "maker"),
    ("GET", STREAM, None, "reader"),
    ("GET", EVENTS, None, "reader"),
    ("PUT", STREAM, stream(), ""),
    ("DELETE", STREAM, None, ""),
    ("PUT", STATE, {}, ""),
    ("PUT", STATE, SEALED, ""),
    ("GET", GROUP, None, "reader"),
    ("DELETE", GROUP, None, ""),
    ("GET", "/v1/health/details", None, ""),
]
"""Requests, and the users who may make them."""
WRONG = (None, "", "Basic", "Bearer x", "Basic !", f"Basic {base64.b64encode(b'admin:wrong').decode()}")


async def test_permissions_are_those_of_the_reference(guarded: MockCluster) -> None:
    for user in ("lister", "reader", "maker", "guest"):
        async with client_of(guarded, user) as http:
            for verb, path, body, allowed in PERMISSIONS:
                answer = await http.request(verb, path, json=body)
                if user in allowed.split():
                    assert answer.status_code not in (401, 403), (user, verb, path)
                else:
                    assert refused(answer)[0] == 403, (user, verb, path)
    async with client_of(guarded) as http:
        for (verb, path, body, _), header in product(PERMISSIONS, WRONG):
            headers = {} if header is None else {"authorization": header}
            answer = await http.request(verb, path, json=body, headers=headers)
            assert refused(answer)[0] == 401, (header, verb, path)
