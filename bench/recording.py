"""What does recording the traffic of its connections cost a store or a tap?

Servers run in pairs, each in a process of its own: a store without and with `--record`, a store with an HTTP port that
keeps nothing or its latest traffic, and the same for a tap. This process sends both the same appends in turns: one at a
time, each when the one before is acknowledged, or as fast as they are taken. Compared is the CPU time of the two in the
same round, as the kernel counts it (`/proc/<pid>/task/*/schedstat`), system calls included, so this benchmark needs
Linux. Both are pinned to one processor and this process to another, if there are two; the store behind taps is not.
Bytes of the trace are those of its file, columns of the blocks included.

The trace goes to a folder beside the results, so that the file system is that of the working copy and no memory disk.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.harness import Effort, Figure, Report, Times, take_turns
from bench.pictures import Bars
from bench.processes import Serving, serving, tapping
from bench.server import Load, one_at_a_time, pipelined, writer

__all__ = ["run"]

RESULTS: Final = Path(__file__).parent / "results"
GOAL: Final = 1.3
KEPT_GOAL: Final = 1.1
ONE_AT_A_TIME: Final = Load("appends of 100 bytes, one at a time", 4_000, 100, 1, None)
PIPELINED: Final = (
    Load("appends of 100 bytes, as fast as they are taken", 30_000, 100, 1, GOAL),
    Load("appends of 1 KB, as fast as they are taken", 20_000, 1024, 1, GOAL),
    Load("blocks of 64 KB, as fast as they are taken", 800, 65_536, 64, GOAL),
    Load("blocks of 1 MB, as fast as they are taken", 60, 1_000_000, 1_000, GOAL),
)
NOTHING_KEPT: Final = ("--http-port", "0", "--history-bytes", "0")
KEPT: Final = ("--http-port", "0")


def run(effort: Effort) -> Report:
    report = Report("Recording", question="What does recording the traffic of its connections cost a store or a tap?")
    rows = []
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        for load in (ONE_AT_A_TIME, *PIPELINED):
            count, send = (one_at_a_time if load is ONE_AT_A_TIME else pipelined)(load, effort)
            file = Path(folder, f"{load.size}-{load.count}.wtrace")
            with serving() as plain, serving("--record", str(file)) as recorded:
                recording, rounds = _in_turns(plain, recorded, send, effort)
            with serving(*NOTHING_KEPT) as plain, serving(*KEPT) as keeping:
                kept, _ = _in_turns(plain, keeping, send, effort)
            with serving() as store, tapping(store.port, *NOTHING_KEPT) as plain, tapping(store.port, *KEPT) as keeping:
                tapped, _ = _in_turns(plain, keeping, send, effort)
            for what, times, goal in (
                ("CPU of a store with a recording", recording, GOAL),
                ("CPU of a store with the latest traffic kept", kept, KEPT_GOAL),
                ("CPU of a tap with the latest traffic kept", tapped, KEPT_GOAL),
            ):
                ratio = times.ratio("with", "without")
                report.figures.append(Figure(f"{load.name}: {what}, of without", ratio, goal, at_most=True))
            cells = [load.name, f"{file.stat().st_size / rounds / count:,.0f}"]
            for times in (recording, kept, tapped):
                cells += [f"{times.median(name) / count * 1e6:.2f}" for name in ("without", "with")]
                cells.append(f"{times.ratio('with', 'without'):.2f}")
            rows.append(tuple(cells))
            file.unlink()
    heading = (
        *("load", "bytes of the trace an append", "store, CPU µs an append", "with a recording", "ratio"),
        *("store with an HTTP port", "latest traffic kept", "ratio"),
        *("tap with an HTTP port", "latest traffic kept", "ratio"),
    )
    report.tables.append((heading, rows))
    recording_most, kept_most, tapped_most = (max(each.value for each in report.figures[at::3]) for at in range(3))
    report.says = (
        f"A recording takes at most {recording_most:.2f} times the CPU time of a store that does not record; keeping "
        f"the latest traffic in memory takes a store at most {kept_most:.2f} times, a tap {tapped_most:.2f} times."
    )
    shown = {"plain": [float(row[2]) for row in rows[:3]], "with a recording": [float(row[3]) for row in rows[:3]]}
    title = "CPU time of the store for an append, without and with --record"
    report.pictures.append(
        Bars("recording-cpu", title, "", "µs an append", shown, groups=[row[0] for row in rows[:3]], decimals=2)
    )
    report.notes.append("the two servers of a pair take the same appends in turns; blocks are one append each")
    return report


def _in_turns(
    plain: Serving, other: Serving, send: Callable[[socket.socket], None], effort: Effort
) -> tuple[Times, int]:
    """The CPU times of two servers, and how many rounds each had."""
    contenders = {"without": _cpu(plain, send), "with": _cpu(other, send)}
    rounds = 4 * effort.rounds + 1  # sockets are noisier than calls
    with _apart(plain, other):
        for each in contenders.values():
            each()  # the first round pays for what the others use again
        return take_turns(contenders, rounds), rounds + 1


@contextmanager
def _apart(*servers: Serving) -> Iterator[None]:
    """Pins servers to one processor and this process to the others, if there are any.

    The kernel otherwise moves a server between the processor of its client and others, which halves or doubles its CPU
    time.
    """
    usable = os.sched_getaffinity(0)
    last = {max(usable)}
    for each in servers:
        each.run_on(last)
    os.sched_setaffinity(0, usable - last or usable)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def _cpu(store: Serving, send: Callable[[socket.socket], None]) -> Callable[[], float]:
    """What measures the CPU time of a server while it takes the appends of one round."""

    def measured() -> float:
        with writer(store.port) as peer:
            before = store.cpu_s()
            send(peer)
            return store.cpu_s() - before

    return measured
