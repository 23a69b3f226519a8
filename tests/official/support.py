"""What the tests with the official client share: their marks, clusters, and what is looked up in a cluster."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller import ScalingPolicy, StreamConfig
from segstore.server.controller.state import StreamSegment
from segstore.server.controller.state.history import equal_ranges

__all__ = [
    "MARKS",
    "Held",
    "current_segments",
    "cut_connections",
    "eventually",
    "make_stream",
    "scale",
    "segment_names",
    "transient_segments",
    "uri",
]

MARKS: Final = [
    pytest.mark.needs("pravega, the official client"),
    pytest.mark.usefixtures("grpc_runs"),
    pytest.mark.timeout(300),
]
"""What every test with the official client is marked with; `tests/conftest.py` gives them a second try."""


def uri(cluster: MockCluster, scheme: str = "tcp") -> str:
    """What the client is pointed at."""
    return f"{scheme}://{cluster.controller_uri}"


def segment_names(cluster: MockCluster) -> list[str]:
    """The segments of all stores."""
    return sorted(
        name for store in cluster.stores for part in store.store.containers.values() for name in part.segments
    )


def transient_segments(cluster: MockCluster) -> list[str]:
    return [name for name in segment_names(cluster) if "#transient" in name]


def cut_connections(cluster: MockCluster) -> int:
    """Break all connections to the stores, as a failing network does; give how many there were."""
    cut = 0
    for store in cluster.stores:
        for connection in tuple(store.hub.connections):
            connection.abort()
            cut += 1
    return cut


def current_segments(cluster: MockCluster, scope: str, stream: str) -> Sequence[StreamSegment]:
    return cluster.controller.state.stream(scope, stream).current.segments


async def make_stream(cluster: MockCluster, scope: str, stream: str, segments: int) -> None:
    """Make a stream, and its scope if that is not there."""
    if not cluster.controller.scopes.exists(scope):
        cluster.controller.scopes.create(scope)
    await cluster.controller.create_stream(scope, stream, StreamConfig(scaling=ScalingPolicy(min_segments=segments)))


async def scale(cluster: MockCluster, scope: str, stream: str, count: int) -> None:
    """Seal all segments of a stream; `count` new ones follow."""
    sealed = [segment.id for segment in current_segments(cluster, scope, stream)]
    await cluster.controller.scaling.start(scope, stream, sealed, equal_ranges(count))


async def eventually(holds: Callable[[], bool], what: str, deadline_s: float = 90.0) -> None:
    """Wait until something holds. Fails, saying what did not."""
    end = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"in {deadline_s} s it did not come to pass that {what}")
        await asyncio.sleep(0.02)


class Held(NamedTuple):
    """How many descriptors are open, and how many tasks there are by what they run."""

    descriptors: int
    tasks: Counter[str]

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        tasks = Counter(repr(task.get_coro()).split(" at ")[0] for task in asyncio.all_tasks())
        return cls(len(list(Path("/dev/fd").iterdir())), tasks)

    def is_within(self, other: Held) -> bool:
        return self.descriptors <= other.descriptors and self.tasks <= other.tasks
