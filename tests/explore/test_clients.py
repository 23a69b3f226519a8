"""This project's client, explored: the writer breaks nowhere."""

from __future__ import annotations

import pytest

from segstore.client import connect
from segstore.explore import ExploredCluster, explore

pytestmark = pytest.mark.usefixtures("grpc_runs")

WORLD = ("store restarts", "half-open", "container moves", "scale *", "stream *", "truncated *")


async def prepare(mock: ExploredCluster) -> None:
    async with connect(f"tcp://{mock.controller_uri}") as client:
        await client.controller.create_scope("shop")
        await client.controller.create_stream("shop", "orders")


async def writes(mock: ExploredCluster) -> None:
    async with connect(f"tcp://{mock.controller_uri}") as client, client.event_writer("shop", "orders") as writer:
        for number in range(4):
            await writer.write(b"order %d" % number, routing_key="table")


async def test_the_writer_breaks_nowhere_whatever_the_world_does() -> None:
    explored = await explore(writes, prepare=prepare, match="kind = frame", failures=WORLD, stores=2, timeout_s=20)
    assert explored.findings == [], str(explored)
    assert explored.runs > 2 + 4 * 5
    assert {name for name, _ in explored.not_injected} == {"scale down"}, "the stream has one segment"


async def test_the_writer_breaks_at_no_cut() -> None:
    explored = await explore(writes, prepare=prepare, match="kind = frame", failures=["cut *", "reset *"], timeout_s=20)
    assert (explored.findings, explored.unreached) == ([], []), str(explored)
