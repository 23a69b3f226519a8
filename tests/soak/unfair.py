"""Latency of one peer while others attack the store, measured in CPU time of the store from a request to its reply.

    python -m tests.soak.unfair [--seconds 8] [--serve PROGRAM] [ATTACK ...]

Each attack runs against its own `segstore serve`. One peer, the victim, sends an append of 100 bytes every 20 ms and
waits for its acknowledgement; the attackers are separate processes. CPU time is that of the whole store process, so
other load on the machine does not count; memory is its peak resident set.

An attack may be refused: connections closed by the store are opened again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    CreateSegment,
    CreateTableSegment,
    CreateTransientSegment,
    DataAppended,
    FrameDecoder,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    MergeSegmentsBatch,
    ReadSegment,
    ReadTable,
    ReadTableKeys,
    RemoveTableKeys,
    SetupAppend,
    StreamSegmentInfo,
    TableEntries,
    TableEntry,
    TableIteratorArgs,
    TableKey,
    TableValue,
    UpdateTableEntries,
    encode,
)

__all__ = ["ATTACKS", "Peer", "Result", "attacked", "served"]

GOAL_MS: Final = 100.0
GOAL_MB: Final = 512
PATIENCE_S: Final = 120.0
GIVEN_UP_S: Final = 20.0
PAUSE_S: Final = 0.02
MIB: Final = 1024 * 1024
SEGMENT: Final = "victim/stream/0.#epoch.0"
TAIL: Final = "attack/tail/0.#epoch.0"
TABLE: Final = "attack/table"
NO_VERSION: Final = -(1 << 63)
"""Version of a key that is written unconditionally."""


class Peer:
    """A blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
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

    def drain(self) -> None:
        """Reads and drops all input until the connection is closed."""
        try:
            while self.socket.recv(1 << 20):
                pass
        except OSError:
            pass  # the attack has ended


Act = Callable[[int, int], None]
"""Runs one connection's part in an attack until its process is killed; takes the port and the connection's number."""


class Attack(NamedTuple):
    """connections: number of concurrent connections. make: returns what each of them does. prepare: sets up the store
    at a port. Both are called once, before the measurement begins.
    """

    connections: int
    make: Callable[[], Act]
    prepare: Callable[[int], None] | None = None


def _flood(frames: bytes, *, read: bool) -> Act:
    """Sends the same frames repeatedly."""

    def act(port: int, _: int) -> None:
        peer = Peer(port)
        if read:
            threading.Thread(target=peer.drain, daemon=True).start()
        while True:
            peer.socket.sendall(frames)

    return act


def _now_and_then(frames: bytes) -> Act:
    """Sends the same frames once a second, on a permanent connection."""

    def act(port: int, _: int) -> None:
        peer = Peer(port)
        threading.Thread(target=peer.drain, daemon=True).start()
        while True:
            peer.socket.sendall(frames)
            time.sleep(1)

    return act


def _many(command: Command) -> bytes:
    """About 1 MiB of one command."""
    frame = encode(command)
    return frame * (MIB // len(frame))


def _asked(text: str) -> GetStreamSegmentInfo:
    return GetStreamSegmentInfo(1, text, "")


def _batch(names: list[str]) -> bytes:
    return encode(MergeSegmentsBatch(1, TAIL, tuple(names), ""))


def _create_table(port: int) -> None:
    Peer(port).ask(CreateTableSegment(1, TABLE, False, 0, "", 0))


def _fill_table(port: int, keys: int = 300_000, at_once: int = 250) -> None:
    _create_table(port)
    peer = Peer(port)
    for start in range(0, keys, at_once):
        peer.ask(_update(at_once, start))


def _update(count: int, start: int = 0) -> UpdateTableEntries:
    entries = [
        TableEntry(TableKey(number.to_bytes(8, "big"), NO_VERSION), TableValue(b""))
        for number in range(start, start + count)
    ]
    return UpdateTableEntries(1, TABLE, "", TableEntries(tuple(entries)), -1)


def _read_keys(count: int) -> ReadTable:
    return ReadTable(1, TABLE, "", tuple(TableKey(b"%d" % number, -1) for number in range(count)))


def _remove(count: int) -> RemoveTableKeys:
    keys = tuple(TableKey(number.to_bytes(8, "big"), NO_VERSION) for number in range(count))
    return RemoveTableKeys(1, TABLE, "", keys, -1)


def _page(count: int) -> ReadTableKeys:
    return ReadTableKeys(1, TABLE, "", count, TableIteratorArgs(b"", b"", b"", b""))


def _set_ups(count: int, *, leave: bool) -> Act:
    """Sets up many writers on one connection; then closes it, or keeps it open."""

    def act(port: int, number: int) -> None:
        while True:
            peer = Peer(port)
            threading.Thread(target=peer.drain, daemon=True).start()
            frames = [
                encode(SetupAppend(writer, UUID(int=number << 32 | writer), TAIL, "")) for writer in range(1, count + 1)
            ]
            peer.socket.sendall(b"".join(frames))
            time.sleep(1 if leave else PATIENCE_S)
            peer.socket.shutdown(socket.SHUT_RDWR)

    return act


def _waiting_reads(count: int) -> Act:
    """Reads at a tail; the first connection appends there, the others repeat their reads after each reply."""

    def act(port: int, number: int) -> None:
        peer = Peer(port)
        if number == 0:
            _append_for_ever(peer, TAIL, 2.0)
        asker, asked = Peer(port), -1
        threading.Thread(target=peer.drain, daemon=True).start()
        while True:
            reply = asker.ask(_asked(TAIL))
            if isinstance(reply, StreamSegmentInfo) and reply.write_offset > asked:
                asked = reply.write_offset
                peer.socket.sendall(encode(ReadSegment(TAIL, asked, 100, "", 1)) * count)
            time.sleep(0.2)

    return act


def _append_for_ever(peer: Peer, segment: str, pause_s: float) -> None:
    writer = UUID(int=99)
    peer.ask(SetupAppend(1, writer, segment, ""))
    number = 0
    while True:
        time.sleep(pause_s)
        number += 1
        peer.send(AppendBlock(writer, b"x" * 100), AppendBlockEnd(writer, 100, b"", 1, number, number))
        while not isinstance(peer.receive(), DataAppended):
            pass


def _create_tail(port: int) -> None:
    Peer(port).ask(CreateSegment(1, TAIL, 0, 0, "", 0))


def _silent(count: int) -> Act:
    """Opens connections that begin a frame and never complete it."""

    def act(port: int, _: int) -> None:
        peers = []
        for _ in range(count):
            peer = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
            peer.sendall(encode(Hello(17, 5)) + b"\0\0")
            peers.append(peer)
        time.sleep(PATIENCE_S)

    return act


def _transients(port: int, number: int) -> None:
    while True:
        peer = Peer(port)
        threading.Thread(target=peer.drain, daemon=True).start()
        peer.send(*(CreateTransientSegment(each, UUID(int=number), TAIL, "") for each in range(1000)))
        time.sleep(1)
        peer.socket.shutdown(socket.SHUT_RDWR)


def _again(*frames: bytes) -> Act:
    """Sends the same frames, each after the reply to the previous one; reconnects whenever the connection is closed."""

    def act(port: int, _: int) -> None:
        while True:
            try:
                peer = Peer(port)
                while True:
                    for frame in frames:
                        peer.socket.sendall(frame)
                        peer.receive()
            except OSError:
                continue

    return act


KEEP_ALIVES: Final = encode(KeepAlive()) * (MIB // 8)

ATTACKS: Final[dict[str, Attack]] = {
    "nothing": Attack(0, lambda: _flood(b"", read=True)),
    "keep-alives of 4": Attack(4, lambda: _flood(KEEP_ALIVES, read=True)),
    "keep-alives of 8": Attack(8, lambda: _flood(KEEP_ALIVES, read=True)),
    "keep-alives of 8, unread": Attack(8, lambda: _flood(KEEP_ALIVES, read=False)),
    "tiny requests of 8, unread": Attack(8, lambda: _flood(_many(_asked("a")), read=False)),
    "tiny requests of 8": Attack(8, lambda: _flood(_many(_asked("a")), read=True)),
    "burst of 128 x 1 MiB": Attack(128, lambda: _now_and_then(KEEP_ALIVES)),
    "names of 65,000 characters of 4": Attack(4, lambda: _flood(_many(_asked("n" * 65_000)), read=True)),
    "names of emoji of 4": Attack(4, lambda: _flood(_many(_asked("\U0001f600" * 10_800)), read=True)),
    "names of surrogates of 4": Attack(4, lambda: _flood(_many(_asked("\ud83d" * 21_000)), read=True)),
    "names of overlong bytes of 4": Attack(4, lambda: _flood(_many(_asked("\0" * 32_000)), read=True)),
    "20,000 set-ups of 14": Attack(14, lambda: _set_ups(20_000, leave=False), _create_tail),
    "20,000 set-ups of 14 that close": Attack(14, lambda: _set_ups(20_000, leave=True), _create_tail),
    "1,000 transient segments of 14 that close": Attack(14, lambda: _transients, _create_tail),
    "table updates of 500,000 of 4": Attack(4, lambda: _again(encode(_update(500_000))), _create_table),
    "table updates of 1,024 of 4": Attack(4, lambda: _again(encode(_update(1_024))), _create_table),
    "table updates of 1,024 of 16": Attack(16, lambda: _again(encode(_update(1_024))), _create_table),
    "table reads of 650,000 of 4": Attack(4, lambda: _again(encode(_read_keys(650_000))), _create_table),
    "table reads of 1,024 of 4": Attack(4, lambda: _again(encode(_read_keys(1_024))), _create_table),
    "pages of 300,000 keys of 4": Attack(4, lambda: _again(encode(_page(1 << 30))), _fill_table),
    "1,024 changed of 300,000 sorted keys of 4": Attack(
        4, lambda: _again(encode(_page(1)), encode(_remove(1_024)), encode(_update(1_024))), _fill_table
    ),
    "batches of 65,536 of 4": Attack(4, lambda: _again(_batch([f"s{n}" for n in range(65_536)])), _create_tail),
    "batches of 256 of 4": Attack(4, lambda: _again(_batch([f"s{n}" for n in range(256)])), _create_tail),
    "batches of 250 x 65,000 characters of 4": Attack(
        4, lambda: _again(_batch([f"{n:065000d}" for n in range(250)])), _create_tail
    ),
    "batches of 4,000,000 of 4": Attack(4, lambda: _again(_batch([""] * 4_000_000)), _create_tail),
    "300,000 waiting reads, woken": Attack(31, lambda: _waiting_reads(9_990), _create_tail),
    "10,000 that begin a frame": Attack(4, lambda: _silent(2_500)),
}


class Result(NamedTuple):
    """CPU time of the store for each request of the victim, in ms; its peak memory, in MB."""

    cpu_ms: list[float]
    wall_ms: list[float]
    memory_mb: float

    @staticmethod
    def _at(values: list[float], part: float) -> float:
        return sorted(values)[min(len(values) - 1, int(part * len(values)))]

    @property
    def p99_ms(self) -> float:
        return self._at(self.cpu_ms, 0.99)

    def row(self) -> str:
        cpu, wall = self.cpu_ms, self.wall_ms
        values = (self._at(cpu, 0.5), self._at(cpu, 0.99), max(cpu), self._at(wall, 0.99), self.memory_mb)
        return f"{len(cpu):>6} " + " ".join(f"{value:>9.1f}" for value in values)


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
            time.sleep(0.5)
            said.seek(0)
            raise RuntimeError(f"{error}; the store's status: {process.poll()}: {said.read()[-2000:]}") from error
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()


def _cpu_ms(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2) * 1000  # the clock of another process, see clock_getcpuclockid(3)


def _memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


VICTIM: Final = UUID(int=7)


def _victim(port: int) -> Peer:
    peer = Peer(port)
    peer.ask(CreateSegment(1, SEGMENT, 0, 0, "", 0))
    peer.ask(SetupAppend(2, VICTIM, SEGMENT, ""))
    peer.socket.settimeout(GIVEN_UP_S)
    return peer


def _measured(peer: Peer, pid: int, seconds: float) -> Result:
    """Measures the victim's appends. It stops after one that is not acknowledged within `GIVEN_UP_S`."""
    cpu: list[float] = []
    wall: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        number = len(cpu) + 1
        began, before = time.monotonic(), _cpu_ms(pid)
        peer.send(AppendBlock(VICTIM, b"x" * 100), AppendBlockEnd(VICTIM, 100, b"", 1, number, number))
        try:
            reply: Command | None = peer.receive()
        except TimeoutError:
            reply = None
        cpu.append(_cpu_ms(pid) - before)
        wall.append((time.monotonic() - began) * 1000)
        if reply is None:
            break
        if not isinstance(reply, DataAppended):
            raise RuntimeError(f"the reply to append {number} is {reply}")
        time.sleep(PAUSE_S)
    return Result(cpu, wall, _memory_mb(pid))


def _attack(act: Act, port: int, numbers: range) -> None:
    """One process of attackers: runs its share of the connections, each in a thread."""

    def in_thread(number: int) -> None:
        try:
            act(port, number)
        except OSError as error:
            print(f"    connection {number}: {error}", file=sys.stderr)

    threads = [threading.Thread(target=in_thread, args=(number,), daemon=True) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def attacked(name: str, program: str, seconds: float, options: tuple[str, ...] = ()) -> Result:
    """Runs one attack on a new store."""
    attack = ATTACKS[name]
    act = attack.make()
    processes = min(4, attack.connections)
    context = multiprocessing.get_context("fork")
    with served(program, *options) as (pid, said):
        port = int(said["segment_store"].rpartition(":")[2])
        if attack.prepare is not None:
            attack.prepare(port)
        victim = _victim(port)
        attackers = [
            context.Process(target=_attack, args=(act, port, range(each, attack.connections, processes)), daemon=True)
            for each in range(processes)
        ]
        for attacker in attackers:
            attacker.start()
        try:
            time.sleep(0.5)
            return _measured(victim, pid, seconds)
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="names, or beginnings of names; all by default")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each attack lasts")
    program = str(Path(sys.executable).with_name("segstore"))
    parser.add_argument("--serve", default=program, metavar="PROGRAM", help="what to attack")
    arguments, options = parser.parse_known_args()
    names = [each for each in ATTACKS if not arguments.attacks or any(map(each.startswith, arguments.attacks))]
    os.nice(1)  # the store has priority over the attackers
    print(f"{'attack':<45}{'appends':>7}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}{'p99 wall':>10}{'MB':>10}")
    failed = 0
    for name in names:
        result = attacked(name, arguments.serve, arguments.seconds, tuple(options))
        late = result.p99_ms > GOAL_MS or result.memory_mb > GOAL_MB
        failed += late
        print(f"{name:<45}{result.row()}{'  too much' if late else ''}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
