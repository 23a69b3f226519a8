"""Scopes, streams and their segments over HTTP: pages, histories, stores that do not answer."""

from typing import Any

import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller import Controller, ScalingPolicy, StreamConfig
from segstore.server.controller.policies import RetentionPolicy, RetentionType, ScalingType
from tests.server.control_api.support import asking, asking_cluster, done, refusal

pytestmark = pytest.mark.usefixtures("grpc_runs")
STREAM = "/v1/streams/shop/orders"


def controller_of(mock: MockCluster) -> Controller:
    controller = mock.controller
    assert controller is not None
    return controller


async def all_pages(http: Any, path: str, field: str, **params: Any) -> list[Any]:
    """All entries, and none twice."""
    found: list[Any] = []
    while True:
        page = await done(http, "GET", path, **params)
        assert len(page[field]) <= params.get("limit", 500)
        found += page[field]
        if page["next"] is None:
            return found
        params["after"] = page["next"]


async def test_scopes_and_streams_come_in_pages_without_internal_streams() -> None:
    async with asking_cluster() as (_, http):
        for scope in ("a", "b", "shop"):
            await done(http, "PUT", f"/v1/scopes/{scope}")
        names = sorted(["Upper", "_RGgroup", "_RGother", *(f"s{number}" for number in range(5))])
        for name in names:
            await done(http, "PUT", f"/v1/streams/shop/{name}")
        assert await all_pages(http, "/v1/scopes", "scopes", limit=1) == ["a", "b", "shop"]
        assert await all_pages(http, "/v1/scopes", "scopes", limit=3) == ["a", "b", "shop"]
        assert (await done(http, "GET", "/v1/scopes/shop"))["streams"] == len(names)
        for limit in (1, 2, 6, 500):
            found = await all_pages(http, "/v1/streams/shop", "streams", limit=limit)
            assert [each["stream"] for each in found] == [name for name in names if not name.startswith("_")]
            found = await all_pages(http, "/v1/streams/shop", "streams", limit=limit, internal=True)
            assert [each["stream"] for each in found] == names


async def test_a_stream_has_its_policies_and_tags() -> None:
    async with asking_cluster() as (mock, http):
        controller = controller_of(mock)
        controller.scopes.create("shop")
        config = StreamConfig(
            ScalingPolicy(ScalingType.EVENTS_PER_S, 100, 2, 3),
            RetentionPolicy(RetentionType.TIME, 5_000, 9_000),
            ("red", "<b>"),
            7,
            1 << 20,
        )
        await controller.create_stream("shop", "orders", config)
        found = await done(http, "GET", STREAM)
        assert found["scaling"] == {"kind": "events_per_s", "target_rate": 100, "factor": 2, "min_segments": 3}
        assert found["retention"] == {"kind": "time", "limit": 5_000, "maximum": 9_000}
        assert (found["tags"], found["rollover_bytes"]) == (["red", "<b>"], 1 << 20)
        assert (found["sealed"], found["open_segments"], found["head"]) == (False, 3, "0:0,1:0,2:0")
        await done(http, "POST", f"{STREAM}/seal")
        found = await done(http, "GET", STREAM)
        assert (found["sealed"], found["open_segments"]) == (True, 0)


async def test_segments_have_their_place_in_the_history() -> None:
    async with asking_cluster(stores=2) as (_, http):
        await done(http, "PUT", STREAM, {"segments": 2})
        events = [{"text": "x", "routing_key": str(number)} for number in range(9)]
        await done(http, "POST", f"{STREAM}/events", {"events": events})
        await done(http, "POST", f"{STREAM}/scale", {"seal": [1], "ranges": [[0.5, 0.75], [0.75, 1.0]]})
        await done(http, "POST", f"{STREAM}/scale", {"segments": 2})
        found = await all_pages(http, f"{STREAM}/segments", "segments", limit=2)
        upper, highest, left, right = 1 << 32 | 2, 1 << 32 | 3, 2 << 32 | 4, 2 << 32 | 5
        known = {
            each["id"]: (each["epoch"], each["until_epoch"], each["predecessors"], each["successors"], each["status"])
            for each in found
        }
        assert known == {
            0: (0, 2, [], [left], "sealed"),
            1: (0, 1, [], [upper, highest], "sealed"),
            upper: (1, 2, [1], [right], "sealed"),
            highest: (1, 2, [1], [right], "sealed"),
            left: (2, None, [0], [], "open"),
            right: (2, None, [upper, highest], [], "open"),
        }
        assert list(known) == sorted(known)
        assert sum(each["length"] for each in found) == 9 * (8 + 1)
        assert all(each["store"].startswith("127.0.0.1:") for each in found)
        current = await all_pages(http, f"{STREAM}/segments", "segments", limit=1, open=True)
        assert [(each["id"], each["low"], each["high"]) for each in current] == [(left, 0.0, 0.5), (right, 0.5, 1.0)]
        for after in (-(1 << 70), 1 << 70):
            page = await done(http, "GET", f"{STREAM}/segments", after=after)
            assert page == {"epoch": 2, "segments": [], "next": None}

        await done(http, "POST", f"{STREAM}/truncate", {"position": f"{left}:0,{right}:0"})
        found = await all_pages(http, f"{STREAM}/segments", "segments")
        assert [each["status"] for each in found] == ["deleted"] * 4 + ["open"] * 2
        assert [each["length"] for each in found] == [None] * 4 + [0] * 2
        await done(http, "POST", f"{STREAM}/seal")
        assert await all_pages(http, f"{STREAM}/segments", "segments", open=True) == []


async def test_segments_of_stopped_stores_are_listed_without_their_lengths() -> None:
    async with asking_cluster(stores=2) as (mock, http):
        await done(http, "PUT", STREAM, {"segments": 8})
        before = await all_pages(http, f"{STREAM}/segments", "segments")
        assert {each["length"] for each in before} == {0}
        assert {each["store"] for each in before} == {str(store.address) for store in mock.stores}
        for number in (0, 1):
            await mock.stop_store(number)
        after = await all_pages(http, f"{STREAM}/segments", "segments", limit=3)
        gone = {"store": None, "length": None, "start_offset": None}
        assert after == [{**each, **gone} for each in before]
        tail = await done(http, "GET", f"{STREAM}/tail")
        assert all(each["length"] is None and each["why"] for each in tail["segments"])


async def test_what_is_not_there_is_refused() -> None:
    async with asking_cluster() as (_, http):
        await done(http, "PUT", "/v1/scopes/shop")
        for path in (
            "/v1/scopes/none",
            "/v1/streams/none",
            "/v1/tables/none",
            "/v1/groups/none",
            STREAM,
            f"{STREAM}/segments",
            f"{STREAM}/tail",
            f"{STREAM}/transactions",
            "/v1/tables/shop/none",
            "/v1/groups/shop/none",
            "/v1/groups/shop/%2E%2E%2F%ED%A0%80",
            "/v1/streams/shop/%3Cimg%3E/segments",
        ):
            status, said, _ = refusal(await http.get(path))
            assert status == 404, (path, said)
        for path in (f"{STREAM}/segments?after=x", f"{STREAM}/segments?limit=501", "/v1/scopes?limit=0"):
            assert refusal(await http.get(path))[0] == 422
    async with asking() as (_, http):
        for path in ("/v1/scopes", "/v1/streams/a", STREAM, "/v1/groups/a/b", "/v1/tables/a"):
            status, said, _ = refusal(await http.get(path))
            assert (status, "no controller" in said) == (409, True)
