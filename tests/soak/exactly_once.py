"""Every event once and in the order of its key, whatever happens on the way: one seed, one schedule.

A seed draws the client's settings, the faults and a schedule: after so many events connections are cut, the stream is
scaled (its segments are sealed and have successors), a store stops, the others take what it had, and it comes back.
Meanwhile rules of faults end connections before the store took an append and after
it, before the acknowledgement, and answer WrongHost. In the end the stream is sealed and read with nothing in its way.

The bounded version is tests/client/segment/test_exactly_once.py, the long one `python -m tests.soak.exactly_once`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from itertools import pairwise
from typing import Any

from segstore.client import Backoff, Client, ClientSettings, connect
from segstore.client.errors import RequestRejected
from segstore.client.stream import EventWriter
from segstore.explore.running import MemoryRecorder
from segstore.server.cluster import MockCluster
from tests.soak.judged_runs import alarms

__all__ = ["Outcome", "run_seed"]

SCOPE, STREAM = "soak", "once"
STORES = 3
CONTAINERS = 6
WAIT_S = 120.0


class Outcome:
    """What a seed did and what came of it.

    Attributes:
        did: how often each thing happened.
        wrong: keys whose events were not read once and in order, across all segments.
        alarms: the rules that the recorded traffic breaks.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.events = 0
        self.did: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.alarms: list[str] = []

    def compare(self, written: dict[str, int], read: dict[str, list[int]]) -> None:
        """written: how many events each key has, numbered from 0. read: the numbers of each, as they were read."""
        self.events = sum(written.values())
        expected = {key: list(range(count)) for key, count in written.items() if count}
        self.wrong = [key for key in expected | read if read.get(key) != expected.get(key)]


def draw_settings(chance: random.Random) -> ClientSettings:
    return ClientSettings(
        append_batching=chance.choice(["turn", "turn", "blocks"]),
        enable_connection_pooling=chance.random() < 0.8,
        max_connections_per_store=chance.choice([1, 2, 10]),
        pool_policy=chance.choice(["fewest_flows", "least_busy"]),
        max_batch_events=chance.choice([1, 7, 500]),
        max_batch_bytes=chance.choice([2_000, 1 << 20]),
        max_in_flight_bytes=chance.choice([20_000, 1 << 24]),
        write_buffer_bytes=chance.choice([3_000, 1 << 20]),
        retry=Backoff(initial_ms=1, multiplier=2, max_ms=50, jitter=0.2, max_attempts=60),
        reconnect_backoff=Backoff(initial_ms=1, max_ms=5, jitter=0.2),
    )


def add_faults(cluster: MockCluster, chance: random.Random) -> None:
    for does in ("close before", "close after", "WrongHost", {"close": "after", "reset": True}):
        if chance.random() < 0.7:
            cluster.faults.add("type = APPEND_BLOCK_END", probability=chance.choice([0.002, 0.01, 0.05]), do=does)
    if chance.random() < 0.3:
        cluster.faults.add("type = SETUP_APPEND", probability=0.1, do=chance.choice(["close after", "WrongHost"]))


class Disturbance:
    """What happens to the cluster between two events."""

    def __init__(self, cluster: MockCluster, pravega: Client, chance: random.Random, did: Counter[str]) -> None:
        self._cluster = cluster
        self._pravega = pravega
        self._chance = chance
        self._did = did

    async def next(self) -> None:
        kind = self._chance.choices([self.cut, self.scale, self.restart], weights=[6, 2, 3])[0]
        self._did[kind.__name__] += 1
        await kind()

    async def cut(self) -> None:
        """Some connections of one store break, as a failing network does it."""
        store = self._chance.choice(self._cluster.stores)
        for connection in list(store.hub.connections):
            if self._chance.random() < 0.7:
                connection.abort()

    async def scale(self) -> None:
        """New segments take the place of all; a scale that is still under way, or meets no store, is left alone."""
        controller = self._pravega.controller
        now = await controller.current_segments(SCOPE, STREAM)
        parts = self._chance.randint(1, 5)
        edges = [number / parts for number in range(parts + 1)]
        try:
            await controller.scale(SCOPE, STREAM, [each.segment_id for each in now], list(pairwise(edges)))
        except RequestRejected as error:
            if error.details["status"] not in ("PRECONDITION_FAILED", "FAILURE"):
                raise

    async def restart(self) -> None:
        """A store goes, the others take its containers with what it had stored, and it comes back."""
        number = self._chance.randrange(STORES)
        await self._cluster.stop_store(number)
        await asyncio.sleep(self._chance.choice([0, 0, 0.005]))
        await self._cluster.start_store(number)


async def run_seed(seed: int, events: int) -> Outcome:
    """Writes that many events under the seed's schedule, reads them back and compares."""
    chance, outcome = random.Random(seed), Outcome(seed)
    settings = draw_settings(chance)
    async with MockCluster(STORES, containers=CONTAINERS) as cluster:
        recorder = MemoryRecorder()
        for store in cluster.stores:
            store.hub.recorder = recorder
        uri = f"tcp://{cluster.controller_uri}"
        async with asyncio.timeout(WAIT_S), connect(uri, settings, random=random.Random(seed)) as pravega:
            await pravega.controller.create_scope(SCOPE)
            await pravega.controller.create_stream(SCOPE, STREAM, segments=chance.randint(1, 4))
            add_faults(cluster, chance)
            written = await _write(cluster, pravega, chance, outcome, events)
            outcome.did["faults"] = len(cluster.faults.decisions)
            outcome.did["lost connections"] = pravega.metrics().connections_lost
            cluster.faults.clear()
            await _seal(pravega)
        read: dict[str, list[int]] = {}
        async with asyncio.timeout(WAIT_S), connect(uri) as pravega, pravega.event_reader(SCOPE, STREAM) as found:
            async for event in found:
                key, number = event.data.split(b":")[:2]
                read.setdefault(key.decode(), []).append(int(number))
    outcome.compare(written, read)
    outcome.alarms = alarms(recorder.records())
    return outcome


async def _seal(pravega: Client) -> None:
    """Once every container has an owner again."""
    while True:
        try:
            return await pravega.controller.seal_stream(SCOPE, STREAM)
        except RequestRejected as error:
            if error.details["status"] != "FAILURE":
                raise
        await asyncio.sleep(0.01)


async def _write(
    cluster: MockCluster, pravega: Client, chance: random.Random, outcome: Outcome, events: int
) -> dict[str, int]:
    disturbance = Disturbance(cluster, pravega, chance, outcome.did)
    writers: list[EventWriter] = [pravega.event_writer(SCOPE, STREAM) for _ in range(chance.randint(1, 3))]
    keys = [f"k{number}" for number in range(chance.randint(1, 40))]
    written = dict.fromkeys(keys, 0)
    every = max(1, events // chance.randint(8, 25))
    pauses = chance.choice([0.0, 0.01, 0.2])
    try:
        for writer in writers:
            await writer.open()
        waits: set[asyncio.Future[Any]] = set()
        for step in range(1, events + 1):
            at = chance.randrange(len(keys))
            key = keys[at]
            filler = b"x" * (chance.randrange(2_000) if chance.random() < 0.05 else chance.randrange(30))
            event = b"%s:%d:%s" % (key.encode(), written[key], filler)
            written[key] += 1
            done = await writers[at % len(writers)].submit(event, routing_key=key)
            if chance.random() < 0.01:
                waits.add(done)
            if chance.random() < pauses:
                await asyncio.sleep(0)
            if step % every == 0:
                await disturbance.next()
        for each in writers:
            await each.flush()
        for done in waits:
            done.result()
        for each in writers:
            await each.aclose()
    finally:
        for each in writers:
            await each.abort()
    return written


async def soak(first: int, seeds: int, events: int) -> int:
    """`events` events over `seeds` seeds; the number of seeds that went wrong."""
    wrong, done, total, start = 0, 0, Counter[str](), time.monotonic()
    for seed in range(first, first + seeds):
        outcome = await run_seed(seed, events // seeds)
        total += outcome.did
        done += outcome.events
        if outcome.wrong or outcome.alarms:
            wrong += 1
            print(
                f"seed {seed}: wrong keys: {outcome.wrong or 'none'}, broken rules: {outcome.alarms or 'none'}; again "
                f"with: python -m tests.soak.exactly_once --seed {seed} --seeds 1 --events {events // seeds}",
                file=sys.stderr,
            )
    did = ", ".join(f"{count:,} × {what}" for what, count in sorted(total.items()))
    print(
        f"{done:,} events over {seeds} seeds in {time.monotonic() - start:.0f} s, {wrong} seeds with events that were "
        f"lost, stored twice or out of order; {did}"
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.exactly_once", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--events", type=int, default=1_000_000, help="of all seeds together")
    options = parser.parse_args()
    logging.getLogger("segstore").setLevel(logging.ERROR)  # each fault and each cut is a warning
    return 1 if asyncio.run(soak(options.seed, options.seeds, options.events)) else 0


if __name__ == "__main__":
    sys.exit(main())
