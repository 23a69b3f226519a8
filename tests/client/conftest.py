"""Mocks and what is connected to them; the tests of sockets run on both loops, because users run either."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from segstore.client import Client, connect
from segstore.client.connection import ConnectionPool
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from tests.client.support import settings

_ON_BOTH = frozenset(
    {
        *("test_blocks.py", "test_ended_writers.py", "test_large_events.py", "test_machine.py", "test_pool.py"),
        *("test_raw.py", "test_reader.py", "test_setup.py", "test_transport.py"),
    }
)

uvloop.new_event_loop().close()  # the first loop of a process opens pipes that stay, which are no test's fault


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if Path(item.path).name in _ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def _is_watched(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("watched") is not None


@pytest.fixture
async def store(mock_settings: dict[str, Any], request: pytest.FixtureRequest) -> AsyncIterator[MockSegmentStore]:
    """A store without a controller."""
    async with MockSegmentStore(watched=_is_watched(request), **mock_settings) as opened:
        yield opened


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    """A pool whose waits are short."""
    async with ConnectionPool(settings()) as opened:
        yield opened


@pytest.fixture
async def mock(
    grpc_runs: None, mock_settings: dict[str, Any], request: pytest.FixtureRequest
) -> AsyncIterator[MockCluster]:
    """A store, or several, and a controller."""
    async with MockCluster(watched=_is_watched(request), **mock_settings) as opened:
        yield opened


@pytest.fixture
async def pravega(mock: MockCluster) -> AsyncIterator[Client]:
    """A client of `mock`, whose waits are short."""
    async with connect(f"tcp://{mock.controller_uri}", settings()) as opened:
        yield opened
