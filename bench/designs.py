"""What the published designs ask to be shown, one function a design.

`setup_timeout` (KIP-601), `lazy_producers` (PIP-79), `ownership` (PIP-57), `large_events` (PDP-43A). Sockets and speed
of pooled connections (PDP-36) are in `bench.client.pooling`. Servers and clients run as their users run them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from random import Random
from typing import Final, Literal, NamedTuple

import uvloop

from bench.harness import Effort, Report
from bench.processes import Serving, serving
from segstore.client import (
    Client,
    ClientSettings,
    Cluster,
    ConnectionPool,
    EventWriter,
    PartialRoundRobin,
    Router,
    connect,
)
from segstore.server.cluster import MockCluster
from segstore.server.coordination import OwnershipSettings

__all__ = ["large_events", "lazy_producers", "ownership", "setup_timeout"]

# --- KIP-601: one controller of three accepts connections and never answers --------------------------------------

TIMEOUTS_MS: Final = (250.0, 500.0, 1_000.0, 2_000.0)
OFF_MS: Final = 86_400_000.0


def setup_timeout(effort: Effort) -> Report:
    """Measures the time of a client's first call, by set-up timeout, and with the timeout off (601.8).

    Two controllers are `segstore serve`; the silent one is a listening socket, which the client's URI names first.
    """
    report = Report("Set-up timeout")
    rounds = max(1, effort.rounds // 2)
    cut_s = 10.0 if effort.is_full else 2.0
    rows = []
    with serving() as one, serving() as other, socket.create_server(("127.0.0.1", 0)) as silent:
        nodes = (f"127.0.0.1:{silent.getsockname()[1]}", one.controller, other.controller)
        for timeout_ms in TIMEOUTS_MS:
            times = [asyncio.run(_first_call(nodes, timeout_ms, 10.0)) for _ in range(rounds)]
            served = [seconds for seconds in times if seconds is not None]
            if len(served) < rounds:
                raise RuntimeError(f"a client with a set-up timeout of {timeout_ms:g} ms was not served in 10 s")
            median = statistics.median(served)
            rows.append((f"{timeout_ms / 1000:g} s", f"{median:.2f}", f"{max(served):.2f}"))
        # The jitter alone is a fifth of the timeout.
        name = "one node of three never answers: time until served, in set-up timeouts"
        report.add(name, median * 1000 / TIMEOUTS_MS[-1], 1.5, at_most=True)
        off = asyncio.run(_first_call(nodes, OFF_MS, cut_s))
    result = f"not served, cut after {cut_s:g}" if off is None else f"{off:.2f}"
    rows.append(("off", result, result))
    report.tables.append((("set-up timeout", "s until served, median", "longest"), rows))
    return report


async def _first_call(nodes: tuple[str, ...], timeout_ms: float, cut_s: float) -> float | None:
    """Returns the seconds until a client's first call was answered, None if it was cut."""
    settings = ClientSettings(
        socket_connection_setup_timeout_ms=timeout_ms,
        socket_connection_setup_timeout_max_ms=max(timeout_ms, 30_000.0),
        request_timeout_ms=OFF_MS,
    )
    async with connect(f"tcp://{','.join(nodes)}", settings) as pravega:
        start = time.perf_counter()
        try:
            async with asyncio.timeout(cut_s):
                await pravega.controller.create_scope("bench")
        except TimeoutError:
            return None
        return time.perf_counter() - start


# --- PIP-79: many writers that write little to a stream of many segments -----------------------------------------

WRITERS: Final = 1_000
SEGMENTS: Final = 100
EVENTS: Final = 5
_AT_ONCE: Final = 10
MODES: Final[Sequence[tuple[str, bool, Router | None]]] = (
    ("eager", False, None),
    ("lazy", True, None),
    ("lazy, PartialRoundRobin(3)", True, PartialRoundRobin(3)),
)
"""Name, `lazy_start` and router."""
GOALS: Final = (0.31, 0.04, 0.35)
"""For connections, segment writers and server memory of the last mode, of the eager mode."""


def lazy_producers(effort: Effort) -> Report:
    """Measures connections, segment writers and server memory of writers that write little (79.9).

    Each writer has its own pool of connections, as writers on different machines have, and writes a few events without
    routing keys. Memory counts what the writers leave in the segments as well. The baseline is the eager writers.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    writers = max(10, round(WRITERS * effort.scale))
    if (needed := writers * ClientSettings().max_connections_per_store) > most - 200:
        raise RuntimeError(f"{writers} writers need {needed} connections, the system allows {most}")
    report = Report("Writers that write little")
    whats = ("connections", "segment writers", "server memory")
    rows: list[tuple[str, ...]] = []
    eager: tuple[int, ...] = ()
    for name, lazy_start, router in MODES:
        with serving() as server:
            values = uvloop.run(_low_rate(server, writers, lazy_start=lazy_start, router=router))
        eager = eager or values
        rows.append((name, *(f"{value:,}" for value in values)))
    for what, value, of, goal in zip(whats, values, eager, GOALS, strict=True):
        report.add(f"{name}: {what}, of eager's", value / of, goal, at_most=True)
    report.tables.append((("writers", "connections", "segment writers", "server memory, bytes"), rows))
    report.notes.append(f"{writers:,} writers on a stream of {SEGMENTS} segments, each {EVENTS} events of 100 bytes")
    return report


async def _low_rate(server: Serving, count: int, *, lazy_start: bool, router: Router | None) -> tuple[int, int, int]:
    """Returns the server's connections, the segment writers, and the growth of the server's memory in bytes."""
    async with connect(f"tcp://{server.controller}", random=Random(1)) as pravega, AsyncExitStack() as stack:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", "low-rate", segments=SEGMENTS)
        locations = pravega.locations("WRITE")
        memory, descriptors = server.memory_bytes(), server.descriptors()

        async def open_writer(number: int) -> EventWriter:
            pool = await stack.enter_async_context(ConnectionPool(pravega.pool.settings, random=Random(number)))
            cluster = Cluster(pool, pravega.controller, locations)
            writer = EventWriter(cluster, "bench", "low-rate", lazy_start=lazy_start, router=router)
            await writer.open()
            stack.push_async_callback(writer.aclose)
            for _ in range(EVENTS):
                await writer.write(bytes(100))
            return writer

        writers: list[EventWriter] = []
        for first in range(0, count, _AT_ONCE):
            writers += await asyncio.gather(*map(open_writer, range(first, min(first + _AT_ONCE, count))))
        segment_writers = sum(len(writer.stats().segments) for writer in writers)
        return server.descriptors() - descriptors, segment_writers, server.memory_bytes() - memory


# --- PIP-57: the session of one store of three expires ------------------------------------------------------------

Policy = Literal["reconnect", "shutdown"]
How = Literal["ended by the service", "line cut", "store gone"]

CONTAINERS: Final = 12
SESSIONS_MS: Final = (1_000.0, 2_000.0, 4_000.0)
QUICK_SESSIONS_MS: Final = (300.0, 600.0)
_STEADY_S: Final = 0.4
_PAUSE_S: Final = 0.002
_PATIENCE_S: Final = 60.0


class Cost(NamedTuple):
    """share: fraction of the store's containers that another store served. gap_s: longest wait for an ack."""

    share: float
    gap_s: float


def ownership(effort: Effort) -> Report:
    """Counts containers that change owner, and measures how long writes stop, for both policies (57.10).

    The session expires because the service ends it, because the line between store and service is cut until other
    stores have taken over, or because the store is gone without notice.
    """
    report = Report("Ownership")
    rows = []
    shares: dict[tuple[Policy, How], float] = {}
    policies: tuple[Policy, ...] = ("reconnect", "shutdown")
    ways: tuple[How, ...] = ("ended by the service", "line cut", "store gone")
    with _quiet():
        for policy in policies:
            for how in ways:
                for timeout_ms in SESSIONS_MS if effort.is_full else QUICK_SESSIONS_MS:
                    costs = [asyncio.run(_cost(policy, how, timeout_ms)) for _ in range(2 if effort.is_full else 1)]
                    share = shares[policy, how] = statistics.median(cost.share for cost in costs)
                    gap_s = statistics.median(cost.gap_s for cost in costs)
                    rows.append((f"{policy}, {how}", f"{timeout_ms / 1000:g}", f"{share:.0%}", f"{gap_s:.3f}"))
    name = "reconnect, session ended by the service: containers of the store that change owner"
    report.add(name, shares["reconnect", "ended by the service"], 0.0, at_most=True, unit="")
    heading = ("policy, and event", "session timeout, s", "of the store's containers change owner", "write gap, s")
    report.tables.append((heading, rows))
    return report


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the log, in which every expired session is an error."""
    log = logging.getLogger("segstore")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _cost(policy: Policy, how: How, timeout_ms: float) -> Cost:
    settings = OwnershipSettings(session_timeout_ms=timeout_ms, session_expired_policy=policy)
    mock = MockCluster(stores=3, containers=CONTAINERS, ownership=settings)
    async with mock, connect(f"tcp://{mock.controller_uri}") as pravega:
        await pravega.controller.create_scope("bench")
        await pravega.controller.create_stream("bench", "stream", segments=6)
        async with pravega.event_writer("bench", "stream") as writer:
            waits: list[float] = []
            stop = asyncio.Event()
            writing = [asyncio.create_task(_write(writer, f"key {key}", waits, stop)) for key in range(18)]
            await asyncio.sleep(_STEADY_S)
            waits.clear()
            held = set(mock.stores[0].store.containers)
            lost = await _expire(mock, how, held)
            await asyncio.sleep(_STEADY_S)
            stop.set()
            await asyncio.gather(*writing)
        return Cost(len(lost) / len(held), max(waits))


async def _write(writer: EventWriter, key: str, waits: list[float], stop: asyncio.Event) -> None:
    while not stop.is_set():
        start = time.perf_counter()
        await writer.write(b"event", routing_key=key)
        waits.append(time.perf_counter() - start)
        await asyncio.sleep(_PAUSE_S)


async def _expire(mock: MockCluster, how: How, held: set[int]) -> set[int]:
    """Expires the first store's session; returns the containers that other stores served until all are served again."""
    lost: set[int] = set()
    deadline_s = time.monotonic() + _PATIENCE_S
    if how == "ended by the service":
        mock.expire_session(0)
    else:
        mock.cut_session(0)
        if how == "store gone":
            await mock.stores[0].stop(drain_s=0)
    while not held <= lost | (_served(mock, 0) if how == "ended by the service" else set()):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"containers {held - lost} are served by no other store")
        lost |= held & (_served(mock, 1) | _served(mock, 2))
        await asyncio.sleep(_PAUSE_S)
    if how == "line cut":
        mock.heal_session(0)
    return lost


def _served(mock: MockCluster, number: int) -> set[int]:
    return set(mock.stores[number].store.containers)


# --- PDP-43A: one large event, and the same bytes as events of 1 MB -----------------------------------------------

_MIB: Final = 1024 * 1024
SIZES_MIB: Final = (24, 64, 256)


class Rates(NamedTuple):
    """MB/s."""

    written: float
    read: float


def large_events(effort: Effort) -> Report:
    """Measures events that go through a transient segment beside the same bytes as events of 1 MB (43.15).

    One client, one writer, a stream of one segment, contenders in turns. A write is timed from the first event that is
    submitted to the last acknowledgement, a read from opening a reader to the last event.
    """
    report = Report("Large events")
    rows, ratios = [], list[float]()
    with serving() as server:
        for mebibytes in SIZES_MIB:
            size = max(9 * _MIB, round(mebibytes * _MIB * effort.scale))
            large, small = uvloop.run(_large_and_small(server.controller, size, max(3, effort.rounds // 2)))
            name = f"{size / _MIB:.0f} MiB"
            row = [name]
            for field in ("written", "read"):
                pairs = [(getattr(a, field), getattr(b, field)) for a, b in zip(large, small, strict=True)]
                ratio = statistics.median(a / b for a, b in pairs)
                row += [f"{statistics.median(rates):,.0f}" for rates in zip(*pairs, strict=True)] + [f"{ratio:.2f}"]
                if field == "written":
                    ratios.append(ratio)
            rows.append(row)
    report.add("writing one large event: MB/s, of 1 MB events, slowest size", min(ratios), 0.5, at_most=False)
    heading = ("the same bytes", "one event, MB/s", "1 MB events, MB/s", "ratio", "read: one", "1 MB", "ratio")
    report.tables.append((heading, rows))
    return report


async def _large_and_small(controller: str, size: int, rounds: int) -> tuple[list[Rates], list[Rates]]:
    content = bytes(size)
    contenders = {"large": [content], "small": [content[at : at + 1_000_000] for at in range(0, size, 1_000_000)]}
    rates: dict[str, list[Rates]] = {name: [] for name in contenders}
    async with connect(f"tcp://{controller}") as pravega:
        await pravega.controller.create_scope("bench")
        for number in range(-1, rounds):
            for name in list(contenders) if number % 2 else list(reversed(contenders)):
                measured = await _write_and_read(pravega, f"{name}-{size}-{number + 1}", contenders[name])
                if number >= 0:  # the first round warms up
                    rates[name].append(measured)
    return rates["large"], rates["small"]


async def _write_and_read(pravega: Client, stream: str, events: list[bytes]) -> Rates:
    await pravega.controller.create_stream("bench", stream)
    async with pravega.event_writer("bench", stream) as writer:
        gc.collect()
        start = time.perf_counter()
        await asyncio.gather(*[await writer.submit(event, routing_key="k") for event in events])
        written_s = time.perf_counter() - start
        if not writer.large_events.exactly_once or writer.large_events.restarts:
            raise RuntimeError(f"{stream}: {writer.large_events.restarts} restarts distort the measurement")
    gc.collect()
    start = time.perf_counter()
    async with pravega.event_reader("bench", stream) as reader:
        for event in events:
            if len((await anext(reader)).data) != len(event):
                raise RuntimeError(f"{stream}: an event came back with another size")
        read_s = time.perf_counter() - start
    await pravega.controller.seal_stream("bench", stream)
    await pravega.controller.delete_stream("bench", stream)
    size = sum(map(len, events)) / 1e6
    return Rates(size / written_s, size / read_s)
