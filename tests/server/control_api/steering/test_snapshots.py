"""Snapshots and reset over HTTP."""

from pathlib import Path

import pytest

from tests.looped import looped
from tests.server.control_api.support import asking, asking_cluster, done, peer_of, raw, refusal
from tests.server.support import create

pytestmark = pytest.mark.usefixtures("grpc_runs")


@looped("name", ["%2E%2E", "a%2Fb"])
async def test_a_snapshot_has_a_plain_name(name: str) -> None:
    async with asking() as (mock, _):
        request = f"PUT /v1/snapshots/{name} HTTP/1.0\r\nhost: localhost\r\n\r\n"  # a client would resolve the dots
        answer = await raw(mock.http_url, request.encode())
        assert answer.startswith(b"HTTP/1.1 422 ")
        assert b'"where": "path.name"' in answer


@looped("how", ["POST /v1/reset", "POST /v1/snapshots/base/restore", "DELETE /v1/requests"])
async def test_requests_before_a_reset_are_gone_from_the_list_and_the_trace(how: str) -> None:
    async with asking() as (mock, http):
        await done(http, "PUT", "/v1/snapshots/base")
        async with peer_of(mock) as peer:
            await peer.ask(create())
        before = await done(http, "GET", "/v1/requests")
        assert [each["type"] for each in before["requests"]] == ["CREATE_SEGMENT", "HELLO"]
        await done(http, *how.split())
        after = await done(http, "GET", "/v1/requests")
        assert (after["requests"], after["last"]) == ([], after["forgotten"])
        async with peer_of(mock):
            found = await done(http, "GET", "/v1/requests")
            assert [each["type"] for each in found["requests"]] == ["HELLO"]
            assert found["requests"][0]["number"] > before["last"]
            assert await done(http, "GET", "/v1/requests/verify", at_most=1) == {"count": 1}


async def test_a_server_with_a_data_directory_refuses(tmp_path: Path) -> None:
    async with asking_cluster(data=tmp_path / "data") as (_, http):
        for answer in (await http.put("/v1/snapshots/base"), await http.post("/v1/reset")):
            status, said, _ = refusal(answer)
            assert status == 409
            assert "data directory" in said
