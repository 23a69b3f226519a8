"""A cluster or a tap that applies fault rules, and a peer that is connected to it."""

from collections.abc import AsyncIterator

import pytest

from tests.server.faults.traffic import Host, HostName, hosted, writer_of
from tests.server.support import Peer


@pytest.fixture
async def mock(kind: HostName) -> AsyncIterator[Host]:
    async with hosted(kind) as host:
        yield host


@pytest.fixture
async def peer(mock: Host) -> AsyncIterator[Peer]:
    """A peer with a segment and a writer."""
    async with await writer_of(mock) as peer:
        yield peer
