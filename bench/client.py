"""Is this client as fast as the official one? Both write and read the same events on one `segstore serve`, in turns.

Each client is a process of its own (`bench/client_load.py`, `bench/official_load.py`); the official one is the package
`pravega` 0.3.8, a Rust core that uses threads, ours runs on one thread of CPython with uvloop. Writers are given events
as fast as they take them. A ratio is taken within a round, the figure is the median.

Memory is what the kernel says that the process holds after 5,000 segment writers on the pool have each written one
event and wait, less what it held before, over their number.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from bench.harness import Effort, Figure, Report
from bench.official_client import Client, official_client, own_client
from bench.pages import main
from bench.pictures import Bars
from bench.pooling import POOLED, make_segments
from bench.processes import Serving, serving

__all__ = ["run"]

Start = Callable[[], AbstractContextManager[Client]]

CLIENTS: Final[dict[str, Start]] = {"ours": own_client, "official": official_client}
LOADS: Final = (
    (100, 1, 300_000, 1.1),
    (100, 10, 300_000, 1.3),
    (100, 1_000, 200_000, 1.3),
    (10_000, 1, 30_000, 1.0),
    (10_000, 10, 30_000, 1.0),
    (10_000, 1_000, 30_000, 1.0),
)
"""Bytes of an event, writers, events, and the goal for our rate over the official client's."""

LATENCIES: Final = 4_000
IDLE_WRITERS: Final = 5_000
READING_GOAL: Final = 1.2
LATENCY_GOAL: Final = 0.85
IDLE_GOAL_KB: Final = 10.0


def run(effort: Effort) -> Report:
    report = Report("Client", question="Is this project's client as fast as the official one?")
    rounds = max(1, effort.rounds // 3) if effort.scale == 1 else 1
    with serving() as server:
        _rates(report, effort, server, rounds)
        _latency(report, effort, server, rounds)
        _memory(report, effort, server)
    ratios = [figure.value for figure in report.figures if not figure.at_most]
    report.says = (
        f"It writes and reads at {min(ratios):.2f} to {max(ratios):.2f} times the official client's rate, "
        "on one thread of Python."
    )
    report.notes.append(
        f"medians of {rounds} rounds after one that does not count; as many segments as writers, at most 10; "
        "both clients run with their defaults, the official one with 1,000 events of a writer in flight"
    )
    return report


def _rates(report: Report, effort: Effort, server: Serving, rounds: int) -> None:
    rows, shown = [], {name: list[float]() for name in CLIENTS}
    groups = []
    for size, writers, full, goal in LOADS:
        writers = writers if effort.scale >= 0.1 else min(writers, 20)
        count = max(writers * 5, round(full * effort.scale))
        count -= count % writers
        kinds = ("writing", "reading") if writers == 1 else ("writing",)
        found: dict[str, dict[str, list[dict[str, float]]]] = {kind: {name: [] for name in CLIENTS} for kind in kinds}
        for number in range(rounds + 1):
            for name in sorted(CLIENTS, reverse=bool(number % 2)):
                asked = {"uri": f"tcp://{server.controller}", "stream": f"{name}-{size}-{writers}-{number}"}
                with CLIENTS[name]() as client:
                    much: dict[str, Any] = {"count": count, "size": size}
                    wrote = client.ask(do="write", **asked, **much, writers=writers, segments=min(writers, 10))
                    found["writing"][name].append(wrote)
                    if "reading" in found:
                        found["reading"][name].append(client.ask(do="read", **asked, **much))
                    client.ask(do="delete", **asked)
        for kind, times in found.items():
            for each in times.values():
                del each[0]
            rates = {name: statistics.median(count / each["s"] for each in times[name]) for name in CLIENTS}
            ratio = statistics.median(
                official["s"] / ours["s"] for ours, official in zip(times["ours"], times["official"], strict=True)
            )
            said = f"{kind} {size:,} bytes, {writers:,} writer{'s' if writers > 1 else ''}"
            if kind == "reading":
                said, goal = f"reading {size:,} bytes", READING_GOAL
            report.figures.append(Figure(f"{said}: rate, of the official client's", ratio, goal, at_most=False))
            cpu = (f"{statistics.median(each['cpu_s'] for each in times[name]) / count * 1e6:.2f}" for name in CLIENTS)
            rows.append((said, *(f"{rates[name]:,.0f}" for name in CLIENTS), f"{ratio:.2f}", *cpu))
            if kind == "writing":
                groups.append(f"{size:,} B\n{writers:,} writer{'s' if writers > 1 else ''}")
                for name in CLIENTS:
                    shown[name].append(rates[name] / 1000)
    heading = ("load", "events/s, ours", "official", "ratio", "CPU µs an event, ours", "official")
    report.tables.append((heading, rows))
    report.pictures.append(
        Bars(
            "client-rates",
            "Events written, ours and the official client",
            "",
            "thousand events a second",
            shown,
            groups=groups,
            decimals=0,
        )
    )


def _latency(report: Report, effort: Effort, server: Serving, rounds: int) -> None:
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CLIENTS}
    count = max(100, round(LATENCIES * effort.scale))
    for number in range(2 * rounds + 1):
        for name in sorted(CLIENTS, reverse=bool(number % 2)):
            asked = {"uri": f"tcp://{server.controller}", "stream": f"{name}-latency-{number}"}
            with CLIENTS[name]() as client:
                answer = client.ask(do="latency", **asked, count=count, size=100)
                client.ask(do="delete", **asked)
            waits, cpu_ms = sorted(answer["ms"]), answer["cpu_s"] * 1000 / (count + count // 10)
            found[name].append((waits[len(waits) // 2], waits[int(len(waits) * 0.99)], cpu_ms))
    rows = []
    for at, which in enumerate(("p50", "p99", "CPU time of the client")):
        ratio = statistics.median(
            ours[at] / official[at] for ours, official in zip(found["ours"], found["official"], strict=True)
        )
        values = [statistics.median(each[at] for each in found[name]) for name in CLIENTS]
        rows.append((which, *(f"{value:.3f}" for value in values), f"{ratio:.2f}"))
        if which == "p50":
            said = "100 bytes, one in flight: median latency, of the official client's"
            report.figures.append(Figure(said, ratio, LATENCY_GOAL, at_most=True))
    report.tables.append((("ms for an event, one in flight", "ours", "official", "ratio"), rows))


def _memory(report: Report, effort: Effort, server: Serving) -> None:
    names = make_segments(server, "idle", max(100, round(IDLE_WRITERS * effort.scale)))
    with own_client() as client:
        found = client.ask(
            do="append", port=server.port, segments=names, settings=POOLED, count=0, size=100, window=1, memory=True
        )
    if effort.scale >= 0.1:
        report.figures.append(
            Figure("an idle segment writer", found["bytes_each"] / 1000, IDLE_GOAL_KB, at_most=True, unit=" KB")
        )
    report.tables.append(
        (
            ("idle segment writers", "KB each", "sockets"),
            [(f"{len(names):,}", f"{found['bytes_each'] / 1000:.1f}", f"{found['sockets']:,}")],
        )
    )


if __name__ == "__main__":
    sys.exit(main("client", run))
