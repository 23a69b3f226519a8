"""What does an append cost the store, and what do taps and recordings add to it?

The store, taps and a uvloop echo server run in processes of their own; this process sends all of them the same bytes,
frames encoded beforehand: as fast as they are taken, or one append at a time. Compared are times until the last append
is acknowledged (from the echo, until all bytes are back), or the CPU time that the kernel counts for the server
(`/proc/<pid>/task/*/schedstat`, system calls included), so this benchmark needs Linux.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import Effort, Report, Times, take_turns
from bench.processes import ROOT, Serving, baseline, serving, tapping
from segstore.check import check
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    DataAppended,
    DeleteSegment,
    FrameDecoder,
    Hello,
    SegmentCreated,
    SegmentDeleted,
    SetupAppend,
    encode,
)

__all__ = ["recording", "run", "tap"]

WAIT_S: Final = 30.0
CPU_GOAL_US: Final = 0.6
"""CPU time of the store for an append of the first load."""
CHUNK_BYTES: Final = 1 << 18
_REPLY_BYTES: Final = 4096
WRITER: Final = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
ACK_BYTES: Final = len(encode(DataAppended(0, WRITER, 0, 0, 0)))
_ack_number = struct.Struct(">q")


@dataclass(frozen=True)
class Load:
    """Appends that are one frame pair each.

    count: how many. size: bytes of each. events: how many each is said to hold.
    """

    name: str
    count: int
    size: int
    events: int

    def frames(self, effort: Effort) -> tuple[bytes, int, int]:
        """The bytes, how many appends they are, and the number of the last event."""
        count = max(20, round(self.count * effort.scale))
        pairs = [
            encode(AppendBlock(WRITER, bytes(self.size)))
            + encode(AppendBlockEnd(WRITER, self.size, b"", self.events, n * self.events, 7 << 32 | n))
            for n in range(1, count + 1)
        ]
        return b"".join(pairs), count, count * self.events


SINGLE: Final = Load("appends of 100 bytes, one at a time", 2_000, 100, 1)
SMALL: Final = Load("single appends of 100 bytes", 30_000, 100, 1)
KILOBYTE: Final = Load("single appends of 1 KB", 20_000, 1024, 1)
TEN_KILOBYTES: Final = Load("single appends of 10 KB", 4_000, 10_240, 1)
BLOCKS: Final = Load("blocks of 64 KB", 1_500, 65_536, 64)
LARGE_BLOCKS: Final = Load("blocks of 1 MB", 60, 1_000_000, 1_000)
RESULTS: Final = ROOT / "bench" / "results"
RULES: Final = "rules:\n  - {match: type = SEAL_SEGMENT, do: close, name: never}\n"
RULES_ON_APPENDS: Final = "rules:\n  - {match: type = APPEND_BLOCK_END and segment = none, do: close, name: never}\n"
KEPT: Final = ("--http-port", "0")


def run(effort: Effort) -> Report:
    """Measures the cost of an append, and its rate beside a uvloop echo of the same bytes."""
    report = Report("Server")
    rows = []
    rounds = 2 * effort.rounds + 1  # sockets are noisier than calls
    with serving() as store, baseline("echo") as echo:
        for load, goal in ((SMALL, None), (KILOBYTE, 0.6), (BLOCKS, 0.8)):
            data, count, last = load.frames(effort)
            cpu_s = {"store": 0.0, "echo": 0.0}

            def on_store(data: bytes = data, last: int = last, cpu_s: dict[str, float] = cpu_s) -> float:
                with writer(store.port) as peer:
                    return _timed(store, cpu_s, "store", lambda: exchange(peer, data, acknowledged(last)))

            def on_echo(data: bytes = data, cpu_s: dict[str, float] = cpu_s) -> float:
                with _connected(echo.port) as peer:
                    return _timed(echo, cpu_s, "echo", lambda: exchange(peer, data, returned(len(data))))

            times = take_turns({"store": on_store, "echo": on_echo}, rounds)
            ratio = times.ratio("echo", "store")
            cpu_us = {name: spent / rounds / count * 1e6 for name, spent in cpu_s.items()}
            if goal is None:
                report.add(f"{load.name}: CPU of the store", cpu_us["store"], CPU_GOAL_US, at_most=True, unit="µs")
            else:
                report.add(f"{load.name}: rate, of a uvloop echo of the same bytes", ratio, goal, at_most=False)
            rates = f"{count / times.median('store'):,.0f}", f"{len(data) / times.median('store') / 1e6:,.0f}"
            rows.append((load.name, f"{cpu_us['store']:.2f}", f"{cpu_us['echo']:.2f}", *rates, f"{ratio:.2f}"))
    heading = ("load", "store CPU µs an append", "echo CPU µs", "appends/s", "MB/s", "rate, of echo")
    report.tables.append((heading, rows))
    return report


def tap(effort: Effort) -> Report:
    """Measures appends through taps beside the same appends to the store directly.

    A plain tap, one that records, one with rules that name another type, one whose rules are asked about each append.
    Sender, tap and store share the machine's cores.
    """
    report = Report("A tap")
    rows = []
    ways = ("direct", "through a tap", "with a recording", "with rules", "with rules on appends")
    with _folder() as folder, serving() as store:
        rules, on_appends = folder / "faults.yaml", folder / "on_appends.yaml"
        rules.write_text(RULES, "utf-8")
        on_appends.write_text(RULES_ON_APPENDS, "utf-8")
        for load, goal, goal_with_rules in ((SINGLE, 3.0, None), (SMALL, 2.5, 3.0), (TEN_KILOBYTES, None, None)):
            trace = folder / f"{load.size}-{load.count}.wtrace"
            with (
                tapping(store.port) as plain,
                tapping(store.port, "--record", str(trace)) as recording,
                tapping(store.port, "--faults", str(rules)) as ruled,
                tapping(store.port, "--faults", str(on_appends)) as asked,
            ):
                ports = dict(zip(ways, (store.port, plain.port, recording.port, ruled.port, asked.port), strict=True))
                count, send = (one_at_a_time if load is SINGLE else pipelined)(load, effort)
                times = _warm_turns({name: _seconds(port, send) for name, port in ports.items()}, effort)
            _judge(trace)
            ratios = {name: times.ratio(name, "direct") for name in ways[1:]}
            if goal is not None:
                report.add(f"{load.name}: time through a tap, of direct", ratios[ways[1]], goal, at_most=True)
            if goal_with_rules is not None:
                name = f"{load.name}: time through a tap with rules, of direct"
                report.add(name, ratios["with rules"], goal_with_rules, at_most=True)
            cells = (f"{times.median(name) / count * 1e6:.1f}" for name in ways)
            rows.append((load.name, *cells, *(f"{ratio:.2f}" for ratio in ratios.values())))
    heading = ("load", *(f"{name}, µs an append" for name in ways), *(f"{name}, ×" for name in ways[1:]))
    report.tables.append((heading, rows))
    return report


def recording(effort: Effort) -> Report:
    """Measures the CPU time of servers that record, or have an HTTP port and so keep the latest traffic, beside servers
    that do neither.

    Both servers of a pair are pinned to one processor and this process to another. Traces go to a folder beside the
    results, so that the file system is that of the working copy and no memory disk.
    """
    report = Report("Recording")
    rows = []
    with _folder() as folder:
        for load in (SINGLE, SMALL, KILOBYTE, BLOCKS, LARGE_BLOCKS):
            count, send = (one_at_a_time if load is SINGLE else pipelined)(load, effort)
            file = folder / f"{load.size}-{load.count}.wtrace"
            with serving() as plain, serving("--record", str(file)) as recorded:
                of_recording = _cpu_in_turns(plain, recorded, send, effort)
            with serving() as plain, serving(*KEPT) as keeping:
                of_keeping = _cpu_in_turns(plain, keeping, send, effort)
            with serving() as store, tapping(store.port) as plain, tapping(store.port, *KEPT) as keeping:
                of_tap = _cpu_in_turns(plain, keeping, send, effort)
            cells = [load.name, f"{file.stat().st_size / (len(of_recording.seconds['with']) + 1) / count:,.0f}"]
            if load is SINGLE:
                name = f"{load.name}: CPU of a store with a recording, of without"
                report.add(name, of_recording.ratio("with", "without"), 1.3, at_most=True)
            for times in (of_recording, of_keeping, of_tap):
                cells.append(f"{times.ratio('with', 'without'):.2f}")
                cells += [f"{times.median(way) / count * 1e6:.2f}" for way in ("without", "with")]
            rows.append(tuple(cells))
            _judge(file)
    heading = ["load", "bytes of the trace an append"]
    for what, more in (("store", "recording"), ("store", "with an HTTP port"), ("tap", "with an HTTP port")):
        heading += [f"{what} {more}: ratio", f"{what} without: CPU µs an append", f"{what} {more}: CPU µs an append"]
    report.tables.append((heading, rows))
    return report


@contextmanager
def _folder() -> Iterator[Path]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as name:
        yield Path(name)


def _judge(trace: Path) -> None:
    """Judges a trace, and deletes it."""
    report = check([trace])
    if report.broken or report.skipped:
        raise RuntimeError(report.text())
    trace.unlink()


def _warm_turns(contenders: dict[str, Callable[[], float]], effort: Effort, rounds: int = 2) -> Times:
    for run_once in contenders.values():
        run_once()  # the first round pays for what later rounds use again
    return take_turns(contenders, rounds * effort.rounds + 1)


def _seconds(port: int, send: Callable[[socket.socket], None]) -> Callable[[], float]:
    def measured() -> float:
        with writer(port) as peer:
            start = time.perf_counter()
            send(peer)
            return time.perf_counter() - start

    return measured


def _cpu_in_turns(plain: Serving, other: Serving, send: Callable[[socket.socket], None], effort: Effort) -> Times:
    def cpu_s(server: Serving) -> Callable[[], float]:
        def measured() -> float:
            with writer(server.port) as peer:
                before = server.cpu_s()
                send(peer)
                return server.cpu_s() - before

        return measured

    # The kernel otherwise moves a server between the processor of its client and another one, which halves or doubles
    # its CPU time.
    usable = os.sched_getaffinity(0)
    for server in (plain, other):
        server.run_on({max(usable)})
    os.sched_setaffinity(0, usable - {max(usable)} or usable)
    try:
        return _warm_turns({"without": cpu_s(plain), "with": cpu_s(other)}, effort, rounds=4)
    finally:
        os.sched_setaffinity(0, usable)


# --- traffic ------------------------------------------------------------------------------------------------------


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield peer


@contextmanager
def writer(port: int, segment: str = "") -> Iterator[socket.socket]:
    """A connection with a writer that is set up for a new segment, which is deleted in the end."""
    segment = segment or f"bench/appends/{time.monotonic_ns()}"
    with _connected(port) as peer:
        _ask(peer, Hello(17, 5), Hello)
        _ask(peer, CreateSegment(1, segment, 0, 0, "", 0), SegmentCreated)
        _ask(peer, SetupAppend(2, WRITER, segment, ""), AppendSetup)
        yield peer
        _ask(peer, DeleteSegment(3, segment, ""), SegmentDeleted)


def _ask(peer: socket.socket, command: Command, reply: type[Command]) -> None:
    peer.sendall(encode(command))
    decoder = FrameDecoder()
    while not (found := decoder.feed(data := peer.recv(4096))):
        if not data:
            raise ConnectionError(f"no answer to {command}")
    if type(found[0]) is not reply:
        raise RuntimeError(f"{found[0]} answers {command}")


def _timed(server: Serving, cpu_s: dict[str, float], name: str, run: Callable[[], None]) -> float:
    before, start = server.cpu_s(), time.perf_counter()
    run()
    spent = time.perf_counter() - start
    cpu_s[name] += server.cpu_s() - before
    return spent


def returned(size: int) -> Callable[[memoryview], bool]:
    """Whether so many bytes are back."""
    left = size

    def done(got: memoryview) -> bool:
        nonlocal left
        left -= len(got)
        return left <= 0

    return done


def acknowledged(last: int) -> Callable[[memoryview], bool]:
    """Whether the last bytes are the acknowledgement of that event."""
    tail = b""

    def done(got: memoryview) -> bool:
        nonlocal tail
        tail = (tail + got[-ACK_BYTES:])[-ACK_BYTES:] if len(got) < ACK_BYTES else bytes(got[-ACK_BYTES:])
        return tail.startswith(b"\0\0\0\7\0\0\0\x30") and _ack_number.unpack_from(tail, 24)[0] >= last

    return done


def exchange(peer: socket.socket, data: bytes, done: Callable[[memoryview], bool]) -> None:
    """Sends all and reads until done says so."""
    peer.setblocking(False)
    buffer = bytearray(CHUNK_BYTES)
    view, left = memoryview(buffer), memoryview(data)
    with selectors.DefaultSelector() as selector:
        selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            ready = selector.select(WAIT_S)
            if not ready:
                raise TimeoutError(f"{len(left)} bytes are left to send, and nothing came for {WAIT_S} s")
            _, events = ready[0]
            if events & selectors.EVENT_READ:
                size = peer.recv_into(buffer)
                if not size:
                    raise ConnectionError(f"closed with {len(left)} bytes left to send")
                if done(view[:size]):
                    break
            if events & selectors.EVENT_WRITE:
                left = left[peer.send(left[:CHUNK_BYTES]) :]
                if not left:
                    selector.modify(peer, selectors.EVENT_READ)
    peer.setblocking(True)
    peer.settimeout(WAIT_S)


def pipelined(load: Load, effort: Effort) -> tuple[int, Callable[[socket.socket], None]]:
    """How many appends a round has, and what sends them as fast as they are taken."""
    data, count, last = load.frames(effort)
    return count, lambda peer: exchange(peer, data, acknowledged(last))


def one_at_a_time(load: Load, effort: Effort) -> tuple[int, Callable[[socket.socket], None]]:
    """How many appends a round has, and what sends each when the one before it is acknowledged."""
    count = max(20, round(load.count * effort.scale))
    frames = [
        encode(AppendBlock(WRITER, bytes(load.size)))
        + encode(AppendBlockEnd(WRITER, load.size, b"", 1, number, 7 << 32 | number))
        for number in range(1, count + 1)
    ]

    def send(peer: socket.socket) -> None:
        for number, frame in enumerate(frames, 1):
            peer.sendall(frame)
            done, is_done = acknowledged(number), False
            while not is_done:
                got = peer.recv(_REPLY_BYTES)
                if not got:
                    raise ConnectionError(f"closed before append {number} was acknowledged")
                is_done = done(memoryview(got))

    return count, send
