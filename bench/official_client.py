"""What does the official Python client (package `pravega`, a Rust core) get out of `segstore serve`, and who limits it?

Both run in processes of their own. Each round writes a stream, reads it and deletes it. Compared is the CPU time of the
two over the same events: as long as the server's is below the client's, the server is not what limits them. And how
long after its start the server has acknowledged the first event of a client that was waiting for it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.pictures import Bars
from bench.processes import ROOT, Serving, serving

__all__ = ["Client", "client_process", "official_client", "own_client", "run"]

LOADS: Final = ((100, 300_000), (10_000, 30_000))
"""Bytes of an event, and how many."""

DOES: Final = {"writing": "write", "reading": "read"}
START_GOAL_S: Final = 1.0


class Client:
    """A process with a client in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **what: Any) -> Any:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a client without its pipes")
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        if self._process.stdout is None:
            raise RuntimeError("a client without its pipes")
        for line in self._process.stdout:
            if line.startswith("{"):  # the client logs to standard output
                return json.loads(line)
        raise RuntimeError("the client ended")


def official_client() -> AbstractContextManager[Client]:
    python = os.environ.get("OFFICIAL_CLIENT_PYTHON") or sys.executable
    return client_process(python, str(ROOT / "bench" / "official_load.py"))


def own_client() -> AbstractContextManager[Client]:
    """This project's client, asked in the same way."""
    return client_process(sys.executable, "-m", "bench.client_load")


@contextmanager
def client_process(*command: str) -> Iterator[Client]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        client = Client(process)
        client.answer()
        yield client
    finally:
        process.kill()
        process.communicate()


def run(effort: Effort) -> Report:
    report = Report(
        "Official client",
        question="Is the official client (the package `pravega`) limited by `segstore serve` or by itself?",
    )
    rows = []
    rounds = max(1, effort.rounds // 3)
    with serving() as server:
        for size, full in LOADS:
            count = max(1000, round(full * effort.scale))
            found: dict[str, list[dict[str, float]]] = {"writing": [], "reading": []}
            for number in range(rounds + 1):
                for doing, times in found.items():
                    times.append(_measure(server, doing, size, count, f"s{size}-{number}"))
            fresh = found["writing"][0]["server_s"] / count * 1e6
            for doing, times in found.items():
                del times[0]
                share = statistics.median(each["server_s"] / each["cpu_s"] for each in times)
                name = f"{doing} events of {size:,} bytes"
                report.figures.append(Figure(f"{name}: server CPU, of the client's", share, 1.0, at_most=True))
                rate = count / statistics.median(each["s"] for each in times)
                rows.append(
                    (
                        name,
                        f"{rate:,.0f}",
                        f"{rate * size / 1e6:,.0f}",
                        f"{statistics.median(each['cpu_s'] for each in times) / count * 1e6:.2f}",
                        f"{statistics.median(each['server_s'] for each in times) / count * 1e6:.2f}",
                        f"{statistics.median(each['server_s'] / each['s'] for each in times):.0%}",
                    )
                )
            report.notes.append(
                f"{size:,} bytes: a first round is not in the table; in it the server took {fresh:.2f} µs for an event "
                "written, because the system first had to clear the memory"
            )
    heading = ("load", "events/s", "MB/s", "client CPU µs an event", "server CPU µs", "of a core, server")
    report.tables.append((heading, rows))
    shares = [figure.value for figure in report.figures]
    report.says = (
        f"The server takes {min(shares):.2f} to {max(shares):.2f} of the CPU time that the client takes "
        "for the same events" + (": the client is the limit." if max(shares) < 1 else ".")
    )
    report.pictures.append(
        Bars(
            "official-client-cpu",
            "CPU time for an event, of the official client and of the server",
            "",
            "µs an event",
            {name: [max(0.01, float(row[at])) for row in rows] for at, name in ((3, "client"), (4, "server"))},
            log=True,
            groups=[row[0].replace(" events of ", "\n") for row in rows],
            decimals=2,
        )
    )
    started = sorted(_start() for _ in range(effort.rounds))
    report.figures.append(
        Figure(
            "start of the process to the first acknowledged event",
            started[len(started) // 2],
            START_GOAL_S,
            at_most=True,
            unit=" s",
        )
    )
    report.notes.append(
        f"the slowest of {len(started)} starts took {started[-1]:.2f} s, the fastest {started[0]:.2f} s; one writer, "
        f"1,000 events in flight, one segment, one reader, medians of {rounds} rounds"
    )
    return report


def _measure(server: Serving, doing: str, size: int, count: int, stream: str) -> dict[str, float]:
    with official_client() as client:
        before = server.cpu_s()
        found: dict[str, float] = client.ask(
            do=DOES[doing], uri=f"tcp://{server.controller}", stream=stream, count=count, size=size
        )
        found["server_s"] = server.cpu_s() - before
        if doing == "reading":
            client.ask(do="delete", uri=f"tcp://{server.controller}", stream=stream)
    return found


def _start() -> float:
    with official_client() as client:
        start = time.perf_counter()
        with serving() as server:
            client.ask(do="first_event", uri=f"tcp://{server.controller}")
            return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main("official_client", run))
