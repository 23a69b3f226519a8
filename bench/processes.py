"""Processes to measure: `segstore serve`, `segstore tap`, and two baselines, which do the least that a server can.

    python -m bench.processes echo                               sends back all bytes that arrive
    python -m bench.processes log FOLDER REQUEST REPLY           group commit with `fdatasync`, and nothing else

The log appends the bytes of its peers to one file as they arrive. A thread writes all that has arrived, waits for
`fdatasync`, and then answers each REQUEST bytes with REPLY bytes. Both baselines print their port. Needs Linux's /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, cast

import uvloop

from segstore.wire import Command, FrameDecoder, Hello, encode

__all__ = ["COMMAND_LINE", "ROOT", "Peer", "Serving", "announced", "baseline", "serving", "tapping"]

ROOT: Final = Path(__file__).parent.parent
COMMAND_LINE: Final = "from segstore.cli.commands import main; main()"
WAIT_S: Final = 60.0
_STOP_S: Final = 30.0


@dataclass(frozen=True)
class Serving:
    """A running store and controller, or a tap. controller: host:port; empty for a tap or a baseline."""

    pid: int
    port: int
    controller: str = ""

    def cpu_s(self) -> float:
        """Returns the time that its threads ran, system calls included."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def run_on(self, processors: Set[int]) -> None:
        """Restricts its threads to these processors."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), processors)

    def memory_bytes(self) -> int:
        """Returns its resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def announced(*arguments: str) -> Iterator[tuple[int, str]]:
    """Starts a Python process; yields its pid and the first line that it printed. Stops it at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(arguments)} ended with status {process.wait(_STOP_S)} before it listened")
        yield process.pid, line
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)
        process.stdout.close()


@contextmanager
def serving(*options: str) -> Iterator[Serving]:
    """Runs `segstore serve` on free ports during the block."""
    ports = ("--port", "0", "--controller-port", "0", "--announce", "json")
    with announced("-c", COMMAND_LINE, "serve", *ports, *options) as (pid, line):
        addresses = json.loads(line)
        yield Serving(pid, int(addresses["segment_store"].rpartition(":")[2]), addresses["controller"])


@contextmanager
def tapping(port: int, *options: str) -> Iterator[Serving]:
    """Runs `segstore tap` before a store on this machine during the block."""
    tap = ("-c", COMMAND_LINE, "tap", "--announce", "json", "--store", f"127.0.0.1:{port}")
    with announced(*tap, *options) as (pid, line):
        yield Serving(pid, int(json.loads(line)["segment_store"].rpartition(":")[2]))


@contextmanager
def baseline(*arguments: str) -> Iterator[Serving]:
    """Runs a baseline of this module during the block."""
    with announced("-m", "bench.processes", *arguments) as (pid, line):
        yield Serving(pid, int(line))


class Peer:
    """A blocking connection to a store, after Hello. A context manager."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self.ask([encode(Hello(17, 5))], Hello)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, frames: Iterable[bytes], reply: type[Command], at_once: int = 500) -> list[Command]:
        """Sends requests in groups; returns their replies, which must be of this type."""
        replies: list[Command] = []
        source = iter(frames)
        while group := list(islice(source, at_once)):
            self.socket.sendall(b"".join(group))
            expected = len(replies) + len(group)
            while len(replies) < expected:
                data = self.socket.recv(1 << 20)
                if not data:
                    raise ConnectionError(f"closed before {expected - len(replies)} replies")
                replies += self._decoder.feed(data)
        if wrong := [command for command in replies if type(command) is not reply]:
            raise RuntimeError(f"the store answers {wrong[0]}")
        return replies


# --- the baselines ------------------------------------------------------------------------------------------------


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is a Transport in all but its bases

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Log:
    """The file and its thread."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._queue: SimpleQueue[list[tuple[_LogPeer, bytes]]] = SimpleQueue()
        self._forming: list[tuple[_LogPeer, bytes]] = []
        threading.Thread(target=self._write, daemon=True).start()

    def add(self, peer: _LogPeer, data: bytes) -> None:
        if not self._forming:
            self._loop.call_soon(self._hand_over)
        self._forming.append((peer, data))

    def _hand_over(self) -> None:
        forming, self._forming = self._forming, []
        self._queue.put(forming)

    def _write(self) -> None:
        while True:
            group = self._queue.get()
            while True:
                try:
                    group += self._queue.get_nowait()
                except Empty:
                    break
            os.write(self._file, b"".join([data for _, data in group]))
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(self._answer, group)

    @staticmethod
    def _answer(group: list[tuple[_LogPeer, bytes]]) -> None:
        sizes: dict[_LogPeer, int] = {}
        for peer, data in group:
            sizes[peer] = sizes.get(peer, 0) + len(data)
        for peer, size in sizes.items():
            peer.answer(size)


class _LogPeer(asyncio.Protocol):
    def __init__(self, log: _Log, request_bytes: int, reply_bytes: int) -> None:
        self._log = log
        self._request_bytes = request_bytes
        self._reply = bytes(reply_bytes)
        self._unanswered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._log.add(self, data)

    def answer(self, size: int) -> None:
        count, self._unanswered = divmod(self._unanswered + size, self._request_bytes)
        if count and not self._transport.is_closing():
            self._transport.write(self._reply * count)


async def _serve(kind: str, *arguments: str) -> None:
    loop = asyncio.get_running_loop()
    if kind == "echo":
        server = await loop.create_server(_Echo, "127.0.0.1", 0)
    else:
        folder, request_bytes, reply_bytes = arguments
        log = _Log(Path(folder, "log"))
        server = await loop.create_server(lambda: _LogPeer(log, int(request_bytes), int(reply_bytes)), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
