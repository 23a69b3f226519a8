"""The tests of sockets run on both loops: users run either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

_OF_PDP36 = ("pool", "requests", "blocks", "acks", "writers", "reads")
_ON_BOTH = frozenset({"test_transport.py", *(f"test_pdp36_{part}.py" for part in _OF_PDP36)})

uvloop.new_event_loop().close()  # the first loop of a process opens pipes that stay, which are no test's fault


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if Path(item.path).name in _ON_BOTH:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
