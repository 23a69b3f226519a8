"""A store; the tests of sockets run on both loops: uvloop serves, and asyncio's own must not behave otherwise."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from segstore.server import MockSegmentStore
from tests.server.faults.traffic import HostName

_HERE = Path(__file__).parent
_ON_BOTH = frozenset(
    _HERE / name
    for name in (
        "connection/test_connection.py",
        "connection/test_hostile_peers.py",
        "faults/test_faults.py",
        "node/test_runner.py",
        "tap/test_server.py",
        "toxics/test_toxics.py",
    )
)
uvloop.new_event_loop().close()  # the first loop of a process opens pipes that stay, which are no test's fault


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path in _ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def store(mock_settings: dict[str, Any]) -> AsyncIterator[MockSegmentStore]:
    """A store without a controller."""
    async with MockSegmentStore(**mock_settings) as opened:
        yield opened


@pytest.fixture(params=["store", "tap"])
def kind(request: pytest.FixtureRequest) -> HostName:
    """What applies fault rules and toxics."""
    name: HostName = request.param
    return name
