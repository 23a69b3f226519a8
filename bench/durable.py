"""What does durability cost, and what does a store that keeps its data need to start and to hold?

Appends of 1 KB, each sent when the one before it is acknowledged, from one writer and from 64. Compared with a bare
log behind the same sockets (`bench.processes`): group commit with `fdatasync`, and nothing else. Both run in processes
of their own and write to one disk, in turns. Then a store is filled with 1 GB, killed, and started again; and a store
that may keep 64 MiB in memory takes ten times as much, of which its process may hold so much more than when it was
empty. Needs Linux's /proc.
"""

from __future__ import annotations

import selectors
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Final

from bench.harness import Effort, Report, take_turns
from bench.processes import ROOT, Serving, baseline, serving
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    CreateSegment,
    DataAppended,
    FrameDecoder,
    Hello,
    ReadSegment,
    SetupAppend,
    encode,
)

__all__ = ["run"]

APPEND_BYTES: Final = 1024
WAIT_S: Final = 60.0
MEMORY_BYTES: Final = 64 << 20
OPEN_WITHIN_S: Final = 2.0
_WRITERS_OF_A_SEGMENT: Final = 16
_BLOCK_BYTES: Final = 64 * 1024
GOALS: Final = {1: 0.6, 64: 0.8}
NONE: Final = -(1 << 63)
ACK_BYTES: Final = len(encode(DataAppended(0, uuid.UUID(int=1), 0, 0, 0)))
_number = struct.Struct(">q")


def _append(writer: uuid.UUID, number: int, size: int) -> bytes:
    return encode(AppendBlock(writer, bytes(size))) + encode(AppendBlockEnd(writer, size, b"", 1, number, number))


REQUEST_BYTES: Final = len(_append(uuid.UUID(int=1), 1, APPEND_BYTES))


def run(effort: Effort) -> Report:
    report = Report("Durable stores")
    with tempfile.TemporaryDirectory(prefix="segstore-bench-", dir=ROOT / "bench") as folder:
        _rates(report, effort, Path(folder))
        _reopening(report, effort, Path(folder))
        _memory(report, effort, Path(folder))
    report.notes.append("both write to one disk, each append is acknowledged when it is on disk; group commit in both")
    return report


def _rates(report: Report, effort: Effort, folder: Path) -> None:
    rows = []
    (folder / "bare").mkdir()
    sizes = str(REQUEST_BYTES), str(ACK_BYTES)
    with serving("--data", str(folder / "data")) as store, baseline("log", str(folder / "bare"), *sizes) as bare:
        for writers, goal in GOALS.items():
            count = max(200, round(3000 * effort.scale)) * (1 if writers == 1 else 8)
            with _Load(store.port, writers, store=True) as on_store, _Load(bare.port, writers, store=False) as on_bare:
                times = take_turns(
                    {"store": partial(on_store.run, count), "bare": partial(on_bare.run, count)}, 2 * effort.rounds + 1
                )
            ratio = times.ratio("bare", "store")
            name = "one writer" if writers == 1 else f"{writers} writers"
            report.add(f"1 KB appends, {name}: rate, of a bare log with fdatasync", ratio, goal, at_most=False)
            rows.append(
                (
                    name,
                    f"{count / times.median('store'):,.0f}",
                    f"{count / times.median('bare'):,.0f}",
                    f"{times.median('store') / count * writers * 1e6:,.0f}",
                    f"{ratio:.2f}",
                )
            )
    heading = ("1 KB appends, one in flight each", "appends/s", "bare log, appends/s", "µs from send to ack", "rate")
    report.tables.append((heading, rows))


def _reopening(report: Report, effort: Effort, folder: Path) -> None:
    whole = 16 * _BLOCK_BYTES  # of each segment as much: a read behind the end of a shorter one would wait
    size = max(1, round((1 << 30) * min(1.0, effort.scale) / whole)) * whole
    data = folder / "reopened"
    with serving("--data", str(data)) as store:
        _fill(store.port, size, segments=16)
        subprocess.run(["kill", "-9", str(store.pid)], check=True)
    opened = {}
    for after in ("kill -9", "SIGTERM"):
        began = time.perf_counter()
        with serving("--data", str(data)) as store:
            opened[after] = time.perf_counter() - began
            _check(store.port, size, segments=16)
    began = time.perf_counter()
    with serving():
        empty_s = time.perf_counter() - began
    for after, spent in opened.items():
        name = f"opening {size >> 20:,} MiB of segments after {after}, beyond the start of an empty store"
        report.add(name, spent - empty_s, OPEN_WITHIN_S, at_most=True, unit="s")


def _memory(report: Report, effort: Effort, folder: Path) -> None:
    size = 10 * MEMORY_BYTES
    with serving("--data", str(folder / "small"), "--memory-bytes", str(MEMORY_BYTES)) as store:
        before = store.memory_bytes()
        highest = _fill(store.port, size, segments=16, watched=store)
        _check(store.port, size, segments=16)
        highest = max(highest, store.memory_bytes())
    name = f"{size >> 20} MiB under --memory-bytes of {MEMORY_BYTES >> 20} MiB: growth of the process"
    report.add(name, (highest - before) / MEMORY_BYTES, 1.0, at_most=True)


# --- the writers ---------------------------------------------------------------------------------------------------


class _Load:
    """Writers, each with a connection of its own and one append in flight; a segment is shared by sixteen of them."""

    def __init__(self, port: int, writers: int, *, store: bool) -> None:
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, tuple[uuid.UUID, int]] = {}
        stream = uuid.uuid4().hex
        for at in range(writers):
            peer = _connect(port)
            writer = uuid.uuid4()
            if store:
                _set_up(peer, f"bench/{stream}/{at // _WRITERS_OF_A_SEGMENT}.#epoch.0", writer)
            peer.setblocking(False)
            self._peers[peer] = (writer, 0)
            self._selector.register(peer, selectors.EVENT_READ)

    def __enter__(self) -> _Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for peer in self._peers:
            peer.close()

    def run(self, count: int) -> float:
        """Seconds until `count` appends are acknowledged."""
        share = count // len(self._peers)
        left = {}
        frames: dict[socket.socket, list[bytes]] = {}
        for peer, (writer, number) in self._peers.items():
            frames[peer] = [_append(writer, number + at, APPEND_BYTES) for at in range(share, 0, -1)]
            self._peers[peer] = writer, number + share
            left[peer] = share
        select, open_now = self._selector.select, len(left)
        began = time.perf_counter()
        for peer in left:
            peer.sendall(frames[peer].pop())
        while open_now:
            ready = select(WAIT_S)
            if not ready:
                raise TimeoutError(f"nothing came for {WAIT_S} s")
            for key, _ in ready:
                peer = key.fileobj  # type: ignore[assignment]
                if len(peer.recv(4096)) % ACK_BYTES:
                    raise RuntimeError("a reply that is no acknowledgement")
                left[peer] -= 1
                if left[peer]:
                    peer.send(frames[peer].pop())
                else:
                    open_now -= 1
        return time.perf_counter() - began


def _connect(port: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), WAIT_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _ask(peer: socket.socket, *commands: Command) -> list[Command]:
    peer.sendall(b"".join(map(encode, commands)))
    decoder = FrameDecoder()
    found: list[Command] = []
    while len(found) < len(commands):
        data = peer.recv(1 << 20)
        if not data:
            raise ConnectionError(f"no answer to {commands}")
        found += decoder.feed(data)
    return found


def _set_up(peer: socket.socket, segment: str, writer: uuid.UUID) -> None:
    _ask(peer, Hello(17, 5), CreateSegment(1, segment, 0, 0, "", 0), SetupAppend(2, writer, segment, ""))


def _name(number: int) -> str:
    return f"bench/filled/{number}.#epoch.0"


def _fill(port: int, size: int, *, segments: int, watched: Serving | None = None) -> int:
    """Writes so many bytes, whole blocks of 64 KiB with a few in flight; the most memory that the process had."""
    block, in_flight, highest = _BLOCK_BYTES, 32, 0
    with _connect(port) as peer:
        writers = [uuid.uuid4() for _ in range(segments)]
        for number, writer in enumerate(writers):
            _set_up(peer, _name(number), writer)
        sent = acked = 0
        pending = b""
        while acked < size // block:
            while sent < size // block and sent - acked < in_flight:
                peer.sendall(_append(writers[sent % segments], sent // segments + 1, block))
                sent += 1
            pending += peer.recv(1 << 16)
            acked += len(pending) // ACK_BYTES
            pending = pending[len(pending) // ACK_BYTES * ACK_BYTES :]
            if watched is not None and acked % 64 == 0:
                highest = max(highest, watched.memory_bytes())
    return highest


def _check(port: int, size: int, *, segments: int) -> None:
    """Reads it all."""
    with _connect(port) as peer:
        _ask(peer, Hello(17, 5))
        read = 0
        for number in range(segments):
            at = 0
            while True:
                (found,) = _ask(peer, ReadSegment(_name(number), at, 1 << 20, "", 1))
                count = len(found.data)  # type: ignore[attr-defined]
                read, at = read + count, at + count
                if at >= size // segments:
                    break
        if read < size:
            raise RuntimeError(f"{read} bytes are there, {size} were written")
