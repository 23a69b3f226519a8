"""What does recording the traffic of its connections cost the store?

Stores run side by side, each in a process of its own: one with `--record`, and two with an HTTP port, of which one
keeps its latest traffic. This process sends all the same appends: one at a time, each when the one before is
acknowledged, or as fast as they are taken. Compared is the CPU time of two in the same round, as the kernel counts it
(`/proc/<pid>/task/*/schedstat`), system calls included, so this benchmark needs Linux. Bytes of the trace are those of
its file, columns of the blocks included.

The trace goes to a folder beside the results, so that the file system is that of the working copy and no memory disk.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.harness import Effort, Figure, Report, take_turns
from bench.pictures import Bars
from bench.processes import Serving, serving
from bench.server import Load, one_at_a_time, pipelined, writer

__all__ = ["run"]

RESULTS: Final = Path(__file__).parent / "results"
GOAL: Final = 1.3
KEPT_GOAL: Final = 1.1
PIPELINED: Final = (
    Load("appends of 100 bytes, as fast as they are taken", 30_000, 100, 1, GOAL),
    Load("appends of 1 KB, as fast as they are taken", 20_000, 1024, 1, GOAL),
)
ONE_AT_A_TIME: Final = Load("appends of 100 bytes, one at a time", 4_000, 100, 1, GOAL)


def run(effort: Effort) -> Report:
    report = Report("Recording", question="What does recording the traffic of its connections cost the store?")
    rows = []
    rounds = 2 * effort.rounds + 1  # sockets are noisier than calls
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        for load in (ONE_AT_A_TIME, *PIPELINED):
            file = Path(folder, f"{load.size}-{load.count}.wtrace")
            with (
                serving() as plain,
                serving("--record", str(file)) as recorded,
                serving("--http-port", "0", "--history-bytes", "0") as listening,
                serving("--http-port", "0") as keeping,
            ):
                appends = one_at_a_time if load is ONE_AT_A_TIME else pipelined
                count, send = appends(load, effort)
                stores = {"plain": plain, "recorded": recorded, "listening": listening, "keeping": keeping}
                contenders = {name: _cpu(store, send) for name, store in stores.items()}
                for each in contenders.values():
                    each()  # the first round pays for what the others use again
                times = take_turns(contenders, rounds)
            ratio = times.ratio("recorded", "plain")
            report.figures.append(
                Figure(f"{load.name}: server CPU with a recording, of without", ratio, GOAL, at_most=True)
            )
            kept = times.ratio("keeping", "listening")
            report.figures.append(
                Figure(
                    f"{load.name}: server CPU with the latest traffic kept, of without", kept, KEPT_GOAL, at_most=True
                )
            )
            rows.append(
                (
                    load.name,
                    f"{times.median('plain') / count * 1e6:.2f}",
                    f"{times.median('recorded') / count * 1e6:.2f}",
                    f"{file.stat().st_size / (rounds + 1) / count:,.0f}",
                    f"{ratio:.2f}",
                    f"{times.median('listening') / count * 1e6:.2f}",
                    f"{times.median('keeping') / count * 1e6:.2f}",
                    f"{kept:.2f}",
                )
            )
            file.unlink()
    heading = (
        *("load", "server CPU µs an append", "with a recording", "bytes of the trace an append", "ratio"),
        *("with an HTTP port, nothing kept", "latest traffic kept", "ratio"),
    )
    report.tables.append((heading, rows))
    worst, most = (
        max(figure.value for figure in report.figures[::2]),
        max(figure.value for figure in report.figures[1::2]),
    )
    report.says = (
        f"A recording takes at most {worst:.2f} times the CPU time of a store that does not record; keeping the latest "
        f"traffic in memory takes at most {most:.2f} times."
    )
    shown = {"plain": [float(row[1]) for row in rows], "with a recording": [float(row[2]) for row in rows]}
    title = "CPU time of the store for an append, without and with --record"
    report.pictures.append(
        Bars("recording-cpu", title, "", "µs an append", shown, groups=[row[0] for row in rows], decimals=2)
    )
    report.notes.append("the stores take the same appends; one writes them to a file on disk, one keeps them in memory")
    return report


def _cpu(store: Serving, send: Callable[[socket.socket], None]) -> Callable[[], float]:
    """What measures the CPU time of a store while it takes the appends of one round."""

    def measured() -> float:
        with writer(store.port) as peer:
            before = store.cpu_s()
            send(peer)
            return store.cpu_s() - before

    return measured
