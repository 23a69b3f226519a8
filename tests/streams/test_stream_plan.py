"""What is read, over sockets: all that holds in memory, and a token that is refused."""

from __future__ import annotations

import inspect

import pytest

from segstore.client.errors import TokenRefused
from segstore.pipeline.stream.plan import cut_at
from segstore.server.cluster import MockCluster
from tests.pipeline.stream import test_plan as in_memory
from tests.pipeline.stream_support import make_stream, using

globals().update(
    {
        name: each
        for name, each in vars(in_memory).items()
        if name.startswith("test_") and inspect.iscoroutinefunction(each)
    }
)


@pytest.mark.usefixtures("grpc_runs")
async def test_a_token_that_is_refused_ends_the_reading() -> None:
    async with MockCluster(1, auth_key="one key") as cluster:
        uri = f"tcp://{cluster.controller_uri}"
        await make_stream(uri)
        cluster.faults.add("type = GET_STREAM_SEGMENT_INFO", do="AuthTokenCheckFailed")
        async with using(uri) as segments:
            with pytest.raises(TokenRefused, match=r"refuses the token for s/out/0\.#epoch\.0"):
                await cut_at(segments, "tail")
