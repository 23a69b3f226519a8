"""A mock with a control API, and a client for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.control_api import Controlled, serving
from segstore.wire import Hello
from tests.server.support import Peer

__all__ = ["alone", "asking", "asking_cluster", "client_of", "done", "peer_of", "raw", "refusal"]


def client_of(mock: MockSegmentStore | MockCluster) -> httpx.AsyncClient:
    """A client of its control API; no proxy of the environment comes between."""
    return httpx.AsyncClient(base_url=mock.http_url, trust_env=False, timeout=60)


@asynccontextmanager
async def asking(**settings: Any) -> AsyncIterator[tuple[MockSegmentStore, httpx.AsyncClient]]:
    """A store, and a client of its control API."""
    async with MockSegmentStore(http_port=0, **settings) as mock, client_of(mock) as http:
        yield mock, http


def alone(controlled: Controlled) -> httpx.AsyncClient:
    """A client of an application that has no listener and no guard."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(serving(controlled)), base_url="http://localhost")


@asynccontextmanager
async def asking_cluster(**settings: Any) -> AsyncIterator[tuple[MockCluster, httpx.AsyncClient]]:
    """Stores with a controller, and a client of their control API."""
    async with MockCluster(http_port=0, **settings) as mock, client_of(mock) as http:
        yield mock, http


async def done(http: httpx.AsyncClient, method: str, path: str, body: Any = None, **params: Any) -> Any:
    """What a request that succeeds is answered."""
    given = {} if body is None else {"json": body}
    answer = await http.request(method, path, params=params, **given)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


@asynccontextmanager
async def peer_of(mock: MockSegmentStore | MockCluster) -> AsyncIterator[Peer]:
    """A peer that has said Hello."""
    peer = await Peer.connect(mock)
    try:
        await peer.ask(Hello(17, 5))
        yield peer
    finally:
        peer.writer.transport.abort()


def refusal(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, sentence and place of a refusal, whose form is checked."""
    assert answer.headers["content-type"] == "application/problem+json"
    said = answer.json()
    assert set(said) - {"errors"} == {"status", "title", "detail", "where"}
    assert said["status"] == answer.status_code
    assert said["detail"]
    return answer.status_code, said["detail"], said["where"]


async def raw(url: str, request: bytes, *, ends: bool = False) -> bytes:
    """All that is answered to bytes, until the server closes. ends: the client says that it sends no more."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        if ends:
            writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.transport.abort()
