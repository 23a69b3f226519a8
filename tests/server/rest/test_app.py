"""Paths, methods and health of the REST API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.looped import looped
from tests.server.rest.support import asking, refused

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
