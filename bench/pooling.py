"""What does a pool save? Sockets, and the speed of a thousand segment writers on ten connections and on one each.

The client and `segstore serve` are processes of their own and share the machine's cores. Each writer has a segment; it
appends 100 bytes again as soon as an earlier append is acknowledged. Without the pool each writer has a connection, by
the same code. Rounds run in turns; a ratio is taken within a round, the figure is the median.

"One append each" sends every event as an append of its own; "in one turn" is the client's default, by which events
that a writer is given in one turn of the loop travel as one append.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.capacity import _Peer
from bench.harness import Effort, Figure, Report
from bench.official_client import Client, own_client
from bench.pages import main
from bench.pictures import Bars, Lines
from bench.processes import Serving, serving
from segstore.wire import CreateSegment, SegmentCreated, encode

__all__ = ["POOLED", "make_segments", "run"]

SEGMENTS: Final = (1, 10, 100, 1_000, 10_000)
SPARE_DESCRIPTORS: Final = 300
WRITERS: Final = 1_000
APPENDS: Final = 150_000
EVENT_BYTES: Final = 100
PATIENT: Final = {"socket_connection_setup_timeout_ms": 30_000, "request_timeout_ms": 60_000}
POOLED: Final[dict[str, Any]] = {**PATIENT, "enable_connection_pooling": True}
SINGLE: Final[dict[str, Any]] = {**PATIENT, "enable_connection_pooling": False}
ALONE: Final = {"max_batch_events": 1}
LOADS: Final[tuple[tuple[str, int, dict[str, Any], float | None], ...]] = (
    ("one in flight", 1, {}, 10.0),
    ("8 in flight, one append each", 8, ALONE, None),
    ("8 in flight, in one turn", 8, {}, 1.8),
)
HEAVY: Final = 2
LIGHT: Final = 16
DELAY_MS: Final = 20
SLOW: Final = {"match": "type = APPEND_BLOCK_END and stream = bench/slow", "do": {"delay_ms": DELAY_MS}}


def run(effort: Effort) -> Report:
    report = Report("Pooling", question="What does a pool of connections save, and what does it cost?")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _sockets(report, effort, most)
    with serving() as server:
        names = make_segments(server, "speed", WRITERS if effort.scale >= 0.1 else 50)
        _speed(report, effort, server, names)
    _policies(report, effort)
    sockets, *rates = (figure.value for figure in report.figures)
    report.says = f"{sockets:.0f} sockets instead of one per segment" + (
        f", at {min(rates):.2f} to {max(rates):.2f} times the rate of one connection per segment." if rates else "."
    )
    return report


def make_segments(server: Serving, stream: str, count: int) -> list[str]:
    names = [f"bench/{stream}/{number}.#epoch.0" for number in range(count)]
    with _Peer(server) as peer:
        peer.all_done((encode(CreateSegment(1, name, 0, 0, "", 0)) for name in names), SegmentCreated, 500)
    return names


def _ask(client: Client, server: Serving, segments: Sequence[str], settings: dict[str, Any], **more: Any) -> Any:
    asked = {"count": 0, "size": EVENT_BYTES, "window": 1} | more
    return client.ask(do="append", port=server.port, segments=list(segments), settings=settings, **asked)


def _sockets(report: Report, effort: Effort, descriptors: int) -> None:
    counts = [each for each in SEGMENTS if each <= max(10, SEGMENTS[-1] * effort.scale)]
    found: dict[str, list[int]] = {"pooled": [], "unpooled": []}
    rows = []
    for count in counts:
        for name, settings in (("pooled", POOLED), ("unpooled", SINGLE)):
            if name == "unpooled" and count > descriptors - SPARE_DESCRIPTORS:
                raise RuntimeError(f"{count} sockets need more than the {descriptors} descriptors of a process here")
            with serving() as server, own_client() as client:
                answer = _ask(client, server, make_segments(server, "sockets", count), settings, memory=True)
                found[name].append(answer["sockets"])
        rows.append((f"{count:,}", *(f"{values[-1]:,}" for values in found.values())))
    report.tables.append((("segments written to", "sockets, pooled", "unpooled"), rows))
    report.pictures.append(
        Lines(
            "pooling-sockets",
            "Sockets of a client, by segments",
            "segments",
            "sockets",
            found,
            log=True,
            x=counts,
            log_x=True,
        )
    )
    report.figures.append(
        Figure(f"sockets for {counts[-1]:,} segments, pooled", found["pooled"][-1], 10, at_most=True, unit="")
    )


def _rounds(effort: Effort) -> int:
    return max(1, effort.rounds // 2) if effort.scale == 1 else 1


def _speed(report: Report, effort: Effort, server: Serving, names: list[str]) -> None:
    rounds, count = _rounds(effort), max(len(names), round(APPENDS * effort.scale))
    rows, bars = [], {"pooled": list[float](), "unpooled": list[float]()}
    for name, window, more, goal in LOADS:
        found: dict[str, list[dict[str, float]]] = {"pooled": [], "unpooled": []}
        for number in range(rounds + 1):  # the first warms up
            for kind in sorted(found, reverse=bool(number % 2)):
                settings = (POOLED if kind == "pooled" else SINGLE) | more
                with own_client() as client:
                    before = server.cpu_s()
                    answer = _ask(client, server, names, settings, count=count, window=window)
                    answer["server_s"] = server.cpu_s() - before
                    found[kind].append(answer)
        for each in found.values():
            del each[0]
        rates = {kind: statistics.median(each["count"] / each["s"] for each in found[kind]) for kind in found}
        ratio = statistics.median(
            (mine["count"] / mine["s"]) / (other["count"] / other["s"])
            for mine, other in zip(found["pooled"], found["unpooled"], strict=True)
        )
        if goal is not None:
            said = f"{len(names):,} writers, {name}: rate of at most 10 connections, of {len(names):,}"
            report.figures.append(Figure(said, ratio, goal, at_most=False))
        for kind, rate in rates.items():
            bars[kind].append(rate / 1000)
        rows.append((name, *(f"{rates[kind]:,.0f}" for kind in found), f"{ratio:.2f}", *_cpu(found)))
    heading = (
        "events of each writer",
        "events/s, pooled",
        "unpooled",
        "ratio",
        "client CPU µs, pooled",
        "unpooled",
        "server CPU µs, pooled",
        "unpooled",
    )
    report.tables.append((heading, rows))
    report.pictures.append(
        Bars(
            "pooling-speed",
            f"{len(names):,} segment writers, {EVENT_BYTES} bytes an event",
            "",
            "thousand events a second",
            bars,
            groups=[name for name, *_ in LOADS],
            decimals=0,
        )
    )


def _cpu(found: dict[str, list[dict[str, float]]]) -> list[str]:
    return [
        f"{statistics.median(each[of] / each['count'] for each in found[kind]) * 1e6:.1f}"
        for of in ("cpu_s", "server_s")
        for kind in found
    ]


def _policies(report: Report, effort: Effort) -> None:
    """Seed 36.10: what a new user gains from a pool that counts bytes in flight."""
    found: dict[str, list[tuple[float, float]]] = {"fewest_flows": [], "least_busy": []}
    with tempfile.TemporaryDirectory(prefix="segstore-bench-") as folder:
        faults = Path(folder, "faults.json")
        faults.write_text(json.dumps({"rules": [SLOW]}))
        with serving("--faults", str(faults)) as server:
            names = make_segments(server, "slow", HEAVY) + make_segments(server, "quick", LIGHT)
            for _ in range(_rounds(effort)):
                for policy, quantiles in found.items():
                    settings = {**PATIENT, "pool_policy": policy, "max_connections_per_store": 4, **ALONE}
                    with own_client() as client:
                        answer = client.ask(
                            do="beside_heavy",
                            port=server.port,
                            segments=names,
                            heavy=HEAVY,
                            size=20_000,
                            window=4,
                            count=max(LIGHT, round(1_600 * effort.scale)),
                            settings=settings,
                        )
                    waits = sorted(answer["ms"])
                    quantiles.append((waits[len(waits) // 2], waits[int(len(waits) * 0.99)]))
    values = {
        policy: [statistics.median(each) for each in zip(*quantiles, strict=True)]
        for policy, quantiles in found.items()
    }
    rows = [(policy, *(f"{value:.2f}" for value in each)) for policy, each in values.items()]
    report.tables.append((("policy of the pool", "p50 ms of small appends", "p99 ms"), rows))
    report.pictures.append(
        Bars(
            "pooling-policies",
            f"{LIGHT} light writers beside {HEAVY} heavy ones, 4 connections",
            "",
            "ms until acknowledged",
            values,
            groups=["p50", "p99"],
            decimals=1,
        )
    )
    report.notes.append(
        f"policies: {HEAVY} writers keep 4 appends of 20 kB in flight, each of which takes the store {DELAY_MS} ms, "
        f"and what is behind it on its connection waits; {LIGHT} that come then append 100 bytes, one in flight each"
    )


if __name__ == "__main__":
    sys.exit(main("pooling", run))
