"""The tests of sockets run on both loops, as the client's do."""

from tests.client.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
