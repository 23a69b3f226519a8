"""Whole runs of the client against a cluster are judged: right ones break no rule, and mutants are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segstore.client import Client, connect
from segstore.client.errors import ClientError
from segstore.explore.running import MemoryRecorder
from segstore.server.cluster import MockCluster
from segstore.server.store import Container
from segstore.server.store.segment import Segment
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


# --- mutants of the store ---------------------------------------------------------------------------------------------

Rows = list[tuple[int, int, bytes, int]]
Mutant = Callable[[int, str, bytes, Rows], list[tuple[bytes, Rows]]]
"""Takes the number of an append to a segment, the segment, the writer and the rows; returns what is stored instead."""

_held: list[tuple[bytes, Rows]] = []


def _data(rows: Rows, change: Callable[[bytes, int], bytes]) -> Rows:
    """Changes the data of rows. change: takes a row's data, and where its second half of events begins."""
    return [
        (last, count, change(bytes(data), len(data) // count * (count // 2)), id_) for last, count, data, id_ in rows
    ]


def drops(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    return [(writer, _data(rows, lambda data, half: b"") if number == 4 else rows)]


def halves(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    return [(writer, _data(rows, lambda data, half: data[half:]) if number == 4 else rows)]


def repeats(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    return [(writer, rows)] * (2 if number == 4 else 1)


def turns(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    return [(writer, _data(rows, lambda data, half: data[half:] + data[:half]) if number == 4 else rows)]


def corrupts(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    return [(writer, _data(rows, lambda data, half: data[:-1] + b"?") if number == 4 else rows)]


def swaps(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    """Stores an append behind the next one of another writer."""
    if _held and _held[0][0] != writer:
        return [(writer, rows), _held.pop()]
    if number == 4:
        _held.append((writer, rows))
        return [(writer, _data(rows, lambda data, half: b""))]
    return [(writer, rows)]


def in_transactions(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    return halves(4, segment, writer, rows) if "#transaction" in segment else [(writer, rows)]


def in_large_events(number: int, segment: str, writer: bytes, rows: Rows) -> list[tuple[bytes, Rows]]:
    is_last = "#transient" in segment and len(rows[0][2]) < 1_000
    return [(writer, _data(rows, lambda data, half: b"") if is_last else rows)]


@contextmanager
def mutated(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> Iterator[None]:
    """Stores what the mutant says, while acknowledgements say what was sent."""
    store, counts = Segment.append, dict[str, int]()

    def append(self: Segment, writer: bytes, rows: Sequence[Any], now_ms: int, decided: bool = False) -> None:
        if not writer or not self.name.startswith("a/s/"):
            store(self, writer, rows, now_ms, decided)
            return
        counts[self.name] = number = counts.get(self.name, 0) + 1
        for each_writer, stored in mutant(number, self.name, writer, list(rows)):
            last = max(self.attributes.get(each_writer, -1), stored[-1][0])
            store(self, each_writer, stored, now_ms, decided)
            self.attributes[each_writer] = last

    _held.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "append", append)
        yield


async def small_run() -> Verdicts:
    """Judges a run of two writers that take turns, a transaction and a large event."""
    async with recorded() as (_, pravega, recorder):
        async with pravega.event_writer("a", "s") as one, pravega.event_writer("a", "s") as two:
            for number in range(4):
                for name, writer in (("one", one), ("two", two)):
                    await asyncio.gather(*(writer.write(f"{name} {number} {event}".encode()) for event in range(4)))
            async with pravega.transaction_writer("a", "s") as third, third.begin() as transaction:
                await asyncio.gather(*(transaction.write(b"committed %d" % event) for event in range(4)))
                await transaction.commit()
            await one.write(big(2_500))
            await two.write(b"last one")
        with suppress(ClientError, TimeoutError):
            await pravega.controller.seal_stream("a", "s")
            async with asyncio.timeout(0.5):
                await read(pravega)
    return judge(placed(recorder.records(), "run"))


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (drops, "lost-write"),
        (halves, "lost-write"),
        (repeats, "duplicate"),
        (turns, "reordered"),
        (corrupts, "garbage-read"),
        (swaps, "inconsistent-offsets"),
        (in_transactions, "partial-transaction"),
        (in_large_events, "partial-large-event"),
    ],
)
async def test_a_mutant_of_the_store_is_found_under_its_rule(
    mutant: Mutant, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_segments(await small_run()) == []
    with mutated(monkeypatch, mutant):
        verdicts = await small_run()
    assert rule in verdicts.by_rule, of_segments(verdicts)


async def test_a_store_that_stores_behind_a_seal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Container, "seal_segment", lambda self, name, now_ms: None)
    async with recorded() as (_, pravega, recorder), pravega.event_writer("a", "s") as writer:
        await writer.write(b"before")
        await pravega.controller.seal_stream("a", "s")
        await writer.write(b"behind")
    assert "append-after-seal" in judge(placed(recorder.records(), "run")).by_rule
