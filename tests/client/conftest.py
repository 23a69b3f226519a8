"""The tests of sockets run on both loops: users run either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

_ON_BOTH = frozenset(
    {
        "test_blocks.py",
        "test_machine.py",
        "test_pool.py",
        "test_raw.py",
        "test_reader.py",
        "test_setup.py",
        "test_transport.py",
    }
)

uvloop.new_event_loop().close()  # the first loop of a process opens pipes that stay, which are no test's fault


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if Path(item.path).name in _ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
