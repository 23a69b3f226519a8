"""`segstore serve` or `segstore tap` in a process of its own, and what the kernel knows of it. Needs Linux's /proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["COMMAND_LINE", "ROOT", "Serving", "announced", "serving", "tapping"]

ROOT: Final = Path(__file__).parent.parent
COMMAND_LINE: Final = "from segstore.cli.commands import main; main()"
_STOP_S: Final = 30.0


@dataclass(frozen=True)
class Serving:
    """A store and a controller that run, or a tap before one. controller: host:port; empty for a tap."""

    pid: int
    port: int
    controller: str

    def cpu_s(self) -> float:
        """Time that its threads ran, system calls included."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def run_on(self, processors: Set[int]) -> None:
        """Restricts its threads to these processors."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), processors)

    def memory_bytes(self) -> int:
        """What it holds of the machine's memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"/proc/{self.pid}/status has no VmRSS")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def announced(*arguments: str) -> Iterator[tuple[int, str]]:
    """The pid of a Python process and the first line that it printed; it is stopped in the end."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    if process.stdout is None:
        raise RuntimeError("a server without its standard output")
    try:
        line = process.stdout.readline()
        if not line:
            status = process.wait(_STOP_S)
            raise RuntimeError(f"{' '.join(arguments)} ended with status {status} before it listened")
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
    """Starts it on free ports; it is stopped in the end."""
    ports = ("--port", "0", "--controller-port", "0", "--announce", "json")
    with announced("-c", COMMAND_LINE, "serve", *ports, *options) as (pid, line):
        where = json.loads(line)
        yield Serving(pid, int(where["segment_store"].rpartition(":")[2]), where["controller"])


@contextmanager
def tapping(port: int, *options: str) -> Iterator[Serving]:
    """A tap before a store on this machine; it is stopped in the end."""
    tap = ("-c", COMMAND_LINE, "tap", "--announce", "json", "--store", f"127.0.0.1:{port}")
    with announced(*tap, *options) as (pid, line):
        yield Serving(pid, int(json.loads(line)["segment_store"].rpartition(":")[2]), "")
