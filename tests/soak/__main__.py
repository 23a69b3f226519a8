"""`make soak`: the official client for SOAK_SECONDS (300) against one cluster that is not left in peace.

    python -m tests.soak [--seed N]

Rounds follow each other, drawn from a seed that is printed: streams are written and read while they are scaled and
connections are cut, transactions are committed across scales, clients are killed in the middle of transactions and
large events, and byte streams, transactions and reader groups are used while replies are late. Each round is recorded
and judged: the recording of a broken rule stays. After each round every event must have been read once and in the order
of its key, and the server must hold no transient segment and no transaction of a killed client, and no more tasks and
descriptors than after the first rounds. Beside them one transaction is kept open for longer than its lease, which the
client's pings prolong.

Exit status 1 at the first thing that is not as it should be, with the seed to run it again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from segstore.check import check
from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig
from segstore.traces.files import FileRecorder
from segstore.wire.trace import Metadata
from tests.official.client import OfficialClient, run
from tests.official.support import (
    Held,
    current_segments,
    cut_connections,
    eventually,
    make_stream,
    scale,
    segment_names,
    transient_segments,
    uri,
)
from tests.official.test_reader_groups import read_by_two

SCENARIOS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("events.basics", "byte_streams.life", "transactions.life")},
    **{f"groups.{name}": {} for name in ("hand_over", "positions", "several_streams", "made_again")},
    "byte_streams.large": {"size": 5_000_000},
    "transactions.large": {"scope": "a", "stream": "s", "keys": 20, "per_key": 50},
}
"""Scenarios with a cluster of their own, and their arguments."""

LEASE_MS = 90_000
SLACK_MS = 2_000
"""The client asks for 90 s and pings about every 90 s."""

PATIENCE_S = 120.0
SPARE_DESCRIPTORS = 8
"""What the client that is kept alive may have open now and then; what leaks, leaks in every round."""


class Soak:
    """One cluster and what is done to it. The second one, with short leases, is for clients that are killed."""

    def __init__(self, cluster: MockCluster, short: MockCluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.short = short
        self.chance = chance
        self.number = 0
        self.events = self.records = 0

    @asynccontextmanager
    async def judged(self, *clusters: MockCluster) -> AsyncIterator[None]:
        """Records clusters, and expects that no rule is broken."""
        folder = Path(tempfile.mkdtemp(prefix="segstore-soak-"))
        recorders = []
        for number, cluster in enumerate(clusters):
            recorders.append(FileRecorder(folder / f"{number}.wtrace", Metadata(17, "make soak")))
            for store in cluster.stores:
                store.hub.recorder = recorders[-1]
        yield
        for recorder in recorders:
            recorder.close()
            report = await asyncio.to_thread(check, [recorder.path])  # the clients ping meanwhile
            expect(not report.broken and not report.skipped, report.text())
            self.records += report.verdicts.records
        shutil.rmtree(folder)

    async def _disturb(self, stream: str) -> None:
        """Cut connections and scale a stream, for ever."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.01, 0.4))
            if self.chance.random() < 0.6:
                cut_connections(self.cluster)
            else:
                await scale(self.cluster, "soak", stream, self.chance.randint(1, 6))

    async def written_and_read(self) -> str:
        """Write and read at once, while connections are cut and the stream is scaled."""
        stream = f"disturbed{self.number}"
        keys, per_key = self.chance.randint(1, 60), self.chance.randint(50, 2000)
        await make_stream(self.cluster, "soak", stream, 1)
        what = {"scope": "soak", "stream": stream, "keys": keys, "per_key": per_key}
        address = uri(self.cluster)
        async with (
            OfficialClient(address, "events.read", **what, group=f"g{self.number}", deadline_s=PATIENCE_S) as reader,
            OfficialClient(address, "events.write", **what, in_flight=self.chance.choice([1, 50, 1000])) as writer,
        ):
            await writer.said("writing")
            disturbing = asyncio.create_task(self._disturb(stream))
            try:
                await writer.result(PATIENCE_S)
            finally:
                disturbing.cancel()
                await asyncio.gather(disturbing, return_exceptions=True)
            found = await reader.result(PATIENCE_S + 10)
        expect(found == {"events": keys * per_key, "wrong": [], "problem": ""}, f"{stream}: {found}")
        self.events += keys * per_key
        return f"{keys} keys, {per_key} events each"

    async def across_a_scale(self) -> str:
        """A transaction is begun before a scale and committed after it."""
        stream = f"rolled{self.number}"
        await make_stream(self.cluster, "soak", stream, self.chance.randint(1, 4))
        async with OfficialClient(
            uri(self.cluster), "transactions.commit_across_a_scale", scope="soak", stream=stream, group=stream
        ) as client:
            await client.said("written", PATIENCE_S)
            count = len(current_segments(self.cluster, "soak", stream)) + self.chance.randint(0, 2)
            await scale(self.cluster, "soak", stream, count)
            client.go_on()
            found = await client.result(PATIENCE_S)
        expect(found["read"] and found["open"] == [True, False], f"{stream}: {found}")
        self.events += 150
        return f"to {count} segments"

    async def killed(self) -> str:
        """Clients are killed in a transaction and in large events."""
        stream = f"killed{self.number}"
        await make_stream(self.short, "soak", stream, 2)
        for scenario in self.chance.choices(["transactions.leave_open", "events.write_for_ever"], k=3):
            async with OfficialClient(uri(self.short), scenario, scope="soak", stream=stream) as client:
                await eventually(lambda: any(store.hub.connections for store in self.short.stores), "it has connected")
                await asyncio.sleep(self.chance.uniform(0.0, 0.6))
                await client.kill()
        await self._deleted(self.short, stream)
        return "three clients"

    async def _deleted(self, cluster: MockCluster, stream: str) -> None:
        await eventually(
            lambda: not any("#transaction" in name for name in segment_names(cluster)), "leases have ended"
        )
        assert cluster.controller is not None
        await cluster.controller.streams.seal("soak", stream)
        await cluster.controller.streams.delete("soak", stream)

    async def deleted(self) -> str:
        """Streams are made, filled with small and large events, and deleted."""
        await run(uri(self.cluster), "events.churn", scope="soak", rounds=3, name=f"churn{self.number}-")
        return "three streams"

    async def on_a_new_cluster(self) -> str:
        """A scenario, or two readers of a group, while replies are late or not."""
        name = self.chance.choice(("two readers", *SCENARIOS))
        latency = self.chance.choice((0, 0, 5, 30))
        async with MockCluster(2) as cluster, self.judged(cluster):
            if latency:
                cluster.faults.toxics.add("latency", latency=latency, jitter=latency)
            if name in SCENARIOS:
                await run(uri(cluster), name, **SCENARIOS[name])
            else:
                read, written = await read_by_two(cluster)
                expect(read == list(range(written)), f"{len(read)} of {written} events are read")
        return f"{name}, replies {latency} ms late"

    async def settle(self) -> None:
        """Wait until nothing is left of a round."""
        for cluster in (self.cluster, self.short):
            await eventually(lambda: not transient_segments(cluster), "transient segments are gone")  # noqa: B023
        await eventually(lambda: not any(store.hub.connections for store in self.short.stores), "connections are gone")


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


async def kept_alive(cluster: MockCluster) -> None:
    """A transaction outlives its first lease, because the client pings."""
    await make_stream(cluster, "soak", "kept", 1)
    assert cluster.controller is not None
    async with OfficialClient(uri(cluster), "transactions.stay", scope="soak", stream="kept") as client:
        await client.said("open")
        (transaction,) = cluster.controller.state.stream("soak", "kept").transactions.values()
        await asyncio.sleep((transaction.lease_until_ms - cluster.controller.now_ms()) / 1000 + 3)
        client.go_on()
        expect(await client.result() is True, "pings did not keep the transaction open")
    print("a transaction was kept open beyond its lease", flush=True)


async def soak(seed: int, seconds: float) -> None:
    chance, end = random.Random(seed), time.monotonic() + seconds
    plain = MockCluster(3, watched=False, containers=6, controller=ControllerConfig(lease_slack_ms=SLACK_MS))
    short = MockCluster(2, watched=False, controller=ControllerConfig(lease_cap_ms=400, lease_slack_ms=100))
    async with plain as cluster, short as with_short_leases:
        work = Soak(cluster, with_short_leases, chance)
        pinging = asyncio.create_task(kept_alive(cluster)) if seconds > (LEASE_MS + SLACK_MS) / 1000 + 10 else None
        if pinging is None:
            print("NOT RUN: a transaction beyond its lease needs SOAK_SECONDS of 103 and more", flush=True)
        kinds = [work.written_and_read, work.across_a_scale, work.killed, work.deleted, work.on_a_new_cluster]
        first: Held | None = None
        try:
            while time.monotonic() < end:
                work.number += 1
                kind = kinds[work.number - 1] if work.number <= len(kinds) else chance.choice(kinds)
                async with work.judged(cluster, with_short_leases):
                    did = await kind()
                await work.settle()
                if first is not None:
                    most = first.tasks.total() + 1  # tasks of gRPC outlive their calls
                    await eventually(lambda: Held.now().tasks.total() <= most, f"tasks are as {first.tasks}")  # noqa: B023
                held = Held.now()
                if work.number == len(kinds):
                    first = held
                expect(
                    first is None or held.descriptors <= first.descriptors + SPARE_DESCRIPTORS,
                    f"{held.descriptors} descriptors, after the first rounds {first.descriptors if first else 0}",
                )
                memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                print(
                    f"round {work.number}, {kind.__name__}: {did}; {held.descriptors} descriptors, "
                    f"{held.tasks.total()} tasks, {memory_mb} MB at most",
                    flush=True,
                )
            if pinging is not None:
                await pinging
        finally:
            if pinging is not None:
                pinging.cancel()
                await asyncio.gather(pinging, return_exceptions=True)
    print(f"{work.number} rounds, {work.events:,} events, each once and in order; {work.records:,} records judged")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    seconds = float(os.environ.get("SOAK_SECONDS") or 300)
    print(f"{seconds:g} s with seed {options.seed}", flush=True)
    try:
        asyncio.run(soak(options.seed, seconds))
    except BaseException:
        print(f"failed; again with: python -m tests.soak --seed {options.seed}", file=sys.stderr)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
