"""The port of the REST API: who may ask, TLS, and settings."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from segstore.server.cluster import ClusterSettings, MockCluster
from segstore.server.controller import SegmentAdmin
from segstore.server.net import AddressInUse
from tests.server.certificates import write_certificate
from tests.server.rest.support import asking, client_of, refused, stream

pytestmark = pytest.mark.usefixtures("grpc_runs")


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
