"""Whole runs of the client against a cluster are judged: none breaks a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from segstore.client import Client, connect
from segstore.client.errors import ClientError
from segstore.explore.running import MemoryRecorder
from segstore.server.cluster import MockCluster
from segstore.traces.files import TraceFile
from segstore.wire.history import Verdicts, judge, placed
from tests.seeds.large_events import big, scale, small

pytestmark = pytest.mark.usefixtures("grpc_runs")

KINDS = ("APPEND_BLOCK_END", "SETUP_APPEND", "READ_SEGMENT", "CREATE_TRANSIENT_SEGMENT", "MERGE_SEGMENTS")


@asynccontextmanager
async def recorded(
    segments: int = 1, stores: int = 1, *, late: bool = False
) -> AsyncIterator[tuple[MockCluster, Client, MemoryRecorder]]:
    """A cluster with a stream. late: whether the recording begins when the stream exists."""
    recorder = MemoryRecorder()
    async with MockCluster(stores=stores) as mock, connect(f"tcp://{mock.controller_uri}", small()) as pravega:
        for server in mock.stores if not late else ():
            server.hub.recorder = recorder
        await pravega.controller.create_scope("a")
        await pravega.controller.create_stream("a", "s", segments=segments)
        for server in mock.stores:
            server.hub.recorder = recorder
        yield mock, pravega, recorder


async def write(pravega: Client, random: Random, name: str, count: int) -> None:
    async with pravega.event_writer("a", "s") as writer:
        for number in range(count):
            size = 1_500 if random.random() < 0.02 else random.randrange(40)
            await writer.submit(f"{name} {number} ".encode() + big(size, number), routing_key=name)
            if random.random() < 0.2:
                await asyncio.sleep(0)
        await writer.flush()


async def commit(pravega: Client, random: Random, count: int) -> None:
    async with pravega.transaction_writer("a", "s") as writer:
        for number in range(count):
            with suppress(ClientError):
                async with writer.begin() as transaction:
                    for event in range(4):
                        await transaction.write(f"{number} {event} of a transaction".encode(), routing_key=str(event))
                    if random.random() < 0.3:
                        await transaction.abort()
                    else:
                        await transaction.commit()


async def read(pravega: Client) -> None:
    async with pravega.event_reader("a", "s") as events:
        async for _ in events:
            pass


async def judged(seed: int, *, faults: int = 0, count: int = 40) -> Verdicts:
    """Judges a run with writers, transactions, large events, scaling and readers, whose connections are cut."""
    random = Random(seed)
    late = random.random() < 0.3
    async with recorded(random.choice((1, 2)), random.choice((1, 2)), late=late) as (mock, pravega, recorder):
        for _ in range(faults):
            do = random.choice(("close before", "close after", {"close": "after", "reply_bytes": 5}))
            every = random.randrange(3, 12)
            mock.faults.add(f"type = {random.choice(KINDS)}", every=every, times=6, do=do)
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(read(pravega))
            async with asyncio.TaskGroup() as writers:
                for number in range(3):
                    writers.create_task(write(pravega, random, f"writer {number}", count))
                writers.create_task(commit(pravega, random, 5))
                if random.random() < 0.7:
                    writers.create_task(scale(pravega, random.choice((1, 2))))
            await pravega.controller.seal_stream("a", "s")
            await reader
        mock.faults.clear()
        await read(pravega)
    return judge(placed(recorder.records(), "run"))


def of_segments(verdicts: Verdicts) -> list[str]:
    return [f"{verdict.rule}: {verdict.text}" for verdict in verdicts.broken if verdict.key.kind == "segment"]


def test_traces_of_the_reference_break_no_rule_of_segments() -> None:
    fixtures = Path(__file__).parent.parent / "fixtures"
    for trace in sorted((*fixtures.glob("reference/*.jsonl"), *fixtures.glob("traces/*.jsonl"))):
        with TraceFile(trace) as file:
            assert of_segments(judge(placed(file.records(), trace.name))) == [], trace


@pytest.mark.parametrize("seed", range(3))
async def test_a_right_run_breaks_no_rule_whatever_fails(seed: int) -> None:
    assert of_segments(await judged(seed, faults=seed)) == []
