"""A mock with a control API, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.wire import Hello
from tests.server.support import Peer

__all__ = ["asking", "client_of", "peer_of", "raw", "refusal"]


def client_of(mock: MockSegmentStore | MockCluster) -> httpx.AsyncClient:
    """A client of its control API; no proxy of the environment comes between."""
    return httpx.AsyncClient(base_url=mock.http_url, trust_env=False, timeout=60)


@asynccontextmanager
async def asking(**settings: Any) -> AsyncIterator[tuple[MockSegmentStore, httpx.AsyncClient]]:
    """A store, and a client of its control API."""
    async with MockSegmentStore(http_port=0, **settings) as mock, client_of(mock) as http:
        yield mock, http


@asynccontextmanager
async def peer_of(mock: MockSegmentStore) -> AsyncIterator[Peer]:
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
    assert set(said) == {"status", "title", "detail", "where"}
    assert said["status"] == answer.status_code
    assert said["detail"]
    return answer.status_code, said["detail"], said["where"]


async def raw(url: str, request: bytes) -> bytes:
    """All that is answered to bytes, until the server closes."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.transport.abort()
