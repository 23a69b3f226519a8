"""The tests of sockets run on both loops, and stores are made, as the client's are."""

from tests.client.conftest import pytest_asyncio_loop_factories, store

__all__ = ["pytest_asyncio_loop_factories", "store"]
