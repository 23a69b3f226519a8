"""Random runs of the client against a cluster, with random faults, judged: each broken rule is a false alarm or a bug.

    python -m tests.soak.judged_runs --runs 10000

A run has writers, transactions, large events, scaling and readers, or a table, a reader group or a byte stream;
connections are cut, requests fail, and containers move. Exit status 1 if a rule is broken; `--first SEED --runs 1`
repeats a run.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from segstore.check import without_injected
from segstore.client import Client, GroupReader, ReaderGroup, TableConfig, connect
from segstore.client.errors import ClientError
from segstore.explore.running import MemoryRecorder
from segstore.server.cluster import MockCluster
from segstore.traces.files import TraceFile
from segstore.wire.history import judge, placed
from segstore.wire.trace import Record
from tests.seeds.large_events import big, scale, small
from tests.wire.history.traces.test_register_facts import use, use_mark

KINDS = (
    *("APPEND_BLOCK_END", "SETUP_APPEND", "READ_SEGMENT", "CREATE_TRANSIENT_SEGMENT", "MERGE_SEGMENTS"),
    *("CONDITIONAL_APPEND", "UPDATE_TABLE_ENTRIES", "REMOVE_TABLE_KEYS", "READ_TABLE", "UPDATE_SEGMENT_ATTRIBUTE"),
    *("GET_SEGMENT_ATTRIBUTE", "GET_STREAM_SEGMENT_INFO"),
)
FAULTS = (
    *("close before", "close after", "WrongHost", {"close": "after", "reply_bytes": 5}),
    *({"error": "WrongHost", "at": "after"}, {"delay_ms": 5}, {"delay_ms": 5, "at": "after"}),
)
RUN_S = 30.0


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
                        await transaction.commit(wait=random.random() < 0.5)


async def read(pravega: Client) -> None:
    async with pravega.event_reader("a", "s") as events:
        async for _ in events:
            pass


async def move(mock: MockCluster, random: Random) -> None:
    """Moves containers between two stores."""
    for _ in range(3):
        await asyncio.sleep(random.random() / 20)
        await mock.move(random.randrange(mock.settings.store.containers), random.randrange(2))


async def use_stream(pravega: Client, random: Random, count: int) -> None:
    """Writers, transactions and scaling while a reader reads; the stream is sealed and read again."""
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
    await read(pravega)


async def use_table(pravega: Client, random: Random, count: int) -> None:
    """Tasks that change keys and a mark."""
    await pravega.controller.create_table("a", "t", TableConfig(partitions=1, primary_key_bytes=2))
    async with (
        pravega.table("a", "t") as table,
        pravega.revisioned_stream("a", "s") as stream,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(3):
            tasks.create_task(use(table, Random(random.random()), count))
            tasks.create_task(use_mark(stream, Random(random.random()), count))


async def use_group(pravega: Client, random: Random, count: int) -> None:
    """Readers of a group that come and go while events are written."""

    async def read_some(reader: GroupReader) -> None:
        async with reader:
            with suppress(TimeoutError):
                for _ in range(random.randrange(2, count)):
                    async with asyncio.timeout(0.3):
                        await reader.read()

    async def come_and_go(group: ReaderGroup, name: str) -> None:
        for visit in range(2):
            await read_some(group.reader(f"{name} {visit}"))

    async with pravega.reader_group("a", "g", streams=["s"], refresh_ms=100) as group, asyncio.TaskGroup() as tasks:
        tasks.create_task(write(pravega, random, "writer", count))
        for number in range(3):
            tasks.create_task(come_and_go(group, f"reader {number}"))


async def use_bytes(pravega: Client, random: Random, count: int) -> None:
    """Writers of bytes, one or two at a time, while a reader reads; the stream is sealed and read again."""

    async def write_bytes(name: str) -> None:
        async with pravega.byte_writer("a", "s") as writer:
            for number in range(count):
                data = f"{name} {number} ".encode() + random.randbytes(random.randrange(400))
                if random.random() < 0.2:
                    await writer.append_at(await writer.tail(), data)
                else:
                    await writer.append(data)
            await writer.flush()

    async def read_bytes() -> None:
        async with pravega.byte_reader("a", "s") as reader:
            data = b"x"
            while data:
                data = await reader.read(random.randrange(1, 2_000))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read_bytes())
        for visit in range(2):
            await asyncio.gather(*(write_bytes(f"writer {visit} {number}") for number in range(random.choice((1, 2)))))
        await pravega.controller.seal_stream("a", "s")
    await read_bytes()


async def recorded_run(seed: int, *, faults: int = 0, count: int = 20) -> list[Record]:
    """Returns the records of a random run. count: of each writer's events."""
    random = Random(seed)
    uses = random.choice((use_stream, use_stream, use_table, use_group, use_bytes))
    segments, stores, late = random.choice((1, 2)), random.choice((1, 2)), random.random() < 0.3
    if uses is use_bytes:
        segments = 1
    async with recorded(segments, stores, late=late) as (mock, pravega, recorder):
        for _ in range(faults):
            every, do = random.randrange(3, 12), random.choice(FAULTS)
            mock.faults.add(f"type = {random.choice(KINDS)}", every=every, times=6, do=do)
        with suppress(TimeoutError, ClientError):
            async with asyncio.timeout(RUN_S), asyncio.TaskGroup() as tasks:
                if stores == 2 and faults:
                    tasks.create_task(move(mock, random))
                try:
                    await uses(pravega, random, count)
                except* ClientError:
                    pass  # it gave up, which its history must explain, too
        mock.faults.clear()
    return recorder.records()


def alarms(records: list[Record]) -> list[str]:
    """Returns the rules that a run breaks, without rules of the protocol that an injected reply breaks."""
    broken = without_injected(judge(placed(records, "run")).broken, lambda place: records[place.record])
    return [f"{verdict.rule}: {verdict.text}" for verdict in broken]


def alarms_in(trace: Path) -> list[str]:
    """Returns the rules that a recording breaks."""
    with TraceFile(trace) as file:
        return alarms(list(file.records()))


def soak(seed: int) -> tuple[int, list[str]]:
    """Judges the run of a seed; returns the number of records and the alarms, a client that hung among them."""
    logging.disable(logging.CRITICAL)
    begun_s = time.monotonic()
    records = asyncio.run(recorded_run(seed, faults=seed % 4))
    hung = [f"the client did not end within {RUN_S} s"] if time.monotonic() - begun_s >= RUN_S else []
    return len(records), alarms(records) + hung


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first run")
    args = parser.parse_args()
    started_s, total, broken = time.monotonic(), 0, 0
    seeds = range(args.first, args.first + args.runs)
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for seed, (count, lines) in zip(seeds, processes.map(soak, seeds, chunksize=4), strict=True):
            total += count
            broken += bool(lines)
            for line in lines:
                print(f"--first {seed}: {line}", file=sys.stderr, flush=True)
    print(f"{args.runs} runs, {total:,} records, {broken} with a broken rule, {time.monotonic() - started_s:.0f} s")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
