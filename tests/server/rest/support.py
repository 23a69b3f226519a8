"""A cluster with a REST API, and clients of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from segstore.server.cluster import MockCluster

__all__ = ["FIXED", "asking", "client_of", "refused", "stream"]

FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}


def client_of(mock: MockCluster, user: str | None = None) -> httpx.AsyncClient:
    """A client with the credentials of a user, whose password is `p`."""
    auth = None if user is None else httpx.BasicAuth(user, "p")
    return httpx.AsyncClient(base_url=mock.rest_url, trust_env=False, timeout=60, auth=auth)


@asynccontextmanager
async def asking(user: str | None = None, **settings: Any) -> AsyncIterator[tuple[MockCluster, httpx.AsyncClient]]:
    """A cluster, and a client of its REST API."""
    async with MockCluster(rest_port=0, **settings) as mock, client_of(mock, user) as http:
        yield mock, http


def refused(answer: httpx.Response) -> tuple[int, str]:
    """Status and sentence of a refusal, whose body is empty as in the reference."""
    assert answer.content == b""
    return answer.status_code, answer.headers["segstore-error"]


def stream(name: str = "s", **more: Any) -> dict[str, Any]:
    return {"streamName": name, "scalingPolicy": FIXED, **more}
