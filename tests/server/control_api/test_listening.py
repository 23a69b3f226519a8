"""The control API on its socket: where it listens, in which processes, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from segstore.server import AddressInUse, MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.control_api import ControlApi, Controlled, WriterNames
from segstore.server.control_api.writer_names import TooManyNames
from segstore.server.runner import CannotListen
from segstore.testing import ServerThread
from tests.server.control_api.support import asking, raw
from tests.test_serving import served


def ask(where: str, path: str) -> httpx.Response:
    return httpx.get(f"{where}{path}", trust_env=False, timeout=60)


def test_serve_announces_it_and_ends_with_status_0_while_a_peer_is_connected() -> None:
    with served("--announce", "json", "--http-port", "0") as store:
        host, port = str(store.announced["http"]).rsplit(":", 1)
        assert ask(f"http://{host}:{port}", "/v1/health").json()["controller"] is True
        with socket.create_connection((host, int(port)), timeout=60) as idle:
            idle.sendall(b"POST /v1/writers HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
            assert store.end(signal.SIGTERM) == 0
        assert "not built yet" not in store.errors()


def test_serve_takes_rules_of_faults_while_it_runs() -> None:
    with served("--announce", "json", "--http-port", "0") as store:
        where = f"http://{store.announced['http']}"
        added = httpx.post(f"{where}/v1/faults", json={"match": "type = HELLO", "do": "close"}, trust_env=False)
        assert added.status_code == 201
        with store.connect() as connection:
            connection.sendall(bytes.fromhex("ffffff81 00000008 00000011 00000005"))
            assert connection.recv(100) == b""
        assert ask(where, "/v1/faults").json()["rules"][0]["fired"] == 1
        assert store.end() == 0


def test_a_plain_serve_does_not_import_the_web_library() -> None:
    code = "import segstore.serving, sys; print([n for n in ('fastapi', 'uvicorn', 'starlette') if n in sys.modules])"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.strip() == "[]"


async def test_a_port_that_is_taken_is_said_and_nothing_stays_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AddressInUse, match=r"for HTTP, is taken .*--http-port"):
            await MockSegmentStore(http_port=taken.getsockname()[1]).__aenter__()


async def test_a_host_that_does_not_exist_is_said() -> None:
    with pytest.raises(CannotListen, match="cannot listen on no such host"):
        await ControlApi(Controlled([]), "no such host", 0).start()


async def test_stopping_twice_and_without_starting_is_fine() -> None:
    api = ControlApi(Controlled([]), "127.0.0.1", 0)
    await api.stop()
    await api.start()
    await api.stop()
    await api.stop()


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


@pytest.mark.usefixtures("grpc_runs")
async def test_a_cluster_answers_for_all_its_stores() -> None:
    async with (
        MockCluster(stores=2, http_port=0) as mock,
        httpx.AsyncClient(base_url=mock.http_url, trust_env=False) as http,
    ):
        assert (await http.get("/v1/health")).json() == {"status": "ok", "stores": 2, "controller": True}


async def test_a_cluster_without_it_says_what_to_give() -> None:
    with pytest.raises(RuntimeError, match="http_port=0"):
        _ = MockCluster().http_url


def test_the_servers_of_tests_have_it_on_request() -> None:
    with ServerThread() as servers:
        server = servers.serve(http_port=0)
        assert ask(server.http_url, "/v1/health").json() == {"status": "ok", "stores": 1, "controller": False}
        server.stop()


def test_names_have_a_bound_and_their_order() -> None:
    names = WriterNames(max_names=2)
    assert names.add("b")
    assert names.add("a")
    assert not names.add("b")
    assert list(names) == ["b", "a"]
    with pytest.raises(TooManyNames, match="2 names"):
        names.add("c")
