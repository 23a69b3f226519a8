"""Who may ask: not the pages of others, not under another name, not without bound."""

import asyncio
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from segstore.client import ClientSettings
from segstore.client.control_api import register_writer
from segstore.client.errors import PeerRefused
from segstore.server import MockSegmentStore
from segstore.server.control_api.guard import Guard, host_of
from tests.looped import looped
from tests.server.control_api.support import asking, raw, refusal


@looped(
    ("header", "host"),
    [
        ("127.0.0.1:80", "127.0.0.1"),
        ("LocalHost", "localhost"),
        ("localhost.:1", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("", None),
        (":80", None),
        ("a:b", None),
        ("a:8²", None),
        ("[::1", None),
        ("[evil]:1", None),
        ("[::1]x", None),
    ],
)
def test_the_host_of_a_header(header: str, host: str | None) -> None:
    assert host_of(header) == host


@looped(
    ("bound", "host", "served"),
    [
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "::1", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("127.0.0.1", "127.9.9.9", True),
        ("127.0.0.1", "localhost.evil.example", False),
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "rebound.example", False),
        ("0.0.0.0", "store.test", True),
    ],
)
def test_a_name_that_anybody_could_have_resolve_here_is_not_served(bound: str, host: str, served: bool) -> None:
    guard = Guard(None, bound=bound, names=["Store.Test"])  # type: ignore[arg-type]  # nothing is passed on
    assert guard._serves(host) is served


@looped(
    ("headers", "where"),
    [
        ({"host": "rebound.example"}, "header.host"),
        ({"origin": "http://evil.example"}, "header.origin"),
        ({"origin": "null"}, "header.origin"),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, "header.sec-fetch-site"),
        ({"sec-fetch-site": "same-site"}, "header.sec-fetch-site"),
    ],
)
async def test_a_page_of_another_origin_is_refused(headers: dict[str, str], where: str) -> None:
    async with asking() as (mock, http):
        for method, path in (("GET", "/v1/health"), ("GET", "/"), ("OPTIONS", "/v1/faults")):
            status, _, there = refusal(await http.request(method, path, headers=headers))
            assert (status, there) == (403, where)
        posted = await http.post("/v1/faults", json={"do": "close"}, headers=headers)
        assert refusal(posted)[0] == 403
        assert mock.faults.rules == []


async def test_the_servers_own_origin_and_a_link_that_is_followed_are_served(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    same = {"origin": mock.http_url, "sec-fetch-site": "same-origin"}
    assert (await http.post("/v1/writers", json={"name": "a"}, headers=same)).status_code == 201
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await http.get("/", headers=followed)).status_code == 200
    for path in ("/v1/health", "/metrics"):  # a link leads to the page and nowhere else
        assert refusal(await http.get(path, headers=followed))[::2] == (403, "header.sec-fetch-site")


TOKEN = "0123456789abcdef"


async def test_with_the_token_all_is_served_but_what_others_pages_ask(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    async with asking(http_token_file=file) as (mock, http):
        for bearing in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
            http.headers["authorization"] = bearing
            assert (await http.get("/v1/health")).status_code == 200
        assert (await http.post("/v1/faults", json={"do": "close"})).status_code == 201
        assert mock.faults.rules == ["rule 1"]
        assert refusal(await http.get("/v1/health", headers={"origin": "http://evil.example"}))[0] == 403
        settings = ClientSettings(control_api=mock.http_url, control_api_token=TOKEN)
        assert settings.control_api is not None
        await register_writer(settings.control_api, "orders", 60_000, settings.control_api_token)
        with pytest.raises(PeerRefused, match="401"):
            await register_writer(settings.control_api, "orders", 60_000)
        assert (await http.get("/v1/writers")).json()["names"] == ["orders"]


@looped("token", ["two words", "line\r\nhost: x", "é"])
def test_a_token_of_a_client_is_one_word(token: str) -> None:
    with pytest.raises(ValueError, match="one word") as caught:
        ClientSettings(control_api_token=token)
    assert token not in str(caught.value)


async def test_a_form_cannot_send_a_body(http: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        answer = await http.post("/v1/writers", content=b'{"name": "a"}', headers={"content-type": kind})
        assert refusal(answer)[::2] == (415, "header.content-type")


async def test_two_hosts_or_none_are_refused() -> None:
    async with asking() as (mock, _):
        for hosts in (b"", b"host: localhost\r\nhost: rebound.example\r\n"):
            answered = await raw(mock.http_url, b"GET /v1/health HTTP/1.0\r\n" + hosts + b"\r\n")
            assert answered.startswith(b"HTTP/1.1 400 ")


async def test_answers_are_not_kept_nor_given_to_other_pages(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/health")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers


async def test_a_body_that_is_too_long_is_refused_and_one_of_a_refused_request_is_not_waited_for() -> None:
    def post(url: str, *, chunked: bool) -> int:
        with closing(HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
            body = b" " * 2_000_000
            sent = iter([body]) if chunked else body
            connection.request("POST", "/v1/faults", sent, {"content-type": "application/json"}, encode_chunked=chunked)
            return connection.getresponse().status

    async with asking() as (mock, _):
        for chunked in (False, True):
            assert await asyncio.to_thread(post, mock.http_url, chunked=chunked) == 413
        head = b"POST /v1/faults HTTP/1.0\r\nhost: rebound.example\r\ncontent-length: 9\r\n\r\n"
        assert (await raw(mock.http_url, head)).startswith(b"HTTP/1.1 403 ")


async def test_bytes_that_are_not_http_end_that_connection_only(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    for sent in (b"\x00\x01\x02\r\n\r\n", b"GET /" + b"a" * 32 * 1024):
        assert (await raw(mock.http_url, sent)).startswith(b"HTTP/1.1 400 ")
    assert (await http.get("/v1/health")).status_code == 200


async def test_without_the_token_there_is_the_page_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    wrong = ([], [b""], [f"Basic {TOKEN}".encode()], [f"Bearer {TOKEN}x".encode()], [f"Bearer {TOKEN}".encode()] * 2)
    async with asking(http_token_file=file) as (mock, http):
        for values in wrong:
            headers = [(b"authorization", value) for value in values]
            for method, path in (("GET", f"/v1/requests?token={TOKEN}"), ("DELETE", "/v1/faults"), ("POST", "/")):
                answer = await http.request(method, path, headers=headers)
                assert refusal(answer)[::2] == (401, "header.authorization")
                assert answer.headers["www-authenticate"] == "Bearer"
            assert (await http.get("/", headers=headers)).status_code == 200
        assert refusal(await http.post("/v1/faults", json={"do": "close"}))[0] == 401
        assert mock.faults.rules == []
