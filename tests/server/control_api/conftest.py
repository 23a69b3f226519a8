"""A store with a control API, a client of the API, and a peer of the store."""

from collections.abc import AsyncIterator

import httpx
import pytest

from segstore.server import MockSegmentStore
from tests.server.control_api.support import client_of, peer_of
from tests.server.support import Peer


@pytest.fixture
async def mock() -> AsyncIterator[MockSegmentStore]:
    async with MockSegmentStore(http_port=0) as mock:
        yield mock


@pytest.fixture
async def http(mock: MockSegmentStore) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(mock) as http:
        yield http


@pytest.fixture
async def peer(mock: MockSegmentStore) -> AsyncIterator[Peer]:
    async with peer_of(mock) as peer:
        yield peer
