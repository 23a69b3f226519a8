"""How fast is a connection through a tap, beside the same connection without it?

One store and four taps before it run side by side, each in a process of its own: a tap that only passes bytes on, one
that records them too, one with rules, one with rules on appends. This process sends the same appends to the store
directly and through each tap: one at a time, each when the one before is acknowledged, or as fast as they are taken.
Compared is the time that passes in the same round. Sender, tap and store share the machine's cores, so with two of them
a tap takes from the others what it needs itself.

The traces go to a folder beside the results, so that the file system is that of the working copy and no memory disk.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.harness import Effort, Figure, Report, take_turns
from bench.pages import main
from bench.pictures import Bars
from bench.processes import serving, tapping
from bench.server import Load, one_at_a_time, pipelined, writer

__all__ = ["run"]

RESULTS: Final = Path(__file__).parent / "results"
GOAL: Final = 2.5
"""Each byte is copied through one process more, on the same cores."""
GOAL_ONE_AT_A_TIME: Final = 3.0
"""Each append and each acknowledgement wakes one process more, and there is nothing to do it beside."""
GOAL_WITH_RULES: Final = 3.0
"""For the first pipelined load, of which no rule has to look at an append."""
ONE_AT_A_TIME: Final = Load("appends of 100 bytes, one at a time", 2_000, 100, 1, GOAL_ONE_AT_A_TIME)
PIPELINED: Final = (
    Load("appends of 100 bytes, as fast as they are taken", 30_000, 100, 1, GOAL),
    Load("appends of 10 KB, as fast as they are taken", 4_000, 10_240, 1, GOAL),
)
RULES: Final = "rules:\n  - {match: type = SEAL_SEGMENT, do: close, name: never}\n"
RULES_ON_APPENDS: Final = "rules:\n  - {match: type = APPEND_BLOCK_END and segment = none, do: close, name: never}\n"
DIRECT: Final = "direct"
PLAIN: Final = "through a tap"
RECORDING: Final = "with a recording"
WITH_RULES: Final = "with rules"
WITH_RULES_ON_APPENDS: Final = "with rules on appends"
NAMES: Final = (DIRECT, PLAIN, RECORDING, WITH_RULES, WITH_RULES_ON_APPENDS)


def run(effort: Effort) -> Report:
    report = Report("A tap", question="How fast is a connection through a tap, compared with a direct one?")
    rows = []
    rounds = 2 * effort.rounds + 1  # sockets are noisier than calls
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder, serving() as store:
        rules, on_appends = Path(folder, "faults.yaml"), Path(folder, "on_appends.yaml")
        rules.write_text(RULES, "utf-8")
        on_appends.write_text(RULES_ON_APPENDS, "utf-8")
        for load in (ONE_AT_A_TIME, *PIPELINED):
            trace = Path(folder, f"{load.size}-{load.count}.wtrace")
            with (
                tapping(store.port) as plain,
                tapping(store.port, "--record", str(trace)) as recording,
                tapping(store.port, "--faults", str(rules)) as ruled,
                tapping(store.port, "--faults", str(on_appends)) as asked,
            ):
                ports = dict(zip(NAMES, (store.port, plain.port, recording.port, ruled.port, asked.port), strict=True))
                appends = one_at_a_time if load is ONE_AT_A_TIME else pipelined
                count, send = appends(load, effort)
                contenders = {name: _timed(port, send) for name, port in ports.items()}
                for each in contenders.values():
                    each()  # the first round pays for what the others use again
                times = take_turns(contenders, rounds)
            trace.unlink()
            ratios = {name: times.ratio(name, DIRECT) for name in ports}
            goal = GOAL_ONE_AT_A_TIME if load is ONE_AT_A_TIME else GOAL
            report.figures.append(
                Figure(f"{load.name}: time through a tap, of direct", ratios[PLAIN], goal, at_most=True)
            )
            if load is PIPELINED[0]:
                said = f"{load.name}: time through a tap with rules, of direct"
                with_rules = Figure(said, ratios[WITH_RULES], GOAL_WITH_RULES, at_most=True)
            each_us = [times.median(name) / count * 1e6 for name in ports]
            rows.append((load.name, *(f"{us:.1f}" for us in each_us), *(f"{ratios[n]:.2f}" for n in list(ports)[1:])))
    heading = ("load", *(f"{name}, µs an append" for name in ports), "tap ×", "recording ×", "rules ×", "on appends ×")
    report.tables.append((heading, rows))
    one, *others = (figure.value for figure in report.figures)
    report.figures.append(with_rules)
    report.says = (
        f"Appends one at a time take {one:.2f} times as long; pipelined ones at most {max(others):.2f} times, "
        "where sender, tap and store share the cores."
    )
    shown = {name: [float(row[at]) for row in rows] for at, name in enumerate(NAMES, 1)}
    title = "Time for an append, direct and through a tap"
    report.pictures.append(Bars("tap-time", title, "", "µs an append", shown, groups=[row[0] for row in rows]))
    report.notes.append(
        "the rules match nothing: those on appends are asked about each append; the others name another type, so that "
        "appends pass without being looked at one by one"
    )
    return report


def _timed(port: int, send: Callable[[socket.socket], None]) -> Callable[[], float]:
    """What measures how long the appends of one round take."""

    def measured() -> float:
        with writer(port) as peer:
            start = time.perf_counter()
            send(peer)
            return time.perf_counter() - start

    return measured


if __name__ == "__main__":
    sys.exit(main("tap", run))
