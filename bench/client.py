"""Is this client as fast as the official one, and what does a pool of connections save?

Both clients write and read the same events on one `segstore serve`, in turns. Each client is a process of its own:
`python -m bench.client` (this project's client on uvloop, one thread) and `bench/official_load.py` (the package
`pravega`, a Rust core that uses threads). A line of JSON asks, a line answers; a measurement is taken around the
client's own calls. Writers are given events as fast as they take them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.harness import Effort, Report
from bench.processes import ROOT, Peer, Serving, serving
from segstore.client import ClientSettings, SegmentWriter, connect
from segstore.client.connection import ConnectionPool, Endpoint, FixedStore
from segstore.client.errors import ClientError
from segstore.wire import CreateSegment, SegmentCreated, encode

__all__ = ["pooling", "run"]

Answer = dict[str, Any]

LOADS: Final = ((100, 1, 300_000, 1.1), (100, 10, 300_000, 1.3), (100, 1_000, 200_000, 1.3), (10_000, 1, 30_000, 1.0))
"""Bytes of an event, writers, events, and the goal for our rate over the official client's."""
READING_GOAL: Final = 1.2
LATENCIES: Final = 4_000
LATENCY_GOAL: Final = 0.85
SEGMENTS: Final = (1, 10, 100, 1_000, 10_000)
WRITERS: Final = 1_000
APPENDS: Final = 150_000
PATIENT: Final = {"socket_connection_setup_timeout_ms": 30_000, "request_timeout_ms": 60_000}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "pooled": {**PATIENT, "enable_connection_pooling": True},
    "unpooled": {**PATIENT, "enable_connection_pooling": False},
}
ALONE: Final = {"max_batch_events": 1}
"""Sends every event as an append of its own. By default, events that a writer is given in one iteration of the loop
travel as one append."""
WINDOWS: Final[tuple[tuple[str, int, dict[str, Any], float | None], ...]] = (
    ("one in flight", 1, {}, 10.0),
    ("8 in flight, one append each", 8, ALONE, None),
    ("8 in flight, in one iteration", 8, {}, None),
)
HEAVY: Final = 2
LIGHT: Final = 16
SLOW: Final = {"match": "type = APPEND_BLOCK_END and stream = bench/slow", "do": {"delay_ms": 20}}


class Client:
    """A process with a client in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def ask(self, **asked: Any) -> Any:
        self._stdin.write(json.dumps(asked) + "\n")
        self._stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        for line in self._stdout:
            if line.startswith("{"):  # the official client logs to standard output
                return json.loads(line)
        raise RuntimeError("the client ended")


@contextmanager
def _client(*command: str) -> Iterator[Client]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        client = Client(process)
        client.answer()
        yield client
    finally:
        process.kill()
        process.communicate()


def own_client() -> AbstractContextManager[Client]:
    return _client(sys.executable, "-m", "bench.client")


def official_client() -> AbstractContextManager[Client]:
    python = os.environ.get("OFFICIAL_CLIENT_PYTHON") or sys.executable
    return _client(python, str(ROOT / "bench" / "official_load.py"))


CLIENTS: Final = {"ours": own_client, "official": official_client}


def run(effort: Effort) -> Report:
    """Compares rates of writing and reading, and latency, with the official client's."""
    report = Report("Client")
    rounds = max(1, effort.rounds // 3) if effort.is_full else 1
    with serving() as server:
        _rates(report, effort, server, rounds)
        _latency(report, effort, server, rounds)
    report.notes.append(
        f"medians of {rounds} rounds after one that does not count; as many segments as writers, at most 10; "
        "both clients run with their defaults, the official one with 1,000 events of a writer in flight"
    )
    return report


def _rates(report: Report, effort: Effort, server: Serving, rounds: int) -> None:
    rows = []
    for size, writers, full, goal in LOADS:
        writers = writers if effort.scale >= 0.1 else min(writers, 20)
        count = max(writers * 5, round(full * effort.scale))
        count -= count % writers
        kinds = ("writing", "reading") if writers == 1 else ("writing",)
        answers: dict[str, dict[str, list[Answer]]] = {kind: {name: [] for name in CLIENTS} for kind in kinds}
        for number in range(rounds + 1):
            for name in sorted(CLIENTS, reverse=bool(number % 2)):
                asked = {"uri": f"tcp://{server.controller}", "stream": f"{name}-{size}-{writers}-{number}"}
                with CLIENTS[name]() as client:
                    load: dict[str, Any] = {"count": count, "size": size}
                    more = {"writers": writers, "segments": min(writers, 10)}
                    answers["writing"][name].append(client.ask(do="write", **asked, **load, **more))
                    if "reading" in answers:
                        answers["reading"][name].append(client.ask(do="read", **asked, **load))
                    client.ask(do="delete", **asked)
        for kind, by_client in answers.items():
            for first_counts_not in by_client.values():
                del first_counts_not[0]
            rates = {name: statistics.median(count / answer["s"] for answer in by_client[name]) for name in CLIENTS}
            ratio = _ratio(by_client["official"], by_client["ours"], lambda answer: answer["s"])
            load_name = f"{kind} {size:,} bytes, {writers:,} writer{'s' if writers > 1 else ''}"
            if kind == "reading":
                load_name, goal = f"reading {size:,} bytes", READING_GOAL
            report.add(f"{load_name}: rate, of the official client's", ratio, goal, at_most=False)
            cpu_us = (statistics.median(answer["cpu_s"] for answer in by_client[n]) / count * 1e6 for n in CLIENTS)
            cells = (f"{rates[name]:,.0f}" for name in CLIENTS)
            rows.append((load_name, *cells, f"{ratio:.2f}", *(f"{each:.2f}" for each in cpu_us)))
    heading = ("load", "events/s, ours", "official", "ratio", "CPU µs an event, ours", "official")
    report.tables.append((heading, rows))


def _ratio(some: Sequence[Answer], to: Sequence[Answer], of: Callable[[Answer], float]) -> float:
    """Returns the median of ratios of the same round."""
    return statistics.median(of(a) / of(b) for a, b in zip(some, to, strict=True))


def _latency(report: Report, effort: Effort, server: Serving, rounds: int) -> None:
    answers: dict[str, list[Answer]] = {name: [] for name in CLIENTS}
    count = max(100, round(LATENCIES * effort.scale))
    for number in range(2 * rounds + 1):
        for name in sorted(CLIENTS, reverse=bool(number % 2)):
            asked = {"uri": f"tcp://{server.controller}", "stream": f"{name}-latency-{number}"}
            with CLIENTS[name]() as client:
                answer = client.ask(do="latency", **asked, count=count, size=100)
                client.ask(do="delete", **asked)
            answers[name].append({"p50": _quantile(answer["ms"], 0.5), "p99": _quantile(answer["ms"], 0.99)})
    rows = []
    for which in ("p50", "p99"):
        ratio = _ratio(answers["ours"], answers["official"], lambda answer, which=which: answer[which])  # type: ignore[misc]
        medians = (statistics.median(answer[which] for answer in answers[name]) for name in CLIENTS)
        rows.append((which, *(f"{value:.3f}" for value in medians), f"{ratio:.2f}"))
        if which == "p50":
            name = "100 bytes, one in flight: median latency, of the official client's"
            report.add(name, ratio, LATENCY_GOAL, at_most=True)
    report.tables.append((("ms for an event, one in flight", "ours", "official", "ratio"), rows))


def _quantile(values: Sequence[float], fraction: float) -> float:
    return sorted(values)[int(len(values) * fraction)]


# --- pooling ------------------------------------------------------------------------------------------------------


def pooling(effort: Effort) -> Report:
    """Measures sockets and rates of segment writers with a pool and with a connection each, and both pool policies.

    A writer appends 100 bytes again as soon as an earlier append is acknowledged. Seeds 36 and 36.10.
    """
    report = Report("Pooling")
    raise_descriptors()
    with serving() as server:
        _sockets(report, effort, server)
    with serving() as server:
        _speed(report, effort, server, make_segments(server, "speed", WRITERS if effort.scale >= 0.1 else 50))
    _policies(report, effort)
    return report


def make_segments(server: Serving, stream: str, count: int) -> list[str]:
    names = [f"bench/{stream}/{number}.#epoch.0" for number in range(count)]
    with Peer(server.port) as peer:
        peer.ask((encode(CreateSegment(1, name, 0, 0, "", 0)) for name in names), SegmentCreated)
    return names


def _append(client: Client, server: Serving, segments: Sequence[str], settings: dict[str, Any], **more: Any) -> Any:
    asked = {"count": 0, "size": 100, "window": 1} | more
    return client.ask(do="append", port=server.port, segments=list(segments), settings=settings, **asked)


def _sockets(report: Report, effort: Effort, server: Serving) -> None:
    rows, sockets = [], 0
    for count in (segment for segment in SEGMENTS if segment <= max(10, SEGMENTS[-1] * effort.scale)):
        row = [f"{count:,}"]
        segments = make_segments(server, f"sockets-{count}", count)
        for settings in reversed(KINDS.values()):
            with own_client() as client:
                sockets = _append(client, server, segments, settings, only_sockets=True)["sockets"]
            row.insert(1, f"{sockets:,}")
        rows.append(row)
    report.tables.append((("segments written to", "sockets, pooled", "unpooled"), rows))
    report.add(f"sockets for {rows[-1][0]} segments, pooled", sockets, 10, at_most=True, unit="")


def _speed(report: Report, effort: Effort, server: Serving, names: list[str]) -> None:
    rounds, count = _rounds(effort), max(len(names), round(APPENDS * effort.scale))
    rows = []
    for load, window, more, goal in WINDOWS:
        answers: dict[str, list[Answer]] = {kind: [] for kind in KINDS}
        for number in range(rounds + 1):  # the first warms up
            for kind in sorted(KINDS, reverse=bool(number % 2)):
                with own_client() as client:
                    answer = _append(client, server, names, KINDS[kind] | more, count=count, window=window)
                    answers[kind] += [answer] * bool(number)
        ratio = _ratio(answers["pooled"], answers["unpooled"], lambda answer: answer["count"] / answer["s"])
        if goal is not None:
            name = f"{len(names):,} writers, {load}: rate of at most 10 connections, of {len(names):,}"
            report.add(name, ratio, goal, at_most=False)
        rates = (statistics.median(answer["count"] / answer["s"] for answer in answers[kind]) for kind in KINDS)
        rows.append((load, *(f"{rate:,.0f}" for rate in rates), f"{ratio:.2f}"))
    report.tables.append((("events of each writer", "events/s, pooled", "unpooled", "ratio"), rows))


def _rounds(effort: Effort) -> int:
    return max(1, effort.rounds // 2) if effort.is_full else 1


def _policies(report: Report, effort: Effort) -> None:
    """Measures light writers beside heavy ones, whose appends delay everything behind them on their connection."""
    waits: dict[str, list[list[float]]] = {"fewest_flows": [], "least_busy": []}
    with tempfile.TemporaryDirectory(prefix="segstore-bench-") as folder:
        faults = Path(folder, "faults.json")
        faults.write_text(json.dumps({"rules": [SLOW]}))
        with serving("--faults", str(faults)) as server:
            names = make_segments(server, "slow", HEAVY) + make_segments(server, "quick", LIGHT)
            for _ in range(_rounds(effort)):
                for policy, rounds in waits.items():
                    settings = {**PATIENT, "pool_policy": policy, "max_connections_per_store": 4, **ALONE}
                    load = {"heavy": HEAVY, "size": 20_000, "window": 4, "settings": settings}
                    count = max(LIGHT, round(1_600 * effort.scale))
                    with own_client() as client:
                        answer = client.ask(do="beside_heavy", port=server.port, segments=names, count=count, **load)
                    rounds.append([_quantile(answer["ms"], fraction) for fraction in (0.5, 0.99)])
    rows = [
        (policy, *(f"{statistics.median(values):.2f}" for values in zip(*rounds, strict=True)))
        for policy, rounds in waits.items()
    ]
    report.tables.append((("policy of the pool", "p50 ms of small appends", "p99 ms"), rows))


# --- this project's client, in a process of its own -------------------------------------------------------------


async def write(uri: str, stream: str, count: int, size: int, writers: int, segments: int) -> Answer:
    """Events of all writers in turn, without a wait for one of them; ends when the last is stored."""
    async with connect(uri) as pravega:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", stream, segments=segments)
        made = [pravega.event_writer("bench", stream) for _ in range(writers)]
        event, keys = bytes(size), [f"k{at}" for at in range(writers)]
        for each, key in zip(made, keys, strict=True):
            await each.open()
            await each.submit(event, routing_key=key)
        for each in made:
            await each.flush()
        pairs = [(each.submit, key) for each, key in zip(made, keys, strict=True)]
        quiet()
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range((count - writers) // writers):
            for submit, key in pairs:
                await submit(event, routing_key=key)
        for each in made:
            await each.flush()
        found = {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
        for each in made:
            await each.aclose()
        return found | {"sockets": pravega.metrics().connections}


async def read(uri: str, stream: str, count: int, size: int) -> Answer:
    async with connect(uri) as pravega, pravega.event_reader("bench", stream) as events:
        quiet()
        found, start, cpu = 0, time.perf_counter(), time.process_time()
        while found < count:  # in slices, as the official client reads
            for event in await events.read_slice():
                found += 1
                if len(event.data) != size:
                    raise ValueError(f"an event of {len(event.data)} bytes, not {size}")
        return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}


async def latency(uri: str, stream: str, count: int, size: int) -> Answer:
    """Milliseconds from each event's write to its acknowledgement, one in flight."""
    async with connect(uri) as pravega:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", stream, segments=1)
        async with pravega.event_writer("bench", stream) as writer:
            event, waits = bytes(size), []
            cpu = time.process_time()
            for number in range(count + count // 10):
                start = time.perf_counter()
                await writer.write(event, routing_key="k")
                if number >= count // 10:
                    waits.append((time.perf_counter() - start) * 1000)
            return {"ms": waits, "cpu_s": time.process_time() - cpu}


async def delete(uri: str, stream: str) -> Answer:
    async with connect(uri) as pravega:
        await pravega.controller.seal_stream("bench", stream)
        await pravega.controller.delete_stream("bench", stream)
    return {}


async def append(
    port: int,
    segments: list[str],
    count: int,
    size: int,
    window: int,
    settings: dict[str, Any],
    only_sockets: bool = False,
) -> Answer:
    """`count` appends over all segments, a writer each, `window` of every writer in flight; a new one for each ack."""
    raise_descriptors()
    async with ConnectionPool(ClientSettings.model_validate(settings)) as pool:
        where, event = FixedStore(Endpoint("127.0.0.1", port)), bytes(size)
        writers = [SegmentWriter(pool, where, segment) for segment in segments]
        await asyncio.gather(*[writer.write(event) for writer in writers])
        answer: Answer = {"sockets": pool.metrics().connections}
        if not only_sockets:
            answer |= await _appends(writers, event, count, window)
        for each in writers:
            await each.abort()
        return answer


async def _appends(writers: list[SegmentWriter], event: bytes, count: int, window: int) -> Answer:
    done = asyncio.get_running_loop().create_future()
    unsent = unstored = total = max(count, len(writers) * window)

    def begin(writer: SegmentWriter) -> None:
        nonlocal unsent

        def stored(error: ClientError | None) -> None:
            nonlocal unsent, unstored
            if error is not None:
                if not done.done():
                    done.set_exception(error)
                return
            unstored -= 1
            if unsent:
                unsent -= 1
                writer.append(event, stored)
            elif not unstored:
                done.set_result(None)

        for _ in range(window):
            unsent -= 1
            writer.append(event, stored)

    quiet()
    start, cpu = time.perf_counter(), time.process_time()
    for writer in writers:
        begin(writer)
    await done
    return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu, "count": total}


async def beside_heavy(
    port: int, segments: list[str], heavy: int, size: int, window: int, count: int, settings: dict[str, Any]
) -> Answer:
    """Milliseconds of `count` small appends, one in flight of each light writer, beside `heavy` writers of large ones.

    The light writers come when the heavy ones have all their appends in flight.
    """
    async with ConnectionPool(ClientSettings.model_validate(settings)) as pool:
        where, large = FixedStore(Endpoint("127.0.0.1", port)), bytes(size)
        heavies = [SegmentWriter(pool, where, segment) for segment in segments[:heavy]]
        await asyncio.gather(*[each.write(b"x") for each in heavies])
        going = True

        def again(writer: SegmentWriter) -> None:
            def stored(error: ClientError | None) -> None:
                if going and error is None:
                    writer.append(large, stored)

            for _ in range(window):
                writer.append(large, stored)

        for each in heavies:
            again(each)
        await asyncio.sleep(0.05)
        lights = []
        for segment in segments[heavy:]:
            lights.append(SegmentWriter(pool, where, segment))
            await lights[-1].write(b"x")
        waits: list[float] = []
        quiet()

        async def light(writer: SegmentWriter) -> None:
            for _ in range(count // len(lights)):
                start = time.perf_counter()
                await writer.write(bytes(100))
                waits.append((time.perf_counter() - start) * 1000)

        await asyncio.gather(*[light(each) for each in lights])
        going = False
        for each in (*lights, *heavies):
            await each.abort()
        return {"ms": waits}


def quiet() -> None:
    """No collections while it is measured; the process ends with its one answer, or begins anew."""
    gc.collect()
    gc.disable()


def raise_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    calls: dict[str, Callable[..., Awaitable[Answer]]] = {
        "write": write, "read": read, "latency": latency, "delete": delete, "append": append,
        "beside_heavy": beside_heavy,
    }  # fmt: skip
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: Answer = uvloop.run(calls[asked.pop("do")](**asked))  # type: ignore[arg-type]  # coroutine functions
        gc.enable()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
