"""The control API of a tap: what a tap has is steered as on a server, and what it lacks is refused in one sentence."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.tap import Tap
from tests.server.control_api.support import done, refusal
from tests.server.support import HELLO, SEGMENT, Peer, append, create, set_up, until

ON_A_SERVER = [
    ("GET", "/v1/segments", None),
    ("GET", "/v1/containers", None),
    ("GET", "/v1/streams/scope/stream/stats", None),
    ("GET", "/v1/scopes", None),
    ("PUT", "/v1/streams/scope/stream", {"segments": 1}),
    ("POST", "/v1/streams/scope/stream/events", {"events": [{"text": "a"}]}),
    ("GET", "/v1/snapshots", None),
    ("POST", "/v1/requests/1/send", None),
]


@asynccontextmanager
async def tapped(**settings: Any) -> AsyncIterator[tuple[Tap, httpx.AsyncClient]]:
    """A tap before a store, and a client of its control API."""
    async with (
        MockSegmentStore() as mock,
        Tap(store=f"{mock.host}:{mock.port}", http_port=0, **settings) as tap,
        httpx.AsyncClient(base_url=tap.http_url, trust_env=False, timeout=60) as http,
    ):
        yield tap, http


@asynccontextmanager
async def through(tap: Tap) -> AsyncIterator[Peer]:
    where: Any = tap  # a peer asks for host and port alone
    async with await Peer.connect(where) as peer:
        await peer.ask(HELLO, create(), set_up())
        yield peer


async def test_it_reports_what_it_has_and_where() -> None:
    async with tapped() as (tap, http):
        served = await done(http, "GET", "/v1/server")
        assert served["capabilities"] == ["tap", "counters", "faults", "toxics", "requests", "recordings"]
        (upstream,) = tap.addresses
        addresses = {"address": f"{tap.host}:{tap.port}", "admin_address": None, "upstream": str(upstream)}
        assert served["stores"] == [{"store": 0, **addresses, "serving": True}]
        assert (served["containers"], served["tls"], served["data"]) == (0, False, None)
        assert await done(http, "GET", "/v1/health") == {"status": "ok", "stores": 0, "controller": False}
        assert (await done(http, "GET", "/v1/version"))["wire_version"] == 17


async def test_what_only_stores_have_is_refused_in_one_sentence() -> None:
    async with tapped() as (_, http):
        for method, path, body in ON_A_SERVER:
            status, why, where = refusal(await http.request(method, path, json=body))
            assert (status, where) == (409, "path")
            assert why.startswith("a tap has no stores: ")


async def test_only_what_it_answers_is_described() -> None:
    async with tapped() as (_, http):
        described = (await done(http, "GET", "/v1/openapi.json"))["paths"]
        assert {"/v1/faults", "/v1/toxics", "/v1/requests", "/v1/trace", "/v1/connections", "/v1/server"} <= set(
            described
        )
        assert not {each for each in described if each.startswith(("/v1/segments", "/v1/streams", "/v1/snapshots"))}


async def test_its_requests_are_kept_from_the_start_and_listed_with_their_replies() -> None:
    async with tapped() as (tap, http), through(tap) as peer:
        await peer.ask(append(1))
        found = (await done(http, "GET", "/v1/requests"))["requests"]
        assert [(each["type"], each["reply"], each["stage"], each["store"], each["connection"]) for each in found] == [
            ("APPEND_BLOCK_END", "DATA_APPENDED", "replied", 0, 1),
            ("SETUP_APPEND", "APPEND_SETUP", "replied", 0, 1),
            ("CREATE_SEGMENT", "SEGMENT_CREATED", "replied", 0, 1),
            ("HELLO", "HELLO", "replied", 0, 1),
        ]
        one = await done(http, "GET", f"/v1/requests/{found[0]['number']}")
        assert [each["part"] for each in one["frames"]] == ["request", "reply"]
        trace = await http.get("/v1/trace", params={"form": "jsonl"})
        assert len(trace.text.splitlines()) == 10


async def test_requests_are_waited_for_and_verified() -> None:
    async with tapped(watched=False) as (tap, http), through(tap) as peer:
        assert refusal(await http.get("/v1/requests/verify?exactly=0"))[0] == 409
        assert await done(http, "POST", "/v1/requests/keep") == {"last": 3}
        await peer.ask(append(1))
        match = "type = APPEND_BLOCK_END"
        found = await done(http, "GET", "/v1/requests/wait", match=match)
        assert found["segments"] == [SEGMENT]
        assert await done(http, "GET", "/v1/requests/verify", match=match, exactly=1) == {"count": 1}


async def test_connections_are_listed_counted_and_closed() -> None:
    async with tapped() as (tap, http), through(tap) as one, through(tap) as other:
        found = (await done(http, "GET", "/v1/connections"))["connections"]
        assert [(each["number"], each["store"], each["writers"]) for each in found] == [(1, 0, None), (2, 0, None)]
        (counted,) = (await done(http, "GET", "/v1/counters"))["stores"]
        assert counted["totals"] == {
            "connections": 2,
            "bytes_in": sum(each["bytes_in"] for each in found),
            "bytes_out": sum(each["bytes_out"] for each in found),
        }
        assert counted["now"] == {"connections_open": 2, "outstanding_bytes": 0}
        await done(http, "DELETE", "/v1/connections/1")
        assert await one.closed() == b""
        await until(lambda: len(tap.links) == 1)
        await done(http, "DELETE", "/v1/connections/2", drain=True)
        assert await other.closed() == b""
        await until(lambda: not tap.links)
        (after,) = (await done(http, "GET", "/v1/counters"))["stores"]
        assert after["totals"] == counted["totals"]
        assert after["now"]["connections_open"] == 0


async def test_without_history_requests_are_refused_and_connections_keep_their_numbers() -> None:
    async with tapped(history_bytes=0) as (tap, http), through(tap):
        for method, path in (("GET", "requests"), ("POST", "recordings"), ("GET", "recordings"), ("GET", "trace")):
            status, why, _ = refusal(await http.request(method, f"/v1/{path}"))
            assert (status, "history_bytes" in why) == (409, True)
        assert (await done(http, "GET", "/v1/server"))["capabilities"] == ["tap", "counters", "faults", "toxics"]
        assert [each["number"] for each in (await done(http, "GET", "/v1/connections"))["connections"]] == [1]


async def test_calls_of_the_controller_are_kept_and_the_stores_it_names_are_listed(grpc_runs: None) -> None:
    async with (
        MockCluster(2) as cluster,
        Tap(f"tcp://{cluster.controller_uri}", http_port=0) as tap,
        httpx.AsyncClient(base_url=tap.http_url, trust_env=False, timeout=60) as http,
    ):
        assert await done(http, "GET", "/v1/counters") == {"time_s": pytest.approx(0, abs=1e12), "stores": []}
        assert (await http.get("/metrics")).status_code == 200
        from segstore.client import connect

        async with connect(tap.controller_uri) as pravega:
            await pravega.controller.create_scope("shop")
            await pravega.controller.create_stream("shop", "orders", segments=4)
            async with pravega.event_writer("shop", "orders") as writer:
                await writer.write(b"tea", routing_key="k")
        served = await done(http, "GET", "/v1/server")
        assert served["controller"] == tap.controller_uri
        assert {each["upstream"] for each in served["stores"]} <= {str(store.address) for store in cluster.stores}
        assert served["stores"]
        calls = (await done(http, "GET", "/v1/requests", match="rpc = createScope"))["requests"]
        assert [call["stage"] for call in calls] == ["replied"]
