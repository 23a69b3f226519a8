"""The control API on its socket: where it listens, in which processes, and that nothing of it is left."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.control_api import ControlApi, Controlled, listening
from segstore.server.net import CannotListen
from tests.server.control_api.support import asking, raw
from tests.test_serving import served

TOKEN = "0123456789abcdef"


def test_serve_announces_it_asks_for_the_token_and_ends_with_status_0_while_a_peer_is_connected(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with served("--announce", "json", "--http-port", "0", "--http-token-file", str(file)) as store:
        host, port = str(store.announced["http"]).rsplit(":", 1)
        bearing = {"authorization": f"Bearer {TOKEN}"}
        for headers, status in (({}, 401), (bearing, 200)):
            answer = httpx.get(f"http://{host}:{port}/v1/health", headers=headers, trust_env=False, timeout=60)
            assert answer.status_code == status
        assert answer.json()["controller"] is True
        with socket.create_connection((host, int(port)), timeout=60) as idle:
            idle.sendall(b"POST /v1/writers HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
            assert store.end(signal.SIGTERM) == 0
        errors = store.errors()
        assert "not built yet" not in errors
        assert TOKEN not in errors


async def test_a_request_to_upgrade_is_answered_as_if_it_were_none(caplog: pytest.LogCaptureFixture) -> None:
    async with asking() as (mock, _):
        head = b"GET /v1/health HTTP/1.1\r\nhost: localhost\r\n"
        upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n\r\n"
        closing = b"GET /v1/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        answered = await raw(mock.http_url, head + upgrade + closing)
    assert answered.count(b"HTTP/1.1 200 ") == 2
    assert caplog.messages == []


async def test_a_malformed_body_is_answered_once_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/faults HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    async with asking() as (mock, _):
        answer = await raw(mock.http_url, head + b"zz\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        host, port = mock.http_url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 415 ")
        writer.write(b"zz\r\n")
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()
    assert caplog.messages == []


async def test_a_request_whose_body_never_comes_does_not_keep_it_from_stopping() -> None:
    async with asking() as (mock, http):
        await http.get("/v1/health")
        url = mock.http_url
        host, port = url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/writers HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: 5\r\n\r\n{")
        await writer.drain()
    with contextlib.suppress(ConnectionError):  # reset, or closed: either way it has ended
        assert await reader.read() == b""
    writer.transport.abort()
    with pytest.raises(OSError, match=r"."):
        await raw(url, b"")


async def test_a_request_in_progress_when_it_stops_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "_DRAIN_S", 0.05)
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(listening, "serving", lambda *_, **__: never)
    api = ControlApi(Controlled([]), "127.0.0.1", 0)
    await api.start()
    reader, writer = await asyncio.open_connection(*api.address)
    writer.write(b"DELETE /v1/faults HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await asyncio.wait_for(asked.wait(), 10)
    await api.stop()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.transport.abort()
    assert caplog.messages == []


async def test_a_port_has_a_limit_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_MOST_CONNECTIONS", 1)
    async with asking() as (mock, http):
        assert (await http.get("/v1/health")).status_code == 200
        with contextlib.suppress(ConnectionError):  # reset, or closed
            assert await raw(mock.http_url, b"") == b""
        assert (await http.get("/v1/health")).status_code == 200


async def test_off_loopback_it_listens_only_with_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(CannotListen, match=r"is not loopback, so a token is required: --http-token-file$"):
            await ControlApi(Controlled([]), host, 0).start()
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    api = ControlApi(Controlled([]), "0.0.0.0", 0, token_file=file)
    await api.start()
    await api.stop()


async def test_a_file_that_is_no_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in (
        b"",
        b"short",
        b"two words, and long",
        b"0123456789abcde\xe9f",
        b"x" * 4097,
        b"0123456789\n01234567",
    ):
        file.write_bytes(content)
        with pytest.raises(CannotListen, match=f"{file}: a token is one line"):
            await ControlApi(Controlled([]), "127.0.0.1", 0, token_file=file).start()


async def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match=f"{tmp_path}/none: No such file"):
        await MockSegmentStore(http_port=0, http_token_file=tmp_path / "none").__aenter__()
    with pytest.raises(ValueError, match="http_token_file needs http_port"):
        MockCluster(http_token_file=tmp_path / "none")
