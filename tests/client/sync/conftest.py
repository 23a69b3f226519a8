"""A server in a thread of its own, and a synchronous client of it."""

from collections.abc import Iterator

import pytest

from segstore.client.sync import Client, connect
from segstore.testing import RunningServer, ServerThread
from tests.client.support import settings


@pytest.fixture(scope="module")
def server(grpc_runs: None) -> Iterator[RunningServer]:
    with ServerThread() as servers:
        served = servers.serve()
        assert served.controller_uri  # starts the controller
        yield served


@pytest.fixture
def pravega(server: RunningServer) -> Iterator[Client]:
    server.reset()
    with connect(f"tcp://{server.controller_uri}", settings()) as client:
        client.controller.create_scope("a")
        client.controller.create_stream("a", "s", segments=2)
        yield client
