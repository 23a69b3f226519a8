"""How accurate are toxics, and what do they cost?

A store with its HTTP API runs in a process of its own; this one adds toxics over HTTP and measures on a socket. Delays
come from KeepAlives, each sent when the one before is answered, less the median round trip without toxics. Rates come
from appends sent at once (upstream) and from reads requested at once (downstream), the time from the first request to
the last byte. Slices are what the socket returns; 2 ms between them keep them apart. Ends of the connection are timed
from the request whose reply, or data, starts the toxic.

The cost is the store's CPU time for appends on a connection with a latency of 0, of the same appends on a connection
without toxics, in turns. It is the kernel's count for the process, so this benchmark needs Linux.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final, NamedTuple

from bench.harness import Effort, Figure, Report, take_turns
from bench.pages import main
from bench.pictures import Bars
from bench.processes import COMMAND_LINE, Serving, announced
from bench.server import WAIT_S, Load, acknowledged, exchange, one_at_a_time, pipelined, returned, writer
from segstore.wire import KeepAlive, ReadSegment, SegmentRead, encode

__all__ = ["run"]

PING: Final = encode(KeepAlive())
DELAYS: Final = (
    # name, toxic, expected mean and standard deviation in ms
    ("20 ms", {"latency": 20}, 20.0, 0.0),
    ("50 ms", {"latency": 50}, 50.0, 0.0),
    ("50 ± 20 ms", {"latency": 50, "jitter": 20}, 50.0, 20 / 3**0.5),
    ("normal, 50 ms", {"latency": 50, "jitter": 10, "distribution": "normal"}, 50.0, 10.0),
    ("pareto, 20 ms", {"latency": 20, "jitter": 10, "distribution": "pareto"}, 30.0, 10 * 3**0.5),
)
RATES_KB_S: Final = (100, 1_000, 10_000)
ENDS_MS: Final = (("timeout", "timeout", 200), ("reset_peer", "timeout", 200), ("slow_close", "delay", 200))
SLICE_BYTES, SLICE_VARIATION, SLICE_DELAY_US = 100, 20, 2_000
OFF_GOAL: Final = 0.1
"""Of what was set: the sampling error of the delays with jitter is about half of it."""
CPU_GOAL: Final = 3.0
COSTS: Final = (
    Load("appends of 100 bytes, one at a time", 3_000, 100, 1, None),
    Load("appends of 1 KB, as fast as they are taken", 20_000, 1024, 1, None),
)


class _Store(NamedTuple):
    serving: Serving
    http: str

    def toxics(self, method: str, body: object = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{self.http}/v1/toxics", data, headers, method=method)
        urllib.request.urlopen(request).close()

    @contextmanager
    def toxic(self, kind: str, **fields: Any) -> Iterator[None]:
        self.toxics("POST", {"type": kind, **fields})
        yield
        self.toxics("DELETE")


def run(effort: Effort) -> Report:
    report = Report("Toxics", question="How accurate are toxics, and what do they cost?")
    count = max(5, round(200 * effort.scale))
    ports = ("--port", "0", "--controller-port", "0", "--http-port", "0", "--announce", "json")
    with announced("-c", COMMAND_LINE, "serve", *ports) as (pid, line):
        where = json.loads(line)
        store = _Store(Serving(pid, int(where["segment_store"].rpartition(":")[2]), where["controller"]), where["http"])
        rows = [*_delays(store, count), *_rates(store, effort), *_slices(store, count), *_ends(store, effort)]
        cost_rows = list(_costs(store, effort))
    off = max(abs(measured / expected - 1) for _, expected, _, _, measured in rows)
    report.figures.append(Figure("largest deviation of a mean from what was set", off, OFF_GOAL, at_most=True))
    worst = max(ratio for *_, ratio in cost_rows)
    report.figures.append(Figure("server CPU with a latency of 0, of without toxics", worst, CPU_GOAL, at_most=True))
    delays = [each for each in rows if each[0] in {name for name, *_ in DELAYS}]
    shown = {"set": [each[1] for each in delays], "measured": [each[4] for each in delays]}
    title = "Mean latency, set and measured"
    groups = [each[0] for each in delays]
    report.tables.append(
        (
            ("toxic", "unit", "set", "measured, mean", "± deviation", "measured / set"),
            [
                (
                    f"latency {name}" if name in groups else name,
                    unit,
                    f"{expected:,g}",
                    f"{measured:,.2f}",
                    spread,
                    f"{measured / expected:.3f}",
                )
                for name, expected, unit, spread, measured in rows
            ],
        )
    )
    report.tables.append(
        (
            ("load", "server CPU µs an append", "with a latency of 0", "ratio"),
            [(name, f"{plain:.2f}", f"{toxic:.2f}", f"{ratio:.2f}") for name, plain, toxic, ratio in cost_rows],
        )
    )
    report.says = (
        f"Means are within {off:.1%} of the set values; appends on a connection with a toxic take at most "
        f"{worst:.1f} times the CPU time of the store."
    )
    report.pictures.append(Bars("toxics-delays", title, "latency", "ms", shown, groups=groups, decimals=1))
    report.notes.append(f"{count} KeepAlives for each delay; toxics are set over HTTP while the store runs")
    return report


_Row = tuple[str, float, str, str, float]
"""Toxic, what was set, its unit, the spread, and the mean that was measured."""


def _delays(store: _Store, count: int) -> Iterator[_Row]:
    with writer(store.serving.port) as peer:
        base_ms = statistics.median(_round_trips_ms(peer, count))
        for name, fields, mean, deviation in DELAYS:
            with store.toxic("latency", **fields):
                times = [each - base_ms for each in _round_trips_ms(peer, count)]
            spread, measured = _mean(times)
            yield name, mean, "ms", f"{spread} (set: {deviation:.2f})", measured


def _round_trips_ms(peer: socket.socket, count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        peer.sendall(PING)
        _received(peer, len(PING))
        times.append((time.perf_counter() - start) * 1000)
    return times


def _received(peer: socket.socket, size: int) -> None:
    while size > 0:
        got = peer.recv(min(size, 1 << 20))
        if not got:
            raise ConnectionError(f"closed before the last {size} bytes")
        size -= len(got)


def _rates(store: _Store, effort: Effort) -> Iterator[_Row]:
    """Appends of a second, then reads of the same data."""
    for rate in RATES_KB_S:
        segment, size = f"bench/toxics/{rate}", rate * 10
        data, count, last = Load("", 100, size, 1, None).frames(effort)
        asked = b"".join(encode(ReadSegment(segment, at * size, size, "", at)) for at in range(count))
        answer = len(encode(SegmentRead(segment, 0, False, False, bytes(size), 0)))
        with writer(store.serving.port, segment) as peer:
            exchanges = {
                "upstream": (data, len(data), acknowledged(last)),
                "downstream": (asked, count * answer, returned(count * answer)),
            }
            for stream, (sent, received, done) in exchanges.items():
                with store.toxic("bandwidth", rate=rate, stream=stream):
                    start = time.perf_counter()
                    exchange(peer, sent, done)
                    measured = received / (time.perf_counter() - start) / 1000
                peer.setblocking(True)
                yield f"bandwidth {rate:,}, {stream}", rate, "KB/s", "", measured


def _slices(store: _Store, count: int) -> Iterator[_Row]:
    pings = count * SLICE_BYTES // len(PING)
    with writer(store.serving.port) as peer:
        fields = {"average_size": SLICE_BYTES, "size_variation": SLICE_VARIATION, "delay": SLICE_DELAY_US}
        sizes, times = [], []
        with store.toxic("slicer", **fields):
            peer.sendall(PING * pings)
            left = pings * len(PING)
            while left > 0:
                sizes.append(len(peer.recv(4096)))
                times.append(time.perf_counter())
                left -= sizes[-1]
    gaps = [(after - before) * 1000 for before, after in pairwise(times)]
    yield f"slicer {SLICE_BYTES} ± {SLICE_VARIATION}", SLICE_BYTES, "bytes", *_mean(sizes[:-1])
    yield "slicer, between slices", SLICE_DELAY_US / 1000, "ms", *_mean(gaps)


def _ends(store: _Store, effort: Effort) -> Iterator[_Row]:
    for kind, field, value in ENDS_MS:
        times = []
        for _ in range(max(2, round(10 * effort.scale))):
            with socket.create_connection(("127.0.0.1", store.serving.port), WAIT_S) as peer:
                peer.sendall(PING)
                _received(peer, len(PING))
                with store.toxic(kind, **{field: value}):
                    start = time.perf_counter()
                    # Bytes that are no frame make the store close, for `slow_close`; the others need data, or nothing.
                    peer.sendall(bytes([0x7F]) * 8 if kind == "slow_close" else PING)
                    try:
                        _received(peer, 1)
                    except ConnectionError:
                        times.append((time.perf_counter() - start) * 1000)
        yield f"{kind} {value}", value, "ms", *_mean(times)


def _mean(values: list[Any]) -> tuple[str, float]:
    """The spread, for the table, and the mean."""
    return f"{statistics.stdev(values):.2f}", statistics.mean(values)


def _costs(store: _Store, effort: Effort) -> Iterator[tuple[str, float, float, float]]:
    for load, appends in zip(COSTS, (one_at_a_time, pipelined), strict=True):
        count, send = appends(load, effort)

        def plain(send: Callable[[socket.socket], None] = send) -> float:
            with writer(store.serving.port) as peer:
                before = store.serving.cpu_s()
                send(peer)
                return store.serving.cpu_s() - before

        def with_toxics(plain: Callable[[], float] = plain) -> float:
            for stream in ("upstream", "downstream"):
                store.toxics("POST", {"type": "latency", "stream": stream})
            spent = plain()
            store.toxics("DELETE")
            return spent

        times = take_turns({"plain": plain, "toxic": with_toxics}, 2 * effort.rounds + 1)
        us = {name: times.median(name) / count * 1e6 for name in ("plain", "toxic")}
        yield load.name, us["plain"], us["toxic"], times.ratio("toxic", "plain")


if __name__ == "__main__":
    sys.exit(main("toxics", run))
