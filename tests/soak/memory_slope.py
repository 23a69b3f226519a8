"""Memory of `segstore serve` under steady load: finds leaks from closed writers, transactions and connections.

    python -m tests.soak.memory_slope [--seconds 1800] [-- OPTION OF SERVE ...]

Two workers run rounds against one store: one keeps its connections, the other opens new ones for each round. A round
writes, commits and aborts transactions, merges segments, appends conditionally, fills and empties a key-value table,
creates a transient segment, reads its events, truncates them, and creates and deletes a scope and a stream; it leaves
the store as it was. The resident set is sampled every second. The slope is that of a least-squares line through the
last third of the samples, when caches, the allocator's arenas and the names that must not be reused have settled. The
exit status is 1 if it exceeds `LIMIT_MB_PER_HOUR`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import linear_regression
from uuid import uuid4

import uvloop

from segstore.client import Client, ClientSettings, TableConfig, TableKey, connect
from segstore.wire import (
    Command,
    ConditionalAppend,
    CreateSegment,
    CreateTransientSegment,
    DeleteSegment,
    Event,
    FrameDecoder,
    Hello,
    MergeSegments,
    SegmentCreated,
    SetupAppend,
    encode,
)

LIMIT_MB_PER_HOUR = 16.0
EVENTS = 20
KEYS = 50
TABLE = TableConfig(partitions=2, primary_key_bytes=9, secondary_key_bytes=8)
TRANSACTIONS = 4


class Peer:
    """A blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 120.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._ready: list[Command] = []
        self.ask(Hello(17, 5))

    def send(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(map(encode, commands)))

    def receive(self) -> Command:
        while not self._ready:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the store closed the connection")
            self._ready = list(self._decoder.feed(data))
        return self._ready.pop(0)

    def ask(self, command: Command) -> Command:
        self.send(command)
        return self.receive()


@contextmanager
def served(program: str, *options: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Starts a store; yields its process and its announcement."""
    command = [program, "serve", "--port", "0", "--controller-port", "0", "--announce", "json", *options]
    with tempfile.TemporaryFile("w+") as said:  # a pipe that is not read would block the store
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said)
        assert process.stdout is not None
        try:
            if not (line := process.stdout.readline()):
                said.seek(0)
                raise RuntimeError(f"the store ended with status {process.wait()}: {said.read()[-2000:]}")
            yield process.pid, json.loads(line)
            if process.poll() is not None:
                said.seek(0)
                raise RuntimeError(f"the store ended with status {process.returncode}: {said.read()[-2000:]}")
        except OSError as error:
            with suppress(subprocess.TimeoutExpired):  # it may run on
                process.wait(timeout=5)
            said.seek(0)
            raise RuntimeError(f"{error}; the store's status: {process.poll()}: {said.read()[-2000:]}") from error
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()


async def round_of(pravega: Client, scope: str, number: int) -> None:
    """One round on the stream `scope/stays` and the table `scope/table`."""
    cut = await write(pravega, scope, number)
    await pravega.controller.truncate_stream(scope, "stays", cut)
    await use_table(pravega, scope)
    short = f"{scope}-{number}"
    await pravega.controller.create_scope(short)
    await pravega.controller.create_stream(short, "stream", segments=2)
    async with pravega.event_writer(short, "stream") as writer:
        await writer.write(b"event", routing_key="key")
    await pravega.controller.seal_stream(short, "stream")
    await pravega.controller.delete_stream(short, "stream")
    await pravega.controller.delete_scope(short)


async def write(pravega: Client, scope: str, number: int) -> dict[int, int]:
    """Writes events and transactions, and reads them back; returns the cut after them."""
    async with pravega.event_reader(scope, "stays", from_="tail") as reader:
        async with pravega.event_writer(scope, "stays") as writer:
            for event in range(EVENTS):
                await writer.write(b"%d" % event, routing_key=str(event))
        async with pravega.transaction_writer(scope, "stays") as transactions:
            for each in range(TRANSACTIONS):
                async with transactions.begin() as transaction:
                    await transaction.write(b"transaction", routing_key=str(number))
                    if each % 2:
                        await transaction.abort()
                    else:
                        await transaction.commit()
        for _ in range(EVENTS + TRANSACTIONS // 2):
            await reader.read()
    segments = await pravega.controller.current_segments(scope, "stays")
    requests = pravega.segment_requests()
    tails = [await requests.info(segment.name) for segment in segments]
    return {each.segment_id: tail.write_offset for each, tail in zip(segments, tails, strict=True)}


async def use_table(pravega: Client, scope: str) -> None:
    async with pravega.table(scope, "table") as table:
        keys = [TableKey(b"partition", b"%08d" % key) for key in range(KEYS)]
        await table.put_all((key, uuid4().bytes) for key in keys)
        await table.get_all(keys)
        await table.remove_all((key, None) for key in keys)


def merge_by_hand(peer: Peer, name: str, *, stays: bool) -> None:
    """Writes a segment conditionally, merges it into another, and deletes that. A transient segment is deleted if
    `stays`, or left to the end of its connection.
    """
    writer, source, target = uuid4(), f"{name}/source/0.#epoch.0", f"{name}/target/0.#epoch.0"
    for segment in (source, target):
        peer.ask(CreateSegment(1, segment, 0, 0, "", 0))
    peer.ask(SetupAppend(2, writer, source, ""))
    peer.ask(ConditionalAppend(writer, 1, 0, Event(b"event"), 3))
    transient = peer.ask(CreateTransientSegment(4, writer, target, ""))
    assert isinstance(transient, SegmentCreated)
    if stays:
        peer.ask(DeleteSegment(7, transient.segment, ""))
    peer.ask(MergeSegments(5, target, source, ""))
    peer.ask(DeleteSegment(6, target, ""))


async def work(uri: str, port: int, scope: str, until_s: float, *, stays: bool) -> int:
    """Runs rounds until the deadline; returns their number."""
    rounds = 0
    settings = ClientSettings()
    async with connect(uri, settings) as pravega:
        await pravega.controller.create_scope(scope)
        await pravega.controller.create_stream(scope, "stays", segments=2)
        await pravega.controller.create_table(scope, "table", TABLE)
        peer = Peer(port)
        while time.monotonic() < until_s:
            rounds += 1
            if stays:
                await round_of(pravega, scope, rounds)
            else:
                async with connect(uri, settings) as fresh:
                    await round_of(fresh, scope, rounds)
                peer.socket.close()
                peer = Peer(port)
            merge_by_hand(peer, f"{scope}-{rounds}", stays=stays)
        peer.socket.close()
    return rounds


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def watch(pid: int, until_s: float) -> list[float]:
    """Samples the resident set in MB, once a second; prints it every minute."""
    seen: list[float] = []
    while time.monotonic() < until_s:
        await asyncio.sleep(1)
        seen.append(resident_mb(pid))
        if len(seen) % 60 == 0:
            print(f"{len(seen) // 60:>4} min {seen[-1]:>8.1f} MB", flush=True)
    return seen


async def run(pid: int, store: str, controller: str, seconds: float) -> int:
    until_s = time.monotonic() + seconds
    uri, port = f"tcp://{controller}", int(store.rpartition(":")[2])
    async with asyncio.TaskGroup() as workers:
        stays = workers.create_task(work(uri, port, "stays", until_s, stays=True))
        fresh = workers.create_task(work(uri, port, "fresh", until_s, stays=False))
        watched = workers.create_task(watch(pid, until_s))
    seen = watched.result()
    settled = seen[2 * len(seen) // 3 :]
    slope = linear_regression(range(len(settled)), settled).slope * 3600
    print(f"{stays.result()} rounds on permanent connections, {fresh.result()} on new ones")
    print(f"{settled[0]:.1f} MB after two thirds, {settled[-1]:.1f} MB at the end: {slope:+.1f} MB per hour")
    return int(slope > LIMIT_MB_PER_HOUR)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long the load lasts")
    arguments, options = parser.parse_known_args()
    program = str(Path(sys.executable).with_name("segstore"))
    with served(program, "--containers", "1", *options) as (pid, said):
        return uvloop.run(run(pid, said["segment_store"], said["controller"], arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
