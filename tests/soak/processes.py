"""Processes of one cluster that are killed, frozen, ended and started again under load, for as many rounds as wanted.

    python -m tests.soak.processes [--rounds 150] [--seed N] [--policy shutdown|reconnect]

Three processes, a real ZooKeeper, four writers whose events are numbered. Every RUNS rounds the stream is sealed and
read: whatever was acknowledged is there once, and in order for each key. Then the next stream begins. The recordings
of all lives, judged together, break no rule.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from segstore.check import check
from tests.cluster_processes import Processes, Workload, chaos
from tests.server.coordination.zookeeper_server import available, zookeeper

RUNS = 10
PATIENCE_S = 600.0


async def run(folder: Path, address: str, rounds: int, seed: int, policy: str) -> None:
    chosen = random.Random(seed)
    processes = Processes(folder, address, 3, "--session-expired-policy", policy)
    for serving in processes.all:
        serving.is_recorded = True
    async with processes:
        for first in range(0, rounds, RUNS):
            work = Workload(processes.uri, 4, stream=f"s{first}")
            async with asyncio.timeout(PATIENCE_S):
                await work.make(4)
                async with work.running():
                    done = await chaos(processes, chosen, min(RUNS, rounds - first))
                events = await work.check()
            print(f"{first + sum(done.values())} {policy}: {done}, {events} events as acknowledged", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--policy", choices=["shutdown", "reconnect"], default="reconnect")
    options = parser.parse_args()
    if not available():
        print("NOT RUN: there is no ZooKeeper here (Java 17 or newer and PySpark's jars)")
        return 0
    print(f"--seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="segstore-processes-") as made:
        folder = Path(made)
        (folder / "zookeeper").mkdir()
        with zookeeper(folder / "zookeeper") as address:
            asyncio.run(run(folder, address, options.rounds, options.seed, options.policy))
        report = check(sorted(folder.glob("*.wtrace")))
    print(report.text())
    return int(bool(report.broken))


if __name__ == "__main__":
    sys.exit(main())
