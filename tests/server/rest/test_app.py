"""Paths, methods and health of the REST API; its port: access, TLS, and settings."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from segstore.server.cluster import ClusterSettings, MockCluster
from segstore.server.controller import SegmentAdmin
from segstore.server.net import AddressInUse
from segstore.server.rest.app import HealthStatus, health_of
from tests.looped import looped
from tests.server.certificates import write_certificate
from tests.server.rest.support import asking, client_of, refused, stream

pytestmark = pytest.mark.usefixtures("grpc_runs")

PARTS = ("GRPCServer", "eventProcessor", "retentionService", "watermarkingService")


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with asking() as (_, http):
        yield http


async def test_ping_says_that_the_server_runs(http: httpx.AsyncClient) -> None:
    answer = await http.get("/ping")
    assert (answer.status_code, answer.content) == (200, b"")


@looped(
    ("path", "answer"),
    [
        ("status", "UP"),
        ("readiness", True),
        ("liveness/retentionService", True),
        ("details/watermarkingService", {}),
        ("status/", "UP"),
    ],
)
async def test_health_of_the_whole_and_of_a_part(http: httpx.AsyncClient, path: str, answer: Any) -> None:
    found = await http.get(f"/v1/health/{path}")
    assert (found.status_code, found.json()) == (200, answer)
    assert found.headers["content-type"] == "application/json"


async def test_health_is_a_tree(http: httpx.AsyncClient) -> None:
    up = {"status": "UP", "readiness": True, "liveness": True, "details": {}}
    parts = {name: {"name": name, **up, "children": {}} for name in PARTS}
    assert (await http.get("/v1/health")).json() == {"name": "", **up, "children": parts}
    assert (await http.get("/v1/health/GRPCServer")).json() == parts["GRPCServer"]


@looped(
    ("status", "ready", "alive"),
    [
        (HealthStatus.UP, True, True),
        (HealthStatus.NEW, False, True),
        (HealthStatus.UNKNOWN, False, False),
        (HealthStatus.FAILED, False, False),
    ],
)
def test_a_part_is_ready_or_alive_by_its_status_and_the_whole_is_up_if_all_are_alive(
    status: HealthStatus, ready: bool, alive: bool
) -> None:
    part, whole = health_of({"a": status}, "a"), health_of({"a": status, "b": HealthStatus.UP})
    assert (part.readiness, part.liveness, part.children) == (ready, alive, {})
    assert (whole.name, whole.status, whole.readiness) == ("", "UP" if alive else "DOWN", alive)


@looped("path", ["x", "status/x", "details/x"])
async def test_health_of_an_unknown_part_is_not_found(http: httpx.AsyncClient, path: str) -> None:
    assert refused(await http.get(f"/v1/health/{path}")) == (404, "there is no part 'x'")


@looped(
    ("verb", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/scopes//streams", 404),
        ("GET", "/v1/scopes/a%2Fb/streams/c/d", 404),
        ("PATCH", "/v1/scopes", 405),
        ("POST", "/v1/health", 405),
    ],
)
async def test_unknown_paths_and_methods(http: httpx.AsyncClient, verb: str, path: str, status: int) -> None:
    found, why = refused(await http.request(verb, path))
    assert (found, why.startswith(f"{verb} /")) == (status, True)
    assert "--http-port" in why


async def test_a_path_names_all_its_methods(http: httpx.AsyncClient) -> None:
    allowed = (await http.patch("/v1/scopes/a/streams/s")).headers["allow"]
    assert set(allowed.split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}


async def test_head_answers_as_get_without_a_body(http: httpx.AsyncClient) -> None:
    answer = await http.head("/v1/scopes")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "2")


async def test_text_of_a_peer_is_shown_in_a_header_as_ascii(http: httpx.AsyncClient) -> None:
    status, why = refused(await http.get("/v1/scopes/%C3%A4%0D%0Ax%00"))
    assert (status, why) == (404, "scope ???x? does not exist")


async def test_requests_of_other_pages_names_types_and_sizes_are_refused_without_a_body() -> None:
    async with asking() as (mock, http):
        where = httpx.URL(mock.rest_url)
        own = f"http://{where.host}:{where.port}"
        for headers, status in (
            ({"host": "rebound.example"}, 403),
            ({"origin": "http://evil.example"}, 403),
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"origin": own}, 200),
        ):
            assert (await http.get("/v1/scopes", headers=headers)).status_code == status, headers
        text = await http.post("/v1/scopes", content=b'{"scopeName":"a"}', headers={"content-type": "text/plain"})
        assert refused(text) == (415, "a body is of the type application/json")
        large = await http.post("/v1/scopes", json={"scopeName": "a" * 300_000})
        assert refused(large) == (413, "a body has at most 262144 bytes")
        assert (await http.get("/v1/scopes")).json() == {}


async def test_with_tls_it_is_https(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with MockCluster(rest_port=0, tls_cert=certificate, tls_key=key) as mock:
        url = mock.rest_url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://localhost:")
        async with httpx.AsyncClient(base_url=url, verify=trusting, trust_env=False, timeout=60) as http:
            assert (await http.post("/v1/scopes", json={"scopeName": "a"})).status_code == 201
            assert (await http.get("/v1/scopes", headers={"origin": url})).status_code == 200
            assert (await http.get("/v1/scopes", headers={"origin": url.replace("https", "http")})).status_code == 403


async def test_a_port_that_is_taken_is_named_with_its_option() -> None:
    in_use = pytest.raises(AddressInUse, match=r"for REST, is taken .*--rest-port")
    with socket.create_server(("127.0.0.1", 0)) as taken, in_use:
        await MockCluster(rest_port=taken.getsockname()[1]).__aenter__()
    with pytest.raises(ValueError, match="rest_port needs controller_port"):
        ClusterSettings(rest_port=0)
    with pytest.raises(RuntimeError, match="give rest_port=0"):
        _ = MockCluster().rest_url


async def test_a_request_in_flight_is_answered_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def waits(*_: object) -> None:
        asked.set()
        await asyncio.sleep(0.05)

    async with asking() as (mock, _), client_of(mock) as http:
        await http.post("/v1/scopes", json={"scopeName": "a"})
        monkeypatch.setattr(SegmentAdmin, "create_segment", waits)
        pending = asyncio.create_task(http.post("/v1/scopes/a/streams", json=stream()))
        await asked.wait()
        await mock.stop()
        assert (await pending).status_code == 201
