"""What does an append cost the store, and how near does it come to a server that only sends bytes back?

The store and a uvloop echo server run in processes of their own; this one sends them the same bytes, frames encoded
beforehand, as fast as they take them, and reads what they answer: all of it back from the echo, the acknowledgement of
the last append from the store. Compared are the times until then. The CPU time of the store is what the kernel says
that its process ran (`/proc/<pid>/task/*/schedstat`), so this benchmark needs Linux.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bench.harness import Effort, Figure, Report, take_turns
from bench.pictures import Bars
from bench.processes import Serving, announced, serving
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

__all__ = ["Load", "one_at_a_time", "pipelined", "returned", "run", "writer"]

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
    goal: float | None

    def frames(self, effort: Effort) -> tuple[bytes, int, int]:
        """The bytes, how many appends they are, and the number of the last event."""
        count = max(20, round(self.count * effort.scale))
        pairs = [
            encode(AppendBlock(WRITER, bytes(self.size)))
            + encode(AppendBlockEnd(WRITER, self.size, b"", self.events, n * self.events, 7 << 32 | n))
            for n in range(1, count + 1)
        ]
        return b"".join(pairs), count, count * self.events


LOADS: Final = (
    Load("single appends of 100 bytes", 30_000, 100, 1, None),
    Load("single appends of 1 KB", 20_000, 1024, 1, 0.60),
    Load("blocks of 64 KB", 1_500, 65_536, 64, 0.80),
)


def run(effort: Effort) -> Report:
    report = Report(
        "Server", question="What does an append cost the store, compared with a server that only echoes the bytes?"
    )
    rows = []
    shown = {"store": list[float](), "uvloop echo": list[float]()}
    spent_us: dict[str, float] = {}
    rounds = 2 * effort.rounds + 1  # sockets are noisier than calls
    with serving() as store, _echo() as echo:
        for load in LOADS:
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
            if load.goal is not None:
                report.figures.append(
                    Figure(f"{load.name}: rate, of a uvloop echo of the same bytes", ratio, load.goal, at_most=False)
                )
            for name, by in (("store", "store"), ("uvloop echo", "echo")):
                shown[name].append(len(data) / times.median(by) / 1e6)
            per_append = {name: spent / rounds / count * 1e6 for name, spent in cpu_s.items()}
            spent_us[load.name] = per_append["store"]
            rows.append(
                (
                    load.name,
                    f"{per_append['store']:.2f}",
                    f"{per_append['echo']:.2f}",
                    f"{count / times.median('store'):,.0f}",
                    f"{len(data) / times.median('store') / 1e6:,.0f}",
                    f"{ratio:.2f}",
                )
            )
    heading = ("load", "store CPU µs an append", "echo CPU µs", "appends/s", "MB/s", "rate, of echo")
    report.tables.append((heading, rows))
    report.says = (
        "The store takes blocks of 64 KB at {:.2f} times, and single appends of 1 KB at {:.2f} times, the rate of a "
        "uvloop echo server."
    ).format(*(figure.value for figure in reversed(report.figures)))
    report.figures.append(
        Figure(f"{LOADS[0].name}: CPU of the store", spent_us[LOADS[0].name], CPU_GOAL_US, at_most=True, unit=" µs")
    )
    names = [load.name for load in LOADS]
    title = "Bytes of appends taken, by the store and by a uvloop echo"
    report.pictures.append(Bars("server-rates", title, "", "MB/s", shown, groups=names, decimals=0))
    report.notes.append(
        "both in processes of their own, given the same bytes as fast as they take them; an exchange ends "
        "when all bytes "
        "are back, or the last append is acknowledged; CPU time is the kernel's count for the process"
    )
    return report


# --- processes ----------------------------------------------------------------------------------------------------


@contextmanager
def _echo() -> Iterator[Serving]:
    with announced("-m", "bench.echo") as (pid, line):
        yield Serving(pid, int(line), "")


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
