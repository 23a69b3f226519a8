"""A mock cluster of two stores, over sockets, with the stream that the pipeline's tests use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from segstore.server.cluster import MockCluster
from tests.pipeline.stream_support import make_stream


@pytest.fixture
async def cluster(grpc_runs: None) -> AsyncIterator[MockCluster]:
    async with MockCluster(2, containers=4) as running:
        await make_stream(f"tcp://{running.controller_uri}", 1)
        yield running


@pytest.fixture
def uri(cluster: MockCluster) -> str:
    return f"tcp://{cluster.controller_uri}"
