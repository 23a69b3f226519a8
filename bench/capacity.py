"""How much fits into one process, and how long does an acknowledgement take when a thousand writers append?

Memory is what the kernel says that the process of `segstore serve` holds, before and after, over what was added: so it
counts what the interpreter and the allocator keep aside as well. Segments are empty; table entries have a key of 16
bytes and a value of 100, which are part of the figure. Connections have said Hello and are quiet.

Latency is measured by a client in this project's own codec. Each of the writers appends 100 bytes at its turn, whatever
became of the turn before, and an append's time starts at its turn and not when it could be sent, so that a stall is
counted for all who waited through it. The client is one process, and its own share is in the figure.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final, cast

import uvloop

from bench.harness import Effort, Figure, Report
from bench.pages import main
from bench.pictures import Bars
from bench.processes import Serving, serving
from segstore.wire import (
    AppendBlockEnd,
    AppendSetup,
    Buffer,
    Command,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    FrameDecoder,
    Hello,
    SegmentCreated,
    SetupAppend,
    TableEntries,
    TableEntriesUpdated,
    TableEntry,
    TableKey,
    TableValue,
    UpdateTableEntries,
    encode,
)

__all__ = ["run"]

SEGMENTS: Final = 100_000
ENTRIES: Final = 200_000
CONNECTIONS: Final = 10_000
WRITERS: Final = 1_000
EVENT_BYTES: Final = 100
WAIT_S: Final = 60.0
_EVENT: Final = bytes(EVENT_BYTES)
SPARE_DESCRIPTORS: Final = 200
LOADS: Final = ((1_000, 5_000), (1_000, 20_000), (10, 20_000), (10, 50_000))
"""Connections that the writers share, and appends a second of all together."""


def run(effort: Effort) -> Report:
    report = Report(
        "Capacity",
        question="How much fits into one process, and how long does an acknowledgement take under a thousand writers?",
    )
    _raise_descriptors()
    segments, entries, connections = (max(100, round(each * effort.scale)) for each in (SEGMENTS, ENTRIES, CONNECTIONS))
    connections = min(connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS)
    rows = []
    for name, count, goal, measure in (
        ("a segment", segments, SEGMENTS, _segments),
        ("a table entry of 116 bytes", entries, ENTRIES, _entries),
        ("an idle connection", connections, CONNECTIONS, _connections),
    ):
        with serving() as server:
            grown, spent = measure(server, count)
            rows.append((name, f"{count:,}", f"{grown / count:,.0f}", f"{grown / 1e6:,.0f}", f"{spent:.1f}"))
        if effort.scale == 1 and name != "a table entry of 116 bytes":
            report.figures.append(Figure(f"{name[2:].strip()}s in one process", count, goal, at_most=False, unit=""))
    report.tables.append((("what", "how many", "bytes each", "MB", "s to make"), rows))
    latencies = [_latency(shared, rate, 5 * effort.scale, max(1, effort.rounds // 3)) for shared, rate in LOADS]
    report.says = (
        f"A segment takes {rows[0][2]} bytes, a table entry {rows[1][2]} and an idle connection {rows[2][2]}; with "
        f"{LOADS[0][0]:,} connections and {LOADS[0][1]:,} appends a second 99 % are acknowledged within "
        f"{latencies[0][4]} ms."
    )
    report.pictures.append(
        Bars(
            "capacity-latency",
            f"{WRITERS:,} writers: time until an append is acknowledged",
            "",
            "ms",
            {name: [max(0.01, float(row[at])) for row in latencies] for at, name in ((3, "p50"), (4, "p99"))},
            log=True,
            groups=[f"{shared:,} connections\n{rate:,}/s" for shared, rate in LOADS],
            decimals=2,
        )
    )
    report.tables.append(
        (
            (
                "connections",
                "appends/s asked",
                "reached",
                "p50 ms",
                "p99 ms",
                "p99.9 ms",
                "server, of a core",
                "client",
            ),
            latencies,
        )
    )
    report.notes.append(
        f"latency: {WRITERS:,} writers, each with a segment of its own, {EVENT_BYTES} bytes an append; "
        "of the rounds, the one with the lowest p99"
    )
    return report


def _raise_descriptors() -> None:
    """As many as the system lets us; the server inherits it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- memory -------------------------------------------------------------------------------------------------------


class _Peer:
    """A blocking connection that has said Hello."""

    def __init__(self, server: Serving) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), WAIT_S)
        self._decoder = FrameDecoder()
        self.socket.sendall(encode(Hello(17, 5)))
        self.replies(1)

    def __enter__(self) -> _Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def replies(self, count: int) -> list[Command]:
        found: list[Command] = []
        while len(found) < count:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError(f"closed after {len(found)} of {count} replies")
            found += self._decoder.feed(data)
        return found

    def all_done(self, frames: Iterator[bytes], reply: type[Command], at_once: int) -> None:
        """Send in groups, and check each reply."""
        while group := [frame for _, frame in zip(range(at_once), frames, strict=False)]:
            self.socket.sendall(b"".join(group))
            for found in self.replies(len(group)):
                if type(found) is not reply:
                    raise RuntimeError(f"the store answers {found}")


def _grown(server: Serving, make: Callable[[], None]) -> tuple[int, float]:
    before, start = server.memory_bytes(), time.perf_counter()
    make()
    return server.memory_bytes() - before, time.perf_counter() - start


def _segments(server: Serving, count: int) -> tuple[int, float]:
    with _Peer(server) as peer:
        frames = (encode(CreateSegment(at, f"bench/stream/{at}.#epoch.0", 0, 0, "", 0)) for at in range(count))
        return _grown(server, lambda: peer.all_done(frames, SegmentCreated, 500))


def _entries(server: Serving, count: int) -> tuple[int, float]:
    table, batch, value = "bench/table/0.#epoch.0", 100, TableValue(bytes(100))
    with _Peer(server) as peer:
        peer.all_done(iter([encode(CreateTableSegment(1, table, False, 0, ""))]), SegmentCreated, 1)

        def frames() -> Iterator[bytes]:
            for first in range(0, count, batch):
                keys = (TableKey(f"{at:016}".encode(), -(2**63)) for at in range(first, min(first + batch, count)))
                entries = TableEntries([TableEntry(key, value) for key in keys])
                yield encode(UpdateTableEntries(first, table, "", entries))

        return _grown(server, lambda: peer.all_done(frames(), TableEntriesUpdated, 20))


def _connections(server: Serving, count: int) -> tuple[int, float]:
    with ExitStack() as opened:

        def open_all() -> None:
            for _ in range(count):
                opened.enter_context(_Peer(server))

        grown = _grown(server, open_all)
        if server.descriptors() < count:
            raise RuntimeError(f"the server has {server.descriptors()} descriptors open, not {count}")
        return grown


# --- latency ------------------------------------------------------------------------------------------------------


class _Writers(asyncio.Protocol):
    """Some of the writers, on one connection."""

    def __init__(self, identifiers: list[uuid.UUID], waits: list[float]) -> None:
        self.identifiers = identifiers
        self.ready = asyncio.get_running_loop().create_future()
        self._waits = waits
        self._starts: dict[tuple[uuid.UUID, int], float] = {}
        self._numbers = dict.fromkeys(identifiers, 0)
        self._decoder = FrameDecoder()
        self._set_up = 0
        self._settled: asyncio.Future[None] | None = None
        self._unsent: list[Buffer] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast("asyncio.Transport", transport)  # uvloop's has its methods and not its type
        transport.write(encode(Hello(17, 5)))
        for identifier in self.identifiers:
            name = f"bench/{identifier}/0.#epoch.0"
            transport.write(encode(CreateSegment(1, name, 0, 0, "", 0)))
            transport.write(encode(SetupAppend(2, identifier, name, "")))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        for reply in self._decoder.feed(data):
            match reply:
                case DataAppended(writer_id=writer, event_number=last, previous_event_number=before):
                    for number in range(max(before, 0) + 1, last + 1):
                        self._waits.append(now - self._starts.pop((writer, number)))
                    if self._settled is not None and not self._starts:
                        self._settled.set_result(None)
                        self._settled = None
                case AppendSetup():
                    self._set_up += 1
                    if self._set_up == len(self.identifiers):
                        self.ready.set_result(None)
                case Hello() | SegmentCreated():
                    pass
                case _:
                    raise RuntimeError(f"the store answers {reply}")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionError("closed before all writers were set up"))

    def append(self, at: int, turn: float) -> None:
        """One append of one of the writers, whose turn was then."""
        identifier = self.identifiers[at % len(self.identifiers)]
        number = self._numbers[identifier] = self._numbers[identifier] + 1
        self._starts[identifier, number] = turn
        self._unsent.append(encode(AppendBlockEnd(identifier, EVENT_BYTES, _EVENT, 1, number, number)))

    def send(self) -> None:
        """What has been appended since the last time, at once."""
        if self._unsent:
            self.transport.write(b"".join(self._unsent))
            self._unsent.clear()

    async def settled(self) -> None:
        """Wait until all appends are acknowledged."""
        if self._starts:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled


def _latency(shared: int, rate: int, seconds: float, rounds: int) -> tuple[str, ...]:
    """The round in which the 99th percentile was lowest: who else is on the machine cannot make it lower."""
    best: tuple[float, ...] | None = None
    for _ in range(rounds):
        with serving() as server:
            waits, spent, shares = uvloop.run(_appends(server, shared, rate, seconds))
        waits.sort()
        quantiles = (waits[min(len(waits) - 1, int(len(waits) * part))] * 1000 for part in (0.5, 0.99, 0.999))
        found = (len(waits) / spent, *quantiles, *shares)
        best = found if best is None or found[2] < best[2] else best
    if best is None:
        raise ValueError(f"{rounds} rounds measure nothing")
    reached, *quantile_ms, of_server, of_client = best
    shown = (f"{each:.2f}" for each in quantile_ms)
    return (f"{shared:,}", f"{rate:,}", f"{reached:,.0f}", *shown, f"{of_server:.0%}", f"{of_client:.0%}")


async def _appends(
    server: Serving, shared: int, rate: int, seconds: float
) -> tuple[list[float], float, tuple[float, float]]:
    loop, waits = asyncio.get_running_loop(), list[float]()
    identifiers = [uuid.UUID(int=number + 1) for number in range(WRITERS)]
    peers = []
    for at in range(shared):
        _, peer = await loop.create_connection(
            lambda at=at: _Writers(identifiers[at::shared], waits),  # type: ignore[misc]
            "127.0.0.1",
            server.port,
        )
        peers.append(peer)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(peer.ready for peer in peers))
    gc.collect()
    gc.disable()  # this client's collector is not the store's latency
    start, cpu, own_cpu, sent = time.perf_counter(), server.cpu_s(), time.process_time(), 0
    total = round(rate * seconds)
    while sent < total:
        due = min(total, int((time.perf_counter() - start) * rate))
        for at in range(sent, due):
            peers[at % shared].append(at // shared, start + at / rate)
        for at in range(sent, min(due, sent + shared)):
            peers[at % shared].send()
        sent = due
        await asyncio.sleep(0.0005)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(peer.settled() for peer in peers))
    spent = time.perf_counter() - start
    gc.enable()
    shares = (server.cpu_s() - cpu) / spent, (time.process_time() - own_cpu) / spent
    for peer in peers:
        peer.transport.close()
    await asyncio.sleep(0)
    return waits, spent, shares


if __name__ == "__main__":
    sys.exit(main("capacity", run))
